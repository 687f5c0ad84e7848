//! Sets of fields, as `metadata.managedFields` records them.

use std::{collections::BTreeMap, fmt};

use serde_json::{Map, Value};

use crate::schema::{TypeRef, TypeStructure};

/// A set of paths in an object in the form of `fieldsV1`: a tree, in which every node may be a
/// member.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSet {
    member: bool,
    children: BTreeMap<Element, FieldSet>,
}

/// A path element in the notation of `fieldsV1`: `f:NAME` a field, `k:{"KEY":VALUE}` the element
/// with these keys, `v:VALUE` the element of a set, `i:INDEX` an element by index.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Element(String);

impl Element {
    pub(super) fn field(name: &str) -> Self {
        Self(format!("f:{name}"))
    }

    pub(super) fn keys(keys: Map<String, Value>) -> Self {
        Self(format!("k:{}", Value::Object(keys)))
    }

    pub(super) fn value(value: &Value) -> Self {
        Self(format!("v:{value}"))
    }

    /// The name, if this is a field.
    pub(super) fn name(&self) -> Option<&str> {
        self.0.strip_prefix("f:")
    }

    /// Parses an element of `fieldsV1`; the keys of elements are normalized. `None` if it has none
    /// of the four forms.
    fn read(text: &str) -> Option<Self> {
        let (kind, rest) = text.split_once(':')?;
        match kind {
            "f" => Some(Self(text.to_owned())),
            "k" => Some(Self::keys(serde_json::from_str(rest).ok()?)),
            "v" => Some(Self::value(&serde_json::from_str(rest).ok()?)),
            "i" => rest
                .parse::<u32>()
                .ok()
                .map(|index| Self(format!("i:{index}"))),
            _ => None,
        }
    }
}

/// Formats paths as kube-apiserver does in errors: `.spec`, `[name="c"]`, `[="v"]`, `[0]`.
impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.split_once(':') {
            Some(("f", name)) => write!(f, ".{name}"),
            Some(("k", keys)) => {
                let keys: Map<String, Value> = serde_json::from_str(keys).unwrap_or_default();
                let keys: Vec<_> = keys
                    .iter()
                    .map(|(key, value)| format!("{key}={value}"))
                    .collect();
                write!(f, "[{}]", keys.join(","))
            }
            Some(("v", value)) => write!(f, "[={value}]"),
            Some((_, index)) => write!(f, "[{index}]"),
            None => Ok(()),
        }
    }
}

impl FieldSet {
    /// Creates a set of paths, each a list of field names: `["metadata", "name"]`.
    pub fn of_fields(places: &[&[&str]]) -> Self {
        let mut set = Self::default();
        for place in places {
            let mut node = &mut set;
            for name in *place {
                node = node.child_mut(Element::field(name));
            }
            node.member = true;
        }
        set
    }

    /// Parses the value of `fieldsV1`. Malformed elements are ignored, as they cannot belong to any
    /// field.
    pub fn from_fields_v1(value: &Value) -> Self {
        let mut set = Self::default();
        for (key, below) in value.as_object().into_iter().flatten() {
            if key == "." {
                set.member = true;
            } else if let Some(element) = Element::read(key) {
                let mut child = Self::from_fields_v1(below);
                child.member |= child.children.is_empty();
                set.children.insert(element, child);
            }
        }
        set
    }

    /// The set as the value of `fieldsV1`.
    pub fn to_fields_v1(&self) -> Value {
        let below = self
            .children
            .iter()
            .map(|(element, child)| (element.0.clone(), child.to_fields_v1()));
        // A member without anything below it is written as an empty object.
        let itself = (self.member && !self.children.is_empty())
            .then(|| (".".to_owned(), Value::Object(Map::new())));
        Value::Object(itself.into_iter().chain(below).collect())
    }

    /// True if the set has no member.
    pub fn is_empty(&self) -> bool {
        !self.member && self.children.is_empty()
    }

    /// The paths of all members, as kube-apiserver formats them:
    /// `.spec.containers[name="c"].image`.
    pub fn paths(&self) -> Vec<String> {
        let mut paths = Vec::new();
        self.collect("", &mut paths);
        paths
    }

    fn collect(&self, path: &str, paths: &mut Vec<String>) {
        if self.member {
            paths.push(path.to_owned());
        }
        for (element, child) in &self.children {
            child.collect(&format!("{path}{element}"), paths);
        }
    }

    pub(super) fn add(&mut self) {
        self.member = true;
    }

    pub(super) fn has(&self, element: &Element) -> bool {
        self.children.get(element).is_some_and(|child| child.member)
    }

    pub(super) fn below(&self, element: &Element) -> Option<&Self> {
        self.children.get(element)
    }

    pub(super) fn child_mut(&mut self, element: Element) -> &mut Self {
        self.children.entry(element).or_default()
    }

    /// Adds the members that `build` creates below `element`.
    pub(super) fn extend(&mut self, element: Element, build: impl FnOnce(&mut Self)) {
        let mut child = self.children.remove(&element).unwrap_or_default();
        build(&mut child);
        if !child.is_empty() {
            self.children.insert(element, child);
        }
    }

    pub(super) fn union(mut self, other: &Self) -> Self {
        self.member |= other.member;
        for (element, theirs) in &other.children {
            let ours = self.children.remove(element).unwrap_or_default();
            self.children.insert(element.clone(), ours.union(theirs));
        }
        self
    }

    /// The members that are not in `other`.
    pub(super) fn difference(self, other: &Self) -> Self {
        self.keep(Some(other), &|ours, theirs| ours && !theirs)
    }

    /// The members that are also in `other`.
    pub(super) fn intersection(self, other: &Self) -> Self {
        self.keep(Some(other), &|ours, theirs| ours && theirs)
    }

    fn keep(self, other: Option<&Self>, rule: &impl Fn(bool, bool) -> bool) -> Self {
        let children = self.children.into_iter().filter_map(|(element, child)| {
            let theirs = other.and_then(|other| other.children.get(&element));
            let kept = child.keep(theirs, rule);
            (!kept.is_empty()).then_some((element, kept))
        });
        Self {
            member: rule(self.member, other.is_some_and(|other| other.member)),
            children: children.collect(),
        }
    }

    /// The members that are neither in `other` nor below a member of it.
    pub(super) fn outside(mut self, other: &Self) -> Self {
        if other.member {
            return Self::default();
        }
        for (element, theirs) in &other.children {
            if let Some(ours) = self.children.remove(element) {
                let kept = ours.outside(theirs);
                if !kept.is_empty() {
                    self.children.insert(element.clone(), kept);
                }
            }
        }
        self
    }

    /// Adds the named fields of structs on the paths to members, which a set need not contain.
    pub(super) fn with_named(mut self, ty: Option<TypeRef<'_>>) -> Self {
        for (element, child) in &mut self.children {
            let (below, named) = match (ty.map(TypeRef::kind), element.name()) {
                (Some(TypeStructure::Struct(fields)), Some(name)) => {
                    let field = fields.field(name).map(|field| field.ty());
                    (field, field.is_some())
                }
                (Some(TypeStructure::Map(values)), Some(_)) => (Some(values), false),
                (Some(TypeStructure::List(list)), None) => (Some(list.items()), false),
                _ => (None, false),
            };
            *child = std::mem::take(child).with_named(below);
            child.member |= named;
        }
        self
    }
}
