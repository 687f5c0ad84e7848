//! Pods: defaults, admission of the spec, quality of service, binding.

mod account;
mod bind;
mod conditions;
mod defaults;
mod priority;
mod qos;
mod table;
mod validation;

use jiff::Timestamp;

use crate::{
    core::{Pod, PodStatus},
    object::{Object, Scope, json_conversions},
    pod_ips,
    selector::{
        FieldSelectable, SelectableField,
        field::{spec, status, truth},
    },
    strategy::{JourneyState, Strategy, Subresource},
    table::{Column, TableRow},
};

pub use account::{ROOT_CA_CONFIG_MAP, account_name, mount_token, set_account};
pub use bind::bind;
pub use conditions::{DisruptionSource, is_ready, set_disruption_target};
pub(super) use defaults::set_template as set_template_defaults;
pub use priority::set_priority;
pub use table::{ips, shown_status};
pub(crate) use validation::validate_spec;
pub(crate) use validation::{containers::in_range, one_of};

impl Object for Pod {
    const SCOPE: Scope = Scope::Namespaced;
    const SINGULAR: &'static str = "pod";
    const SHORT_NAMES: &'static [&'static str] = &["po"];
    const CATEGORIES: &'static [&'static str] = &["all"];

    json_conversions!();
}

impl FieldSelectable for Pod {
    const FIELDS: &'static [SelectableField<Self>] = &[
        ("spec.nodeName", |pod| spec!(pod, node_name)),
        ("spec.restartPolicy", |pod| spec!(pod, restart_policy)),
        ("spec.schedulerName", |pod| spec!(pod, scheduler_name)),
        ("spec.serviceAccountName", |pod| {
            spec!(pod, service_account_name)
        }),
        ("spec.hostNetwork", |pod| {
            truth(pod.spec.as_ref().and_then(|spec| spec.host_network))
        }),
        ("status.phase", |pod| status!(pod, phase)),
        ("status.podIP", |pod| status!(pod, pod_ip)),
        ("status.nominatedNodeName", |pod| {
            status!(pod, nominated_node_name)
        }),
    ];
}

impl TableRow for Pod {
    const COLUMNS: &'static [Column] = table::COLUMNS;

    fn cells(&self, now: Timestamp) -> Vec<String> {
        table::cells(self, now)
    }
}

impl Strategy for Pod {
    const SERVICE: &'static str = "podplane.core.v1.PodService";
    const RETURNS_DELETED: bool = true;
    const SUBRESOURCES: &'static [Subresource] = &[
        Subresource::Attach,
        Subresource::Binding,
        Subresource::Eviction,
        Subresource::Exec,
        Subresource::Log,
        Subresource::PortForward,
        Subresource::Status,
    ];

    fn set_defaults(&mut self) {
        if let Some(spec) = &mut self.spec {
            defaults::set(spec);
        }
    }

    fn prepare_for_create(&mut self) {
        let Some(spec) = &mut self.spec else {
            return;
        };
        defaults::admit(spec);
        self.status = Some(PodStatus {
            phase: Some("Pending".into()),
            qos_class: Some(qos::class(spec).into()),
            conditions: bind::gated(spec).map(|condition| vec![condition]),
            ..PodStatus::default()
        });
    }

    fn prepare_for_update(&mut self, old: &Self) {
        if let (Some(spec), Some(old)) = (&mut self.spec, &old.spec) {
            defaults::admit_again(spec, old);
        }
        self.status.clone_from(&old.status);
    }

    fn set_status(&mut self, update: &Self) {
        let old = self.status.take();
        self.status.clone_from(&update.status);
        let status = self.status.get_or_insert_default();
        // The class follows from the spec, which cannot change.
        status.qos_class = old
            .and_then(|old| old.qos_class)
            .or(status.qos_class.take());
    }

    fn first_generation() -> Option<i64> {
        Some(1)
    }

    fn spec_differs(&self, old: &Self) -> bool {
        self.spec != old.spec
    }

    fn journey_state(&self) -> Option<JourneyState> {
        let status = self.status.as_ref();
        let text = |text: Option<&String>| text.cloned().unwrap_or_default();
        let ips = status.and_then(|status| status.pod_ips.as_ref());
        let ips: Vec<_> = ips.into_iter().flatten().map(|ip| ip.ip.as_str()).collect();
        Some(JourneyState {
            namespace: self.namespace().to_owned(),
            name: self.name().to_owned(),
            uid: self.uid().to_owned(),
            node: text(self.spec.as_ref().and_then(|spec| spec.node_name.as_ref())),
            phase: text(status.and_then(|status| status.phase.as_ref())),
            message: text(status.and_then(|status| status.message.as_ref())),
            ips: ips.join(","),
            deleting: self.is_deleting(),
        })
    }

    /// As Kubernetes' `podStrategy.CheckGracefulDelete`: a pod that never ran, or has ended, needs
    /// no grace period. Unlike there, a pod that has ended stays until its kubelet has removed its
    /// sandbox, so that its address is free when the pod is gone.
    fn grace_period(&self, asked: Option<i64>) -> Option<i64> {
        let spec = self.spec.as_ref();
        let node = spec
            .and_then(|spec| spec.node_name.as_deref())
            .unwrap_or_default();
        if node.is_empty() || (pod_ips::is_terminal(self) && !pod_ips::holds_address(self)) {
            return Some(0);
        }
        let own = spec.and_then(|spec| spec.termination_grace_period_seconds);
        match asked.or(own).unwrap_or_default() {
            negative if negative < 0 => Some(1),
            seconds => Some(seconds),
        }
    }
}

#[cfg(test)]
mod tests;
