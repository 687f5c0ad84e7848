//! Functions of lists and sets.

use std::cmp::Ordering;

use super::{LIST_A, arguments};
use crate::{
    error::Failure,
    functions::{
        Declared::{self, A, Bool, Double, Duration, Int, List as ListOf, Uint},
        Overload, global, member,
    },
    list::List,
    meter::Meter,
    value::Value,
};

pub(super) static FUNCTIONS: &[Overload] = &[
    member("isSorted", &[LIST_A], Bool, is_sorted).counts_cost(),
    member("sum", &[ListOf(&Int)], Int, sum).counts_cost(),
    member("sum", &[ListOf(&Uint)], Uint, sum).counts_cost(),
    member("sum", &[ListOf(&Double)], Double, sum).counts_cost(),
    member("sum", &[ListOf(&Duration)], Duration, sum).counts_cost(),
    member("min", &[LIST_A], A, min).counts_cost(),
    member("max", &[LIST_A], A, max).counts_cost(),
    member("indexOf", &[LIST_A, A], Int, index_of).counts_cost(),
    member("lastIndexOf", &[LIST_A, A], Int, last_index_of).counts_cost(),
    member("includes", &[LIST_A, A], Bool, includes).counts_cost(),
    member("slice", &[LIST_A, Int, Int], LIST_A, slice).counts_cost(),
    member(
        "flatten",
        &[ListOf(&Declared::Dyn)],
        ListOf(&Declared::Dyn),
        flatten,
    )
    .counts_cost(),
    member("reverse", &[LIST_A], LIST_A, reverse).counts_cost(),
    member("distinct", &[LIST_A], LIST_A, distinct).counts_cost(),
    member("sort", &[LIST_A], LIST_A, sort).counts_cost(),
    global("lists.range", &[Int], ListOf(&Int), range).counts_cost(),
    global("sets.contains", &[LIST_A, LIST_A], Bool, set_contains).counts_cost(),
    global("sets.equivalent", &[LIST_A, LIST_A], Bool, set_equivalent).counts_cost(),
    global("sets.intersects", &[LIST_A, LIST_A], Bool, set_intersects).counts_cost(),
];

type Outcome<'a> = Result<Value<'a>, Failure>;

/// Compares two elements, and counts it.
fn compare(a: &Value<'_>, b: &Value<'_>, meter: &mut Meter) -> Result<Ordering, Failure> {
    meter.traverse(a.size().min(b.size()), 1)?;
    match a {
        // The order of these values is that of their equality alone.
        Value::List(_) | Value::Map(_) | Value::Null | Value::Optional(_) => {
            Err(Failure::NoSuchOverload)
        }
        _ => a.compare(b).ok_or(Failure::NoSuchOverload),
    }
}

fn is_sorted<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, Value::List(list));
    let mut before: Option<Value<'a>> = None;
    for item in list.iter() {
        if let Some(before) = &before
            && compare(before, &item, meter)?.is_gt()
        {
            return Ok(Value::Bool(false));
        }
        before = Some(item);
    }
    Ok(Value::Bool(true))
}

fn sum<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, Value::List(list));
    let mut total: Option<Value<'a>> = None;
    for item in list.iter() {
        meter.charge(1)?;
        let overflow = |text: &str| Failure::Other(text.to_owned());
        total = Some(match (total, item) {
            (None, item) => item,
            (Some(Value::Int(a)), Value::Int(b)) => Value::Int(
                a.checked_add(b)
                    .ok_or_else(|| overflow("integer overflow"))?,
            ),
            (Some(Value::Uint(a)), Value::Uint(b)) => Value::Uint(
                a.checked_add(b)
                    .ok_or_else(|| overflow("unsigned integer overflow"))?,
            ),
            (Some(Value::Double(a)), Value::Double(b)) => Value::Double(a + b),
            (Some(Value::Duration(a)), Value::Duration(b)) => Value::Duration(
                a.checked_add(b)
                    .ok_or_else(|| overflow("duration overflow"))?,
            ),
            _ => return Err(Failure::NoSuchOverload),
        });
    }
    Ok(total.unwrap_or(Value::Int(0)))
}

fn extreme<'a>(meter: &mut Meter, args: &[Value<'a>], name: &str, want: Ordering) -> Outcome<'a> {
    arguments!(args, Value::List(list));
    let mut found: Option<Value<'a>> = None;
    for item in list.iter() {
        match &found {
            Some(best) if compare(&item, best, meter)? != want => {}
            _ => found = Some(item),
        }
    }
    found.ok_or_else(|| Failure::Other(format!("{name} called on empty list")))
}

fn min<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    extreme(meter, args, "min", Ordering::Less)
}

fn max<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    extreme(meter, args, "max", Ordering::Greater)
}

fn place<'a>(
    meter: &mut Meter,
    items: impl Iterator<Item = (usize, Value<'a>)>,
    wanted: &Value<'a>,
) -> Result<Option<usize>, Failure> {
    for (index, item) in items {
        if item.equals(wanted, meter)? {
            return Ok(Some(index));
        }
    }
    Ok(None)
}

fn int<'a>(place: Option<usize>) -> Value<'a> {
    Value::Int(place.map_or(-1, |place| i64::try_from(place).unwrap_or(i64::MAX)))
}

fn numbered<'a, 'l>(list: &'l List<'a>) -> impl Iterator<Item = (usize, Value<'a>)> + 'l {
    list.iter().enumerate()
}

fn index_of<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, Value::List(list), wanted);
    place(meter, numbered(list), wanted).map(int)
}

fn last_index_of<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, Value::List(list), wanted);
    let backwards = (0..list.len())
        .rev()
        .filter_map(|index| Some((index, list.get(index)?)));
    place(meter, backwards, wanted).map(int)
}

fn includes<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, Value::List(list), wanted);
    Ok(Value::Bool(place(meter, numbered(list), wanted)?.is_some()))
}

fn charge_length(meter: &mut Meter, length: usize) -> Result<(), Failure> {
    meter.charge(1 + u64::try_from(length).unwrap_or(u64::MAX) / 4)
}

fn slice<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, Value::List(list), Value::Int(start), Value::Int(end));
    if *start < 0 || *end < 0 {
        return Failure::other(format!(
            "cannot slice({start}, {end}), negative indexes not supported"
        ));
    }
    if start > end {
        return Failure::other(format!(
            "cannot slice({start}, {end}), start index must be less than or equal to end index"
        ));
    }
    let bounds = (usize::try_from(*start), usize::try_from(*end));
    match bounds {
        (Ok(from), Ok(to)) if to <= list.len() => {
            charge_length(meter, to - from)?;
            Ok(Value::List(List::new(
                (from..to).filter_map(|index| list.get(index)).collect(),
            )))
        }
        _ => Failure::other(format!(
            "cannot slice({start}, {end}), list is length {}",
            list.len()
        )),
    }
}

fn flatten<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, Value::List(list));
    let mut out = Vec::new();
    for item in list.iter() {
        match item {
            Value::List(inner) => {
                charge_length(meter, inner.len())?;
                out.extend(inner.iter());
            }
            other => {
                meter.charge(1)?;
                out.push(other);
            }
        }
    }
    Ok(Value::List(List::new(out)))
}

fn reverse<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, Value::List(list));
    charge_length(meter, list.len())?;
    Ok(Value::List(List::new(list.iter().rev().collect())))
}

fn distinct<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, Value::List(list));
    let mut out: Vec<Value<'a>> = Vec::new();
    for item in list.iter() {
        let mut known = false;
        for other in &out {
            if other.equals(&item, meter)? {
                known = true;
                break;
            }
        }
        meter.charge(1)?;
        if !known {
            out.push(item);
        }
    }
    Ok(Value::List(List::new(out)))
}

fn sort<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, Value::List(list));
    charge_length(meter, list.len())?;
    let mut items: Vec<_> = list.iter().collect();
    let mut failure = None;
    items.sort_by(|a, b| match compare(a, b, meter) {
        Ok(ordering) => ordering,
        Err(error) => {
            failure.get_or_insert(error);
            Ordering::Equal
        }
    });
    match failure {
        Some(failure) => Err(failure),
        None => Ok(Value::List(List::new(items))),
    }
}

fn range<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, Value::Int(end));
    meter.charge(u64::try_from(*end).unwrap_or(0).saturating_add(1))?;
    Ok(Value::List(List::new((0..*end).map(Value::Int).collect())))
}

fn contains(a: &List<'_>, b: &List<'_>, meter: &mut Meter) -> Result<bool, Failure> {
    for item in b.iter() {
        meter.charge(1)?;
        if !b_in_a(a, &item, meter)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn b_in_a(a: &List<'_>, item: &Value<'_>, meter: &mut Meter) -> Result<bool, Failure> {
    for other in a.iter() {
        if other.equals(item, meter)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn set_contains<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, Value::List(a), Value::List(b));
    meter.charge(1)?;
    contains(a, b, meter).map(Value::Bool)
}

fn set_equivalent<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, Value::List(a), Value::List(b));
    meter.charge(1)?;
    Ok(Value::Bool(
        contains(a, b, meter)? && contains(b, a, meter)?,
    ))
}

fn set_intersects<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, Value::List(a), Value::List(b));
    meter.charge(1)?;
    for item in b.iter() {
        meter.charge(1)?;
        if b_in_a(a, &item, meter)? {
            return Ok(Value::Bool(true));
        }
    }
    Ok(Value::Bool(false))
}
