//! Resource quantities.

use std::{cmp::Ordering, fmt};

use rust_decimal::{Decimal, prelude::ToPrimitive};

use super::arguments;
use crate::{
    error::Failure,
    functions::{
        Declared::{Bool, Double, Int, Quantity as QuantityType, String},
        Overload, global, member,
    },
    meter::Meter,
    value::Value,
};

/// A number with a unit, by its value: `1k` equals `1000`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Quantity(Decimal);

impl Quantity {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        podplane_api::quantity::decimal(text).map(Self)
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.normalize().fmt(f)
    }
}

pub(super) static FUNCTIONS: &[Overload] = &[
    global("quantity", &[String], QuantityType, parse).counts_cost(),
    global("isQuantity", &[String], Bool, is_quantity).counts_cost(),
    global("sign", &[QuantityType], Int, sign),
    member("sign", &[QuantityType], Int, sign),
    member("isInteger", &[QuantityType], Bool, is_integer),
    member("asInteger", &[QuantityType], Int, as_integer),
    member("asApproximateFloat", &[QuantityType], Double, as_float),
    member(
        "isGreaterThan",
        &[QuantityType, QuantityType],
        Bool,
        is_greater,
    ),
    member("isLessThan", &[QuantityType, QuantityType], Bool, is_less),
    member("compareTo", &[QuantityType, QuantityType], Int, compare),
    member("add", &[QuantityType, QuantityType], QuantityType, add),
    member("add", &[QuantityType, Int], QuantityType, add),
    member("sub", &[QuantityType, QuantityType], QuantityType, sub),
    member("sub", &[QuantityType, Int], QuantityType, sub),
];

type Outcome<'a> = Result<Value<'a>, Failure>;

fn parse<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, Value::String(text));
    meter.traverse(text.len(), 1)?;
    Quantity::parse(text).map(Value::Quantity).ok_or_else(|| {
        Failure::Other(
            "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'".into(),
        )
    })
}

fn is_quantity<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, Value::String(text));
    meter.traverse(text.len(), 1)?;
    Ok(Value::Bool(Quantity::parse(text).is_some()))
}

fn sign<'a>(_: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, Value::Quantity(Quantity(value)));
    Ok(Value::Int(match value.cmp(&Decimal::ZERO) {
        Ordering::Less => -1,
        Ordering::Equal => 0,
        Ordering::Greater => 1,
    }))
}

fn integer(value: Decimal) -> Option<i64> {
    value.is_integer().then(|| value.to_i64()).flatten()
}

fn is_integer<'a>(_: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, Value::Quantity(Quantity(value)));
    Ok(Value::Bool(integer(*value).is_some()))
}

fn as_integer<'a>(_: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, Value::Quantity(Quantity(value)));
    integer(*value)
        .map(Value::Int)
        .ok_or_else(|| Failure::Other("cannot convert value to integer".into()))
}

fn as_float<'a>(_: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, Value::Quantity(Quantity(value)));
    Ok(Value::Double(value.to_f64().unwrap_or_default()))
}

fn is_greater<'a>(_: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, Value::Quantity(a), Value::Quantity(b));
    Ok(Value::Bool(a > b))
}

fn is_less<'a>(_: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, Value::Quantity(a), Value::Quantity(b));
    Ok(Value::Bool(a < b))
}

fn compare<'a>(_: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, Value::Quantity(a), Value::Quantity(b));
    Ok(Value::Int(match a.cmp(b) {
        Ordering::Less => -1,
        Ordering::Equal => 0,
        Ordering::Greater => 1,
    }))
}

fn operands(args: &[Value<'_>]) -> Result<(Decimal, Decimal), Failure> {
    match args {
        [Value::Quantity(a), Value::Quantity(b)] => Ok((a.0, b.0)),
        [Value::Quantity(a), Value::Int(b)] => Ok((a.0, Decimal::from(*b))),
        _ => Err(Failure::NoSuchOverload),
    }
}

fn result<'a>(value: Option<Decimal>) -> Outcome<'a> {
    value
        .map(|value| Value::Quantity(Quantity(value)))
        .ok_or_else(|| Failure::Other("quantity overflow".into()))
}

fn add<'a>(_: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    let (a, b) = operands(args)?;
    result(a.checked_add(b))
}

fn sub<'a>(_: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    let (a, b) = operands(args)?;
    result(a.checked_sub(b))
}
