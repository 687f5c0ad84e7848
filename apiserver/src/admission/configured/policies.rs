//! The checks of a write by validating admission policies, under their bindings.

use std::{collections::BTreeMap, sync::Arc};

use podplane_api::{ObjectKey, Scope as NameScope};
use podplane_host::clock::Instant;
use podplane_proto::error::{ApiError, FieldViolation, Reason};
use serde_json::{Value, json};

use super::{
    ConfiguredRules,
    attributes::{self, Attributes},
    authorizer,
    expressions::{AUTHORIZER, Inputs, REQUEST_RESOURCE},
    policy::{Binding, Findings, ParamSelection, ParamSource, Policy},
    state::Rules,
};
use crate::{
    admission::RequestNotes,
    error,
    rest::{request::ListOptions, resource::Resource},
    served::KindList,
};

/// The annotation with the violations that are only to be audited.
const FAILURES: &str = "validation.policy.admission.k8s.io/validation_failure";

/// A refusal, until it is known whether there is one.
struct Denial {
    message: String,
    reason: String,
}

/// The results of the checks of all policies.
#[derive(Default)]
struct Outcome {
    denials: Vec<Denial>,
    /// The violations that are only to be audited.
    audited: Vec<Value>,
    /// The annotations of policies by their keys: several values are joined.
    annotations: BTreeMap<String, Vec<String>>,
}

/// A policy and a binding of it.
#[derive(Clone, Copy)]
struct Bound<'a> {
    policy: &'a Policy,
    policy_name: &'a str,
    binding: &'a Binding,
    binding_name: &'a str,
}

impl Bound<'_> {
    /// Says that the policy could not be asked. What its failure policy lets pass says nothing.
    fn misconfigured(&self, why: &str, outcome: &mut Outcome) {
        if self.policy.fails_closed {
            self.deny(&format!("failed to configure binding: {why}"), "", outcome);
        }
    }

    fn deny(&self, message: &str, reason: &str, outcome: &mut Outcome) {
        let (policy, binding) = (self.policy_name, self.binding_name);
        let by = error::REFUSED_BY_POLICY;
        outcome.denials.push(Denial {
            message: format!("{by}{policy}' with binding '{binding}' denied request: {message}"),
            reason: reason.to_owned(),
        });
    }

    /// Carries out the actions of the binding.
    fn act(&self, findings: Findings, outcome: &mut Outcome) -> &'static str {
        let mut action = "allow";
        let (policy, binding) = (self.policy_name, self.binding_name);
        for violation in findings.violations {
            if violation.is_error && !self.policy.fails_closed {
                continue;
            }
            let message = &violation.message;
            for wanted in &self.binding.actions {
                match &**wanted {
                    "Deny" => {
                        action = "deny";
                        self.deny(message, &violation.reason, outcome);
                    }
                    "Warn" => {
                        action = "warn";
                        RequestNotes::warn(&format!(
                            "Validation failed for ValidatingAdmissionPolicy '{policy}' with binding '{binding}': {message}"
                        ));
                    }
                    _ => {
                        action = "audit";
                        outcome.audited.push(json!({
                            "message": message,
                            "policy": policy,
                            "binding": binding,
                            "expressionIndex": violation.index,
                            "validationActions": self.binding.actions,
                        }));
                    }
                }
            }
        }
        for (key, value) in findings.annotations {
            let values = outcome.annotations.entry(format!("{policy}/{key}"));
            let values = values.or_default();
            if !values.contains(&value) {
                values.push(value);
            }
        }
        for failed in findings.failed_annotations {
            if self.policy.fails_closed {
                action = "deny";
                self.deny(&failed, "", outcome);
            }
        }
        action
    }
}

impl ConfiguredRules {
    /// Asks the policies that match.
    ///
    /// # Errors
    ///
    /// The first refusal.
    pub(super) async fn check_policies(
        &self,
        rules: &Rules,
        at: &Attributes<'_>,
    ) -> Result<(), ApiError> {
        let mut outcome = Outcome::default();
        for (policy_name, policy) in &rules.policies {
            if !policy.concerns(at) {
                continue;
            }
            let bindings = rules.bindings.iter();
            let bindings = bindings.filter(|(_, binding)| binding.policy == *policy_name);
            for (binding_name, binding) in bindings {
                let bound = Bound {
                    policy,
                    policy_name,
                    binding,
                    binding_name,
                };
                self.check_policy(bound, at, &mut outcome).await?;
            }
        }
        if !outcome.audited.is_empty() {
            let failures = Value::Array(outcome.audited).to_string();
            RequestNotes::annotate(FAILURES.to_owned(), failures);
        }
        for (key, values) in outcome.annotations {
            RequestNotes::annotate(key, values.join(", "));
        }
        match outcome.denials.into_iter().next() {
            None => Ok(()),
            Some(Denial { message, reason }) => Err(refusal(at, &message, &reason)),
        }
    }

    async fn check_policy(
        &self,
        bound: Bound<'_>,
        at: &Attributes<'_>,
        outcome: &mut Outcome,
    ) -> Result<(), ApiError> {
        let Bound {
            policy, binding, ..
        } = bound;
        let Some(version) = policy.matcher.matches(at, &self.kinds).await? else {
            return Ok(());
        };
        if let Some(matcher) = &binding.matcher
            && matcher.matches(at, &self.kinds).await?.is_none()
        {
            return Ok(());
        }
        let begun = Instant::now();
        let kinds = self.kinds.now();
        let documents = at.in_version(&version, &kinds).await?;
        let request = at.request("", &documents).into();
        let mut inputs = Inputs {
            object: documents.object.unwrap_or_default(),
            old: documents.old.unwrap_or_default(),
            request,
            ..Inputs::default()
        };
        if !at.namespace.is_empty() && policy.reads("namespaceObject") {
            inputs.namespace = attributes::namespace(&self.kinds, &at.namespace).await?;
        }
        if policy.reads(AUTHORIZER) || policy.reads(REQUEST_RESOURCE) {
            inputs.access = Some(authorizer::of_request(&self.gate, at).await?);
        }
        let mut action = "allow";
        match params(bound, at, &kinds).await {
            Err(why) => {
                bound.misconfigured(&why, outcome);
                action = if policy.fails_closed { "deny" } else { "allow" };
            }
            Ok(all) => {
                for params in all {
                    inputs.params = params;
                    match policy.conditions.hold(&inputs) {
                        Ok(false) => continue,
                        Ok(true) => {}
                        Err(_) if !policy.fails_closed => continue,
                        Err(why) => {
                            bound.deny(&why, "", outcome);
                            action = "deny";
                            continue;
                        }
                    }
                    action = bound.act(policy.judge(&inputs), outcome);
                }
            }
        }
        let names = [bound.policy_name, bound.binding_name];
        self.metrics
            .checked(names, action, "no_error", begun.elapsed());
        Ok(())
    }
}

impl Policy {
    fn concerns(&self, at: &Attributes<'_>) -> bool {
        self.matcher
            .concerns(at.names, at.operation, at.subresource)
    }
}

/// The parameters of a binding: `null` for one without, none if they are missing and need not be
/// there.
async fn params(
    bound: Bound<'_>,
    at: &Attributes<'_>,
    kinds: &KindList,
) -> Result<Vec<Value>, String> {
    let (Some((api_version, kind)), Some(source)) = (&bound.policy.params, &bound.binding.params)
    else {
        return Ok(vec![Value::Null]);
    };
    let mut resources = kinds.resources.iter();
    let resource = resources.find(|resource| {
        let names = resource.names();
        names.kind == *kind && names.api_version() == *api_version
    });
    let resource = resource.ok_or_else(|| {
        format!("failed to find resource referenced by paramKind: '{api_version}, Kind={kind}'")
    })?;
    let namespace = match (resource.names().scope, &*source.namespace) {
        (NameScope::Cluster, "") => "",
        (NameScope::Cluster, _) => {
            let why = "paramRef.namespace must not be provided for a cluster-scoped `paramKind`";
            return Err(why.to_owned());
        }
        (NameScope::Namespaced, "") if at.namespace.is_empty() => {
            let why = "cannot use namespaced paramRef in policy binding that matches cluster-scoped resources";
            return Err(why.to_owned());
        }
        (NameScope::Namespaced, "") => &*at.namespace,
        (NameScope::Namespaced, given) => given,
    };
    let found = found(source, resource, namespace).await?;
    if found.is_empty() && source.is_required {
        let why = "no params found for policy binding with `Deny` parameterNotFoundAction";
        return Err(why.to_owned());
    }
    Ok(found)
}

async fn found(
    source: &ParamSource,
    resource: &Arc<dyn Resource>,
    namespace: &str,
) -> Result<Vec<Value>, String> {
    match &source.selection {
        ParamSelection::Named(name) => {
            match resource
                .get(&ObjectKey::new(namespace, name.as_str()))
                .await
            {
                Ok(params) => Ok(vec![params]),
                Err(error) if error.is_not_found() => Ok(Vec::new()),
                Err(error) => Err(error.message),
            }
        }
        ParamSelection::Labelled(labels) => {
            let options = ListOptions::labelled(namespace, &labels.to_string());
            let listed = resource.list(&options).await;
            let items = listed.map_err(|error| error.message)?.items.into_iter();
            let documents: Result<_, _> = items.map(|item| item.document()).collect();
            documents.map_err(|error: ApiError| error.message)
        }
    }
}

/// The error of a refusal.
fn refusal(at: &Attributes<'_>, message: &str, reason: &str) -> ApiError {
    let (code, own) = match reason {
        "Unauthorized" => (401, Reason::Unauthorized),
        "Forbidden" => (403, Reason::Forbidden),
        "RequestEntityTooLarge" => (413, Reason::RequestEntityTooLarge),
        _ => (422, Reason::Invalid),
    };
    let reason = if reason.is_empty() { "Invalid" } else { reason };
    let forbidden = error::forbidden_in(at.names, &at.name, message);
    let cause = FieldViolation {
        field: String::new(),
        description: message.to_owned(),
    };
    let error = ApiError {
        reason: own,
        fields: vec![cause],
        ..forbidden
    };
    error.with_status(code, reason)
}
