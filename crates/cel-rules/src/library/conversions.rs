//! Conversions between types.

use super::arguments;
use crate::{
    error::Failure,
    functions::{
        Declared::{
            A, Bool, Bytes, Cidr, Double, Duration, Dyn, Int, Ip, Quantity, String, Timestamp,
            Type, Uint,
        },
        Overload, global,
    },
    library::time,
    meter::Meter,
    value::Value,
};

pub(super) static FUNCTIONS: &[Overload] = &[
    global("dyn", &[A], Dyn, same),
    global("type", &[A], Type, type_of),
    global("bool", &[Bool], Bool, same),
    global("bool", &[String], Bool, to_bool),
    global("bytes", &[Bytes], Bytes, same),
    global("bytes", &[String], Bytes, to_bytes).counts_cost(),
    global("double", &[Double], Double, same),
    global("double", &[Int], Double, to_double),
    global("double", &[Uint], Double, to_double),
    global("double", &[String], Double, to_double),
    global("duration", &[Duration], Duration, same),
    global("duration", &[String], Duration, to_duration),
    global("int", &[Int], Int, same),
    global("int", &[Uint], Int, to_int),
    global("int", &[Double], Int, to_int),
    global("int", &[String], Int, to_int),
    global("int", &[Duration], Int, to_int),
    global("int", &[Timestamp], Int, to_int),
    global("uint", &[Uint], Uint, same),
    global("uint", &[Int], Uint, to_uint),
    global("uint", &[Double], Uint, to_uint),
    global("uint", &[String], Uint, to_uint),
    global("string", &[String], String, same),
    global("string", &[Bool], String, to_string),
    global("string", &[Int], String, to_string),
    global("string", &[Uint], String, to_string),
    global("string", &[Double], String, to_string),
    global("string", &[Bytes], String, to_string).counts_cost(),
    global("string", &[Duration], String, to_string),
    global("string", &[Timestamp], String, to_string),
    global("string", &[Ip], String, to_string),
    global("string", &[Cidr], String, to_string),
    global("string", &[Quantity], String, to_string),
    global("timestamp", &[Timestamp], Timestamp, same),
    global("timestamp", &[Int], Timestamp, to_timestamp),
    global("timestamp", &[String], Timestamp, to_timestamp),
];

type Outcome<'a> = Result<Value<'a>, Failure>;

fn same<'a>(_: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, value);
    Ok(value.clone())
}

fn type_of<'a>(_: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, value);
    Ok(Value::Type(value.type_name()))
}

fn refuse<'a>(value: &Value<'_>, want: &str) -> Outcome<'a> {
    Failure::other(format!(
        "type conversion error from '{}' to '{want}'",
        value.type_name()
    ))
}

fn to_bool<'a>(_: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, value);
    match value.as_str().unwrap_or_default() {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(Value::Bool(true)),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(Value::Bool(false)),
        _ => refuse(value, "bool"),
    }
}

fn to_bytes<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, Value::String(text));
    meter.traverse(text.len(), 1)?;
    Ok(Value::Bytes(text.as_bytes().into()))
}

#[expect(clippy::cast_precision_loss, reason = "the nearest number is wanted")]
fn to_double<'a>(_: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, value);
    match value {
        Value::Int(int) => Ok(Value::Double(*int as f64)),
        Value::Uint(uint) => Ok(Value::Double(*uint as f64)),
        Value::String(text) => text
            .parse()
            .map(Value::Double)
            .or_else(|_| refuse(value, "double")),
        other => refuse(other, "double"),
    }
}

fn to_duration<'a>(_: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, value);
    match value.as_str().and_then(time::duration) {
        Some(duration) => Ok(Value::Duration(duration)),
        None => refuse(value, "google.protobuf.Duration"),
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the range is checked")]
fn to_int<'a>(_: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, value);
    let overflow = || Failure::other("integer overflow");
    match value {
        Value::Uint(uint) => i64::try_from(*uint).map(Value::Int).or_else(|_| overflow()),
        Value::Double(double) if double.abs() < 9.223_372_036_854_775e18 => {
            Ok(Value::Int(*double as i64))
        }
        Value::Double(_) => overflow(),
        Value::String(text) => text
            .parse()
            .map(Value::Int)
            .or_else(|_| refuse(value, "int")),
        Value::Duration(duration) => i64::try_from(duration.as_nanos())
            .map(Value::Int)
            .or_else(|_| overflow()),
        Value::Timestamp(time) => Ok(Value::Int(time.as_second())),
        other => refuse(other, "int"),
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the range is checked"
)]
fn to_uint<'a>(_: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, value);
    let overflow = || Failure::other("unsigned integer overflow");
    match value {
        Value::Int(int) => u64::try_from(*int).map(Value::Uint).or_else(|_| overflow()),
        Value::Double(double) if (0.0..1.844_674_407_370_955e19).contains(double) => {
            Ok(Value::Uint(*double as u64))
        }
        Value::Double(_) => overflow(),
        Value::String(text) => text
            .parse()
            .map(Value::Uint)
            .or_else(|_| refuse(value, "uint")),
        other => refuse(other, "uint"),
    }
}

fn to_string<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, value);
    if let Value::Bytes(bytes) = value {
        meter.traverse(bytes.len(), 1)?;
        return match std::str::from_utf8(bytes) {
            Ok(text) => Ok(Value::string(text)),
            Err(_) => Failure::other("invalid UTF-8 in bytes, cannot convert to string"),
        };
    }
    Ok(Value::string(display(value)))
}

fn to_timestamp<'a>(_: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, value);
    let time = match value {
        Value::Int(seconds) => jiff::Timestamp::from_second(*seconds).ok(),
        Value::String(text) => time::timestamp(text),
        _ => None,
    };
    match time {
        Some(time) => Ok(Value::Timestamp(time)),
        None if matches!(value, Value::Int(_)) => Failure::other("timestamp overflow"),
        None => refuse(value, "google.protobuf.Timestamp"),
    }
}

/// A scalar as text.
pub(super) fn display(value: &Value<'_>) -> std::string::String {
    match value {
        Value::Null => "null".into(),
        Value::Bool(value) => value.to_string(),
        Value::Int(value) => value.to_string(),
        Value::Uint(value) => value.to_string(),
        Value::Double(value) => double(*value),
        Value::String(text) => text.to_string(),
        Value::Duration(duration) => time::seconds(*duration),
        Value::Timestamp(time) => time.to_string(),
        Value::Type(name) => (*name).into(),
        Value::Ip(address) => address.to_string(),
        Value::Cidr(network) => network.to_string(),
        Value::Quantity(quantity) => quantity.to_string(),
        other => other.type_name().into(),
    }
}

/// A number as Go's `%g` formats it.
pub(super) fn double(value: f64) -> std::string::String {
    if value.is_nan() {
        return "NaN".into();
    }
    if value.is_infinite() {
        return if value > 0.0 { "+Inf" } else { "-Inf" }.into();
    }
    let magnitude = value.abs();
    if magnitude != 0.0 && !(1e-4..1e21).contains(&magnitude) {
        let text = format!("{value:e}");
        return match text.split_once('e') {
            Some((digits, exponent)) => {
                let (sign, exponent) = match exponent.strip_prefix('-') {
                    Some(exponent) => ('-', exponent),
                    None => ('+', exponent),
                };
                format!("{digits}e{sign}{exponent:0>2}")
            }
            None => text,
        };
    }
    value.to_string()
}
