use std::borrow::Cow;

use winnow::{
    Parser,
    combinator::{alt, preceded, repeat, separated},
    error::ContextError,
    token::{any, none_of, take_while},
};

use super::SelectorError;
use crate::{Object, ObjectKey, packed::PackedStrs};

/// A kind whose objects can be selected by fields: those that Kubernetes supports for it.
pub trait FieldSelectable: Object {
    /// The fields besides `metadata.name` and `metadata.namespace`, with functions that read them.
    const FIELDS: &'static [SelectableField<Self>] = &[];
}

/// A field's label, and its value in an object.
pub type SelectableField<K> = (&'static str, for<'a> fn(&'a K) -> Cow<'a, str>);

/// The values of an object's selectable fields, stored separately from the object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldSet(PackedStrs);

impl FieldSet {
    /// The fields of an object: its name, its namespace, and the values of the fields that its kind
    /// adds, in their order.
    pub fn new<'a>(key: &'a ObjectKey, values: impl Iterator<Item = Cow<'a, str>>) -> Self {
        let metadata = [&key.name, &key.namespace].map(|text| Cow::from(text.as_str()));
        Self(metadata.into_iter().chain(values).collect())
    }

    /// Reads the fields of `object`.
    pub fn of<K: FieldSelectable>(object: &K) -> Self {
        let fields = K::FIELDS.iter().map(|(_, value)| value(object));
        Self::new(&object.key(), fields)
    }

    /// The namespace and name of the object.
    pub fn key(&self) -> ObjectKey {
        let mut metadata = self.0.iter();
        let name = metadata.next().unwrap_or_default();
        ObjectKey::new(metadata.next().unwrap_or_default(), name)
    }

    /// The namespace of the object; empty for one that is in none.
    pub fn namespace(&self) -> &str {
        self.0.get(1).unwrap_or_default()
    }
}

/// A field selector for one kind: `a=b,a==b,a!=b`, all of which must hold. The empty one matches
/// everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSelector(Vec<FieldTerm>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct FieldTerm {
    /// The index in a [`FieldSet`].
    place: usize,
    operator: Operator,
    value: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operator {
    Equal,
    NotEqual,
}

impl FieldSelector {
    /// Parses a selector over the fields of `K`.
    ///
    /// # Errors
    ///
    /// [`SelectorError::Term`] for a term that is not a comparison,
    /// [`SelectorError::Unsupported`] for a field that `K` does not support.
    pub fn parse<K: FieldSelectable>(selector: &str) -> Result<Self, SelectorError> {
        let own: Vec<_> = K::FIELDS.iter().map(|(label, _)| *label).collect();
        Self::parse_over(&own, selector)
    }

    /// Parses a selector over the name, the namespace and these fields.
    ///
    /// # Errors
    ///
    /// As [`parse`](Self::parse).
    pub fn parse_over(own: &[&str], selector: &str) -> Result<Self, SelectorError> {
        let labels = || {
            ["metadata.name", "metadata.namespace"]
                .into_iter()
                .chain(own.iter().copied())
        };
        let mut terms = Vec::new();
        for text in split_unescaped(selector)
            .iter()
            .filter(|text| !text.is_empty())
        {
            let (label, operator, value) = term(text).ok_or_else(|| SelectorError::Term {
                selector: selector.to_owned(),
                term: text.clone(),
            })?;
            let place = labels().position(|supported| supported == label);
            let place = place.ok_or_else(|| SelectorError::Unsupported(label.to_owned()))?;
            terms.push(FieldTerm {
                place,
                operator,
                value,
            });
        }
        Ok(Self(terms))
    }

    /// True if the selector matches every object.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// True if all terms hold for an object with these fields. The object must be of the kind that
    /// the selector was parsed for.
    pub fn matches(&self, fields: &FieldSet) -> bool {
        self.0.iter().all(|term| {
            let equal = fields.0.get(term.place) == Some(&*term.value);
            equal == (term.operator == Operator::Equal)
        })
    }
}

/// Splits at commas that are not escaped by a backslash; escapes are left unchanged.
fn split_unescaped(text: &str) -> Vec<String> {
    let character = alt((('\\', any).take(), none_of(',').take()));
    let part = repeat(0.., character).fold(String::new, |mut part, piece: &str| {
        part.push_str(piece);
        part
    });
    let mut parts = separated::<_, _, Vec<String>, _, ContextError, _, _>(1.., part, ',');
    parts.parse(text).unwrap_or_else(|_| vec![text.to_owned()])
}

fn term(text: &str) -> Option<(&str, Operator, String)> {
    let label = take_while(1.., |character| !"=!".contains(character));
    let operator = alt((
        "!=".value(Operator::NotEqual),
        "==".value(Operator::Equal),
        "=".value(Operator::Equal),
    ));
    let character = alt((preceded('\\', any), none_of(['\\', ',', '='])));
    let value = repeat(0.., character).fold(String::new, |mut value, character: char| {
        value.push(character);
        value
    });
    let mut term = (label, operator, value);
    Parser::<_, _, ContextError>::parse(&mut term, text).ok()
}

/// The text of an optional field.
pub(crate) fn text(value: Option<&str>) -> Cow<'_, str> {
    Cow::Borrowed(value.unwrap_or_default())
}

/// The text of an optional truth value.
pub(crate) fn truth(value: Option<bool>) -> Cow<'static, str> {
    Cow::Borrowed(if value == Some(true) { "true" } else { "false" })
}

/// The text of a field of the spec.
macro_rules! spec {
    ($object:expr, $field:ident) => {
        $object
            .spec
            .as_ref()
            .map_or(std::borrow::Cow::Borrowed(""), |spec| {
                $crate::selector::field::text(spec.$field.as_deref())
            })
    };
}
/// The text of a field of the status.
macro_rules! status {
    ($object:expr, $field:ident) => {
        $object
            .status
            .as_ref()
            .map_or(std::borrow::Cow::Borrowed(""), |status| {
                $crate::selector::field::text(status.$field.as_deref())
            })
    };
}
pub(crate) use {spec, status};

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::core::{Node, Pod};

    fn pod() -> FieldSet {
        let pod = json!({"metadata": {"name": "a", "namespace": "ns"}, "spec": {"containers": [], "nodeName": "n=1,2"}, "status": {"phase": "Running"}});
        FieldSet::of(&serde_json::from_value::<Pod>(pod).unwrap())
    }

    #[test]
    fn matches_fields_by_equality_and_inequality() {
        let holds = [
            "",
            "metadata.name=a",
            "metadata.name==a",
            "metadata.name!=b",
            "metadata.namespace=ns,status.phase=Running",
            "status.podIP=",
            "spec.hostNetwork=false",
            r"spec.nodeName=n\=1\,2",
            "status.phase!=Succeeded,status.phase!=Failed",
        ];
        for text in holds {
            assert!(
                FieldSelector::parse::<Pod>(text).unwrap().matches(&pod()),
                "{text}"
            );
        }
        for text in [
            "metadata.name=b",
            "metadata.name!=a",
            "metadata.name=a,status.phase=Pending",
            "status.podIP!=",
        ] {
            assert!(
                !FieldSelector::parse::<Pod>(text).unwrap().matches(&pod()),
                "{text}"
            );
        }
    }

    #[test]
    fn refuses_invalid_terms_and_unsupported_fields() {
        let refused = |text| FieldSelector::parse::<Pod>(text).unwrap_err().to_string();
        assert_eq!(refused("spec.foo=a"), "field label not supported: spec.foo");
        assert_eq!(
            refused("metadata.name"),
            "invalid selector: 'metadata.name'; can't understand 'metadata.name'"
        );
        assert_eq!(
            refused("status.phase=a,b"),
            "invalid selector: 'status.phase=a,b'; can't understand 'b'"
        );
        assert_eq!(
            refused("=b"),
            "invalid selector: '=b'; can't understand '=b'"
        );
        for text in [r"metadata.name=\", "metadata.name=a=b"] {
            assert!(FieldSelector::parse::<Pod>(text).is_err(), "{text}");
        }
        assert_eq!(
            FieldSelector::parse::<Node>("status.phase=a")
                .unwrap_err()
                .to_string(),
            "field label not supported: status.phase"
        );
    }
}
