//! Rules that the kinds of `admissionregistration.k8s.io` share (source:
//! `pkg/apis/admissionregistration/validation`).

use std::collections::BTreeSet;

use super::{ErrorList, FieldPath, values, workload};
use crate::{
    admissionregistration::{
        MatchCondition, MutatingWebhook, RuleWithOperations, ValidatingWebhook, WebhookClientConfig,
    },
    kinds::pod::{in_range, one_of},
    meta::LabelSelector,
    names,
};

const OPERATIONS: [&str; 5] = ["*", "CONNECT", "CREATE", "DELETE", "UPDATE"];
const SCOPES: [&str; 3] = ["*", "Cluster", "Namespaced"];
const SIDE_EFFECTS: [&str; 2] = ["None", "NoneOnDryRun"];
const CONDITIONS_MAX: usize = 64;

/// The fields that both kinds of webhooks have.
pub(crate) struct Webhook<'a> {
    pub(crate) name: &'a str,
    pub(crate) client: &'a WebhookClientConfig,
    pub(crate) rules: Option<&'a [RuleWithOperations]>,
    pub(crate) conditions: Option<&'a [MatchCondition]>,
    pub(crate) selectors: [(&'static str, Option<&'a LabelSelector>); 2],
    pub(crate) failure_policy: Option<&'a str>,
    pub(crate) match_policy: Option<&'a str>,
    pub(crate) side_effects: &'a str,
    pub(crate) timeout_seconds: Option<i32>,
    pub(crate) versions: &'a [String],
}

/// A webhook of either kind.
pub(crate) trait AnyWebhook {
    fn shared(&self) -> Webhook<'_>;

    /// Sets the defaults of the fields that both kinds have.
    fn set_shared_defaults(&mut self);
}

macro_rules! any_webhook {
    ($($hook:ty),+) => {$(
        impl AnyWebhook for $hook {
            fn shared(&self) -> Webhook<'_> {
                Webhook {
                    name: &self.name,
                    client: &self.client_config,
                    rules: self.rules.as_deref(),
                    conditions: self.match_conditions.as_deref(),
                    selectors: [
                        ("namespaceSelector", self.namespace_selector.as_ref()),
                        ("objectSelector", self.object_selector.as_ref()),
                    ],
                    failure_policy: self.failure_policy.as_deref(),
                    match_policy: self.match_policy.as_deref(),
                    side_effects: &self.side_effects,
                    timeout_seconds: self.timeout_seconds,
                    versions: &self.admission_review_versions,
                }
            }

            fn set_shared_defaults(&mut self) {
                values::default_word(&mut self.failure_policy, "Fail");
                values::default_word(&mut self.match_policy, "Equivalent");
                self.namespace_selector.get_or_insert_default();
                self.object_selector.get_or_insert_default();
                self.timeout_seconds.get_or_insert(10);
                if let Some(service) = &mut self.client_config.service {
                    service.port.get_or_insert(443);
                }
                for rule in self.rules.iter_mut().flatten() {
                    values::default_word(&mut rule.scope, "*");
                }
            }
        }
    )+};
}

any_webhook!(MutatingWebhook, ValidatingWebhook);

/// Checks the webhooks of a configuration.
pub(crate) fn webhooks(all: Option<&[impl AnyWebhook]>, errors: &mut ErrorList) {
    let path = FieldPath::new("webhooks");
    let mut seen = BTreeSet::new();
    let all = all.into_iter().flatten().map(AnyWebhook::shared);
    for (index, hook) in all.enumerate() {
        let path = path.index(index);
        webhook(&path, &hook, errors);
        if !seen.insert(hook.name.to_owned()) {
            errors.duplicate(&path.child("name"), hook.name);
        }
    }
}

fn webhook(path: &FieldPath, hook: &Webhook<'_>, errors: &mut ErrorList) {
    let name = path.child("name");
    values::named(&name, hook.name, names::dns1123_subdomain, errors);
    if hook.name.split('.').count() < 3 {
        let detail = "should be a domain with at least three segments separated by dots";
        errors.invalid(&name, hook.name, detail);
    }
    if hook.versions.is_empty() {
        let detail = "must specify one of v1, v1beta1";
        errors.required(&path.child("admissionReviewVersions"), detail);
    } else if !hook
        .versions
        .iter()
        .any(|version| version == "v1" || version == "v1beta1")
    {
        let path = path.child("admissionReviewVersions");
        let detail = "must include at least one of v1, v1beta1";
        errors.invalid(&path, serde_json::json!(hook.versions), detail);
    }
    let policies = ["Fail", "Ignore"];
    one_of(
        &path.child("failurePolicy"),
        hook.failure_policy,
        &policies,
        errors,
    );
    let matches = ["Equivalent", "Exact"];
    one_of(
        &path.child("matchPolicy"),
        hook.match_policy,
        &matches,
        errors,
    );
    let effects = Some(hook.side_effects);
    one_of(&path.child("sideEffects"), effects, &SIDE_EFFECTS, errors);
    if let Some(seconds) = hook
        .timeout_seconds
        .filter(|seconds| !(1..=30).contains(seconds))
    {
        let detail = "the timeout value must be between 1 and 30 seconds";
        errors.invalid(&path.child("timeoutSeconds"), seconds, detail);
    }
    for (field, selector) in hook.selectors {
        if let Some(selector) = selector {
            workload::label_selector(&path.child(field), selector, errors);
        }
    }
    for (index, rule) in hook.rules.into_iter().flatten().enumerate() {
        self::rule(&path.child("rules").index(index), rule, errors);
    }
    match_conditions(&path.child("matchConditions"), hook.conditions, errors);
    client(&path.child("clientConfig"), hook.client, errors);
}

fn client(path: &FieldPath, client: &WebhookClientConfig, errors: &mut ErrorList) {
    match (&client.url, &client.service) {
        (None, None) | (Some(_), Some(_)) => {
            errors.required(path, "exactly one of url or service is required");
        }
        (Some(url), None) => {
            if url.strip_prefix("https://").is_none_or(str::is_empty) {
                let detail = "'https' is the only allowed URL scheme";
                errors.invalid(&path.child("url"), url.as_str(), detail);
            }
        }
        (None, Some(service)) => {
            let path = path.child("service");
            for (field, text) in [("name", &service.name), ("namespace", &service.namespace)] {
                if text.is_empty() {
                    errors.required(&path.child(field), "");
                }
            }
            if let Some(port) = service.port {
                in_range(&path.child("port"), port, errors);
            }
        }
    }
}

/// Checks a rule that selects requests.
pub(crate) fn rule(path: &FieldPath, rule: &RuleWithOperations, errors: &mut ErrorList) {
    let lists = [
        ("operations", &rule.operations),
        ("apiGroups", &rule.api_groups),
        ("apiVersions", &rule.api_versions),
        ("resources", &rule.resources),
    ];
    for (field, list) in lists {
        let path = path.child(field);
        let list = list.as_deref().unwrap_or_default();
        if list.is_empty() {
            errors.required(&path, "");
        }
        if list.len() > 1 && list.iter().any(|item| item == "*") {
            let detail = "if '*' is present, must not specify other values";
            errors.invalid(&path, serde_json::json!(list), detail);
        }
    }
    for (index, operation) in rule.operations.iter().flatten().enumerate() {
        let path = path.child("operations").index(index);
        one_of(&path, Some(operation), &OPERATIONS, errors);
    }
    if let Some(scope) = rule.scope.as_deref() {
        one_of(&path.child("scope"), Some(scope), &SCOPES, errors);
    }
}

/// Checks the names and number of conditions. Their expressions are compiled where they are used.
pub(crate) fn match_conditions(
    path: &FieldPath,
    conditions: Option<&[MatchCondition]>,
    errors: &mut ErrorList,
) {
    let conditions = conditions.unwrap_or_default();
    if conditions.len() > CONDITIONS_MAX {
        let detail = "must have at most 64 items";
        errors.invalid(path, conditions.len(), detail);
    }
    let mut seen = BTreeSet::new();
    for (index, condition) in conditions.iter().enumerate() {
        let path = path.index(index);
        values::named(
            &path.child("name"),
            &condition.name,
            names::qualified_name,
            errors,
        );
        if !seen.insert(&condition.name) {
            errors.duplicate(&path.child("name"), condition.name.as_str());
        }
        if condition.expression.trim().is_empty() {
            errors.required(&path.child("expression"), "");
        }
    }
}
