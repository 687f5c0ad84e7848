//! The match of a rule and a request.

use podplane_access::{Attributes, ResourceTarget, Target};

use super::{GroupResources, Rule};

/// True if every list of the rule has the request, or is empty.
pub(super) fn matches(rule: &Rule, request: &Attributes<'_>) -> bool {
    let Rule {
        users,
        user_groups,
        verbs,
        resources,
        namespaces,
        non_resource_urls,
        level: _,
        omit_stages: _,
        omit_managed_fields: _,
    } = rule;
    let identity = request.identity;
    let groups = &identity.groups;
    if !allows(users, &identity.user)
        || !(user_groups.is_empty() || groups.iter().any(|group| user_groups.contains(group)))
        || !allows(verbs, request.verb)
    {
        return false;
    }
    match request.target {
        Target::Resource(target) => {
            non_resource_urls.is_empty()
                && allows(namespaces, target.namespace)
                && (resources.is_empty() || resources.iter().any(|of| has(of, &target)))
        }
        Target::Path(path) => {
            resources.is_empty()
                && namespaces.is_empty()
                && (non_resource_urls.is_empty()
                    || non_resource_urls.iter().any(|url| is_below(path, url)))
        }
    }
}

/// True if the list is empty or has the word.
fn allows(list: &[String], word: &str) -> bool {
    list.is_empty() || list.iter().any(|own| own == word)
}

fn is_below(path: &str, url: &str) -> bool {
    match url.strip_suffix('*') {
        Some(beginning) => path.starts_with(beginning),
        None => path == url,
    }
}

fn has(of_group: &GroupResources, target: &ResourceTarget<'_>) -> bool {
    let GroupResources {
        group,
        resources,
        resource_names,
    } = of_group;
    group == target.group
        && (resources.is_empty()
            || allows(resource_names, target.name)
                && resources.iter().any(|resource| is_of(resource, target)))
}

/// True if the words of a rule's resource name the target's.
fn is_of(rule: &str, target: &ResourceTarget<'_>) -> bool {
    match rule.split_once('/') {
        None => rule == "*" || rule == target.resource && target.subresource.is_empty(),
        // As in Kubernetes, `pods/*` matches pods themselves, too.
        Some((resource, "*")) if resource == target.resource => true,
        Some((resource, subresource)) => {
            !target.subresource.is_empty()
                && subresource == target.subresource
                && (resource == "*" || resource == target.resource)
        }
    }
}
