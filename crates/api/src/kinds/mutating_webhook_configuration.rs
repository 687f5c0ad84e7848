//! MutatingWebhookConfigurations: programs that may change objects on their way into the store.

use jiff::Timestamp;

use crate::{
    admissionregistration::MutatingWebhookConfiguration,
    names,
    object::{Object, Scope, json_conversions_through_values},
    selector::FieldSelectable,
    strategy::{Strategy, generation_of},
    table::{Column, TableRow, always, created, integer},
    validation::{
        ErrorList, Validate,
        admission::{self, AnyWebhook as _},
        metadata, values,
    },
};

impl Object for MutatingWebhookConfiguration {
    const SCOPE: Scope = Scope::Cluster;
    const SINGULAR: &'static str = "mutatingwebhookconfiguration";
    const CATEGORIES: &'static [&'static str] = &["api-extensions"];

    json_conversions_through_values!();
}

impl FieldSelectable for MutatingWebhookConfiguration {}

impl Validate for MutatingWebhookConfiguration {
    fn validate(&self) -> ErrorList {
        let mut errors = metadata::validate(self, names::dns1123_subdomain);
        admission::webhooks(self.webhooks.as_deref(), &mut errors);
        errors
    }
}

impl TableRow for MutatingWebhookConfiguration {
    const COLUMNS: &'static [Column] = &[always("NAME"), integer("WEBHOOKS"), always("AGE")];

    fn cells(&self, now: Timestamp) -> Vec<String> {
        let webhooks = self.webhooks.as_ref().map_or(0, Vec::len);
        vec![self.name().into(), webhooks.to_string(), created(self, now)]
    }
}

impl Strategy for MutatingWebhookConfiguration {
    const SERVICE: &'static str =
        "podplane.admissionregistration.v1.MutatingWebhookConfigurationService";
    const UNCONDITIONAL_UPDATE: bool = false;

    fn set_defaults(&mut self) {
        for hook in self.webhooks.iter_mut().flatten() {
            hook.set_shared_defaults();
            values::default_word(&mut hook.reinvocation_policy, "Never");
        }
    }

    generation_of!(webhooks);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn configuration(hook: serde_json::Value) -> MutatingWebhookConfiguration {
        let mut all = json!({
            "name": "a.example.com", "clientConfig": {"url": "https://example.com/h"}, "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
            "rules": [{"apiGroups": ["*"], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}]
        });
        all.as_object_mut()
            .unwrap()
            .extend(hook.as_object().unwrap().clone());
        let document = json!({"metadata": {"name": "a"}, "webhooks": [all]});
        let mut configuration = MutatingWebhookConfiguration::from_json(document).unwrap();
        configuration.set_defaults();
        configuration
    }

    #[test]
    fn webhooks_have_full_names_and_one_address() {
        let good = configuration(json!({}));
        assert!(good.validate().is_empty(), "{}", good.validate());
        assert_eq!(good.cells(Timestamp::UNIX_EPOCH), ["a", "1", "<unknown>"]);
        let hook = &json!(good.webhooks)[0];
        assert_eq!(hook["timeoutSeconds"], 10);
        assert_eq!(hook["failurePolicy"], "Fail");
        for (wrong, refused) in [
            (json!({"name": "a.b"}), "webhooks[0].name: Invalid value"),
            (json!({"timeoutSeconds": 31}), "between 1 and 30 seconds"),
            (
                json!({"sideEffects": "Some"}),
                "webhooks[0].sideEffects: Unsupported value",
            ),
            (
                json!({"clientConfig": {}}),
                "exactly one of url or service is required",
            ),
            (
                json!({"clientConfig": {"url": "http://a"}}),
                "'https' is the only allowed URL scheme",
            ),
            (
                json!({"clientConfig": {"service": {"name": "s", "namespace": ""}}}),
                "clientConfig.service.namespace: Required",
            ),
            (
                json!({"admissionReviewVersions": ["v2"]}),
                "must include at least one of v1, v1beta1",
            ),
            (
                json!({"rules": [{"operations": ["*", "CREATE"]}]}),
                "if '*' is present",
            ),
            (
                json!({"matchConditions": [{"name": "", "expression": "true"}]}),
                "matchConditions[0].name: Required",
            ),
        ] {
            let errors = configuration(wrong).validate().to_string();
            assert!(errors.contains(refused), "{errors}");
        }
    }
}
