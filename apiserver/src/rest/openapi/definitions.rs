//! The definitions of kinds and of the types of their fields, in the form of OpenAPI v3.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use podplane_api::schema::definitions;
use serde_json::{Map, Value, json};

use crate::rest::resource::Resource;

/// Definitions, those of a kind and of its list among them.
#[derive(Debug, Default)]
pub(super) struct Definitions {
    schemas: Map<String, Value>,
    /// The names of the definitions, by group, version and kind.
    kinds: BTreeMap<[String; 3], String>,
}

impl Definitions {
    /// Adds the published definitions of the program's kinds.
    pub(super) fn add_own(&mut self) {
        self.add(definitions());
    }

    /// Adds the definitions of custom kinds.
    pub(super) fn add_custom(&mut self, kinds: &[Arc<dyn Resource>]) {
        for custom in kinds.iter().filter_map(|kind| kind.custom()) {
            self.add(custom.openapi_v3());
        }
    }

    /// Adds definitions, which take the places of others of the same names.
    fn add(&mut self, schemas: Map<String, Value>) {
        for (name, schema) in &schemas {
            let named = schema["x-kubernetes-group-version-kind"].as_array();
            for gvk in named.into_iter().flatten() {
                let part = |part: &str| gvk[part].as_str().unwrap_or_default().to_owned();
                let kind = ["group", "version", "kind"].map(part);
                self.kinds.insert(kind, name.clone());
            }
        }
        self.schemas.extend(schemas);
    }

    /// The schema of a kind; any object if it has no definition.
    pub(super) fn schema(&self, group: &str, version: &str, kind: &str) -> Value {
        match self.kinds.get(&[group, version, kind].map(str::to_owned)) {
            Some(name) => json!({"$ref": format!("#/components/schemas/{name}")}),
            None => json!({"type": "object"}),
        }
    }

    /// The definitions that a document refers to, directly or indirectly.
    pub(super) fn reached(&self, document: &Value) -> Map<String, Value> {
        let mut found = Map::new();
        let mut wanted = BTreeSet::new();
        references(document, &mut wanted);
        while let Some(name) = wanted.pop_first() {
            if let Some(schema) = self.schemas.get(name)
                && !found.contains_key(name)
            {
                references(schema, &mut wanted);
                found.insert(name.to_owned(), schema.clone());
            }
        }
        found
    }
}

/// The names of the definitions that a document refers to.
fn references<'a>(document: &'a Value, found: &mut BTreeSet<&'a str>) {
    match document {
        Value::Array(items) => items.iter().for_each(|item| references(item, found)),
        Value::Object(fields) => {
            for (key, value) in fields {
                match value.as_str().filter(|_| key == "$ref") {
                    Some(target) => {
                        found.extend(target.rsplit('/').next());
                    }
                    None => references(value, found),
                }
            }
        }
        _ => {}
    }
}
