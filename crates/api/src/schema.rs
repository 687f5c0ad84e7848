//! The published API definitions of each field: its shape, how lists and maps merge, and by which
//! keys.
//!
//! The definitions themselves, descriptions included, are [`definitions`]: the same text that
//! `/openapi/v3` serves. They are generated (`cargo xtask definitions`, ADR 0011). Start at
//! [`Type::of`]: the type of a kind leads to those of its fields.

use std::{collections::BTreeMap, sync::LazyLock};

use k8s_openapi::Resource;
use serde_json::{Map, Value};

/// The source documents, in the form of OpenAPI v3 with `components.schemas` alone.
const DOCUMENTS: &[&str] = &[
    include_str!("../schema/kubernetes.json"),
    include_str!("../schema/cluster-cidr.json"),
];

static SCHEMA: LazyLock<Schema> = LazyLock::new(|| Schema::read(&definitions()));

/// The definitions of all served kinds and of the types that they refer to, by name
/// (`io.k8s.api.core.v1.Pod`), in OpenAPI v3's form. References between them have the form
/// `#/components/schemas/NAME`. Parsed again at each call: this takes some milliseconds and
/// megabytes, which only a server of OpenAPI needs to keep.
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

/// The type of a value or field of a kind that podplane has.
pub type Type = TypeRef<'static>;

/// The type of a value or field. It borrows from the definitions of a kind: those of podplane's own
/// kinds live as long as the program ([`Type`]), those of a custom kind as long as its
/// [`OwnedType`].
#[derive(Clone, Copy, Debug)]
pub struct TypeRef<'s> {
    shape: &'s TypeShape,
    /// The field's own setting of an atomic map, which overrides that of its type.
    atomic: Option<bool>,
}

/// A type that was read at run time: that of a custom kind.
#[derive(Debug)]
pub struct OwnedType(TypeShape);

/// The structure of a type's values.
#[derive(Clone, Copy, Debug)]
pub enum TypeStructure<'s> {
    /// A string, number or boolean, or a value written as one: a time, a quantity.
    Scalar,
    /// Any JSON, for example the data of a ControllerRevision.
    Any,
    /// Named fields, each with a type of its own.
    Struct(&'s Struct),
    /// Arbitrary keys, with values of one type.
    Map(TypeRef<'s>),
    /// A list with elements of one type.
    List(&'s List),
}

/// A type with named fields.
#[derive(Debug)]
pub struct Struct {
    /// The name without the group and version: `PodSpec`.
    pub name: String,
    fields: BTreeMap<String, SchemaField>,
    atomic: bool,
    /// True if there may be other fields, of any type.
    open: bool,
}

/// A field of a struct.
#[derive(Debug)]
pub struct SchemaField {
    shape: TypeShape,
    atomic: Option<bool>,
    /// True if the field is present in every document, even if it is empty.
    pub required: bool,
    /// The handling by a strategic merge patch.
    pub patch: PatchMeta,
}

/// The handling of a field by a strategic merge patch (`x-kubernetes-patch-strategy`,
/// `x-kubernetes-patch-merge-key`).
#[derive(Debug, Default)]
pub struct PatchMeta {
    /// True if a list is merged rather than replaced.
    pub merge: bool,
    /// True if a map is replaced rather than merged.
    pub replace: bool,
    /// True if the patches that clients make name the fields to retain.
    pub retain_keys: bool,
    /// The key that identifies the elements of a merged list of maps.
    pub merge_key: Option<String>,
}

/// A list type and the identity of its elements.
#[derive(Debug)]
pub struct List {
    items: TypeShape,
    /// The identity of elements.
    pub identity: ElementIdentity,
}

/// The identity of list elements (`x-kubernetes-list-type`).
#[derive(Debug, PartialEq)]
pub enum ElementIdentity {
    /// None: the list is a single value.
    Atomic,
    /// Equal values are the same element.
    Set,
    /// Elements with equal values of these keys are the same.
    Keys(Vec<ListKey>),
}

/// A key of the elements of a list.
#[derive(Debug, PartialEq)]
pub struct ListKey {
    /// The name of the field.
    pub name: String,
    /// The value for elements that omit the key.
    pub default: Option<Value>,
}

#[derive(Debug)]
enum TypeShape {
    Scalar,
    Any,
    Named(String),
    Struct(Box<Struct>),
    Map {
        values: Box<TypeShape>,
        atomic: bool,
    },
    List(Box<List>),
}

static ANY: TypeShape = TypeShape::Any;

impl OwnedType {
    /// Reads a structural schema in the form of OpenAPI v3. References are to the definitions of
    /// podplane's own kinds.
    pub fn read(schema: &Value) -> Self {
        Self(shape(schema, &Map::new()))
    }

    /// The type.
    pub fn get(&self) -> TypeRef<'_> {
        TypeRef::plain(&self.0)
    }
}

impl TypeRef<'static> {
    /// The type of a kind; `None` if podplane has no definition of it.
    pub fn of<K: Resource>() -> Option<Self> {
        Self::of_kind(K::GROUP, K::VERSION, K::KIND)
    }

    /// The type of the named kind; `group` is empty for the core group.
    pub fn of_kind(group: &str, version: &str, kind: &str) -> Option<Self> {
        let kind = (group.to_owned(), version.to_owned(), kind.to_owned());
        Some(Self {
            shape: SCHEMA.kinds.get(&kind)?,
            atomic: None,
        })
    }
}

impl<'s> TypeRef<'s> {
    /// The name of the type's definition, `io.k8s.api.core.v1.PodSpec`, if it has one.
    pub fn definition(self) -> Option<&'s str> {
        match self.shape {
            TypeShape::Named(name) => Some(name),
            _ => None,
        }
    }

    /// The structure of the type's values.
    pub fn kind(self) -> TypeStructure<'s> {
        match self.shape {
            TypeShape::Scalar => TypeStructure::Scalar,
            TypeShape::Any => TypeStructure::Any,
            TypeShape::Map { values, .. } => TypeStructure::Map(Self::plain(values)),
            TypeShape::List(list) => TypeStructure::List(list),
            TypeShape::Struct(fields) => TypeStructure::Struct(fields),
            TypeShape::Named(name) => match SCHEMA.types.get(name) {
                Some(Definition::Struct(fields)) => TypeStructure::Struct(fields),
                Some(Definition::Scalar) => TypeStructure::Scalar,
                Some(Definition::Any) | None => TypeStructure::Any,
            },
        }
    }

    /// True if server-side apply treats a map or struct of this type as one value. For a list, see
    /// its [`ElementIdentity`].
    pub fn is_atomic_map(self) -> bool {
        self.atomic.unwrap_or_else(|| match self.kind() {
            TypeStructure::Struct(fields) => fields.atomic,
            TypeStructure::Map(_) => matches!(self.shape, TypeShape::Map { atomic: true, .. }),
            TypeStructure::Scalar | TypeStructure::Any | TypeStructure::List(_) => false,
        })
    }

    /// The type of a field if this is a struct that has it, or the value type of a map.
    pub fn field(self, name: &str) -> Option<Self> {
        match self.kind() {
            TypeStructure::Struct(fields) => match fields.field(name) {
                Some(field) => Some(field.ty()),
                None => fields.open.then(|| Self::plain(&ANY)),
            },
            TypeStructure::Map(values) => Some(values),
            TypeStructure::Any => Some(self),
            TypeStructure::Scalar | TypeStructure::List(_) => None,
        }
    }

    fn plain(shape: &'s TypeShape) -> Self {
        Self {
            shape,
            atomic: None,
        }
    }
}

impl Struct {
    /// The field with that name.
    pub fn field(&self, name: &str) -> Option<&SchemaField> {
        self.fields.get(name)
    }

    /// All fields, by name.
    pub fn fields(&self) -> impl Iterator<Item = (&str, &SchemaField)> {
        self.fields
            .iter()
            .map(|(name, field)| (name.as_str(), field))
    }
}

impl SchemaField {
    /// The type of the field's values.
    pub fn ty(&self) -> TypeRef<'_> {
        TypeRef {
            shape: &self.shape,
            atomic: self.atomic,
        }
    }
}

impl List {
    /// The type of the elements.
    pub fn items(&self) -> TypeRef<'_> {
        TypeRef::plain(&self.items)
    }
}

/// All types of the definitions.
struct Schema {
    types: BTreeMap<String, Definition>,
    kinds: BTreeMap<(String, String, String), TypeShape>,
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
                kinds.insert((group, version, kind), TypeShape::Named(name.clone()));
            }
        }
        Self { types, kinds }
    }
}

fn definition(name: &str, schema: &Value, all: &Map<String, Value>) -> Definition {
    match structure(name, schema, all) {
        Some(fields) => Definition::Struct(fields),
        None => {
            let is_any = match text(schema, "type") {
                Some(ty) => ty == "object",
                // For example, the default in the schema of a custom resource.
                None => schema.get("oneOf").is_none(),
            };
            match is_any {
                true => Definition::Any,
                false => Definition::Scalar,
            }
        }
    }
}

/// The struct that a schema with properties declares.
fn structure(name: &str, schema: &Value, all: &Map<String, Value>) -> Option<Struct> {
    let properties = schema["properties"].as_object()?;
    let required = schema["required"].as_array();
    let fields = properties.iter().map(|(name, property)| {
        let strategies: Vec<_> = text(property, "x-kubernetes-patch-strategy")
            .into_iter()
            .flat_map(|all| all.split(','))
            .collect();
        let field = SchemaField {
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
    Some(Struct {
        name: name.rsplit('.').next().unwrap_or_default().to_owned(),
        fields: fields.collect(),
        atomic: text(schema, "x-kubernetes-map-type") == Some("atomic"),
        open: schema["x-kubernetes-preserve-unknown-fields"] == Value::Bool(true),
    })
}

fn shape(schema: &Value, all: &Map<String, Value>) -> TypeShape {
    if let Some(name) = reference(schema) {
        return TypeShape::Named(name.to_owned());
    }
    match text(schema, "type") {
        Some("array") => {
            let items = &schema["items"];
            TypeShape::List(Box::new(List {
                items: shape(items, all),
                identity: identity(
                    schema,
                    reference(items).map_or(Some(items), |name| all.get(name)),
                ),
            }))
        }
        Some("object") if schema.get("properties").is_some() => structure("", schema, all)
            .map_or(TypeShape::Any, |fields| TypeShape::Struct(Box::new(fields))),
        Some("object") => match schema
            .get("additionalProperties")
            .filter(|values| values.is_object())
        {
            Some(values) => TypeShape::Map {
                values: Box::new(shape(values, all)),
                atomic: text(schema, "x-kubernetes-map-type") == Some("atomic"),
            },
            None => TypeShape::Any,
        },
        None if schema["x-kubernetes-preserve-unknown-fields"] == Value::Bool(true) => {
            TypeShape::Any
        }
        _ => TypeShape::Scalar,
    }
}

fn identity(schema: &Value, item: Option<&Value>) -> ElementIdentity {
    match text(schema, "x-kubernetes-list-type") {
        Some("set") => ElementIdentity::Set,
        Some("map") => {
            let keys = schema["x-kubernetes-list-map-keys"].as_array();
            let names = keys.into_iter().flatten().filter_map(Value::as_str);
            let default = |name| item?.get("properties")?.get(name)?.get("default").cloned();
            let key = |name| ListKey {
                name: String::from(name),
                default: default(name),
            };
            ElementIdentity::Keys(names.map(key).collect())
        }
        _ => ElementIdentity::Atomic,
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
