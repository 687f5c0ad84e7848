//! The attributes of a request that decide on it.

use crate::identity::Identity;

/// One condition of a label or field selector. All conditions of a selector must hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requirement {
    /// The label's key, or the field.
    pub key: String,
    /// The comparison.
    pub operator: RequirementOperator,
    /// The values: one for the comparisons with one, none for those without.
    pub values: Vec<String>,
}

/// The comparison of a [`Requirement`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequirementOperator {
    /// Equal to the value.
    Equals,
    /// Not equal to the value, or absent.
    NotEquals,
    /// Equal to one of the values.
    In,
    /// Equal to none of the values, or absent.
    NotIn,
    /// Present.
    Exists,
    /// Absent.
    DoesNotExist,
}

impl Requirement {
    /// A field or label that must be equal to `value`.
    pub fn equals(key: impl Into<String>, value: impl Into<String>) -> Self {
        Self {
            key: key.into(),
            operator: RequirementOperator::Equals,
            values: vec![value.into()],
        }
    }

    /// The one value that `key` must have by this requirement.
    fn demands(&self, key: &str) -> Option<&str> {
        match (self.operator, &self.values[..]) {
            (RequirementOperator::Equals, [value]) if self.key == key => Some(value),
            _ => None,
        }
    }
}

/// A request for objects of a kind.
///
/// [`Self::of_request`] fills in what the reference reads from a request's path and selector; a
/// review (SubjectAccessReview) has its fields as they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResourceTarget<'a> {
    /// The API group, empty for the core group.
    pub group: &'a str,
    /// The version of the API group.
    pub version: &'a str,
    /// The plural name of the kind.
    pub resource: &'a str,
    /// The subresource, empty for the object itself.
    pub subresource: &'a str,
    /// The namespace, empty for objects without one and for lists of all namespaces.
    pub namespace: &'a str,
    /// The name, empty for lists and for creations of objects.
    pub name: &'a str,
    /// The conditions of the field selector.
    pub field_selector: &'a [Requirement],
    /// The conditions of the label selector. No authorizer of this crate reads them.
    pub label_selector: &'a [Requirement],
}

impl<'a> ResourceTarget<'a> {
    /// The target of a request over REST or gRPC, as authorizers see it: a list or watch that
    /// selects one `metadata.name` has that name, and a request for one Namespace is in that
    /// namespace, so that a Role there can allow it.
    pub fn of_request(self, verb: &str) -> Self {
        let mut target = self;
        if self.group.is_empty() && self.resource == "namespaces" && self.namespace.is_empty() {
            target.namespace = self.name;
        }
        if matches!(verb, "list" | "watch")
            && self.name.is_empty()
            && let Some(name) = self.selected_value("metadata.name")
            && is_path_segment(name)
        {
            target.name = name;
        }
        target
    }

    /// The value that the field selector demands of `field`.
    pub fn selected_value(&self, field: &str) -> Option<&'a str> {
        let mut demanded = self.field_selector.iter();
        demanded.find_map(|requirement| requirement.demands(field))
    }

    /// `deployments.apps`, or `pods`.
    pub fn group_resource(&self) -> String {
        match self.group {
            "" => self.resource.to_owned(),
            group => format!("{}.{group}", self.resource),
        }
    }

    /// `pods/log`, or `pods`.
    fn combined(&self) -> String {
        match self.subresource {
            "" => self.resource.to_owned(),
            subresource => format!("{}/{subresource}", self.resource),
        }
    }
}

/// True for a name that can be an element of a path.
fn is_path_segment(name: &str) -> bool {
    !matches!(name, "." | "..") && !name.contains(['/', '%'])
}

/// The target of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target<'a> {
    /// Objects.
    Resource(ResourceTarget<'a>),
    /// Another path, such as `/metrics`.
    Path(&'a str),
}

/// A request, as authorizers see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes<'a> {
    /// The sender.
    pub identity: &'a Identity,
    /// The verb: for objects Kubernetes' (`get`, `list`, `deletecollection`, …), for other paths
    /// HTTP's in lower case.
    pub verb: &'a str,
    /// The target.
    pub target: Target<'a>,
}

impl<'a> Attributes<'a> {
    /// A request for objects.
    pub fn resource(identity: &'a Identity, verb: &'a str, target: ResourceTarget<'a>) -> Self {
        Self {
            identity,
            verb,
            target: Target::Resource(target),
        }
    }

    /// A request for a path that has no objects.
    pub fn path(identity: &'a Identity, verb: &'a str, path: &'a str) -> Self {
        Self {
            identity,
            verb,
            target: Target::Path(path),
        }
    }

    /// The refused request in the reference's words, such as `User "ada" cannot list resource
    /// "pods" in API group "" in the namespace "prod"`.
    pub fn forbidden_message(&self) -> String {
        let (user, verb) = (&self.identity.user, self.verb);
        match &self.target {
            Target::Path(path) => format!("User {user:?} cannot {verb} path {path:?}"),
            Target::Resource(target) => {
                let resource = target.combined();
                let scope = match target.namespace {
                    "" => "at the cluster scope".to_owned(),
                    namespace => format!("in the namespace {namespace:?}"),
                };
                let group = target.group;
                format!(
                    "User {user:?} cannot {verb} resource {resource:?} in API group {group:?} {scope}"
                )
            }
        }
    }

    /// The message of the answer 403: [`Self::forbidden_message`] after the object, and before the
    /// authorizers' reasons.
    pub fn status_message(&self, reason: &str) -> String {
        let mut message = match &self.target {
            Target::Path(_) => "forbidden: ".to_owned(),
            Target::Resource(target) if target.name.is_empty() => {
                format!("{} is forbidden: ", target.group_resource())
            }
            Target::Resource(target) => {
                format!(
                    "{} {:?} is forbidden: ",
                    target.group_resource(),
                    target.name
                )
            }
        };
        message.push_str(&self.forbidden_message());
        if !reason.is_empty() {
            message.push_str(": ");
            message.push_str(reason);
        }
        message
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pods<'a>() -> ResourceTarget<'a> {
        ResourceTarget {
            version: "v1",
            resource: "pods",
            ..ResourceTarget::default()
        }
    }

    #[test]
    fn a_refusal_has_the_words_of_the_reference() {
        let ada = Identity::new("ada", ["dev"]);
        let list = ResourceTarget {
            namespace: "prod",
            ..pods()
        };
        assert_eq!(
            Attributes::resource(&ada, "list", list).status_message(""),
            "pods is forbidden: User \"ada\" cannot list resource \"pods\" in API group \"\" in the \
             namespace \"prod\""
        );
        let scale = ResourceTarget {
            group: "apps",
            version: "v1",
            resource: "deployments",
            subresource: "scale",
            namespace: "prod",
            name: "web",
            ..ResourceTarget::default()
        };
        assert_eq!(
            Attributes::resource(&ada, "update", scale).status_message("because"),
            "deployments.apps \"web\" is forbidden: User \"ada\" cannot update resource \
             \"deployments/scale\" in API group \"apps\" in the namespace \"prod\": because"
        );
        assert_eq!(
            Attributes::resource(&ada, "watch", pods()).forbidden_message(),
            "User \"ada\" cannot watch resource \"pods\" in API group \"\" at the cluster scope"
        );
        assert_eq!(
            Attributes::path(&ada, "get", "/metrics").status_message(""),
            "forbidden: User \"ada\" cannot get path \"/metrics\""
        );
    }

    #[test]
    fn a_selected_name_is_the_name_of_a_list_and_of_a_watch() {
        let selector = [Requirement::equals("metadata.name", "web-1")];
        let target = ResourceTarget {
            field_selector: &selector,
            ..pods()
        };
        assert_eq!(target.of_request("list").name, "web-1");
        assert_eq!(target.of_request("watch").name, "web-1");
        assert_eq!(target.of_request("deletecollection").name, "");
        let odd = [Requirement::equals("metadata.name", "a/b")];
        let target = ResourceTarget {
            field_selector: &odd,
            ..pods()
        };
        assert_eq!(target.of_request("list").name, "");
        let unequal = [Requirement {
            operator: RequirementOperator::NotEquals,
            ..Requirement::equals("metadata.name", "web-1")
        }];
        let target = ResourceTarget {
            field_selector: &unequal,
            ..pods()
        };
        assert_eq!(target.of_request("list").name, "");
    }

    #[test]
    fn a_request_for_a_namespace_is_in_it() {
        let namespace = ResourceTarget {
            version: "v1",
            resource: "namespaces",
            name: "prod",
            ..ResourceTarget::default()
        };
        assert_eq!(namespace.of_request("get").namespace, "prod");
        let node = ResourceTarget {
            resource: "nodes",
            ..namespace
        };
        assert_eq!(node.of_request("get").namespace, "");
    }
}
