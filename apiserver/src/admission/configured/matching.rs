//! The match of a write with rules (source:
//! `k8s.io/apiserver/pkg/admission/plugin/webhook/predicates`).

use std::collections::BTreeMap;

use podplane_api::{
    Scope,
    admissionregistration::{MatchResources, NamedRuleWithOperations, RuleWithOperations},
    any::KindNames,
    meta,
    selector::LabelSelector,
};
use podplane_proto::error::ApiError;
use serde_json::Value;

use super::attributes::{self, Attributes};
use crate::served::{KindList, OtherKinds};

/// Every group, version, resource, operation or scope.
const ALL: &str = "*";

/// A rule by what is requested.
#[derive(Clone, Debug)]
struct Rule {
    operations: Vec<String>,
    groups: Vec<String>,
    versions: Vec<String>,
    /// `pods`, `pods/*`, `*/status`, `*/*`
    resources: Vec<String>,
    scope: String,
    /// The names of objects; empty: all.
    names: Vec<String>,
}

fn has(list: &[String], wanted: &str) -> bool {
    list.iter().any(|item| item == ALL || item == wanted)
}

impl Rule {
    fn new(rule: RuleWithOperations) -> Self {
        let RuleWithOperations {
            api_groups,
            api_versions,
            operations,
            resources,
            scope,
        } = rule;
        Self::named(NamedRuleWithOperations {
            api_groups,
            api_versions,
            operations,
            resource_names: None,
            resources,
            scope,
        })
    }

    fn named(rule: NamedRuleWithOperations) -> Self {
        Self {
            operations: rule.operations.unwrap_or_default(),
            groups: rule.api_groups.unwrap_or_default(),
            versions: rule.api_versions.unwrap_or_default(),
            resources: rule.resources.unwrap_or_default(),
            scope: rule.scope.unwrap_or_else(|| ALL.to_owned()),
            names: rule.resource_names.unwrap_or_default(),
        }
    }

    /// True if the rule matches writes of a kind in some version.
    fn concerns(&self, kind: &KindNames, operation: &str, subresource: &str) -> bool {
        let of_resource = self.resources.iter().any(|resource| {
            let (resource, sub) = resource.split_once('/').unwrap_or((resource, ""));
            (resource == ALL || resource == kind.plural) && (sub == ALL || sub == subresource)
        });
        // As in the reference, Namespaces are not in a namespace.
        let is_in_scope = match &*self.scope {
            "Cluster" => kind.scope == Scope::Cluster,
            "Namespaced" => kind.scope == Scope::Namespaced,
            _ => true,
        };
        of_resource
            && is_in_scope
            && has(&self.operations, operation)
            && has(&self.groups, &kind.group)
    }
}

/// The rules and selectors of a webhook, a policy or a binding.
#[derive(Clone, Debug)]
pub(super) struct Matcher {
    rules: Vec<Rule>,
    excluded: Vec<Rule>,
    /// True if only the versions that the rules name match.
    is_exact: bool,
    namespaces: LabelSelector,
    objects: LabelSelector,
}

fn selector(selector: Option<&meta::LabelSelector>) -> LabelSelector {
    selector.map(LabelSelector::from).unwrap_or_default()
}

impl Matcher {
    /// The matcher of a webhook.
    pub(super) fn of_webhook(
        rules: Option<Vec<RuleWithOperations>>,
        match_policy: Option<&str>,
        [namespaces, objects]: [Option<&meta::LabelSelector>; 2],
    ) -> Self {
        let rules = rules.unwrap_or_default();
        Self {
            rules: rules.into_iter().map(Rule::new).collect(),
            excluded: Vec::new(),
            is_exact: match_policy == Some("Exact"),
            namespaces: selector(namespaces),
            objects: selector(objects),
        }
    }

    /// The matcher of a policy or a binding. A binding without rules matches what its policy does.
    pub(super) fn of_resources(resources: MatchResources) -> Self {
        let rules = |rules: Option<Vec<NamedRuleWithOperations>>| {
            let rules = rules.into_iter().flatten();
            rules.map(Rule::named).collect()
        };
        Self {
            is_exact: resources.match_policy.as_deref() == Some("Exact"),
            namespaces: selector(resources.namespace_selector.as_ref()),
            objects: selector(resources.object_selector.as_ref()),
            rules: rules(resources.resource_rules),
            excluded: rules(resources.exclude_resource_rules),
        }
    }

    /// True if writes of a kind may match.
    pub(super) fn concerns(&self, kind: &KindNames, operation: &str, subresource: &str) -> bool {
        let mut rules = self.rules.iter();
        rules.any(|rule| rule.concerns(kind, operation, subresource))
    }

    /// The version in which a rule matches a write; `None` if none does. Another version than the
    /// requested one is equivalent.
    fn version(&self, rules: &[Rule], at: &Attributes<'_>, kinds: &KindList) -> Option<String> {
        let concern = |rule: &&Rule| {
            rule.concerns(at.names, at.operation, at.subresource)
                && (rule.names.is_empty() || rule.names.contains(&at.name))
        };
        let rules: Vec<_> = rules.iter().filter(concern).collect();
        if rules.is_empty() {
            return None;
        }
        let mut versions = match self.is_exact {
            true => vec![at.names.version.to_string()],
            false => attributes::versions(at.names, kinds),
        };
        versions.retain(|version| rules.iter().any(|rule| has(&rule.versions, version)));
        versions.into_iter().next()
    }

    /// The version in which the write matches; `None` if it does not.
    pub(super) async fn matches(
        &self,
        at: &Attributes<'_>,
        others: &OtherKinds,
    ) -> Result<Option<String>, ApiError> {
        let kinds = others.now();
        let version = match self.rules.is_empty() {
            // A binding.
            true => Some(at.names.version.to_string()),
            false => self.version(&self.rules, at, &kinds),
        };
        let Some(version) = version else {
            return Ok(None);
        };
        if self.version(&self.excluded, at, &kinds).is_some() || !self.selects(at) {
            return Ok(None);
        }
        let is_selected = self.selects_namespace(at, others).await?;
        Ok(is_selected.then_some(version))
    }

    /// True if the selector of objects matches the object, or what it was.
    fn selects(&self, at: &Attributes<'_>) -> bool {
        if self.objects.is_empty() {
            return true;
        }
        let objects = at.object.iter().chain(&at.old);
        let mut labels = objects.map(labels);
        labels.any(|labels| self.objects.matches(&labels))
    }

    async fn selects_namespace(
        &self,
        at: &Attributes<'_>,
        others: &OtherKinds,
    ) -> Result<bool, ApiError> {
        // Objects that are in no namespace match every selector.
        if self.namespaces.is_empty() || at.namespace.is_empty() {
            return Ok(true);
        }
        let is_namespace = at.names.is("", "namespaces");
        let own = at.object.as_ref().or(at.old.as_ref());
        let found = match own.filter(|_| is_namespace && at.subresource.is_empty()) {
            Some(own) => own.clone(),
            None => attributes::namespace(others, &at.namespace).await?,
        };
        Ok(self.namespaces.matches(&labels(&found)))
    }
}

/// The labels of a document.
fn labels(document: &Value) -> BTreeMap<String, String> {
    let labels = document["metadata"]["labels"].as_object();
    let labels = labels.into_iter().flatten();
    let texts = labels.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())));
    texts.collect()
}

#[cfg(test)]
mod tests {
    use podplane_api::{apps::Deployment, core::Namespace, core::Node, core::Pod};
    use serde_json::json;

    use super::*;

    fn matcher(rule: Value) -> Matcher {
        let mut all = json!({"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"]});
        all.as_object_mut()
            .unwrap()
            .extend(rule.as_object().unwrap().clone());
        let rule = serde_json::from_value(all).unwrap();
        Matcher::of_webhook(Some(vec![rule]), None, [None, None])
    }

    #[test]
    fn rules_match_by_wildcards_subresources_and_scope() {
        let [pods, nodes] = [KindNames::of::<Pod>(), KindNames::of::<Node>()];
        let namespaces = KindNames::of::<Namespace>();
        let deployments = KindNames::of::<Deployment>();
        for (rule, kind, operation, subresource, expected) in [
            (json!({"resources": ["pods"]}), &pods, "CREATE", "", true),
            (
                json!({"resources": ["pods"]}),
                &pods,
                "UPDATE",
                "status",
                false,
            ),
            (
                json!({"resources": ["pods/*"]}),
                &pods,
                "UPDATE",
                "status",
                true,
            ),
            (json!({"resources": ["pods/*"]}), &pods, "CREATE", "", true),
            (json!({"resources": ["*"]}), &pods, "CREATE", "", true),
            (
                json!({"resources": ["*"]}),
                &pods,
                "CREATE",
                "binding",
                false,
            ),
            (
                json!({"resources": ["*/*"]}),
                &pods,
                "CREATE",
                "binding",
                true,
            ),
            (
                json!({"resources": ["*/scale"]}),
                &deployments,
                "UPDATE",
                "scale",
                true,
            ),
            (
                json!({"resources": ["*/scale"]}),
                &deployments,
                "UPDATE",
                "",
                false,
            ),
            (json!({"resources": ["nodes"]}), &pods, "CREATE", "", false),
            (
                json!({"resources": ["pods"], "operations": ["DELETE"]}),
                &pods,
                "CREATE",
                "",
                false,
            ),
            (
                json!({"resources": ["pods"], "apiGroups": ["apps"]}),
                &pods,
                "CREATE",
                "",
                false,
            ),
            (
                json!({"resources": ["*"], "scope": "Cluster"}),
                &pods,
                "CREATE",
                "",
                false,
            ),
            (
                json!({"resources": ["*"], "scope": "Cluster"}),
                &nodes,
                "CREATE",
                "",
                true,
            ),
            (
                json!({"resources": ["*"], "scope": "Cluster"}),
                &namespaces,
                "CREATE",
                "",
                true,
            ),
            (
                json!({"resources": ["*"], "scope": "Namespaced"}),
                &namespaces,
                "CREATE",
                "",
                false,
            ),
            (
                json!({"resources": ["*"], "scope": "Namespaced"}),
                &pods,
                "CREATE",
                "",
                true,
            ),
        ] {
            let matcher = matcher(rule.clone());
            let found = matcher.concerns(kind, operation, subresource);
            assert_eq!(found, expected, "{rule} {operation} {subresource}");
        }
    }
}
