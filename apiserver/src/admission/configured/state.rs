//! The rules, compiled, as the feeder of the watch cache keeps them.

use std::{
    collections::BTreeMap,
    marker::PhantomData,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use podplane_api::{
    Object,
    admissionregistration::{
        MutatingWebhook, MutatingWebhookConfiguration, ValidatingAdmissionPolicy,
        ValidatingAdmissionPolicyBinding, ValidatingWebhook, ValidatingWebhookConfiguration,
        WebhookClientConfig,
    },
    any::KindNames,
};
use podplane_store::{Item, KeyEvent, Prefix, Revision};

use super::{
    expressions::{Conditions, Scope},
    matching::Matcher,
    policy::{Binding, Policy},
    review,
    webhooks::{Hook, HookId},
};
use crate::{
    cache::{Feeder, Sink},
    fatal::or_abort,
    served::OtherKinds,
    storage,
    webhook::{WebhookClient, WebhookPlace},
};

/// The state that a panic would leave half-changed, for the log.
const STATE: &str = "admission rules";

/// All rules, by the names of their objects: this is their order, too.
#[derive(Clone, Debug, Default)]
pub(super) struct Rules {
    pub(super) mutating: BTreeMap<String, Vec<Arc<Hook>>>,
    pub(super) validating: BTreeMap<String, Vec<Arc<Hook>>>,
    pub(super) policies: BTreeMap<String, Arc<Policy>>,
    pub(super) bindings: BTreeMap<String, Arc<Binding>>,
}

impl Rules {
    /// True if any rule may concern writes of a kind.
    pub(super) fn concern(&self, kind: &KindNames, operation: &str, subresource: &str) -> bool {
        let hooks = self.mutating.values().chain(self.validating.values());
        let hooks = hooks.flatten().map(|hook| &hook.matcher);
        // A policy without a binding does nothing.
        let policies = self.policies.values().filter(|_| !self.bindings.is_empty());
        let policies = policies.map(|policy| &policy.matcher);
        let mut all = hooks.chain(policies);
        all.any(|matcher| matcher.concerns(kind, operation, subresource))
    }
}

/// Rules that `feeder` keeps.
pub(super) fn follow(feeder: &mut Feeder, kinds: &OtherKinds) -> Arc<RwLock<Arc<Rules>>> {
    let rules = Arc::default();
    feeder.add(sink::<MutatingWebhookConfiguration>(&rules, kinds));
    feeder.add(sink::<ValidatingWebhookConfiguration>(&rules, kinds));
    feeder.add(sink::<ValidatingAdmissionPolicy>(&rules, kinds));
    feeder.add(sink::<ValidatingAdmissionPolicyBinding>(&rules, kinds));
    rules
}

/// A kind whose objects are rules.
trait RuleKind: Object {
    type Compiled;

    fn compiled(&self, kinds: &OtherKinds) -> Option<Self::Compiled>;

    fn place(rules: &mut Rules) -> &mut BTreeMap<String, Self::Compiled>;
}

/// A validating webhook in the form of a mutating one, which has all of its fields.
fn as_mutating(hook: ValidatingWebhook) -> MutatingWebhook {
    let ValidatingWebhook {
        admission_review_versions,
        client_config,
        failure_policy,
        match_conditions,
        match_policy,
        name,
        namespace_selector,
        object_selector,
        rules,
        side_effects,
        timeout_seconds,
    } = hook;
    MutatingWebhook {
        admission_review_versions,
        client_config,
        failure_policy,
        match_conditions,
        match_policy,
        name,
        namespace_selector,
        object_selector,
        reinvocation_policy: None,
        rules,
        side_effects,
        timeout_seconds,
    }
}

fn compiled_hook(
    configuration: &str,
    index: usize,
    hook: MutatingWebhook,
    kinds: &OtherKinds,
) -> Arc<Hook> {
    let selectors = [
        hook.namespace_selector.as_ref(),
        hook.object_selector.as_ref(),
    ];
    Arc::new(Hook {
        id: HookId {
            configuration: configuration.to_owned(),
            index,
        },
        name: hook.name,
        matcher: Matcher::of_webhook(hook.rules, hook.match_policy.as_deref(), selectors),
        conditions: Conditions::new(Scope::Webhook, hook.match_conditions),
        client: client(kinds, hook.client_config),
        timeout: timeout(hook.timeout_seconds),
        fails_closed: hook.failure_policy.as_deref() != Some("Ignore"),
        has_side_effects: has_side_effects(&hook.side_effects),
        version: version(&hook.admission_review_versions),
        asks_again: hook.reinvocation_policy.as_deref() == Some("IfNeeded"),
    })
}

impl RuleKind for MutatingWebhookConfiguration {
    type Compiled = Vec<Arc<Hook>>;

    fn compiled(&self, kinds: &OtherKinds) -> Option<Self::Compiled> {
        let hooks = self.webhooks.iter().flatten().cloned().enumerate();
        let hooks = hooks.map(|(index, hook)| compiled_hook(self.name(), index, hook, kinds));
        Some(hooks.collect())
    }

    fn place(rules: &mut Rules) -> &mut BTreeMap<String, Self::Compiled> {
        &mut rules.mutating
    }
}

impl RuleKind for ValidatingWebhookConfiguration {
    type Compiled = Vec<Arc<Hook>>;

    fn compiled(&self, kinds: &OtherKinds) -> Option<Self::Compiled> {
        let hooks = self.webhooks.iter().flatten().cloned().enumerate();
        let hooks = hooks.map(|(index, hook)| {
            let hook = as_mutating(hook);
            compiled_hook(self.name(), index, hook, kinds)
        });
        Some(hooks.collect())
    }

    fn place(rules: &mut Rules) -> &mut BTreeMap<String, Self::Compiled> {
        &mut rules.validating
    }
}

fn client(kinds: &OtherKinds, config: WebhookClientConfig) -> WebhookClient {
    let place = WebhookPlace::of(
        config.url,
        config.service.map(|service| {
            let path = service.path.unwrap_or_default();
            (service.namespace, service.name, path, service.port)
        }),
    );
    let authorities = config.ca_bundle.unwrap_or_default();
    WebhookClient::new(kinds.clone(), place, &authorities.0)
}

/// The time for an answer; the default is that of the reference.
fn timeout(seconds: Option<i32>) -> Duration {
    let seconds = seconds.and_then(|seconds| u64::try_from(seconds).ok());
    Duration::from_secs(seconds.unwrap_or(10))
}

fn has_side_effects(side_effects: &str) -> bool {
    !matches!(side_effects, "None" | "NoneOnDryRun")
}

/// The first version of reviews that both sides know.
fn version(versions: &[String]) -> &'static str {
    let known = versions.iter().find_map(|version| match &**version {
        "v1" => Some(review::V1),
        "v1beta1" => Some(review::V1_BETA1),
        _ => None,
    });
    known.unwrap_or(review::V1)
}

impl RuleKind for ValidatingAdmissionPolicy {
    type Compiled = Arc<Policy>;

    fn compiled(&self, _kinds: &OtherKinds) -> Option<Self::Compiled> {
        match Policy::new(self) {
            Ok(policy) => Some(Arc::new(policy)),
            // Written by a version that understood it.
            Err(errors) => {
                let policy = self.name();
                tracing::error!(policy, %errors, "a validating admission policy does not compile");
                None
            }
        }
    }

    fn place(rules: &mut Rules) -> &mut BTreeMap<String, Self::Compiled> {
        &mut rules.policies
    }
}

impl RuleKind for ValidatingAdmissionPolicyBinding {
    type Compiled = Arc<Binding>;

    fn compiled(&self, _kinds: &OtherKinds) -> Option<Self::Compiled> {
        Some(Arc::new(Binding::new(self)))
    }

    fn place(rules: &mut Rules) -> &mut BTreeMap<String, Self::Compiled> {
        &mut rules.bindings
    }
}

/// Carries the objects of a kind into the rules.
struct RuleSink<K> {
    prefix: Prefix,
    rules: Arc<RwLock<Arc<Rules>>>,
    kinds: OtherKinds,
    kind: PhantomData<fn() -> K>,
}

fn sink<K: RuleKind>(rules: &Arc<RwLock<Arc<Rules>>>, kinds: &OtherKinds) -> Arc<dyn Sink> {
    Arc::new(RuleSink::<K> {
        prefix: storage::prefix::<K>(),
        rules: Arc::clone(rules),
        kinds: kinds.clone(),
        kind: PhantomData,
    })
}

impl<K: RuleKind> RuleSink<K> {
    /// The name of an object, and its rules if it has any. The cache of its kind logs an object
    /// that cannot be read.
    fn named(&self, item: &Item) -> Option<(String, Option<K::Compiled>)> {
        let object = K::from_slice(&item.value()).ok()?;
        Some((object.name().to_owned(), object.compiled(&self.kinds)))
    }

    fn change(&self, change: impl FnOnce(&mut Rules)) {
        or_abort(STATE, || {
            let mut rules = self.rules.write().unwrap_or_else(PoisonError::into_inner);
            change(Arc::make_mut(&mut rules));
        });
    }
}

impl<K: RuleKind> Sink for RuleSink<K> {
    fn prefix(&self) -> &Prefix {
        &self.prefix
    }

    fn load(&self, items: &[Arc<Item>], _at: Revision) {
        let all = items.iter().filter_map(|item| self.named(item));
        let all = all.filter_map(|(name, compiled)| Some((name, compiled?)));
        let all = all.collect();
        self.change(|rules| *K::place(rules) = all);
    }

    fn apply(&self, _revision: Revision, events: &[KeyEvent]) {
        // Compiled before the lock is taken.
        let changes = events.iter().filter_map(|event| match event {
            KeyEvent::Put { item, .. } => self.named(item),
            KeyEvent::Delete { previous } => {
                let object = K::from_slice(&previous.value()).ok()?;
                Some((object.name().to_owned(), None))
            }
        });
        let changes: Vec<_> = changes.collect();
        self.change(|rules| {
            let place = K::place(rules);
            for (name, compiled) in changes {
                match compiled {
                    Some(compiled) => _ = place.insert(name, compiled),
                    None => _ = place.remove(&name),
                }
            }
        });
    }

    fn watches(&self) -> usize {
        0
    }

    fn wake(&self) {}
}
