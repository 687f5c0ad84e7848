//! Spans as they are received and kept: what people look at, within bounds, whoever sent them.

use opentelemetry_proto::tonic::{
    common::v1::{AnyValue, KeyValue, any_value::Value},
    trace::v1::{ResourceSpans, Span, status::StatusCode},
};
use serde::Serialize;

use super::attribute;

/// Attributes of a span that are kept.
const ATTRIBUTES: usize = 32;
/// Links of a span that are kept.
const LINKS: usize = 8;
/// Bytes of a text that are kept.
const TEXT: usize = 1024;

/// A span of which only the ids of its trace are kept elsewhere.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Seen {
    /// Its own id.
    #[serde(rename = "spanID", serialize_with = "hex")]
    pub id: u64,
    /// The span that it is a part of; 0 for a root.
    #[serde(rename = "parentSpanID", serialize_with = "hex")]
    pub parent: u64,
    /// What was done.
    pub name: String,
    /// By whom: `service.name`.
    pub service: String,
    /// When it began, in nanoseconds since 1970.
    pub start_unix_nano: u64,
    /// When it ended.
    pub end_unix_nano: u64,
    /// Why it failed, if it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// What is known of it, in the order in which it was said.
    #[serde(serialize_with = "as_map")]
    pub attributes: Vec<(String, String)>,
    /// What it is linked to, as `TRACE-SPAN` in hexadecimal digits.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<String>,
}

fn hex<S: serde::Serializer>(id: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{id:016x}"))
}

fn as_map<S: serde::Serializer>(
    attributes: &[(String, String)],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(attributes.iter().map(|(key, value)| (key, value)))
}

impl Seen {
    /// The value of an attribute.
    pub fn attribute(&self, key: &str) -> Option<&str> {
        let mut attributes = self.attributes.iter();
        let (_, value) = attributes.find(|(name, _)| name == key)?;
        Some(value)
    }

    /// Who did it, for people: the plugin, or the service, and the node if there is one.
    pub fn process(&self) -> String {
        let who = self.attribute(attribute::PLUGIN).unwrap_or(&self.service);
        match self.attribute(attribute::NODE) {
            Some(node) => format!("{who} {node}"),
            None => who.to_owned(),
        }
    }

    /// The memory that it takes, about.
    pub fn bytes(&self) -> usize {
        let Self {
            name,
            service,
            error,
            attributes,
            links,
            ..
        } = self;
        let pairs = attributes
            .iter()
            .map(|(key, value)| key.len() + value.len() + 2 * size_of::<String>());
        let links = links.iter().map(|link| link.len() + size_of::<String>());
        let texts = name.len() + service.len() + error.as_ref().map_or(0, String::len);
        size_of::<Self>() + texts + pairs.chain(links).sum::<usize>()
    }
}

/// The spans of an export, with the ids of their traces. One without valid ids is left out.
pub fn seen(exported: Vec<ResourceSpans>) -> impl Iterator<Item = (u128, Seen)> {
    exported.into_iter().flat_map(|of_resource| {
        let resource = of_resource.resource.unwrap_or_default();
        let service = resource
            .attributes
            .into_iter()
            .find(|attribute| attribute.key == "service.name");
        let service = service.map(|name| text(name.value)).unwrap_or_default();
        let spans = of_resource
            .scope_spans
            .into_iter()
            .flat_map(|scope| scope.spans);
        spans.filter_map(move |span| one(span, &service))
    })
}

fn one(span: Span, service: &str) -> Option<(u128, Seen)> {
    let trace = u128::from_be_bytes(span.trace_id.try_into().ok()?);
    let id = u64::from_be_bytes(span.span_id.try_into().ok()?);
    let parent = match span.parent_span_id {
        none if none.is_empty() => 0,
        some => u64::from_be_bytes(some.try_into().ok()?),
    };
    let status = span.status.unwrap_or_default();
    let failed = status.code() == StatusCode::Error;
    let attributes = span.attributes.into_iter().take(ATTRIBUTES);
    let links = span.links.into_iter().take(LINKS).filter_map(|link| {
        let trace = u128::from_be_bytes(link.trace_id.try_into().ok()?);
        let span = u64::from_be_bytes(link.span_id.try_into().ok()?);
        Some(format!("{trace:032x}-{span:016x}"))
    });
    let seen = Seen {
        id,
        parent,
        name: bounded(span.name),
        service: service.to_owned(),
        start_unix_nano: span.start_time_unix_nano,
        end_unix_nano: span.end_time_unix_nano.max(span.start_time_unix_nano),
        error: failed.then(|| bounded(status.message)),
        attributes: attributes
            .map(|KeyValue { key, value, .. }| (bounded(key), text(value)))
            .collect(),
        links: links.collect(),
    };
    (trace != 0 && id != 0).then_some((trace, seen))
}

/// A value as people read it.
fn text(value: Option<AnyValue>) -> String {
    match value.and_then(|value| value.value) {
        None => String::new(),
        Some(Value::StringValue(text)) => bounded(text),
        Some(Value::BoolValue(value)) => value.to_string(),
        Some(Value::IntValue(value)) => value.to_string(),
        Some(Value::DoubleValue(value)) => value.to_string(),
        Some(Value::ArrayValue(array)) => {
            let items = array.values.into_iter().take(ATTRIBUTES);
            let items: Vec<_> = items.map(|item| text(Some(item))).collect();
            bounded(items.join(","))
        }
        // Nobody has any to show.
        Some(other) => bounded(format!("{other:?}")),
    }
}

/// A text that is not longer than [`TEXT`], without what would move a terminal's cursor.
fn bounded(mut text: String) -> String {
    if text.len() > TEXT {
        text.truncate(text.floor_char_boundary(TEXT));
    }
    if text.contains(char::is_control) {
        text = text.replace(char::is_control, " ");
    }
    text
}
