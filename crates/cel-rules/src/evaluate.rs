//! Evaluation of checked expressions. Every step has a cost, so that it ends.

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    error::Failure,
    functions::Overload,
    list::List,
    meter::{self, Meter},
    tree::{Fold, FoldKind, Node, NodeKind},
    value::{Entries, Value},
};

type Outcome<'a> = Result<Value<'a>, Failure>;

pub(crate) struct Evaluator<'a, 'm> {
    pub(crate) slots: Vec<Value<'a>>,
    /// The variables that have no value, and why.
    pub(crate) failures: BTreeMap<usize, Failure>,
    pub(crate) meter: &'m mut Meter,
}

/// True for an error that a logical operator does not absorb.
fn is_final(outcome: &Outcome<'_>) -> bool {
    matches!(outcome, Err(Failure::Cost))
}

impl<'a> Evaluator<'a, '_> {
    pub(crate) fn value(&mut self, node: &Node) -> Outcome<'a> {
        match &node.kind {
            NodeKind::Literal(value) => Ok(value.clone()),
            NodeKind::Variable(slot) => {
                self.meter.charge(meter::SELECT)?;
                if let Some(failure) = self.failures.get(slot) {
                    return Err(failure.clone());
                }
                self.slots
                    .get(*slot)
                    .cloned()
                    .ok_or_else(|| Failure::NoSuchKey(slot.to_string()))
            }
            NodeKind::Select {
                operand,
                field,
                optional,
            } => {
                let operand = self.value(operand)?;
                self.meter.charge(meter::SELECT)?;
                select(&operand, field, *optional)
            }
            NodeKind::Has { operand, field } => {
                let operand = self.value(operand)?;
                has(&operand, field).map(Value::Bool)
            }
            NodeKind::Call {
                overloads,
                args,
                pattern,
            } => {
                let values = args
                    .iter()
                    .map(|arg| self.value(arg))
                    .collect::<Result<Vec<_>, _>>()?;
                if let (Some(pattern), Some(Value::String(text))) = (pattern, values.get(1)) {
                    self.meter.remember(text, pattern);
                }
                self.call(overloads, &values)
            }
            NodeKind::And(both) => self.logical(both, false),
            NodeKind::Or(both) => self.logical(both, true),
            NodeKind::Conditional(parts) => {
                let [condition, yes, no] = &**parts;
                match self.value(condition)? {
                    Value::Bool(true) => self.value(yes),
                    Value::Bool(false) => self.value(no),
                    _ => Err(Failure::NoSuchOverload),
                }
            }
            NodeKind::List(items) => {
                self.meter.charge(meter::LIST)?;
                let mut out = Vec::with_capacity(items.len());
                for (item, optional) in items {
                    match (self.value(item)?, optional) {
                        (value, false) => out.push(value),
                        (Value::Optional(Some(value)), true) => out.push((*value).clone()),
                        (Value::Optional(None), true) => {}
                        _ => return Err(Failure::NoSuchOverload),
                    }
                }
                Ok(Value::List(List::new(out)))
            }
            NodeKind::Map(entries) => {
                self.meter.charge(meter::MAP)?;
                let mut out = BTreeMap::new();
                for (key, value, optional) in entries {
                    let key = self.value(key)?;
                    let value = match (self.value(value)?, optional) {
                        (value, false) => value,
                        (Value::Optional(Some(value)), true) => (*value).clone(),
                        (Value::Optional(None), true) => continue,
                        _ => return Err(Failure::NoSuchOverload),
                    };
                    let before = out.insert(key.key()?, value);
                    if before.is_some() {
                        return Failure::other(format!(
                            "Failed with repeated key: {}",
                            shown(&key)
                        ));
                    }
                }
                Ok(Value::Map(Entries::Shared(Arc::new(out))))
            }
            NodeKind::Fold(fold) => self.fold(fold),
            NodeKind::OptionalMap {
                target,
                slot,
                body,
                flat,
            } => match self.value(target)? {
                Value::Optional(None) => Ok(Value::Optional(None)),
                Value::Optional(Some(value)) => {
                    self.set(*slot, (*value).clone());
                    let body = self.value(body)?;
                    match (flat, &body) {
                        (false, _) => Ok(Value::optional(Some(body))),
                        (true, Value::Optional(_)) => Ok(body),
                        (true, _) => Err(Failure::NoSuchOverload),
                    }
                }
                _ => Err(Failure::NoSuchOverload),
            },
        }
    }

    fn set(&mut self, slot: usize, value: Value<'a>) {
        if let Some(place) = self.slots.get_mut(slot) {
            *place = value;
        }
    }

    fn call(&mut self, overloads: &[&'static Overload], args: &[Value<'a>]) -> Outcome<'a> {
        let overload = overloads.iter().find(|overload| overload.accepts(args));
        let overload = overload.ok_or(Failure::NoSuchOverload)?;
        if !overload.counts {
            self.meter.charge(1)?;
        }
        (overload.run)(self.meter, args)
    }

    /// `&&` or `||`: `decides` by either side is the result, whatever the other one is.
    fn logical(&mut self, both: &[Node; 2], decides: bool) -> Outcome<'a> {
        let [first, second] = both;
        let first = self.value(first);
        if is_final(&first) {
            return first;
        }
        if matches!(first, Ok(Value::Bool(value)) if value == decides) {
            return first;
        }
        let second = self.value(second);
        if is_final(&second) || matches!(second, Ok(Value::Bool(value)) if value == decides) {
            return second;
        }
        match (first, second) {
            (Ok(Value::Bool(_)), Ok(Value::Bool(_))) => Ok(Value::Bool(!decides)),
            (Err(failure), _) | (_, Err(failure)) => Err(failure),
            _ => Err(Failure::NoSuchOverload),
        }
    }

    fn fold(&mut self, fold: &Fold) -> Outcome<'a> {
        let range = self.value(&fold.range)?;
        let mut result = FoldResult::new(fold.kind);
        match &range {
            Value::List(list) => {
                for index in 0..list.len() {
                    let Some(item) = list.get(index) else { break };
                    if fold.second.is_some() {
                        let index = Value::Int(i64::try_from(index).unwrap_or(i64::MAX));
                        self.set(fold.first, index);
                    }
                    self.set(fold.second.unwrap_or(fold.first), item);
                    if self.step(fold, &mut result)? {
                        break;
                    }
                }
            }
            Value::Map(map) => {
                for (key, value) in map.iter() {
                    self.set(fold.first, key);
                    if let Some(second) = fold.second {
                        self.set(second, value);
                    }
                    if self.step(fold, &mut result)? {
                        break;
                    }
                }
            }
            _ => return Err(Failure::NoSuchOverload),
        }
        self.meter.charge(meter::SELECT)?;
        result.finish()
    }

    /// One element. Returns true if the result is known.
    fn step(&mut self, fold: &Fold, result: &mut FoldResult<'a>) -> Result<bool, Failure> {
        // The cost of the loop's condition, and of the steps of the macro's expansion.
        self.meter.charge(match fold.kind {
            FoldKind::All => 3,
            FoldKind::Exists => 4,
            FoldKind::ExistsOne => 1,
            FoldKind::List => 0,
            FoldKind::Map | FoldKind::Entries => 2,
        })?;
        if let Some(filter) = &fold.filter {
            match self.value(filter)? {
                Value::Bool(true) => {}
                Value::Bool(false) => {
                    self.meter.charge(meter::SELECT)?;
                    return Ok(false);
                }
                _ => return Err(Failure::NoSuchOverload),
            }
        }
        if fold.kind == FoldKind::List {
            // `@result + [body]`.
            self.meter.charge(meter::LIST + 2)?;
        }
        let body = self.value(&fold.body);
        if let Err(Failure::Cost) = body {
            return Err(Failure::Cost);
        }
        match result {
            FoldResult::Decided {
                decides,
                failure,
                found,
            } => match body {
                Ok(Value::Bool(value)) if value == *decides => {
                    *found = true;
                    return Ok(true);
                }
                Ok(Value::Bool(_)) => {}
                Ok(_) => _ = failure.get_or_insert(Failure::NoSuchOverload),
                Err(error) => _ = failure.get_or_insert(error),
            },
            FoldResult::Count(count) => match body? {
                Value::Bool(true) => *count += 1,
                Value::Bool(false) => {}
                _ => return Err(Failure::NoSuchOverload),
            },
            FoldResult::List(items) => items.push(body?),
            FoldResult::Map(entries) => {
                let body = body?;
                if fold.kind == FoldKind::Map {
                    let key = self
                        .slots
                        .get(fold.first)
                        .ok_or(Failure::NoSuchOverload)?
                        .key()?;
                    entries.insert(key, body);
                } else {
                    let Value::Map(new) = body else {
                        return Err(Failure::NoSuchOverload);
                    };
                    for (key, value) in new.iter() {
                        self.meter.charge(1)?;
                        if entries.insert(key.key()?, value).is_some() {
                            return Failure::other(format!(
                                "insert failed: key {} already exists",
                                shown(&key)
                            ));
                        }
                    }
                }
            }
        }
        Ok(false)
    }
}

enum FoldResult<'a> {
    /// `all` and `exists`: a body that is `decides` ends it, and makes up for errors before.
    Decided {
        decides: bool,
        failure: Option<Failure>,
        found: bool,
    },
    Count(usize),
    List(Vec<Value<'a>>),
    Map(BTreeMap<crate::value::Key, Value<'a>>),
}

impl<'a> FoldResult<'a> {
    fn new(kind: FoldKind) -> Self {
        let decided = |decides| Self::Decided {
            decides,
            failure: None,
            found: false,
        };
        match kind {
            FoldKind::All => decided(false),
            FoldKind::Exists => decided(true),
            FoldKind::ExistsOne => Self::Count(0),
            FoldKind::List => Self::List(Vec::new()),
            FoldKind::Map | FoldKind::Entries => Self::Map(BTreeMap::new()),
        }
    }

    fn finish(self) -> Outcome<'a> {
        match self {
            Self::Decided {
                decides,
                found: true,
                ..
            } => Ok(Value::Bool(decides)),
            Self::Decided {
                failure: Some(failure),
                ..
            } => Err(failure),
            Self::Decided { decides, .. } => Ok(Value::Bool(!decides)),
            Self::Count(count) => Ok(Value::Bool(count == 1)),
            Self::List(items) => Ok(Value::List(List::new(items))),
            Self::Map(entries) => Ok(Value::Map(Entries::Shared(Arc::new(entries)))),
        }
    }
}

fn shown(value: &Value<'_>) -> String {
    value
        .as_str()
        .map_or_else(|| format!("{value:?}"), str::to_owned)
}

fn select<'a>(operand: &Value<'a>, field: &str, optional: bool) -> Outcome<'a> {
    match operand {
        Value::Map(map) => match (map.field(field), optional) {
            (found, true) => Ok(Value::optional(found)),
            (Some(value), false) => Ok(value),
            (None, false) => Err(Failure::NoSuchKey(field.to_owned())),
        },
        Value::Optional(None) => Ok(Value::Optional(None)),
        Value::Optional(Some(value)) => match select(value, field, true)? {
            found @ Value::Optional(_) => Ok(found),
            found => Ok(Value::optional(Some(found))),
        },
        _ if optional => Ok(Value::Optional(None)),
        _ => Err(Failure::NoSuchOverload),
    }
}

fn has(operand: &Value<'_>, field: &str) -> Result<bool, Failure> {
    match operand {
        Value::Map(map) => Ok(map.field(field).is_some()),
        Value::Optional(None) => Ok(false),
        Value::Optional(Some(value)) => has(value, field),
        _ => Err(Failure::NoSuchOverload),
    }
}
