//! ClusterRoles whose rules are those of other ClusterRoles.

use std::collections::BTreeMap;

use podplane_api::{
    rbac::{ClusterRole, PolicyRule},
    selector::LabelSelector,
};

/// The rules that a ClusterRole with an aggregation rule must have: those of all roles that one of
/// its selectors matches, without the role itself, each rule once, selector by selector and in the
/// order of the roles' names. `None` for a role without an aggregation rule.
pub fn aggregate<'a>(
    role: &ClusterRole,
    roles: impl IntoIterator<Item = &'a ClusterRole> + Clone,
) -> Option<Vec<PolicyRule>> {
    let aggregation = role.aggregation_rule.as_ref()?;
    let none = BTreeMap::new();
    let mut rules: Vec<PolicyRule> = Vec::new();
    for selector in aggregation.cluster_role_selectors.iter().flatten() {
        let selector = LabelSelector::from(selector);
        let matching = roles.clone().into_iter().filter(|other| {
            let labels = other.metadata.labels.as_ref();
            other.metadata.name != role.metadata.name && selector.matches(labels.unwrap_or(&none))
        });
        let mut matching: Vec<&ClusterRole> = matching.collect();
        matching.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
        for rule in matching
            .iter()
            .flat_map(|other| other.rules.iter().flatten())
        {
            if !rules.contains(rule) {
                rules.push(rule.clone());
            }
        }
    }
    Some(rules)
}

/// Fills the rules of all aggregating roles, and returns the names of those that changed. As roles
/// may be aggregated from aggregated ones, the roles are gone over until nothing changes, at most
/// once for each of them: roles that aggregate each other in a circle may never come to rest.
pub fn settle(roles: &mut BTreeMap<String, ClusterRole>) -> Vec<String> {
    let aggregating = |role: &&ClusterRole| role.aggregation_rule.is_some();
    let rounds = roles.values().filter(aggregating).count();
    let names: Vec<String> = roles.keys().cloned().collect();
    let mut changed = std::collections::BTreeSet::new();
    for _ in 0..rounds {
        let mut is_settled = true;
        for name in &names {
            let rules = roles
                .get(name)
                .and_then(|role| aggregate(role, roles.values()));
            let (Some(rules), Some(role)) = (rules, roles.get_mut(name)) else {
                continue;
            };
            if role.rules.as_deref().unwrap_or_default() != rules {
                role.rules = Some(rules);
                changed.insert(name.clone());
                is_settled = false;
            }
        }
        if is_settled {
            break;
        }
    }
    changed.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn role(name: &str, labels: &[&str], aggregates: &[&str], verbs: &[&str]) -> ClusterRole {
        let labels: BTreeMap<_, _> = labels.iter().map(|label| (*label, "true")).collect();
        let selectors: Vec<_> = aggregates
            .iter()
            .map(|label| json!({"matchLabels": {*label: "true"}}))
            .collect();
        let rules: Vec<_> = verbs
            .iter()
            .map(|verb| json!({"apiGroups": [""], "resources": ["pods"], "verbs": [verb]}))
            .collect();
        let mut role = json!({"metadata": {"name": name, "labels": labels}, "rules": rules});
        if !aggregates.is_empty() {
            role["aggregationRule"] = json!({"clusterRoleSelectors": selectors});
        }
        serde_json::from_value(role).unwrap()
    }

    fn verbs(rules: &[PolicyRule]) -> Vec<&str> {
        rules.iter().map(|rule| &*rule.verbs[0]).collect()
    }

    fn named(roles: Vec<ClusterRole>) -> BTreeMap<String, ClusterRole> {
        let names = roles.into_iter().map(|role| {
            let name = role.metadata.name.clone().unwrap();
            (name, role)
        });
        names.collect()
    }

    #[test]
    fn the_union_of_the_selected_roles_replaces_the_rules() {
        let all = role("all", &["x"], &["x", "y"], &["own"]);
        let roles = [
            role("b", &["x"], &[], &["get", "list"]),
            role("a", &["x", "y"], &[], &["list", "watch"]),
            role("c", &["y"], &[], &["delete"]),
            role("d", &["z"], &[], &["patch"]),
            all.clone(),
        ];
        let rules = aggregate(&all, &roles).unwrap();
        assert_eq!(verbs(&rules), ["list", "watch", "get", "delete"]);
        assert_eq!(aggregate(&roles[0], &roles), None);
    }

    #[test]
    fn a_chain_of_aggregated_roles_settles_at_once() {
        let mut roles = named(vec![
            role("admin", &[], &["to-admin"], &[]),
            role("edit", &["to-admin"], &["to-edit"], &[]),
            role("view", &["to-edit"], &["to-view"], &["stale"]),
            role("readers", &["to-view"], &[], &["get"]),
        ]);
        assert_eq!(settle(&mut roles), ["admin", "edit", "view"]);
        assert_eq!(verbs(roles["admin"].rules.as_ref().unwrap()), ["get"]);
        assert_eq!(settle(&mut roles), Vec::<String>::new());
    }

    #[test]
    fn a_circle_of_roles_ends() {
        let mut roles = named(vec![
            role("a", &["to-c"], &["to-a"], &["1"]),
            role("b", &["to-a"], &["to-b"], &["2"]),
            role("c", &["to-b"], &["to-c"], &["3"]),
        ]);
        settle(&mut roles);
    }
}
