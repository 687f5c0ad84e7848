//! Operators, sizes and membership.

use std::cmp::Ordering;

use super::{LIST_A, MAP_AB, arguments};
use crate::{
    error::Failure,
    functions::{
        Declared::{
            self, A, B, Bool, Bytes, Double, Duration, Int, Optional, String, Timestamp, Uint,
        },
        Overload, global, member,
    },
    meter::Meter,
    value::Value,
};

const OPTIONAL_LIST: Declared = Optional(&LIST_A);
const OPTIONAL_MAP: Declared = Optional(&MAP_AB);

macro_rules! ordered {
    ($name:literal, $run:ident) => {
        [
            global($name, &[Bool, Bool], Bool, $run),
            global($name, &[Int, Int], Bool, $run),
            global($name, &[Int, Double], Bool, $run),
            global($name, &[Int, Uint], Bool, $run),
            global($name, &[Uint, Uint], Bool, $run),
            global($name, &[Uint, Double], Bool, $run),
            global($name, &[Uint, Int], Bool, $run),
            global($name, &[Double, Double], Bool, $run),
            global($name, &[Double, Int], Bool, $run),
            global($name, &[Double, Uint], Bool, $run),
            global($name, &[String, String], Bool, $run).counts_cost(),
            global($name, &[Bytes, Bytes], Bool, $run).counts_cost(),
            global($name, &[Timestamp, Timestamp], Bool, $run),
            global($name, &[Duration, Duration], Bool, $run),
        ]
    };
}

pub(super) static LESS: &[Overload] = &ordered!("_<_", less);
pub(super) static LESS_EQUALS: &[Overload] = &ordered!("_<=_", less_equals);
pub(super) static GREATER: &[Overload] = &ordered!("_>_", greater);
pub(super) static GREATER_EQUALS: &[Overload] = &ordered!("_>=_", greater_equals);

pub(super) static FUNCTIONS: &[Overload] = &[
    global("!_", &[Bool], Bool, not),
    global("_==_", &[A, A], Bool, equals).counts_cost(),
    global("_!=_", &[A, A], Bool, not_equals).counts_cost(),
    global("-_", &[Int], Int, negate),
    global("-_", &[Double], Double, negate),
    global("_+_", &[Int, Int], Int, add),
    global("_+_", &[Uint, Uint], Uint, add),
    global("_+_", &[Double, Double], Double, add),
    global("_+_", &[String, String], String, add_text).counts_cost(),
    global("_+_", &[Bytes, Bytes], Bytes, add_text).counts_cost(),
    global("_+_", &[LIST_A, LIST_A], LIST_A, add_lists),
    global("_+_", &[Duration, Duration], Duration, add_times),
    global("_+_", &[Timestamp, Duration], Timestamp, add_times),
    global("_+_", &[Duration, Timestamp], Timestamp, add_times),
    global("_-_", &[Int, Int], Int, subtract),
    global("_-_", &[Uint, Uint], Uint, subtract),
    global("_-_", &[Double, Double], Double, subtract),
    global("_-_", &[Timestamp, Timestamp], Duration, subtract_times),
    global("_-_", &[Timestamp, Duration], Timestamp, subtract_times),
    global("_-_", &[Duration, Duration], Duration, subtract_times),
    global("_*_", &[Int, Int], Int, multiply),
    global("_*_", &[Uint, Uint], Uint, multiply),
    global("_*_", &[Double, Double], Double, multiply),
    global("_/_", &[Int, Int], Int, divide),
    global("_/_", &[Uint, Uint], Uint, divide),
    global("_/_", &[Double, Double], Double, divide),
    global("_%_", &[Int, Int], Int, modulo),
    global("_%_", &[Uint, Uint], Uint, modulo),
    global("_[_]", &[LIST_A, Int], A, index),
    global("_[_]", &[MAP_AB, A], B, index),
    global("_[_]", &[OPTIONAL_LIST, Int], Optional(&A), optional_index),
    global("_[_]", &[OPTIONAL_MAP, A], Optional(&B), optional_index),
    global("_[?_]", &[LIST_A, Int], Optional(&A), optional_index),
    global("_[?_]", &[MAP_AB, A], Optional(&B), optional_index),
    global("_[?_]", &[OPTIONAL_LIST, Int], Optional(&A), optional_index),
    global("_[?_]", &[OPTIONAL_MAP, A], Optional(&B), optional_index),
    global("@in", &[A, LIST_A], Bool, in_list).counts_cost(),
    global("@in", &[A, MAP_AB], Bool, in_map),
    global("size", &[String], Int, size).counts_cost(),
    global("size", &[Bytes], Int, size).counts_cost(),
    global("size", &[LIST_A], Int, size).counts_cost(),
    global("size", &[MAP_AB], Int, size).counts_cost(),
    member("size", &[String], Int, size).counts_cost(),
    member("size", &[Bytes], Int, size).counts_cost(),
    member("size", &[LIST_A], Int, size).counts_cost(),
    member("size", &[MAP_AB], Int, size).counts_cost(),
];

type Outcome<'a> = Result<Value<'a>, Failure>;

fn not<'a>(_: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, Value::Bool(value));
    Ok(Value::Bool(!value))
}

fn equals<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, a, b);
    a.equals(b, meter).map(Value::Bool)
}

fn not_equals<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, a, b);
    a.equals(b, meter).map(|equal| Value::Bool(!equal))
}

fn less<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    order(meter, args, Ordering::is_lt)
}

fn less_equals<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    order(meter, args, Ordering::is_le)
}

fn greater<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    order(meter, args, Ordering::is_gt)
}

fn greater_equals<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    order(meter, args, Ordering::is_ge)
}

fn order<'a>(meter: &mut Meter, args: &[Value<'a>], is: fn(Ordering) -> bool) -> Outcome<'a> {
    arguments!(args, a, b);
    if matches!(a, Value::String(_) | Value::Bytes(_)) {
        meter.traverse(a.size().min(b.size()), 1)?;
    }
    match a.compare(b) {
        Some(ordering) => Ok(Value::Bool(is(ordering))),
        None if matches!(a, Value::Double(_)) || matches!(b, Value::Double(_)) => {
            Failure::other("NaN values cannot be ordered")
        }
        None => Err(Failure::NoSuchOverload),
    }
}

fn int<'a>(value: Option<i64>) -> Outcome<'a> {
    value
        .map(Value::Int)
        .ok_or_else(|| Failure::Other("integer overflow".into()))
}

fn uint<'a>(value: Option<u64>) -> Outcome<'a> {
    value
        .map(Value::Uint)
        .ok_or_else(|| Failure::Other("unsigned integer overflow".into()))
}

fn negate<'a>(_: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    match args {
        [Value::Int(value)] => int(value.checked_neg()),
        [Value::Double(value)] => Ok(Value::Double(-value)),
        _ => Err(Failure::NoSuchOverload),
    }
}

fn add<'a>(_: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    match args {
        [Value::Int(a), Value::Int(b)] => int(a.checked_add(*b)),
        [Value::Uint(a), Value::Uint(b)] => uint(a.checked_add(*b)),
        [Value::Double(a), Value::Double(b)] => Ok(Value::Double(a + b)),
        _ => Err(Failure::NoSuchOverload),
    }
}

fn subtract<'a>(_: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    match args {
        [Value::Int(a), Value::Int(b)] => int(a.checked_sub(*b)),
        [Value::Uint(a), Value::Uint(b)] => uint(a.checked_sub(*b)),
        [Value::Double(a), Value::Double(b)] => Ok(Value::Double(a - b)),
        _ => Err(Failure::NoSuchOverload),
    }
}

fn multiply<'a>(_: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    match args {
        [Value::Int(a), Value::Int(b)] => int(a.checked_mul(*b)),
        [Value::Uint(a), Value::Uint(b)] => uint(a.checked_mul(*b)),
        [Value::Double(a), Value::Double(b)] => Ok(Value::Double(a * b)),
        _ => Err(Failure::NoSuchOverload),
    }
}

fn divide<'a>(_: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    match args {
        [Value::Int(_), Value::Int(0)] | [Value::Uint(_), Value::Uint(0)] => {
            Failure::other("division by zero")
        }
        [Value::Int(a), Value::Int(b)] => int(a.checked_div(*b)),
        [Value::Uint(a), Value::Uint(b)] => uint(a.checked_div(*b)),
        [Value::Double(a), Value::Double(b)] => Ok(Value::Double(a / b)),
        _ => Err(Failure::NoSuchOverload),
    }
}

fn modulo<'a>(_: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    match args {
        [Value::Int(_), Value::Int(0)] | [Value::Uint(_), Value::Uint(0)] => {
            Failure::other("modulus by zero")
        }
        [Value::Int(a), Value::Int(b)] => int(a.checked_rem(*b)),
        [Value::Uint(a), Value::Uint(b)] => uint(a.checked_rem(*b)),
        _ => Err(Failure::NoSuchOverload),
    }
}

fn add_text<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, a, b);
    meter.traverse(a.size().saturating_add(b.size()), 1)?;
    match (a, b) {
        (Value::String(a), Value::String(b)) => Ok(Value::string(format!("{}{}", &**a, &**b))),
        (Value::Bytes(a), Value::Bytes(b)) => Ok(Value::Bytes([&**a, &**b].concat().into())),
        _ => Err(Failure::NoSuchOverload),
    }
}

fn add_lists<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, Value::List(a), Value::List(b));
    a.concat(b, meter).map(Value::List)
}

fn add_times<'a>(_: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    match args {
        [Value::Duration(a), Value::Duration(b)] => duration(a.checked_add(*b)),
        [Value::Timestamp(time), Value::Duration(duration)]
        | [Value::Duration(duration), Value::Timestamp(time)] => {
            timestamp(time.checked_add(*duration))
        }
        _ => Err(Failure::NoSuchOverload),
    }
}

fn subtract_times<'a>(_: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    match args {
        [Value::Duration(a), Value::Duration(b)] => duration(a.checked_sub(*b)),
        [Value::Timestamp(time), Value::Duration(duration)] => {
            timestamp(time.checked_sub(*duration))
        }
        [Value::Timestamp(a), Value::Timestamp(b)] => duration(Some(a.duration_since(*b))),
        _ => Err(Failure::NoSuchOverload),
    }
}

fn duration<'a>(value: Option<jiff::SignedDuration>) -> Outcome<'a> {
    // As in Go, a duration is a number of nanoseconds in 64 bits.
    value
        .filter(|value| i64::try_from(value.as_nanos()).is_ok())
        .map(Value::Duration)
        .ok_or_else(|| Failure::Other("duration overflow".into()))
}

fn timestamp<'a>(value: Result<jiff::Timestamp, jiff::Error>) -> Outcome<'a> {
    value
        .map(Value::Timestamp)
        .map_err(|_| Failure::Other("timestamp overflow".into()))
}

fn index<'a>(_: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    match args {
        [Value::List(list), Value::Int(at)] => {
            let found = usize::try_from(*at).ok().and_then(|at| list.get(at));
            found.ok_or_else(|| Failure::Other(format!("index out of bounds: {at}")))
        }
        [Value::Map(map), key] => map
            .get(key)?
            .ok_or_else(|| Failure::NoSuchKey(super::conversions::display(key))),
        _ => Err(Failure::NoSuchOverload),
    }
}

fn optional_index<'a>(_: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, container, key);
    let container = match container {
        Value::Optional(None) => return Ok(Value::Optional(None)),
        Value::Optional(Some(value)) => value,
        other => other,
    };
    match (container, key) {
        (Value::List(list), Value::Int(at)) => Ok(Value::optional(
            usize::try_from(*at).ok().and_then(|at| list.get(at)),
        )),
        (Value::Map(map), key) => Ok(Value::optional(map.get(key)?)),
        _ => Err(Failure::NoSuchOverload),
    }
}

fn in_list<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, value, Value::List(list));
    meter.charge(1)?;
    for item in list.iter() {
        if item.equals(value, meter)? {
            return Ok(Value::Bool(true));
        }
    }
    Ok(Value::Bool(false))
}

fn in_map<'a>(_: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, key, Value::Map(map));
    match map.get(key) {
        Ok(found) => Ok(Value::Bool(found.is_some())),
        Err(Failure::NoSuchKey(_)) => Ok(Value::Bool(false)),
        Err(other) => Err(other),
    }
}

fn size<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, value);
    let size = match value {
        Value::String(text) => {
            meter.charge(1 + u64::try_from(text.len() / 1_000).unwrap_or(u64::MAX))?;
            text.chars().count()
        }
        other => {
            meter.charge(1)?;
            other.size()
        }
    };
    Ok(Value::Int(i64::try_from(size).unwrap_or(i64::MAX)))
}
