//! The comparison of rules: do some allow all that others do?

use std::collections::BTreeMap;

use podplane_api::rbac::PolicyRule;

use super::rule::{Grant, GrantTarget, Rule};
use crate::words;

/// The most combinations of verb, group, resource and name that are compared one by one in a call.
/// A rule beyond them is covered by a single rule, or not at all: a few kilobytes of text can have
/// more combinations than memory holds.
const MOST_COMBINATIONS: usize = 20_000;

/// True if `owned` allow every request that `wanted` do.
pub fn covers(owned: &[&PolicyRule], wanted: &[PolicyRule]) -> bool {
    missing(owned, wanted).is_empty()
}

/// What `wanted` allow and `owned` do not: rules of one verb and one resource or path, with one
/// name or none. `*` is covered by `*` alone, for there will be other verbs and kinds.
pub fn missing(owned: &[&PolicyRule], wanted: &[PolicyRule]) -> Vec<PolicyRule> {
    let owned: Vec<Rule> = owned.iter().map(|rule| Rule::of(rule)).collect();
    let is_covered = |grant: &Grant<'_>| owned.iter().any(|rule| rule.covers(grant));
    let mut missing = Vec::new();
    let mut budget = MOST_COMBINATIONS;
    for rule in wanted {
        if owned.iter().any(|own| own.covers_whole(rule)) {
            continue;
        }
        let Some(rest) = budget.checked_sub(combinations(rule)) else {
            missing.push(rule.clone());
            continue;
        };
        budget = rest;
        for_each_grant(rule, |grant| {
            if !is_covered(&grant) {
                missing.push(rule_of(&grant));
            }
        });
    }
    missing
}

/// The number of grants of a rule.
fn combinations(rule: &PolicyRule) -> usize {
    let groups = words(rule.api_groups.as_ref()).len();
    let names = words(rule.resource_names.as_ref()).len().max(1);
    let verbs = rule.verbs.len();
    let of_objects = groups
        .saturating_mul(words(rule.resources.as_ref()).len())
        .saturating_mul(names)
        .saturating_mul(verbs);
    let of_paths = words(rule.non_resource_urls.as_ref())
        .len()
        .saturating_mul(verbs);
    of_objects.saturating_add(of_paths)
}

fn for_each_grant<'a>(rule: &'a PolicyRule, mut each: impl FnMut(Grant<'a>)) {
    let names = words(rule.resource_names.as_ref());
    let names: Vec<Option<&str>> = if names.is_empty() {
        vec![None]
    } else {
        names.iter().map(|name| Some(&**name)).collect()
    };
    for group in words(rule.api_groups.as_ref()) {
        for resource in words(rule.resources.as_ref()) {
            for verb in &rule.verbs {
                for name in &names {
                    each(Grant {
                        verb,
                        target: GrantTarget::Resource {
                            group,
                            resource,
                            name: *name,
                        },
                    });
                }
            }
        }
    }
    for path in words(rule.non_resource_urls.as_ref()) {
        for verb in &rule.verbs {
            each(Grant {
                verb,
                target: GrantTarget::Path(path),
            });
        }
    }
}

fn rule_of(grant: &Grant<'_>) -> PolicyRule {
    let one = |word: &str| Some(vec![word.to_owned()]);
    let verbs = vec![grant.verb.to_owned()];
    match grant.target {
        GrantTarget::Path(path) => PolicyRule {
            non_resource_urls: one(path),
            verbs,
            ..PolicyRule::default()
        },
        GrantTarget::Resource {
            group,
            resource,
            name,
        } => PolicyRule {
            api_groups: one(group),
            resources: one(resource),
            resource_names: name.and_then(one),
            verbs,
            ..PolicyRule::default()
        },
    }
}

/// The rules as a refusal lists them, in order: those without names of one group and resource are
/// one line with all verbs.
pub fn describe(rules: &[PolicyRule]) -> Vec<String> {
    let mut merged: BTreeMap<(&[String], &[String]), PolicyRule> = BTreeMap::new();
    let mut lines = Vec::new();
    for rule in rules {
        let (groups, resources) = (
            words(rule.api_groups.as_ref()),
            words(rule.resources.as_ref()),
        );
        let is_simple = words(rule.resource_names.as_ref()).is_empty()
            && words(rule.non_resource_urls.as_ref()).is_empty()
            && groups.len() == 1
            && resources.len() == 1;
        if !is_simple {
            lines.push(compact(rule));
            continue;
        }
        match merged.get_mut(&(groups, resources)) {
            Some(one) => one.verbs.extend_from_slice(&rule.verbs),
            None => {
                merged.insert((groups, resources), rule.clone());
            }
        }
    }
    lines.extend(merged.values().map(compact));
    lines.sort();
    lines.dedup();
    lines
}

/// `{APIGroups:[""], Resources:["pods"], Verbs:["get" "list"]}`.
fn compact(rule: &PolicyRule) -> String {
    let parts = [
        ("APIGroups", words(rule.api_groups.as_ref())),
        ("Resources", words(rule.resources.as_ref())),
        ("NonResourceURLs", words(rule.non_resource_urls.as_ref())),
        ("ResourceNames", words(rule.resource_names.as_ref())),
        ("Verbs", &rule.verbs),
    ];
    let parts: Vec<String> = parts
        .iter()
        .filter(|(_, words)| !words.is_empty())
        .map(|(key, words)| format!("{key}:{}", quoted_list(words)))
        .collect();
    format!("{{{}}}", parts.join(", "))
}

/// `["a" "b"]`.
pub(crate) fn quoted_list(words: &[String]) -> String {
    let words: Vec<String> = words.iter().map(|word| format!("{word:?}")).collect();
    format!("[{}]", words.join(" "))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn rules(rules: Value) -> Vec<PolicyRule> {
        serde_json::from_value(rules).unwrap()
    }

    fn missing_lines(owned: Value, wanted: Value) -> Vec<String> {
        let owned = rules(owned);
        let owned: Vec<&PolicyRule> = owned.iter().collect();
        describe(&missing(&owned, &rules(wanted)))
    }

    #[test]
    fn what_is_missing_is_listed_by_resource() {
        let owned = json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]);
        let wanted = json!([
            {"apiGroups": ["", "apps"], "resources": ["pods"], "verbs": ["get", "list"]},
            {"nonResourceURLs": ["/metrics"], "verbs": ["get"]},
        ]);
        assert_eq!(
            missing_lines(owned, wanted),
            [
                r#"{APIGroups:[""], Resources:["pods"], Verbs:["list"]}"#,
                r#"{APIGroups:["apps"], Resources:["pods"], Verbs:["get" "list"]}"#,
                r#"{NonResourceURLs:["/metrics"], Verbs:["get"]}"#,
            ]
        );
    }

    #[test]
    fn several_rules_may_cover_one() {
        let owned = json!([
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]},
            {"apiGroups": [""], "resources": ["pods", "*/status"], "verbs": ["list"]},
        ]);
        let wanted = json!([
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]},
            {"apiGroups": [""], "resources": ["nodes/status"], "verbs": ["list"], "resourceNames": ["n1"]},
        ]);
        assert_eq!(missing_lines(owned, wanted), Vec::<String>::new());
    }

    #[test]
    fn a_name_does_not_cover_all_names() {
        let owned = json!([
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"], "resourceNames": ["a"]},
        ]);
        let wanted = json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]);
        assert_eq!(missing_lines(owned, wanted).len(), 1);
    }

    #[test]
    fn many_rules_of_many_combinations_are_compared_as_a_whole() {
        let many =
            |prefix: &str| -> Vec<String> { (0..27).map(|i| format!("{prefix}{i}")).collect() };
        let rule = json!({"apiGroups": many("g"), "resources": many("r"), "verbs": many("v")});
        let wanted = rules(Value::Array(vec![rule; 500]));
        let missing = missing(&[], &wanted);
        assert_eq!(missing.len(), 27 * 27 * 27 + 499);
    }

    #[test]
    fn a_rule_of_too_many_combinations_is_compared_as_a_whole() {
        let many = |prefix: &str| -> Vec<String> {
            (0..100_000).map(|i| format!("{prefix}{i}")).collect()
        };
        let wanted = json!([{"apiGroups": many("g"), "resources": many("r"), "verbs": many("v")}]);
        let nearly = json!([{"apiGroups": many("g"), "resources": ["*"], "verbs": many("w")}]);
        let all = json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]);
        assert_eq!(missing_lines(nearly, wanted.clone()).len(), 1);
        assert_eq!(missing_lines(all, wanted.clone()), Vec::<String>::new());
        assert_eq!(missing_lines(wanted.clone(), wanted), Vec::<String>::new());
    }
}
