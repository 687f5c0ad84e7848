//! RBAC as its documentation describes it: every request is compared with every word of every rule
//! of every binding. It shares no code with the crate; keep it so.

use podplane_api::rbac::{
    ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef, Subject,
};

/// The objects of a cluster.
#[derive(Clone, Debug, Default)]
pub(crate) struct NaivePolicy {
    pub(crate) roles: Vec<Role>,
    pub(crate) cluster_roles: Vec<ClusterRole>,
    pub(crate) role_bindings: Vec<RoleBinding>,
    pub(crate) cluster_role_bindings: Vec<ClusterRoleBinding>,
}

/// A request for an object, or for `path`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NaiveRequest<'a> {
    pub(crate) user: &'a str,
    pub(crate) groups: &'a [String],
    pub(crate) verb: &'a str,
    pub(crate) group: &'a str,
    pub(crate) resource: &'a str,
    pub(crate) subresource: &'a str,
    pub(crate) namespace: &'a str,
    pub(crate) name: &'a str,
    pub(crate) path: Option<&'a str>,
}

fn list(words: Option<&Vec<String>>) -> Vec<String> {
    words.cloned().unwrap_or_default()
}

fn has(words: &[String], word: &str) -> bool {
    words.contains(&"*".to_owned()) || words.contains(&word.to_owned())
}

pub(crate) fn rule_allows(rule: &PolicyRule, request: &NaiveRequest<'_>) -> bool {
    if !has(&rule.verbs, request.verb) {
        return false;
    }
    if let Some(path) = request.path {
        for url in list(rule.non_resource_urls.as_ref()) {
            let mut prefix = url.clone();
            while prefix.ends_with('*') {
                prefix.pop();
            }
            if url == path || url.ends_with('*') && path.starts_with(&prefix) {
                return true;
            }
        }
        return false;
    }
    if !has(&list(rule.api_groups.as_ref()), request.group) {
        return false;
    }
    let names = list(rule.resource_names.as_ref());
    if !names.is_empty() && !names.contains(&request.name.to_owned()) {
        return false;
    }
    let mut accepted = vec!["*".to_owned()];
    if request.subresource.is_empty() {
        accepted.push(request.resource.to_owned());
    } else {
        accepted.push(request.resource.to_owned() + "/" + request.subresource);
        accepted.push("*/".to_owned() + request.subresource);
    }
    list(rule.resources.as_ref())
        .iter()
        .any(|own| accepted.contains(own))
}

impl NaivePolicy {
    /// The rules that apply to a user in a namespace.
    pub(crate) fn rules(&self, user: &str, groups: &[String], namespace: &str) -> Vec<PolicyRule> {
        let mut rules = Vec::new();
        for binding in &self.cluster_role_bindings {
            let subjects = binding.subjects.iter().flatten();
            for subject in subjects {
                if is_user(subject, user, groups, "") {
                    rules.extend(self.role_rules(&binding.role_ref, ""));
                    break;
                }
            }
        }
        for binding in &self.role_bindings {
            let own = binding.metadata.namespace.clone().unwrap_or_default();
            if namespace.is_empty() || own != namespace {
                continue;
            }
            let subjects = binding.subjects.iter().flatten();
            for subject in subjects {
                if is_user(subject, user, groups, namespace) {
                    rules.extend(self.role_rules(&binding.role_ref, namespace));
                    break;
                }
            }
        }
        rules
    }

    fn role_rules(&self, reference: &RoleRef, namespace: &str) -> Vec<PolicyRule> {
        let named = |name: &Option<String>| *name == Some(reference.name.clone());
        for role in &self.cluster_roles {
            if reference.kind == "ClusterRole" && named(&role.metadata.name) {
                return role.rules.clone().unwrap_or_default();
            }
        }
        for role in &self.roles {
            let is_here = role.metadata.namespace.as_deref() == Some(namespace);
            if reference.kind == "Role" && is_here && named(&role.metadata.name) {
                return role.rules.clone().unwrap_or_default();
            }
        }
        Vec::new()
    }

    pub(crate) fn allows(&self, request: &NaiveRequest<'_>) -> bool {
        let namespace = if request.path.is_some() {
            ""
        } else {
            request.namespace
        };
        let rules = self.rules(request.user, request.groups, namespace);
        rules.iter().any(|rule| rule_allows(rule, request))
    }
}

fn is_user(subject: &Subject, user: &str, groups: &[String], namespace: &str) -> bool {
    match subject.kind.as_str() {
        "User" => subject.name == user,
        "Group" => groups.contains(&subject.name),
        "ServiceAccount" => {
            let own = subject.namespace.clone().unwrap_or_default();
            let namespace = if own.is_empty() { namespace } else { &own };
            let parts = ["system", "serviceaccount", namespace, &subject.name];
            !namespace.is_empty() && user == parts.join(":")
        }
        _ => false,
    }
}
