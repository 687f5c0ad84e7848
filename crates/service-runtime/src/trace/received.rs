//! Spans as received and stored: in the form in which they are shown, within bounds whoever sent
//! them.

use opentelemetry_proto::tonic::{
    common::v1::{AnyValue, KeyValue, any_value::Value},
    trace::v1::{ResourceSpans, Span, status::StatusCode},
};
use serde::Serialize;

use super::attribute;

/// The most attributes of a span that are kept.
const ATTRIBUTES: usize = 32;
/// The most links of a span that are kept.
const LINKS: usize = 8;
/// The most bytes of a text that are kept.
const TEXT: usize = 1024;

/// A received span, without the id of its trace, which is kept beside it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReceivedSpan {
    /// The span's id.
    #[serde(rename = "spanID", serialize_with = "hex")]
    pub id: u64,
    /// The id of the parent span; 0 for a root.
    #[serde(rename = "parentSpanID", serialize_with = "hex")]
    pub parent: u64,
    /// The span's name.
    pub name: String,
    /// The service that recorded it: `service.name`.
    pub service: String,
    /// The start, in nanoseconds since 1970.
    pub start_unix_nano: u64,
    /// The end, in nanoseconds since 1970.
    pub end_unix_nano: u64,
    /// The error, if it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The attributes, in the order in which they were set.
    #[serde(serialize_with = "as_map")]
    pub attributes: Vec<(String, String)>,
    /// The links, as `TRACE-SPAN` in hexadecimal digits.
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

impl ReceivedSpan {
    /// The value of an attribute.
    pub fn attribute(&self, key: &str) -> Option<&str> {
        let mut attributes = self.attributes.iter();
        let (_, value) = attributes.find(|(name, _)| name == key)?;
        Some(value)
    }

    /// The process that did it: the plugin, or the service.
    pub fn actor(&self) -> &str {
        self.attribute(attribute::PLUGIN).unwrap_or(&self.service)
    }

    /// The process for display, with the node if there is one.
    pub fn process(&self) -> String {
        let who = self.actor();
        match self.attribute(attribute::NODE) {
            Some(node) => format!("{who} {node}"),
            None => who.to_owned(),
        }
    }

    /// The approximate memory use in bytes.
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

/// The spans of an export, with the ids of their traces. Spans without valid ids are skipped.
pub fn received_spans(exported: Vec<ResourceSpans>) -> impl Iterator<Item = (u128, ReceivedSpan)> {
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

fn one(span: Span, service: &str) -> Option<(u128, ReceivedSpan)> {
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
    let seen = ReceivedSpan {
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

/// The value as a text for display.
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
        // No attribute that is shown has such a value.
        Some(other) => bounded(format!("{other:?}")),
    }
}

/// The text, cut to [`TEXT`] bytes and without control characters, which could move a terminal's
/// cursor.
fn bounded(mut text: String) -> String {
    if text.len() > TEXT {
        text.truncate(text.floor_char_boundary(TEXT));
    }
    if text.contains(char::is_control) {
        text = text.replace(char::is_control, " ");
    }
    text
}
