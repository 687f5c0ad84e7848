//! Lists, whose concatenation copies nothing.

use std::{collections::HashMap, sync::Arc};

use serde_json::Value as Json;

use crate::{
    error::Failure,
    meter::Meter,
    types::{DataShape, Declaration, ListIdentity},
    value::{Key, Value},
};

/// A list.
#[derive(Clone, Debug)]
pub enum List<'a> {
    /// Data with its declaration.
    Json(&'a [Json], &'a Declaration),
    /// Made by an expression.
    Shared(Arc<Vec<Value<'a>>>),
    /// The elements of one list, then those of another.
    Both(Arc<(List<'a>, List<'a>, usize)>),
}

impl<'a> List<'a> {
    pub(crate) fn new(items: Vec<Value<'a>>) -> Self {
        Self::Shared(Arc::new(items))
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Json(items, _) => items.len(),
            Self::Shared(items) => items.len(),
            Self::Both(both) => both.2,
        }
    }

    pub(crate) fn get(&self, index: usize) -> Option<Value<'a>> {
        match self {
            Self::Json(items, declared) => {
                let items_declared = declared.elements().map_or(*declared, |items| &**items);
                items.get(index).map(|item| Value::of(item, items_declared))
            }
            Self::Shared(items) => items.get(index).cloned(),
            Self::Both(both) => match index.checked_sub(both.0.len()) {
                None => both.0.get(index),
                Some(index) => both.1.get(index),
            },
        }
    }

    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = Value<'a>> + '_ {
        (0..self.len()).filter_map(|index| self.get(index))
    }

    /// The concatenation. Lists with identities are merged by them: elements of the second list
    /// replace equal ones of the first.
    pub(crate) fn concat(&self, other: &Self, meter: &mut Meter) -> Result<Self, Failure> {
        if self.len() == 0 {
            return Ok(other.clone());
        }
        if other.len() == 0 {
            return Ok(self.clone());
        }
        match self.identity() {
            ListIdentity::Position => {
                let length = self.len().saturating_add(other.len());
                Ok(Self::Both(Arc::new((self.clone(), other.clone(), length))))
            }
            identity => {
                meter.charge(
                    u64::try_from(self.len().saturating_add(other.len())).unwrap_or(u64::MAX),
                )?;
                let mut items: Vec<Value<'a>> = self.iter().collect();
                let mut places = HashMap::new();
                for (place, item) in items.iter().enumerate() {
                    places.insert(identify(item, identity, meter)?, place);
                }
                for item in other.iter() {
                    let id = identify(&item, identity, meter)?;
                    match places.get(&id).and_then(|place| items.get_mut(*place)) {
                        Some(place) => *place = item,
                        None => {
                            places.insert(id, items.len());
                            items.push(item);
                        }
                    }
                }
                Ok(Self::new(items))
            }
        }
    }

    pub(crate) fn equals(&self, other: &Self, meter: &mut Meter) -> Result<bool, Failure> {
        if self.len() != other.len() {
            return Ok(false);
        }
        match self.identity() {
            ListIdentity::Position => {
                for (a, b) in self.iter().zip(other.iter()) {
                    if !a.equals(&b, meter)? {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
            identity => {
                let mut by_id = HashMap::new();
                for item in other.iter() {
                    by_id.insert(identify(&item, identity, meter)?, item);
                }
                for item in self.iter() {
                    let Some(theirs) = by_id.get(&identify(&item, identity, meter)?) else {
                        return Ok(false);
                    };
                    if !item.equals(theirs, meter)? {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
        }
    }

    fn identity(&self) -> &'a ListIdentity {
        match self {
            Self::Json(_, declared) => match &declared.shape {
                DataShape::List { identity, .. } => identity,
                _ => &ListIdentity::Position,
            },
            Self::Shared(_) | Self::Both(_) => &ListIdentity::Position,
        }
    }
}

/// The identity of an element as a text.
fn identify(
    item: &Value<'_>,
    identity: &ListIdentity,
    meter: &mut Meter,
) -> Result<String, Failure> {
    let one = |value: &Value<'_>| match value.key() {
        Ok(Key::Bool(value)) => format!("b{value}"),
        Ok(Key::Number(number)) => format!("n{number}"),
        Ok(Key::String(text)) => format!("s{}:{text}", text.len()),
        Err(_) => format!("{value:?}"),
    };
    let id = match (identity, item) {
        (ListIdentity::Fields(names), Value::Map(fields)) => {
            let values = names
                .iter()
                .map(|name| fields.field(name).as_ref().map_or_else(String::new, one));
            values.collect::<Vec<_>>().join(",")
        }
        _ => one(item),
    };
    meter.traverse(id.len(), 1)?;
    Ok(id)
}
