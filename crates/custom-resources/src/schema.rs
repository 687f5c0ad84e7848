//! Schemas of custom resources, in the form that objects are checked with.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use podplane_cel_rules::{Declaration, Pattern};
use serde_json::Value;

use crate::rules::CompiledRule;

/// A schema, or a part of one.
#[derive(Debug, Default)]
pub(crate) struct Schema {
    pub(crate) ty: Option<Kind>,
    pub(crate) nullable: bool,
    pub(crate) default: Option<Value>,
    pub(crate) int_or_string: bool,
    pub(crate) preserve: bool,
    pub(crate) embedded: bool,
    pub(crate) properties: BTreeMap<String, Schema>,
    pub(crate) additional: Option<Box<Additional>>,
    pub(crate) items: Option<Box<Schema>>,
    pub(crate) list: ListType,
    pub(crate) atomic_map: bool,
    pub(crate) checks: Checks,
    /// The compiled rules, and the data that they are about.
    pub(crate) rules: Vec<CompiledRule>,
    pub(crate) data: Option<Arc<Declaration>>,
    /// True if this schema or one below has rules.
    pub(crate) has_rules: bool,
}

/// A JSON type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Object,
    Array,
    String,
    Integer,
    Number,
    Boolean,
}

/// `additionalProperties`.
#[expect(clippy::large_enum_variant, reason = "it is boxed as a whole")]
#[derive(Debug)]
pub(crate) enum Additional {
    Any,
    Values(Schema),
}

/// `x-kubernetes-list-type`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum ListType {
    #[default]
    Atomic,
    Set,
    Map(Vec<String>),
}

/// The restrictions of values.
#[derive(Debug, Default)]
pub(crate) struct Checks {
    pub(crate) format: Option<String>,
    pub(crate) pattern: Option<(String, Pattern)>,
    pub(crate) options: Option<Vec<Value>>,
    pub(crate) maximum: Option<(f64, bool)>,
    pub(crate) minimum: Option<(f64, bool)>,
    pub(crate) multiple_of: Option<f64>,
    pub(crate) max_length: Option<u64>,
    pub(crate) min_length: Option<u64>,
    pub(crate) max_items: Option<u64>,
    pub(crate) min_items: Option<u64>,
    pub(crate) max_properties: Option<u64>,
    pub(crate) min_properties: Option<u64>,
    pub(crate) required: Vec<String>,
    pub(crate) all_of: Vec<Schema>,
    pub(crate) any_of: Vec<Schema>,
    pub(crate) one_of: Vec<Schema>,
    pub(crate) not: Option<Box<Schema>>,
}

impl Kind {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "object" => Self::Object,
            "array" => Self::Array,
            "string" => Self::String,
            "integer" => Self::Integer,
            "number" => Self::Number,
            "boolean" => Self::Boolean,
            _ => return None,
        })
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Object => "object",
            Self::Array => "array",
            Self::String => "string",
            Self::Integer => "integer",
            Self::Number => "number",
            Self::Boolean => "boolean",
        }
    }
}

fn count(number: Option<i64>) -> Option<u64> {
    number.map(|number| u64::try_from(number).unwrap_or_default())
}

impl Schema {
    /// Reads a schema; malformed patterns are an error.
    pub(crate) fn read(props: &JSONSchemaProps) -> Result<Self, String> {
        let all = |list: Option<&Vec<JSONSchemaProps>>| -> Result<Vec<Self>, String> {
            list.into_iter().flatten().map(Self::read).collect()
        };
        let properties = props.properties.iter().flatten();
        let properties = properties.map(|(name, props)| Ok((name.clone(), Self::read(props)?)));
        let additional = match &props.additional_properties {
            None | Some(JSONSchemaPropsOrBool::Bool(false)) => None,
            Some(JSONSchemaPropsOrBool::Bool(true)) => Some(Box::new(Additional::Any)),
            Some(JSONSchemaPropsOrBool::Schema(props)) => {
                Some(Box::new(Additional::Values(Self::read(props)?)))
            }
        };
        let items = match &props.items {
            Some(JSONSchemaPropsOrArray::Schema(props)) => Some(Box::new(Self::read(props)?)),
            _ => None,
        };
        let pattern = props.pattern.as_ref().filter(|text| !text.is_empty());
        let pattern = pattern
            .map(|text| Ok::<_, String>((text.clone(), Pattern::new(text)?)))
            .transpose()?;
        Ok(Self {
            ty: props.type_.as_deref().and_then(Kind::parse),
            nullable: props.nullable == Some(true),
            default: props.default.as_ref().map(|default| default.0.clone()),
            int_or_string: props.x_kubernetes_int_or_string == Some(true),
            preserve: props.x_kubernetes_preserve_unknown_fields == Some(true),
            embedded: props.x_kubernetes_embedded_resource == Some(true),
            properties: properties.collect::<Result<_, String>>()?,
            additional,
            items,
            list: match props.x_kubernetes_list_type.as_deref() {
                Some("set") => ListType::Set,
                Some("map") => {
                    ListType::Map(props.x_kubernetes_list_map_keys.clone().unwrap_or_default())
                }
                _ => ListType::Atomic,
            },
            atomic_map: props.x_kubernetes_map_type.as_deref() == Some("atomic"),
            checks: Checks {
                format: props.format.clone().filter(|format| !format.is_empty()),
                pattern,
                options: props
                    .enum_
                    .as_ref()
                    .map(|all| all.iter().map(|option| option.0.clone()).collect()),
                maximum: props
                    .maximum
                    .map(|most| (most, props.exclusive_maximum == Some(true))),
                minimum: props
                    .minimum
                    .map(|least| (least, props.exclusive_minimum == Some(true))),
                multiple_of: props.multiple_of,
                max_length: count(props.max_length),
                min_length: count(props.min_length),
                max_items: count(props.max_items),
                min_items: count(props.min_items),
                max_properties: count(props.max_properties),
                min_properties: count(props.min_properties),
                required: props.required.clone().unwrap_or_default(),
                all_of: all(props.all_of.as_ref())?,
                any_of: all(props.any_of.as_ref())?,
                one_of: all(props.one_of.as_ref())?,
                not: props
                    .not
                    .as_ref()
                    .map(|not| Self::read(not).map(Box::new))
                    .transpose()?,
            },
            ..Self::default()
        })
    }

    /// The schema of a field or of a value of a map; `None` if it is unknown.
    pub(crate) fn field(&self, name: &str) -> Option<&Self> {
        match (self.properties.get(name), self.additional.as_deref()) {
            (Some(schema), _) | (None, Some(Additional::Values(schema))) => Some(schema),
            (None, _) => None,
        }
    }
}
