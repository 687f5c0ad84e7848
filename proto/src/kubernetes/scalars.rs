//! The types whose JSON is not made of their fields.

use std::ops::RangeInclusive;

use bytes::Bytes;
use podplane_api::jiff::{SignedDuration, Timestamp, civil::DateTime};
use prost_reflect::{DynamicMessage, MessageDescriptor, ReflectMessage as _, Value};
use serde_json::Value as Json;

use super::{ConversionError, unmapped};

const QUANTITY: &str = "k8s.io.apimachinery.pkg.api.resource.Quantity";
const TIME: &str = "k8s.io.apimachinery.pkg.apis.meta.v1.Time";
const MICRO_TIME: &str = "k8s.io.apimachinery.pkg.apis.meta.v1.MicroTime";
const INT_OR_STRING: &str = "k8s.io.apimachinery.pkg.util.intstr.IntOrString";
const FIELDS: &str = "k8s.io.apimachinery.pkg.apis.meta.v1.FieldsV1";
const RAW: &str = "k8s.io.apimachinery.pkg.runtime.RawExtension";
const JSON: &str = "k8s.io.apiextensions_apiserver.pkg.apis.apiextensions.v1.JSON";
/// A message without fields.
const EMPTY: &str =
    "k8s.io.apiextensions_apiserver.pkg.apis.apiextensions.v1.CustomResourceSubresourceStatus";

/// The seconds of the year 9999 after [`Timestamp::MAX`].
const LATE: RangeInclusive<i64> = 253_402_207_201..=253_402_300_799;

/// `intstr.String`, as the type of an IntOrString.
const STRING: i64 = 1;

/// True if a message is the zero of such a type, which is null in JSON: an unset time, or no
/// document.
pub(super) fn is_zero(message: &DynamicMessage) -> bool {
    let zero = matches!(
        message.descriptor().full_name(),
        TIME | MICRO_TIME | FIELDS | RAW | JSON
    );
    zero && message.fields().next().is_none()
}

pub(super) fn to_json(message: &DynamicMessage) -> Result<Json, ConversionError> {
    let field = |name: &str| {
        let value = message.get_field_by_name(name);
        value.ok_or_else(|| unmapped(message))
    };
    let integer = |name: &str| {
        let value = field(name)?;
        let wide = value.as_i64().or_else(|| value.as_i32().map(i64::from));
        wide.ok_or_else(|| unmapped(message))
    };
    let text = |name: &str| Ok(field(name)?.as_str().unwrap_or_default().to_owned());
    match message.descriptor().full_name() {
        QUANTITY => Ok(match text("string")?.as_str() {
            "" => "0".into(),
            text => text.into(),
        }),
        TIME => Ok(match integer("seconds")? {
            late if LATE.contains(&late) => late_time(late)?.into(),
            seconds => time(seconds, 0)?.to_string().into(),
        }),
        MICRO_TIME => Ok(match integer("seconds")? {
            late if LATE.contains(&late) => late_time(late)?.into(),
            seconds => format!("{:.6}", time(seconds, integer("nanos")?)?).into(),
        }),
        INT_OR_STRING => Ok(match integer("type")? {
            STRING => text("strVal")?.into(),
            _ => integer("intVal")?.into(),
        }),
        EMPTY => Ok(Json::Object(serde_json::Map::new())),
        FIELDS => document(field("Raw")?.as_ref()),
        RAW | JSON => document(field("raw")?.as_ref()),
        _ => Err(unmapped(message)),
    }
}

/// The text of a time that [`Timestamp`] cannot represent. The reader decides how to store it.
fn late_time(seconds: i64) -> Result<String, ConversionError> {
    let epoch = DateTime::constant(1970, 1, 1, 0, 0, 0, 0);
    let time = epoch.checked_add(SignedDuration::from_secs(seconds));
    let time = time.map_err(|error| ConversionError::new(error.to_string()))?;
    Ok(format!("{time}Z"))
}

fn time(seconds: i64, nanos: i64) -> Result<Timestamp, ConversionError> {
    let nanos = i32::try_from(nanos).unwrap_or(i32::MAX);
    Timestamp::new(seconds, nanos).map_err(|error| ConversionError::new(error.to_string()))
}

fn document(raw: &Value) -> Result<Json, ConversionError> {
    let raw = raw.as_bytes().cloned().unwrap_or_default();
    serde_json::from_slice(&raw).map_err(|error| ConversionError::new(format!("not JSON: {error}")))
}

pub(super) fn to_message(
    json: &Json,
    descriptor: MessageDescriptor,
) -> Result<DynamicMessage, ConversionError> {
    let name = descriptor.full_name().to_owned();
    let mut message = DynamicMessage::new(descriptor);
    let wrong = || ConversionError::new(format!("{json} is not a {name}"));
    let text = || json.as_str().ok_or_else(wrong);
    let raw = || Value::Bytes(Bytes::from(json.to_string()));
    let fields = match name.as_str() {
        QUANTITY => {
            let text = match json {
                Json::Number(number) => number.to_string(),
                _ => text()?.to_owned(),
            };
            vec![("string", Value::String(text))]
        }
        TIME | MICRO_TIME => {
            let time: Timestamp = text()?.parse().map_err(|_| wrong())?;
            // Kubernetes stores seconds for a Time, and microseconds for a MicroTime.
            let nanos = match name.as_str() {
                TIME => 0,
                _ => time.subsec_microsecond() * 1000,
            };
            vec![
                ("seconds", Value::I64(time.as_second())),
                ("nanos", Value::I32(nanos)),
            ]
        }
        INT_OR_STRING => match json {
            Json::String(text) => {
                vec![
                    ("type", Value::I64(STRING)),
                    ("strVal", Value::String(text.clone())),
                ]
            }
            _ => {
                let number = json.as_i64().and_then(|number| number.try_into().ok());
                let number: i32 = number.ok_or_else(wrong)?;
                vec![("type", Value::I64(0)), ("intVal", Value::I32(number))]
            }
        },
        EMPTY => Vec::new(),
        FIELDS => vec![("Raw", raw())],
        RAW | JSON => vec![("raw", raw())],
        _ => return Err(unmapped(&message)),
    };
    for (field, value) in fields {
        message.set_field_by_name(field, value);
    }
    Ok(message)
}
