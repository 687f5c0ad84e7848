//! Optional values. The macros `optMap` and `optFlatMap` are in the compiler.

use super::{LIST_A, arguments};
use crate::{
    error::Failure,
    functions::{
        Declared::{self, A, Bool, Optional},
        Overload, global, member,
    },
    list::List,
    meter::Meter,
    value::Value,
};

const OPTIONAL: Declared = Optional(&A);

pub(super) static FUNCTIONS: &[Overload] = &[
    global("optional.of", &[A], OPTIONAL, of),
    global("optional.ofNonZeroValue", &[A], OPTIONAL, of_non_zero),
    global("optional.none", &[], Optional(&Declared::Dyn), none),
    global(
        "optional.unwrap",
        &[Declared::List(&OPTIONAL)],
        LIST_A,
        unwrap,
    ),
    member("unwrapOpt", &[Declared::List(&OPTIONAL)], LIST_A, unwrap),
    member("value", &[OPTIONAL], A, value),
    member("hasValue", &[OPTIONAL], Bool, has_value),
    member("or", &[OPTIONAL, OPTIONAL], OPTIONAL, or),
    member("orValue", &[OPTIONAL, A], A, or_value),
    member("first", &[LIST_A], OPTIONAL, first),
    member("last", &[LIST_A], OPTIONAL, last),
];

type Outcome<'a> = Result<Value<'a>, Failure>;

fn of<'a>(_: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, value);
    Ok(Value::optional(Some(value.clone())))
}

fn of_non_zero<'a>(_: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, value);
    Ok(Value::optional((!value.is_zero()).then(|| value.clone())))
}

fn none<'a>(_: &mut Meter, _: &[Value<'a>]) -> Outcome<'a> {
    Ok(Value::Optional(None))
}

fn unwrap<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, Value::List(list));
    let mut out = Vec::new();
    for item in list.iter() {
        meter.charge(1)?;
        match item {
            Value::Optional(Some(value)) => out.push((*value).clone()),
            Value::Optional(None) => {}
            _ => return Err(Failure::NoSuchOverload),
        }
    }
    Ok(Value::List(List::new(out)))
}

fn value<'a>(_: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    match args {
        [Value::Optional(Some(value))] => Ok((**value).clone()),
        [Value::Optional(None)] => Failure::other("optional.none() dereference"),
        _ => Err(Failure::NoSuchOverload),
    }
}

fn has_value<'a>(_: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, Value::Optional(value));
    Ok(Value::Bool(value.is_some()))
}

fn or<'a>(_: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, Value::Optional(value), other);
    Ok(if value.is_some() {
        Value::Optional(value.clone())
    } else {
        other.clone()
    })
}

fn or_value<'a>(_: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, Value::Optional(value), other);
    Ok(value
        .as_ref()
        .map_or_else(|| other.clone(), |value| (**value).clone()))
}

fn first<'a>(_: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, Value::List(list));
    Ok(Value::optional(list.get(0)))
}

fn last<'a>(_: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, Value::List(list));
    Ok(Value::optional(
        list.len().checked_sub(1).and_then(|last| list.get(last)),
    ))
}
