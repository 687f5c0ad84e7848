//! `format`: texts with verbs, as in `"%d of %s".format([1, "a"])`.

use std::fmt::Write as _;

use super::{arguments, conversions};
use crate::{
    error::Failure,
    functions::{
        Declared::{self, Dyn, String},
        Overload, member,
    },
    meter::Meter,
    value::Value,
};

pub(super) static FUNCTIONS: &[Overload] =
    &[member("format", &[String, Declared::List(&Dyn)], String, format).counts_cost()];

/// The most digits after the point.
const MAX_PRECISION: usize = 100;

fn format<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Result<Value<'a>, Failure> {
    arguments!(args, Value::String(template), Value::List(values));
    meter.traverse(template.len(), 1)?;
    let mut out = std::string::String::new();
    let mut values = values.iter().enumerate();
    let mut rest = &**template;
    while let Some((text, verb)) = rest.split_once('%') {
        out.push_str(text);
        if let Some(after) = verb.strip_prefix('%') {
            out.push('%');
            rest = after;
            continue;
        }
        let (precision, verb) = precision(verb)?;
        let Some(kind) = verb.chars().next() else {
            return Failure::other("unexpected end of string");
        };
        let Some((index, value)) = values.next() else {
            return Failure::other("index out of range");
        };
        let before = out.len();
        substitute(&mut out, kind, precision, &value, meter).map_err(|error| match error {
            Failure::Other(text) => Failure::Other(format!("{text} (argument {index})")),
            other => other,
        })?;
        meter.traverse(out.len().saturating_sub(before), 1)?;
        rest = verb.get(kind.len_utf8()..).unwrap_or_default();
    }
    out.push_str(rest);
    if values.next().is_some() {
        return Failure::other("too many arguments supplied to string.format");
    }
    Ok(Value::string(out))
}

fn precision(verb: &str) -> Result<(Option<usize>, &str), Failure> {
    let Some(digits) = verb.strip_prefix('.') else {
        return Ok((None, verb));
    };
    let end = digits
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(digits.len());
    let (digits, rest) = digits.split_at(end);
    match digits.parse() {
        Ok(precision) if precision <= MAX_PRECISION => Ok((Some(precision), rest)),
        _ => Failure::other(format!("error while parsing precision: {digits:?}")),
    }
}

fn substitute(
    out: &mut std::string::String,
    kind: char,
    precision: Option<usize>,
    value: &Value<'_>,
    meter: &mut Meter,
) -> Result<(), Failure> {
    let precision = precision.unwrap_or(6);
    let written = match (kind, value) {
        ('s', value) => return text(out, value, meter),
        ('d', Value::Int(_) | Value::Uint(_)) => {
            out.push_str(&conversions::display(value));
            Ok(())
        }
        ('f', Value::Double(value)) => write!(out, "{value:.precision$}"),
        ('e', Value::Double(value)) => {
            let text = format!("{value:.precision$e}");
            let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
            let (sign, exponent) = match exponent.strip_prefix('-') {
                Some(exponent) => ('-', exponent),
                None => ('+', exponent),
            };
            write!(out, "{digits}e{sign}{exponent:0>2}")
        }
        ('b', Value::Bool(value)) => write!(out, "{}", u8::from(*value)),
        ('b', Value::Int(value)) => signed(out, *value, |n| format!("{n:b}")),
        ('b', Value::Uint(value)) => write!(out, "{value:b}"),
        ('o', Value::Int(value)) => signed(out, *value, |n| format!("{n:o}")),
        ('o', Value::Uint(value)) => write!(out, "{value:o}"),
        ('x', Value::Int(value)) => signed(out, *value, |n| format!("{n:x}")),
        ('x', Value::Uint(value)) => write!(out, "{value:x}"),
        ('X', Value::Int(value)) => signed(out, *value, |n| format!("{n:X}")),
        ('X', Value::Uint(value)) => write!(out, "{value:X}"),
        ('x', Value::String(text)) => text.bytes().try_for_each(|byte| write!(out, "{byte:02x}")),
        ('X', Value::String(text)) => text.bytes().try_for_each(|byte| write!(out, "{byte:02X}")),
        ('x', Value::Bytes(bytes)) => bytes.iter().try_for_each(|byte| write!(out, "{byte:02x}")),
        ('X', Value::Bytes(bytes)) => bytes.iter().try_for_each(|byte| write!(out, "{byte:02X}")),
        ('d' | 'f' | 'e' | 'b' | 'o' | 'x' | 'X', other) => {
            return Failure::other(format!(
                "could not parse argument as %{kind}: {} is not supported",
                other.type_name()
            ));
        }
        _ => return Failure::other(format!("unrecognized formatting clause \"{kind}\"")),
    };
    written.map_err(|_| Failure::Other("string.format failed".into()))
}

fn signed(
    out: &mut std::string::String,
    value: i64,
    digits: impl Fn(u64) -> std::string::String,
) -> std::fmt::Result {
    let sign = if value < 0 { "-" } else { "" };
    write!(out, "{sign}{}", digits(value.unsigned_abs()))
}

/// `%s`: any value, lists and maps with their elements.
fn text(
    out: &mut std::string::String,
    value: &Value<'_>,
    meter: &mut Meter,
) -> Result<(), Failure> {
    match value {
        Value::List(list) => {
            out.push('[');
            for (index, item) in list.iter().enumerate() {
                meter.charge(1)?;
                if index > 0 {
                    out.push_str(", ");
                }
                text(out, &item, meter)?;
            }
            out.push(']');
        }
        Value::Map(map) => {
            out.push('{');
            for (index, (key, value)) in map.iter().enumerate() {
                meter.charge(1)?;
                if index > 0 {
                    out.push_str(", ");
                }
                text(out, &key, meter)?;
                out.push_str(": ");
                text(out, &value, meter)?;
            }
            out.push('}');
        }
        Value::Bytes(bytes) => {
            meter.traverse(bytes.len(), 1)?;
            out.push_str(&std::string::String::from_utf8_lossy(bytes));
        }
        scalar => {
            meter.traverse(scalar.size(), 1)?;
            out.push_str(&conversions::display(scalar));
        }
    }
    Ok(())
}
