//! What the published API definitions say of each field: its shape, how lists and maps merge, and by which keys.
//!
//! The definitions themselves, descriptions included, are [`definitions`]: the same text that `/openapi/v3` serves. They are generated
//! (`cargo xtask definitions`, ADR 0011). [`Type::of`] is where to start: from the type of a kind one goes down field by field.

use std::{collections::BTreeMap, sync::LazyLock};

use k8s_openapi::Resource;
use serde_json::{Map, Value};

/// The documents that the types are read from. All have the form of an OpenAPI v3 document with `components.schemas` alone.
const DOCUMENTS: &[&str] = &[
    include_str!("../schema/kubernetes.json"),
    include_str!("../schema/cluster-cidr.json"),
];

static SCHEMA: LazyLock<Schema> = LazyLock::new(|| Schema::read(&definitions()));

/// The definitions of all served kinds and of what they refer to, by name (`io.k8s.api.core.v1.Pod`), in OpenAPI v3's form. References between
/// them have the form `#/components/schemas/NAME`. Read anew at each call: some milliseconds and megabytes that only a server of OpenAPI needs to keep.
pub fn definitions() -> Map<String, Value> {
    let mut all = Map::new();
    for text in DOCUMENTS {
        let mut document: Value = serde_json::from_str(text).expect("a test reads this file");
        if let Some(Value::Object(schemas)) = document.pointer_mut("/components/schemas") {
            all.append(schemas);
        }
    }
    all
}

/// What is known of a place in an object.
#[derive(Clone, Copy, Debug)]
pub struct Type {
    shape: &'static Shape,
    /// The field's own word on whether a map is atomic, before that of its type.
    atomic: Option<bool>,
}

/// How values of a type are made up.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// A string, number or boolean, or what is written as one: a time, a quantity.
    Scalar,
    /// Any JSON: the data of a ControllerRevision, for example.
    Any,
    /// Named fields, each with a type of its own.
    Struct(&'static Struct),
    /// Any keys, with values of one type.
    Map(Type),
    /// A list with elements of one type.
    List(&'static List),
}

/// A type with named fields.
#[derive(Debug)]
pub struct Struct {
    /// The name alone, without the group and version: `PodSpec`.
    pub name: String,
    fields: BTreeMap<String, Field>,
    atomic: bool,
}

/// A field of a struct.
#[derive(Debug)]
pub struct Field {
    shape: Shape,
    atomic: Option<bool>,
    /// Present in every document, even if it is empty.
    pub required: bool,
    /// What a strategic merge patch does with it.
    pub patch: PatchMeta,
}

/// How a strategic merge patch treats a field (`x-kubernetes-patch-strategy`, `x-kubernetes-patch-merge-key`).
#[derive(Debug, Default)]
pub struct PatchMeta {
    /// A list is merged rather than replaced.
    pub merge: bool,
    /// A map is replaced rather than merged.
    pub replace: bool,
    /// The patches that clients make name the fields to keep.
    pub retain_keys: bool,
    /// What identifies the elements of a merged list of maps.
    pub merge_key: Option<String>,
}

/// A list and how its elements are told apart.
#[derive(Debug)]
pub struct List {
    items: Shape,
    /// What makes two elements the same one.
    pub identity: Identity,
}

/// What makes two elements of lists the same one (`x-kubernetes-list-type`).
#[derive(Debug, PartialEq)]
pub enum Identity {
    /// Nothing: the list is one value.
    Atomic,
    /// Being equal.
    Set,
    /// Equal values of these keys.
    Keys(Vec<Key>),
}

/// A key of the elements of a list.
#[derive(Debug, PartialEq)]
pub struct Key {
    /// The field's name.
    pub name: String,
    /// What it is where an element leaves it out.
    pub default: Option<Value>,
}

#[derive(Debug)]
enum Shape {
    Scalar,
    Any,
    Named(String),
    Map { values: Box<Shape>, atomic: bool },
    List(Box<List>),
}

impl Type {
    /// The type of a kind; `None` if podplane has no definition of it.
    pub fn of<K: Resource>() -> Option<Self> {
        Self::of_kind(K::GROUP, K::VERSION, K::KIND)
    }

    /// The type of the kind that is named; `group` is empty for the core group.
    pub fn of_kind(group: &str, version: &str, kind: &str) -> Option<Self> {
        let kind = (group.to_owned(), version.to_owned(), kind.to_owned());
        Some(Self {
            shape: SCHEMA.kinds.get(&kind)?,
            atomic: None,
        })
    }

    /// The name of its definition, `io.k8s.api.core.v1.PodSpec`, if it has one of its own.
    pub fn definition(self) -> Option<&'static str> {
        match self.shape {
            Shape::Named(name) => Some(name),
            _ => None,
        }
    }

    /// How its values are made up.
    pub fn kind(self) -> Kind {
        match self.shape {
            Shape::Scalar => Kind::Scalar,
            Shape::Any => Kind::Any,
            Shape::Map { values, .. } => Kind::Map(Self::plain(values)),
            Shape::List(list) => Kind::List(list),
            Shape::Named(name) => match SCHEMA.types.get(name) {
                Some(Definition::Struct(fields)) => Kind::Struct(fields),
                Some(Definition::Scalar) => Kind::Scalar,
                Some(Definition::Any) | None => Kind::Any,
            },
        }
    }

    /// Whether server-side apply treats a map or struct of it as one value. A list says so by its [`Identity`].
    pub fn is_atomic_map(self) -> bool {
        self.atomic.unwrap_or_else(|| match self.kind() {
            Kind::Struct(fields) => fields.atomic,
            Kind::Map(_) => matches!(self.shape, Shape::Map { atomic: true, .. }),
            Kind::Scalar | Kind::Any | Kind::List(_) => false,
        })
    }

    /// The type of a field, where this is a struct that has it, or of a map's value.
    pub fn field(self, name: &str) -> Option<Self> {
        match self.kind() {
            Kind::Struct(fields) => fields.field(name).map(Field::ty),
            Kind::Map(values) => Some(values),
            Kind::Any => Some(self),
            Kind::Scalar | Kind::List(_) => None,
        }
    }

    fn plain(shape: &'static Shape) -> Self {
        Self {
            shape,
            atomic: None,
        }
    }
}

impl Struct {
    /// The field of that name.
    pub fn field(&self, name: &str) -> Option<&Field> {
        self.fields.get(name)
    }

    /// All fields, by name.
    pub fn fields(&self) -> impl Iterator<Item = (&str, &Field)> {
        self.fields
            .iter()
            .map(|(name, field)| (name.as_str(), field))
    }
}

impl Field {
    /// The type of its values.
    pub fn ty(&'static self) -> Type {
        Type {
            shape: &self.shape,
            atomic: self.atomic,
        }
    }
}

impl List {
    /// The type of its elements.
    pub fn items(&'static self) -> Type {
        Type::plain(&self.items)
    }
}

/// All types, read from the definitions.
struct Schema {
    types: BTreeMap<String, Definition>,
    kinds: BTreeMap<(String, String, String), Shape>,
}

enum Definition {
    Scalar,
    Any,
    Struct(Struct),
}

impl Schema {
    fn read(definitions: &Map<String, Value>) -> Self {
        let mut types = BTreeMap::new();
        let mut kinds = BTreeMap::new();
        for (name, schema) in definitions {
            types.insert(name.clone(), definition(name, schema, definitions));
            let of_kind = schema["x-kubernetes-group-version-kind"].as_array();
            for gvk in of_kind.into_iter().flatten() {
                let [group, version, kind] = ["group", "version", "kind"]
                    .map(|part| text(gvk, part).unwrap_or_default().to_owned());
                kinds.insert((group, version, kind), Shape::Named(name.clone()));
            }
        }
        Self { types, kinds }
    }
}

fn definition(name: &str, schema: &Value, all: &Map<String, Value>) -> Definition {
    let Some(properties) = schema["properties"].as_object() else {
        return match text(schema, "type") {
            Some("object") => Definition::Any,
            _ => Definition::Scalar,
        };
    };
    let required = schema["required"].as_array();
    let fields = properties.iter().map(|(name, property)| {
        let strategies: Vec<_> = text(property, "x-kubernetes-patch-strategy")
            .into_iter()
            .flat_map(|all| all.split(','))
            .collect();
        let field = Field {
            shape: shape(property, all),
            atomic: text(property, "x-kubernetes-map-type").map(|kind| kind == "atomic"),
            required: required.is_some_and(|all| all.iter().any(|field| field == name)),
            patch: PatchMeta {
                merge: strategies.contains(&"merge"),
                replace: strategies.contains(&"replace"),
                retain_keys: strategies.contains(&"retainKeys"),
                merge_key: text(property, "x-kubernetes-patch-merge-key").map(str::to_owned),
            },
        };
        (name.clone(), field)
    });
    Definition::Struct(Struct {
        name: name.rsplit('.').next().unwrap_or_default().to_owned(),
        fields: fields.collect(),
        atomic: text(schema, "x-kubernetes-map-type") == Some("atomic"),
    })
}

fn shape(schema: &Value, all: &Map<String, Value>) -> Shape {
    if let Some(name) = reference(schema) {
        return Shape::Named(name.to_owned());
    }
    match text(schema, "type") {
        Some("array") => {
            let items = &schema["items"];
            Shape::List(Box::new(List {
                items: shape(items, all),
                identity: identity(schema, reference(items).and_then(|name| all.get(name))),
            }))
        }
        Some("object") => match schema.get("additionalProperties") {
            Some(values) => Shape::Map {
                values: Box::new(shape(values, all)),
                atomic: text(schema, "x-kubernetes-map-type") == Some("atomic"),
            },
            None => Shape::Any,
        },
        _ => Shape::Scalar,
    }
}

fn identity(schema: &Value, item: Option<&Value>) -> Identity {
    match text(schema, "x-kubernetes-list-type") {
        Some("set") => Identity::Set,
        Some("map") => {
            let keys = schema["x-kubernetes-list-map-keys"].as_array();
            let names = keys.into_iter().flatten().filter_map(Value::as_str);
            let default = |name| item?.get("properties")?.get(name)?.get("default").cloned();
            let key = |name| Key {
                name: String::from(name),
                default: default(name),
            };
            Identity::Keys(names.map(key).collect())
        }
        _ => Identity::Atomic,
    }
}

fn reference(schema: &Value) -> Option<&str> {
    let direct = text(schema, "$ref");
    let target = direct.or_else(|| schema.pointer("/allOf/0/$ref")?.as_str())?;
    target.rsplit('/').next()
}

fn text<'a>(schema: &'a Value, key: &str) -> Option<&'a str> {
    schema.get(key)?.as_str()
}
