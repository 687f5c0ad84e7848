//! Regular expressions. The evaluator passes patterns that it compiled before by way of the meter.

use super::{LIST_STRING, arguments};
use crate::{
    error::Failure,
    functions::{
        Declared::{Bool, Int, String},
        Overload, global, member,
    },
    list::List,
    meter::{Meter, traversal},
    pattern::Pattern,
    value::Value,
};

pub(super) static FUNCTIONS: &[Overload] = &[
    global("matches", &[String, String], Bool, matches).counts_cost(),
    member("matches", &[String, String], Bool, matches).counts_cost(),
    member("find", &[String, String], String, find).counts_cost(),
    member("findAll", &[String, String], LIST_STRING, find_all).counts_cost(),
    member("findAll", &[String, String, Int], LIST_STRING, find_all).counts_cost(),
];

/// The functions whose second argument is a pattern.
pub(crate) const WITH_PATTERN: [&str; 3] = ["matches", "find", "findAll"];

type Outcome<'a> = Result<Value<'a>, Failure>;

fn prepared(
    meter: &mut Meter,
    text: &str,
    pattern: &str,
) -> Result<std::sync::Arc<Pattern>, Failure> {
    let length = text.len().saturating_add(1);
    let of_pattern = u64::try_from(pattern.len()).unwrap_or(u64::MAX).div_ceil(4);
    let compiled = meter.pattern(pattern)?;
    let reference = traversal(length, 1).saturating_mul(of_pattern);
    meter.charge(reference.max(compiled.search_cost(length)))?;
    Ok(compiled)
}

fn matches<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, Value::String(text), Value::String(pattern));
    let pattern = prepared(meter, text, pattern)?;
    Ok(Value::Bool(pattern.is_match(text)))
}

fn find<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, Value::String(text), Value::String(pattern));
    let pattern = prepared(meter, text, pattern)?;
    let found = pattern.regex().find(text);
    Ok(Value::string(found.map_or("", |found| found.as_str())))
}

fn find_all<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    let (text, pattern, most) = match args {
        [Value::String(text), Value::String(pattern)] => (text, pattern, -1),
        [
            Value::String(text),
            Value::String(pattern),
            Value::Int(most),
        ] => (text, pattern, *most),
        _ => return Err(Failure::NoSuchOverload),
    };
    let pattern = prepared(meter, text, pattern)?;
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    let mut found = Vec::new();
    for part in pattern.regex().find_iter(text).take(most) {
        // Each search may look at all of the rest of the text.
        let rest = text.len().saturating_sub(part.end());
        meter.charge(1 + u64::try_from(rest / 1_000).unwrap_or(u64::MAX))?;
        found.push(Value::string(part.as_str()));
    }
    Ok(Value::List(List::new(found)))
}
