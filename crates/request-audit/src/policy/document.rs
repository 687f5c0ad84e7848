//! The policy's document, strictly read.

use podplane_api::names;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::PolicyError;
use crate::level::{Level, Stage};

const API_VERSION: &str = "audit.k8s.io/v1";
const KIND: &str = "Policy";

/// The nesting that a policy may have; it needs 6.
const MAX_DEPTH: usize = 32;
/// The number of values that a policy may have.
const MAX_VALUES: usize = 100_000;

/// A readable and valid policy.
#[derive(Debug)]
pub(super) struct PolicyDocument {
    pub(super) rules: Vec<Rule>,
    pub(super) omit_stages: Vec<Stage>,
    pub(super) omit_managed_fields: bool,
}

/// The document's fields.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Fields {
    #[serde(default, rename = "apiVersion")]
    _api_version: String,
    #[serde(default, rename = "kind")]
    _kind: String,
    // Kubernetes reads it and does not use it.
    #[serde(default, rename = "metadata")]
    _metadata: serde::de::IgnoredAny,
    #[serde(default, deserialize_with = "nullable")]
    rules: Vec<Rule>,
    #[serde(default, deserialize_with = "nullable")]
    omit_stages: Vec<Stage>,
    #[serde(default, deserialize_with = "nullable")]
    omit_managed_fields: bool,
}

/// A rule. An empty list does not restrict it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct Rule {
    pub(super) level: Level,
    #[serde(default, deserialize_with = "nullable")]
    pub(super) users: Vec<String>,
    #[serde(default, deserialize_with = "nullable")]
    pub(super) user_groups: Vec<String>,
    #[serde(default, deserialize_with = "nullable")]
    pub(super) verbs: Vec<String>,
    #[serde(default, deserialize_with = "nullable")]
    pub(super) resources: Vec<GroupResources>,
    #[serde(default, deserialize_with = "nullable")]
    pub(super) namespaces: Vec<String>,
    #[serde(default, rename = "nonResourceURLs", deserialize_with = "nullable")]
    pub(super) non_resource_urls: Vec<String>,
    #[serde(default, deserialize_with = "nullable")]
    pub(super) omit_stages: Vec<Stage>,
    pub(super) omit_managed_fields: Option<bool>,
}

/// Resources of an API group.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct GroupResources {
    #[serde(default, deserialize_with = "nullable")]
    pub(super) group: String,
    #[serde(default, deserialize_with = "nullable")]
    pub(super) resources: Vec<String>,
    #[serde(default, deserialize_with = "nullable")]
    pub(super) resource_names: Vec<String>,
}

/// A value, where null stands for an absent one, as in Kubernetes.
fn nullable<'de, D, T>(value: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(value)?.unwrap_or_default())
}

/// Reads and validates a policy.
pub(super) fn read(text: &str) -> Result<PolicyDocument, PolicyError> {
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: MAX_DEPTH,
            max_nodes: MAX_VALUES,
            flow_nesting_limit: MAX_DEPTH,
        },
    };
    let document: Value = serde_saphyr::from_str_with_options(text, options)
        .map_err(|error| PolicyError::Syntax(Box::new(error)))?;
    let says = |field: &str| {
        let text = document.get(field).and_then(Value::as_str);
        text.unwrap_or_default().to_owned()
    };
    // First: the fields of another kind would all be unknown.
    let (api_version, kind) = (says("apiVersion"), says("kind"));
    if (api_version.as_str(), kind.as_str()) != (API_VERSION, KIND) {
        return Err(PolicyError::Kind(api_version, kind));
    }
    let fields: Fields =
        serde_path_to_error::deserialize(document).map_err(|error| PolicyError::Field {
            path: error.path().to_string(),
            reason: error.inner().to_string(),
        })?;
    if fields.rules.is_empty() {
        return Err(PolicyError::NoRules);
    }
    let problems: Vec<String> = (0..).zip(&fields.rules).flat_map(problems).collect();
    if !problems.is_empty() {
        return Err(PolicyError::Invalid(problems));
    }
    Ok(PolicyDocument {
        rules: fields.rules,
        omit_stages: fields.omit_stages,
        omit_managed_fields: fields.omit_managed_fields,
    })
}

/// The broken rules of one policy rule.
fn problems((index, rule): (usize, &Rule)) -> Vec<String> {
    let at = format!("rules[{index}]");
    let mut problems = Vec::new();
    for (i, url) in (0..).zip(&rule.non_resource_urls) {
        problems.extend(
            problem_of_url(url).map(|why| format!("{at}.nonResourceURLs[{i}]: {url:?} {why}")),
        );
    }
    for (i, of_group) in (0..).zip(&rule.resources) {
        problems.extend(problems_of_resources(
            &format!("{at}.resources[{i}]"),
            of_group,
        ));
    }
    let has_resources = !rule.resources.is_empty() || !rule.namespaces.is_empty();
    if has_resources && !rule.non_resource_urls.is_empty() {
        problems.push(format!(
            "{at}.nonResourceURLs: a rule cannot have both nonResourceURLs and resources or namespaces; split it"
        ));
    }
    problems
}

fn problem_of_url(url: &str) -> Option<&'static str> {
    if url == "*" {
        return None;
    }
    if !url.starts_with('/') {
        return Some("must begin with a slash");
    }
    let path = url.strip_suffix('*').unwrap_or(url);
    path.contains('*')
        .then_some("must not have `*` before its last character")
}

fn problems_of_resources(at: &str, of_group: &GroupResources) -> Vec<String> {
    let GroupResources {
        group,
        resources,
        resource_names,
    } = of_group;
    let mut problems = Vec::new();
    if !group.is_empty() {
        let broken = names::dns1123_subdomain(group);
        problems.extend(
            broken
                .iter()
                .map(|why| format!("{at}.group: {group:?}: {why}")),
        );
    }
    if resources.is_empty() && !resource_names.is_empty() {
        problems.push(format!(
            "{at}.resourceNames: needs at least one of `resources`"
        ));
    }
    problems
}
