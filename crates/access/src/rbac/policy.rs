//! The roles and bindings of a cluster.

use std::{collections::HashMap, fmt, sync::Arc};

use podplane_api::{
    authorization::{NonResourceRule, ResourceRule},
    rbac::{ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef},
};

use super::{
    GROUP, aggregated_text,
    binding::{Binding, BindingMap, BoundSubject},
    rule::{CompiledRules, RuleRequest},
};
use crate::{
    attributes::{Attributes, Target},
    authorizer::Decision,
    identity::Identity,
};

/// An object of RBAC.
#[derive(Clone, Copy, Debug)]
pub enum PolicyObject<'a> {
    /// A Role.
    Role(&'a Role),
    /// A ClusterRole.
    ClusterRole(&'a ClusterRole),
    /// A RoleBinding.
    RoleBinding(&'a RoleBinding),
    /// A ClusterRoleBinding.
    ClusterRoleBinding(&'a ClusterRoleBinding),
}

macro_rules! policy_objects {
    ($($kind:ident),*) => {$(
        impl<'a> From<&'a $kind> for PolicyObject<'a> {
            fn from(object: &'a $kind) -> Self {
                Self::$kind(object)
            }
        }
    )*};
}

policy_objects!(Role, ClusterRole, RoleBinding, ClusterRoleBinding);

/// The RBAC objects of a cluster. A change costs what the changed object costs, and a request what
/// the bindings of its user and groups cost, however many others there are.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    cluster_roles: RoleMap,
    cluster_bindings: BindingMap,
    namespaces: HashMap<Box<str>, NamespacePolicy>,
}

type RoleMap = HashMap<Box<str>, Arc<RuleSet>>;

#[derive(Clone, Debug, Default)]
struct NamespacePolicy {
    roles: RoleMap,
    bindings: BindingMap,
}

/// The rules of a role, as they are and compiled.
#[derive(Clone, Debug)]
struct RuleSet {
    source: Vec<PolicyRule>,
    compiled: CompiledRules,
}

impl RuleSet {
    fn of(rules: Option<&Vec<PolicyRule>>) -> Arc<Self> {
        let source = rules.cloned().unwrap_or_default();
        let compiled = CompiledRules::of(&source);
        Arc::new(Self { source, compiled })
    }
}

/// A binding refers to a role that does not exist.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RoleNotFound {
    /// A ClusterRole that does not exist.
    #[error("clusterrole.{GROUP} {0:?} not found")]
    ClusterRole(String),
    /// A Role that does not exist.
    #[error("role.{GROUP} {0:?} not found")]
    Role(String),
    /// Neither a Role nor a ClusterRole.
    #[error("unsupported role reference kind: {0:?}")]
    Kind(String),
}

/// The rules that apply to an identity.
#[derive(Clone, Debug, Default)]
pub struct ResolvedRules<'p> {
    /// The rules, binding by binding.
    pub rules: Vec<&'p PolicyRule>,
    /// The roles that could not be resolved; the rules are complete without them.
    pub errors: Vec<RoleNotFound>,
}

impl ResolvedRules<'_> {
    /// The rules for objects, as a SelfSubjectRulesReview has them.
    pub fn resource_rules(&self) -> Vec<ResourceRule> {
        let rules = self.rules.iter();
        rules
            .filter(|rule| !crate::words(rule.resources.as_ref()).is_empty())
            .map(|rule| ResourceRule {
                api_groups: rule.api_groups.clone(),
                resource_names: rule.resource_names.clone(),
                resources: rule.resources.clone(),
                verbs: rule.verbs.clone(),
            })
            .collect()
    }

    /// The rules for paths, as a SelfSubjectRulesReview has them.
    pub fn non_resource_rules(&self) -> Vec<NonResourceRule> {
        let rules = self.rules.iter();
        rules
            .filter(|rule| !crate::words(rule.non_resource_urls.as_ref()).is_empty())
            .map(|rule| NonResourceRule {
                non_resource_urls: rule.non_resource_urls.clone(),
                verbs: rule.verbs.clone(),
            })
            .collect()
    }
}

/// The source of a rule, as reasons name it.
struct Source<'p> {
    name: &'p str,
    /// Empty for a ClusterRoleBinding.
    namespace: &'p str,
    binding: &'p Binding,
    subject: &'p BoundSubject,
}

impl fmt::Display for Source<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.name, self.namespace) {
            (name, "") => write!(f, "ClusterRoleBinding {name:?}")?,
            // The reference's order.
            (name, namespace) => write!(f, "RoleBinding {:?}", format!("{name}/{namespace}"))?,
        }
        let role = &self.binding.role;
        let (kind, name, subject) = (&role.kind, &role.name, &self.subject.description);
        write!(f, " of {kind} {name:?} to {subject}")
    }
}

impl Policy {
    /// A policy that allows nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// The policy of these objects.
    pub fn from_objects<'a>(objects: impl IntoIterator<Item = PolicyObject<'a>>) -> Self {
        let mut policy = Self::new();
        for object in objects {
            policy.apply(object);
        }
        policy
    }

    /// Takes a new or changed object.
    pub fn apply<'a>(&mut self, object: impl Into<PolicyObject<'a>>) {
        match object.into() {
            PolicyObject::ClusterRole(role) => {
                let name = Box::from(crate::name(&role.metadata));
                let rules = RuleSet::of(role.rules.as_ref());
                self.cluster_roles.insert(name, rules);
            }
            PolicyObject::Role(role) => {
                let name = Box::from(crate::name(&role.metadata));
                let rules = RuleSet::of(role.rules.as_ref());
                let namespace = self.namespace_mut(crate::namespace(&role.metadata));
                namespace.roles.insert(name, rules);
            }
            PolicyObject::ClusterRoleBinding(binding) => self.cluster_bindings.insert(
                crate::name(&binding.metadata),
                &binding.role_ref,
                binding.subjects.as_deref().unwrap_or_default(),
                "",
            ),
            PolicyObject::RoleBinding(binding) => {
                let namespace = crate::namespace(&binding.metadata);
                self.namespace_mut(namespace).bindings.insert(
                    crate::name(&binding.metadata),
                    &binding.role_ref,
                    binding.subjects.as_deref().unwrap_or_default(),
                    namespace,
                );
            }
        }
    }

    /// Takes the deletion of an object, of which the name and namespace matter.
    pub fn delete<'a>(&mut self, object: impl Into<PolicyObject<'a>>) {
        match object.into() {
            PolicyObject::ClusterRole(role) => {
                self.cluster_roles.remove(crate::name(&role.metadata));
            }
            PolicyObject::Role(role) => {
                self.change_namespace(crate::namespace(&role.metadata), |namespace| {
                    namespace.roles.remove(crate::name(&role.metadata));
                });
            }
            PolicyObject::ClusterRoleBinding(binding) => {
                self.cluster_bindings.remove(crate::name(&binding.metadata));
            }
            PolicyObject::RoleBinding(binding) => {
                self.change_namespace(crate::namespace(&binding.metadata), |namespace| {
                    namespace.bindings.remove(crate::name(&binding.metadata));
                });
            }
        }
    }

    fn namespace_mut(&mut self, name: &str) -> &mut NamespacePolicy {
        self.namespaces.entry(Box::from(name)).or_default()
    }

    fn change_namespace(&mut self, name: &str, change: impl FnOnce(&mut NamespacePolicy)) {
        let Some(namespace) = self.namespaces.get_mut(name) else {
            return;
        };
        change(namespace);
        if namespace.roles.is_empty() && namespace.bindings.is_empty() {
            self.namespaces.remove(name);
        }
    }

    /// The answer of RBAC: allowed by the first binding with a rule that allows it, or no opinion.
    /// ClusterRoleBindings come first, then the RoleBindings of the request's namespace, each in
    /// the order of their names. Only ClusterRoleBindings allow paths that have no objects.
    pub fn authorize(&self, attributes: &Attributes<'_>) -> Decision {
        let request = RuleRequest::of(attributes);
        let namespace = match &attributes.target {
            Target::Resource(target) => target.namespace,
            Target::Path(_) => "",
        };
        let mut errors = Vec::new();
        for (source, rules) in self.bindings(attributes.identity, namespace) {
            match rules {
                Ok(rules) if rules.compiled.allow_request(&request) => {
                    return Decision::allow(format!("RBAC: allowed by {source}"));
                }
                Ok(_) => (),
                Err(error) => errors.push(error),
            }
        }
        let reason = match &*aggregated_text(errors.iter().map(ToString::to_string)) {
            "" => String::new(),
            errors => format!("RBAC: {errors}"),
        };
        Decision::no_opinion(reason)
    }

    /// The rules that apply to the identity in the namespace, or those for the whole cluster if it
    /// is empty.
    pub fn rules_for(&self, identity: &Identity, namespace: &str) -> ResolvedRules<'_> {
        let mut resolved = ResolvedRules::default();
        for (_, rules) in self.bindings(identity, namespace) {
            match rules {
                Ok(rules) => resolved.rules.extend(&rules.source),
                Err(error) => resolved.errors.push(error),
            }
        }
        resolved
    }

    /// The rules of the role that a binding in `namespace` refers to.
    ///
    /// # Errors
    ///
    /// [`RoleNotFound`] if there is no such role.
    pub fn rules_of(&self, role: &RoleRef, namespace: &str) -> Result<&[PolicyRule], RoleNotFound> {
        self.rule_set(role, namespace).map(|rules| &*rules.source)
    }

    fn rule_set(&self, role: &RoleRef, namespace: &str) -> Result<&RuleSet, RoleNotFound> {
        let name = &*role.name;
        match &*role.kind {
            "ClusterRole" => self
                .cluster_roles
                .get(name)
                .ok_or_else(|| RoleNotFound::ClusterRole(name.to_owned())),
            "Role" => self
                .namespaces
                .get(namespace)
                .filter(|_| !namespace.is_empty())
                .and_then(|policy| policy.roles.get(name))
                .ok_or_else(|| RoleNotFound::Role(name.to_owned())),
            kind => Err(RoleNotFound::Kind(kind.to_owned())),
        }
        .map(|rules| &**rules)
    }

    /// The bindings of the identity, with the rules of their roles.
    fn bindings<'p>(
        &'p self,
        identity: &Identity,
        namespace: &str,
    ) -> impl Iterator<Item = (Source<'p>, Result<&'p RuleSet, RoleNotFound>)> {
        let of_cluster = self.cluster_bindings.of(identity).into_iter();
        let here = self
            .namespaces
            .get_key_value(namespace)
            .filter(|_| !namespace.is_empty());
        let of_namespace = here.into_iter().flat_map(|(namespace, policy)| {
            let bindings = policy.bindings.of(identity).into_iter();
            bindings.map(|bound| (bound, &**namespace))
        });
        let all = of_cluster.map(|bound| (bound, "")).chain(of_namespace);
        all.map(|((name, binding, subject), namespace)| {
            let source = Source {
                name,
                namespace,
                binding,
                subject,
            };
            (source, self.rule_set(&binding.role, namespace))
        })
    }
}
