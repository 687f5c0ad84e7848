//! The definitions of a custom kind for OpenAPI v3, and for types of patches.

use serde_json::{Map, Value, json};

const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
const LIST_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta";
const API_VERSION: &str = "APIVersion defines the versioned schema of this representation of an object. Servers should convert recognized schemas to the latest internal value, and may reject unrecognized values. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#resources";
const KIND: &str = "Kind is a string value representing the REST resource this object represents. Servers may infer this from the endpoint the client submits requests to. Cannot be updated. In CamelCase. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#types-kinds";

/// The names of a published kind.
pub(crate) struct Names<'n> {
    pub(crate) group: &'n str,
    pub(crate) version: &'n str,
    pub(crate) kind: &'n str,
    pub(crate) list_kind: &'n str,
}

impl Names<'_> {
    /// The name of a definition: the group reversed, `com.example.v1.Widget`.
    fn definition(&self, kind: &str) -> String {
        let group: Vec<_> = self.group.split('.').rev().collect();
        format!("{}.{}.{kind}", group.join("."), self.version)
    }
}

fn reference(name: &str) -> Value {
    json!({"allOf": [{"$ref": format!("#/components/schemas/{name}")}], "default": {}})
}

/// The definitions of a kind and of its list.
pub(crate) fn definitions(schema: &Value, names: &Names<'_>) -> Map<String, Value> {
    let gvk = |kind: &str| json!([{"group": names.group, "kind": kind, "version": names.version}]);
    let mut object = typed(schema);
    object["x-kubernetes-group-version-kind"] = gvk(names.kind);
    let item = names.definition(names.kind);
    let items = json!({"$ref": format!("#/components/schemas/{item}")});
    let kind = names.kind;
    let list = json!({
        "description": format!("{} is a list of {kind}", names.list_kind),
        "type": "object",
        "required": ["items"],
        "properties": {
            "apiVersion": {"description": API_VERSION, "type": "string"},
            "kind": {"description": KIND, "type": "string"},
            "metadata": reference(LIST_META),
            "items": {
                "description": format!("List of {}. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md", names.kind.to_lowercase()),
                "type": "array",
                "items": items,
            },
        },
        "x-kubernetes-group-version-kind": gvk(names.list_kind),
    });
    Map::from_iter([(item, object), (names.definition(names.list_kind), list)])
}

/// The schema with the fields that every object has.
pub(crate) fn typed(schema: &Value) -> Value {
    let mut object = schema.clone();
    embed(&mut object);
    // The object itself is no embedded resource, but has the same fields.
    fields_of_resource(&mut object);
    if object.get("type").is_none() {
        object["type"] = "object".into();
    }
    object
}

fn fields_of_resource(object: &mut Value) {
    if !object.is_object() {
        *object = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    }
    let properties = &mut object["properties"];
    if !properties.is_object() {
        *properties = json!({});
    }
    properties["apiVersion"] = json!({"description": API_VERSION, "type": "string"});
    properties["kind"] = json!({"description": KIND, "type": "string"});
    properties["metadata"] = reference(OBJECT_META);
}

/// Adds the fields of embedded resources.
fn embed(schema: &mut Value) {
    if schema["x-kubernetes-embedded-resource"] == Value::Bool(true) {
        fields_of_resource(schema);
    }
    below(schema, &mut embed);
}

/// Visits the schemas of fields, elements and values.
fn below(schema: &mut Value, visit: &mut dyn FnMut(&mut Value)) {
    let Some(fields) = schema.as_object_mut() else {
        return;
    };
    if let Some(properties) = fields.get_mut("properties").and_then(Value::as_object_mut) {
        properties.values_mut().for_each(&mut *visit);
    }
    for name in ["items", "additionalProperties"] {
        if let Some(below) = fields.get_mut(name).filter(|below| below.is_object()) {
            visit(below);
        }
    }
}
