use std::borrow::Cow;

use winnow::{
    Parser,
    combinator::{alt, preceded, repeat, separated},
    error::ContextError,
    token::{any, none_of, take_while},
};

use super::SelectorError;
use crate::{
    Object,
    apps::{ControllerRevision, Deployment, ReplicaSet},
    coordination::Lease,
    core::{Event, Namespace, Node, Pod, Service},
    networking::ClusterCIDR,
};

/// A kind whose objects can be selected by some of their fields: those that Kubernetes supports for it.
pub trait Selectable: Object {
    /// The fields beside `metadata.name` and `metadata.namespace`, and how to read them.
    const FIELDS: &'static [Field<Self>];
}

/// A field's label, and its value in an object.
pub type Field<K> = (&'static str, for<'a> fn(&'a K) -> Cow<'a, str>);

/// The values of an object's selectable fields, kept apart from the object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldSet(Box<[Box<str>]>);

impl FieldSet {
    /// Those of `object`.
    pub fn of<K: Selectable>(object: &K) -> Self {
        let metadata = [object.name(), object.namespace()].map(Box::from);
        let fields = K::FIELDS.iter().map(|(_, value)| Box::from(value(object)));
        Self(metadata.into_iter().chain(fields).collect())
    }
}

/// A field selector for one kind: `a=b,a==b,a!=b`, all of which must hold. The empty one holds for everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSelector(Vec<Term>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Term {
    /// Which value of a [`FieldSet`].
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
    /// Understands a selector over the fields of `K`.
    ///
    /// # Errors
    ///
    /// [`SelectorError::Term`] for what is no comparison, [`SelectorError::Unsupported`] for a field that `K` does not support.
    pub fn parse<K: Selectable>(selector: &str) -> Result<Self, SelectorError> {
        let labels = || {
            ["metadata.name", "metadata.namespace"]
                .into_iter()
                .chain(K::FIELDS.iter().map(|(label, _)| *label))
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
            terms.push(Term {
                place,
                operator,
                value,
            });
        }
        Ok(Self(terms))
    }

    /// Whether it holds for every object.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether all terms hold for an object with these fields, which must be of the kind it was parsed for.
    pub fn matches(&self, fields: &FieldSet) -> bool {
        self.0.iter().all(|term| {
            let equal = fields
                .0
                .get(term.place)
                .is_some_and(|value| **value == *term.value);
            equal == (term.operator == Operator::Equal)
        })
    }
}

/// The parts between commas that have no backslash before them, escapes left as they are.
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

fn text(value: Option<&str>) -> Cow<'_, str> {
    Cow::Borrowed(value.unwrap_or_default())
}

fn truth(value: Option<bool>) -> Cow<'static, str> {
    Cow::Borrowed(if value == Some(true) { "true" } else { "false" })
}

macro_rules! spec {
    ($object:expr, $field:ident) => {
        $object
            .spec
            .as_ref()
            .map_or(Cow::Borrowed(""), |spec| text(spec.$field.as_deref()))
    };
}
macro_rules! status {
    ($object:expr, $field:ident) => {
        $object
            .status
            .as_ref()
            .map_or(Cow::Borrowed(""), |status| text(status.$field.as_deref()))
    };
}

impl Selectable for Pod {
    const FIELDS: &'static [Field<Self>] = &[
        ("spec.nodeName", |pod| spec!(pod, node_name)),
        ("spec.restartPolicy", |pod| spec!(pod, restart_policy)),
        ("spec.schedulerName", |pod| spec!(pod, scheduler_name)),
        ("spec.serviceAccountName", |pod| {
            spec!(pod, service_account_name)
        }),
        ("spec.hostNetwork", |pod| {
            truth(pod.spec.as_ref().and_then(|spec| spec.host_network))
        }),
        ("status.phase", |pod| status!(pod, phase)),
        ("status.podIP", |pod| status!(pod, pod_ip)),
        ("status.nominatedNodeName", |pod| {
            status!(pod, nominated_node_name)
        }),
    ];
}

impl Selectable for Node {
    const FIELDS: &'static [Field<Self>] = &[("spec.unschedulable", |node| {
        truth(node.spec.as_ref().and_then(|spec| spec.unschedulable))
    })];
}

impl Selectable for Namespace {
    const FIELDS: &'static [Field<Self>] =
        &[("status.phase", |namespace| status!(namespace, phase))];
}

impl Selectable for Event {
    const FIELDS: &'static [Field<Self>] = &[
        ("involvedObject.kind", |event| {
            text(event.involved_object.kind.as_deref())
        }),
        ("involvedObject.namespace", |event| {
            text(event.involved_object.namespace.as_deref())
        }),
        ("involvedObject.name", |event| {
            text(event.involved_object.name.as_deref())
        }),
        ("involvedObject.uid", |event| {
            text(event.involved_object.uid.as_deref())
        }),
        ("involvedObject.apiVersion", |event| {
            text(event.involved_object.api_version.as_deref())
        }),
        ("involvedObject.resourceVersion", |event| {
            text(event.involved_object.resource_version.as_deref())
        }),
        ("involvedObject.fieldPath", |event| {
            text(event.involved_object.field_path.as_deref())
        }),
        ("reason", |event| text(event.reason.as_deref())),
        ("reportingComponent", |event| {
            text(event.reporting_component.as_deref())
        }),
        ("source", |event| {
            match event
                .source
                .as_ref()
                .and_then(|source| source.component.as_deref())
            {
                None | Some("") => text(event.reporting_component.as_deref()),
                Some(component) => Cow::Borrowed(component),
            }
        }),
        ("type", |event| text(event.type_.as_deref())),
    ];
}

impl Selectable for Lease {
    const FIELDS: &'static [Field<Self>] = &[];
}

impl Selectable for Deployment {
    const FIELDS: &'static [Field<Self>] = &[];
}

impl Selectable for ReplicaSet {
    const FIELDS: &'static [Field<Self>] = &[("status.replicas", |set| {
        let replicas = set.status.as_ref().map_or(0, |status| status.replicas);
        Cow::Owned(replicas.to_string())
    })];
}

impl Selectable for ClusterCIDR {
    const FIELDS: &'static [Field<Self>] = &[];
}

impl Selectable for ControllerRevision {
    const FIELDS: &'static [Field<Self>] = &[];
}

impl Selectable for Service {
    const FIELDS: &'static [Field<Self>] = &[
        ("spec.clusterIP", |service| spec!(service, cluster_ip)),
        ("spec.type", |service| spec!(service, type_)),
    ];
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod() -> FieldSet {
        let pod = json!({"metadata": {"name": "a", "namespace": "ns"}, "spec": {"containers": [], "nodeName": "n=1,2"}, "status": {"phase": "Running"}});
        FieldSet::of(&serde_json::from_value::<Pod>(pod).unwrap())
    }

    #[test]
    fn terms_hold_or_do_not() {
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
    fn what_is_not_understood_is_refused() {
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
