#![allow(dead_code, reason = "each test uses a part of it")]
#![allow(clippy::allow_attributes, reason = "the other part is dead in each")]

//! Random objects of a kind, and random patches for them that often affect the same fields.

use std::collections::BTreeMap;

use podplane_api::schema::{ElementIdentity, PatchMeta, Type, TypeStructure};
use proptest::{
    prelude::RngExt,
    test_runner::{RngAlgorithm, TestRng},
};
use serde_json::{Map, Value, json};

pub(crate) struct RandomDocuments {
    rng: TestRng,
    /// The few fields of each struct that this run uses, so that objects and patches have the same.
    fields: BTreeMap<String, Vec<String>>,
    /// The fields, by struct, that no object has.
    left_out: &'static [(&'static str, &'static str)],
}

impl RandomDocuments {
    pub(crate) fn new(seed: u64) -> Self {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        Self {
            rng: TestRng::from_seed(RngAlgorithm::ChaCha, &bytes),
            fields: BTreeMap::new(),
            left_out: &[],
        }
    }

    /// Leaves fields out of all objects and patches.
    pub(crate) fn without(mut self, fields: &'static [(&'static str, &'static str)]) -> Self {
        self.left_out = fields;
        self
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.rng.random_range(0..n)
    }

    /// True with a probability of `percent` %.
    pub(crate) fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub(crate) fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }

    pub(crate) fn scalar(&mut self) -> Value {
        let scalars = [
            json!("a"),
            json!("b"),
            json!("c"),
            json!(1),
            json!(2),
            json!(true),
        ];
        self.pick(&scalars).clone()
    }

    fn name(&mut self) -> String {
        (*self.pick(&["a", "b", "c"])).to_owned()
    }

    /// The fields of a struct that this run uses: those with special merge rules first, and some
    /// others.
    fn fields_of(&mut self, ty: Type) -> Vec<String> {
        let TypeStructure::Struct(fields) = ty.kind() else {
            return Vec::new();
        };
        if let Some(chosen) = self.fields.get(&fields.name) {
            return chosen.clone();
        }
        let mut names: Vec<String> = fields.fields().map(|(name, _)| name.to_owned()).collect();
        names.retain(|name| {
            // kubectl reads the last of these itself.
            !["apiVersion", "kind", "name", "managedFields", "namespace"].contains(&name.as_str())
                && !self
                    .left_out
                    .contains(&(fields.name.as_str(), name.as_str()))
        });
        let mut chosen: Vec<String> = Vec::new();
        for _ in 0..3 {
            let special = |name: &&String| {
                let field = fields.field(name).expect("one of its fields");
                field.patch.merge
                    || field.patch.retain_keys
                    || !matches!(field.ty().kind(), TypeStructure::Scalar)
            };
            let specials: Vec<&String> = names.iter().filter(special).collect();
            if !specials.is_empty() {
                chosen.push((*self.pick(&specials)).clone());
            }
            if !names.is_empty() {
                chosen.push(self.pick(&names).clone());
            }
        }
        chosen.sort();
        chosen.dedup();
        self.fields.insert(fields.name.clone(), chosen.clone());
        chosen
    }

    /// A random object of a kind, with `metadata.name`.
    pub(crate) fn object(&mut self, ty: Type, api_version: &str, kind: &str, name: &str) -> Value {
        let mut object = self.value(ty, None, 6);
        object["apiVersion"] = api_version.into();
        object["kind"] = kind.into();
        if !object["metadata"].is_object() {
            object["metadata"] = json!({});
        }
        object["metadata"]["name"] = name.into();
        object
    }

    pub(crate) fn value(&mut self, ty: Type, meta: Option<&PatchMeta>, depth: usize) -> Value {
        match ty.kind() {
            TypeStructure::Scalar | TypeStructure::Any => self.scalar(),
            TypeStructure::Map(values) => {
                let count = self.below(4);
                let map: Map<_, _> = (0..count)
                    .map(|_| (self.name(), self.value(values, None, 0)))
                    .collect();
                map.into()
            }
            TypeStructure::Struct(fields) => {
                let mut object = Map::new();
                for name in self.fields_of(ty) {
                    if depth > 0 && self.chance(70) {
                        let field = fields.field(&name).expect("one of its fields");
                        object.insert(name, self.value(field.ty(), Some(&field.patch), depth - 1));
                    }
                }
                object.into()
            }
            TypeStructure::List(list) => {
                let count = self.below(4);
                let key = meta.and_then(|meta| meta.merge_key.clone());
                let mut elements: Vec<Value> = Vec::new();
                for _ in 0..count {
                    let mut element = match list.items().kind() {
                        TypeStructure::Scalar => self.name().into(),
                        _ => self.value(list.items(), None, depth),
                    };
                    if let (Some(key), Some(element)) = (&key, element.as_object_mut()) {
                        element.insert(key.clone(), self.name().into());
                    }
                    // No element twice: for lists with duplicates, kube-apiserver's order depends
                    // on the capacity of its slices.
                    let same = |other: &Value| match &key {
                        Some(key) => other.get(key) == element.get(key),
                        None => meta.is_some_and(|meta| meta.merge) && *other == element,
                    };
                    if !elements.iter().any(same) {
                        elements.push(element);
                    }
                }
                elements.into()
            }
        }
    }

    /// A configuration for server-side apply: an object whose list elements have their keys.
    pub(crate) fn configuration(&mut self, ty: Type) -> Value {
        let mut value = self.value(ty, None, 5);
        self.identify(ty, &mut value);
        value
    }

    /// Makes some fields of a configuration null.
    pub(crate) fn nulls(&mut self, ty: Type, value: &mut Value) {
        match (ty.kind(), value) {
            (TypeStructure::Any, _) => {}
            (TypeStructure::List(list), Value::Array(elements)) => {
                for element in elements {
                    let before = element.clone();
                    self.nulls(list.items(), element);
                    if let ElementIdentity::Keys(keys) = &list.identity {
                        for key in keys.iter().filter(|key| before.get(&key.name).is_some()) {
                            element[&key.name] = before[&key.name].clone();
                        }
                    }
                }
            }
            (_, Value::Object(fields)) => {
                for (name, value) in fields {
                    let Some(ty) = ty.field(name) else { continue };
                    match self.chance(5) && name != "metadata" {
                        true => *value = Value::Null,
                        false => self.nulls(ty, value),
                    }
                }
            }
            _ => {}
        }
    }

    /// Arbitrary JSON, with nulls and with objects and lists that are empty.
    fn any(&mut self, depth: usize) -> Value {
        let kinds = if depth > 0 { 7 } else { 4 };
        match self.below(kinds) {
            0 => Value::Null,
            1 => json!({}),
            2 => json!([]),
            3 => self.scalar(),
            4 => json!([self.any(depth - 1)]),
            _ => {
                let count = 1 + self.below(2);
                let fields: Map<_, _> = (0..count)
                    .map(|_| (self.name(), self.any(depth - 1)))
                    .collect();
                fields.into()
            }
        }
    }

    fn identify(&mut self, ty: Type, value: &mut Value) {
        match (ty.kind(), value) {
            (TypeStructure::Any, value) => *value = self.any(3),
            (TypeStructure::List(list), Value::Array(elements)) => {
                let mut seen = Vec::new();
                for mut element in std::mem::take(elements) {
                    self.identify(list.items(), &mut element);
                    if let (ElementIdentity::Keys(keys), Some(element)) =
                        (&list.identity, element.as_object_mut())
                    {
                        for key in keys {
                            if key.default.is_none() || self.chance(50) {
                                element.insert(key.name.clone(), self.name().into());
                            } else {
                                element.remove(&key.name);
                            }
                        }
                    }
                    let identity: Value = match &list.identity {
                        ElementIdentity::Atomic => seen.len().into(),
                        ElementIdentity::Set => element.clone(),
                        ElementIdentity::Keys(keys) => keys
                            .iter()
                            .map(|key| element.get(&key.name).or(key.default.as_ref()).cloned())
                            .collect(),
                    };
                    if !seen.contains(&identity) {
                        seen.push(identity);
                        elements.push(element);
                    }
                }
            }
            (_, Value::Object(fields)) => {
                for (name, value) in fields {
                    if let Some(ty) = ty.field(name) {
                        self.identify(ty, value);
                    }
                }
            }
            _ => {}
        }
    }

    /// A strategic merge patch: like an object, with nulls and directives.
    pub(crate) fn strategic(&mut self, ty: Type, meta: Option<&PatchMeta>, depth: usize) -> Value {
        if self.chance(2) {
            return self.scalar();
        }
        match ty.kind() {
            TypeStructure::Struct(fields) => {
                let mut patch = Map::new();
                for name in self.fields_of(ty) {
                    if depth == 0 || self.chance(30) {
                        continue;
                    }
                    let field = fields.field(&name).expect("one of its fields");
                    let value = match self.chance(12) {
                        true => Value::Null,
                        false => self.strategic(field.ty(), Some(&field.patch), depth - 1),
                    };
                    if field.patch.merge && self.chance(60) {
                        self.order(&mut patch, &name, &value, &field.patch);
                    }
                    let scalars = matches!(field.ty().kind(), TypeStructure::List(list) if matches!(list.items().kind(), TypeStructure::Scalar));
                    if scalars && self.chance(30) {
                        let names: Vec<_> = (0..self.below(3)).map(|_| self.name()).collect();
                        patch.insert(format!("$deleteFromPrimitiveList/{name}"), names.into());
                        // kube-apiserver visits the two in random order, unless the order is given.
                        if !patch.contains_key(&format!("$setElementOrder/{name}")) {
                            continue;
                        }
                    }
                    patch.insert(name, value);
                }
                if self.chance(if meta.is_some_and(|meta| meta.retain_keys) {
                    50
                } else {
                    5
                }) {
                    let mut keys: Vec<Value> = patch
                        .keys()
                        .filter(|key| !key.starts_with('$'))
                        .map(|key| key.clone().into())
                        .collect();
                    if self.chance(10) {
                        keys.pop();
                    }
                    patch.insert("$retainKeys".into(), keys.into());
                }
                if self.chance(4) {
                    let directive = *self.pick(&["replace", "delete", "merge"]);
                    patch.insert("$patch".into(), directive.into());
                }
                patch.into()
            }
            TypeStructure::List(_) => {
                let mut list = self.value(ty, meta, depth);
                let elements = list.as_array_mut().expect("a list");
                let key = meta.and_then(|meta| meta.merge_key.clone());
                for element in elements.iter_mut() {
                    if !element.is_object() {
                        continue;
                    }
                    let TypeStructure::List(items) = ty.kind() else {
                        continue;
                    };
                    let old_key = key.as_ref().and_then(|key| element.get(key).cloned());
                    *element = self.strategic(items.items(), meta, depth);
                    if let (Some(key), Some(old), Some(element)) =
                        (&key, old_key, element.as_object_mut())
                        && self.chance(98)
                    {
                        element.insert(key.clone(), old);
                        if let Some(Value::Array(retained)) = element.get_mut("$retainKeys") {
                            retained.push(key.clone().into());
                        }
                        if self.chance(15) {
                            let directive = if self.chance(80) { "delete" } else { "replace" };
                            element.insert("$patch".into(), directive.into());
                        }
                    }
                }
                list
            }
            TypeStructure::Map(_) => {
                let mut map = self.value(ty, meta, depth);
                for value in map.as_object_mut().expect("a map").values_mut() {
                    if self.chance(20) {
                        *value = Value::Null;
                    }
                }
                map
            }
            TypeStructure::Scalar | TypeStructure::Any => self.scalar(),
        }
    }

    /// A `$setElementOrder` that mostly fits the list of the patch.
    fn order(
        &mut self,
        patch: &mut Map<String, Value>,
        name: &str,
        list: &Value,
        meta: &PatchMeta,
    ) {
        let elements = list.as_array().cloned().unwrap_or_default();
        let mut order = Vec::new();
        for element in elements
            .iter()
            .filter(|element| element.get("$patch").is_none())
        {
            match &meta.merge_key {
                Some(key) => order.push(json!({key: element.get(key)})),
                None => order.push(element.clone()),
            }
        }
        for _ in 0..self.below(3) {
            let more = match &meta.merge_key {
                Some(key) => json!({key: self.name()}),
                None => self.name().into(),
            };
            if !order.contains(&more) {
                let at = self.below(order.len() + 1);
                order.insert(at, more);
            }
        }
        if self.chance(5) {
            order.reverse();
        }
        patch.insert(format!("$setElementOrder/{name}"), order.into());
    }

    /// A merge patch: any fields, with nulls.
    pub(crate) fn merge(&mut self, ty: Type) -> Value {
        let mut patch = self.value(ty, None, 6);
        self.set_nulls(&mut patch);
        patch
    }

    fn set_nulls(&mut self, value: &mut Value) {
        match value {
            _ if self.chance(6) => *value = Value::Null,
            Value::Object(fields) => {
                for value in fields.values_mut() {
                    self.set_nulls(value);
                }
            }
            Value::Array(elements) => {
                for element in elements {
                    self.set_nulls(element);
                }
            }
            _ => {}
        }
    }

    /// A JSON patch with paths of the object, or similar ones.
    pub(crate) fn json(&mut self, object: &Value) -> Value {
        let mut places = vec!["/spec".to_owned()];
        collect(object, String::new(), &mut places);
        let operations = (0..1 + self.below(2)).map(|_| {
            let mut place = || match self.below(20) {
                0 => format!("{}/nope", self.pick(&places)),
                1 => format!("{}/-", self.pick(&places)),
                2 => format!("{}/1", self.pick(&places)),
                _ => self.pick(&places).clone(),
            };
            let (path, from) = (place(), place());
            let value = self.scalar();
            match self.below(6) {
                0 => json!({"op": "add", "path": path, "value": value}),
                1 => json!({"op": "remove", "path": path}),
                2 => json!({"op": "replace", "path": path, "value": value}),
                3 => json!({"op": "move", "path": path, "from": from}),
                4 => json!({"op": "copy", "path": path, "from": from}),
                _ => json!({"op": "test", "path": path, "value": object.pointer(&path).cloned().unwrap_or(value)}),
            }
        });
        operations.collect()
    }
}

fn collect(value: &Value, path: String, places: &mut Vec<String>) {
    let children: Vec<(String, &Value)> = match value {
        Value::Object(fields) => fields
            .iter()
            .map(|(name, value)| (name.replace('~', "~0").replace('/', "~1"), value))
            .collect(),
        Value::Array(elements) => elements
            .iter()
            .enumerate()
            .map(|(index, value)| (index.to_string(), value))
            .collect(),
        _ => Vec::new(),
    };
    for (name, child) in children {
        let path = format!("{path}/{name}");
        if !["/apiVersion", "/kind", "/metadata", "/metadata/name"].contains(&path.as_str()) {
            places.push(path.clone());
        }
        collect(child, path, places);
    }
}
