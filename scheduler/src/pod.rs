//! A pod as the scheduler keeps it: what decides on its place, computed once, and no more.
//!
//! An object of some kilobytes becomes some hundred bytes. Pods of one workload share their
//! [`PodNeeds`] and their labels.

mod needs;

use std::sync::Arc;

use podplane_api::{
    Object as _, ObjectKey,
    core::{ObjectReference, Pod},
    jiff::Timestamp,
    pod_ips::{OUT_OF_POD_IPS, PodIpResource},
};

pub use self::needs::{HostPort, PodNeeds};
use crate::{
    constraints::LabelMap,
    interner::Interner,
    names::{NodeName, PodUid},
};

/// The `spec.schedulerName` of this scheduler's pods, and its default.
pub const DEFAULT_SCHEDULER_NAME: &str = "default-scheduler";

/// A pod.
#[derive(Clone, Debug, PartialEq)]
pub struct PodInfo {
    /// `metadata.uid`.
    pub uid: PodUid,
    /// Namespace and name.
    pub key: ObjectKey,
    /// `metadata.resourceVersion`.
    pub resource_version: Box<str>,
    /// `metadata.labels`.
    pub labels: Arc<LabelMap>,
    /// The part that its spec decides.
    pub needs: Arc<PodNeeds>,
    /// `spec.nodeName`: the node that it is bound to.
    pub node_name: Option<NodeName>,
    /// `status.nominatedNodeName`.
    pub nominated_node: Option<NodeName>,
    /// `status.startTime`.
    pub start_time: Option<Timestamp>,
    /// The time at which the API server bound it.
    pub bound_at: Option<Timestamp>,
    /// The number of addresses that it holds; see [`PodIpResource::addresses_held`].
    pub held_ips: u64,
    /// True if its deletion has begun.
    pub is_deleting: bool,
    /// The end of the pod, if it has ended for good. Its address may still be in use.
    pub end: Option<PodEnd>,
    /// The state of a pod that has a node, as its kubelet says.
    pub progress: PodProgress,
}

/// The state of a pod on its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodProgress {
    /// It has no address.
    WithoutAddress,
    /// It has an address, and has not begun to run.
    Pending,
    /// Its phase is `Running`.
    Running,
}

/// The end of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodEnd {
    /// All containers have succeeded.
    Succeeded,
    /// A container has failed, or the pod was rejected.
    Failed,
    /// The kubelet refused the pod for want of an address, which is a failure too.
    OutOfPodIps,
}

/// Makes [`PodInfo`]s, with one copy of equal parts.
#[derive(Debug)]
pub struct PodReader {
    pod_ips: PodIpResource,
    needs: Interner<PodNeeds>,
    labels: Interner<LabelMap>,
}

impl PodReader {
    /// A reader of pods that counts this resource of pod addresses.
    pub fn new(pod_ips: PodIpResource) -> Self {
        Self {
            pod_ips,
            needs: Interner::default(),
            labels: Interner::default(),
        }
    }

    /// Reads a pod.
    pub fn read(&mut self, pod: &Pod) -> PodInfo {
        let spec = pod.spec.as_ref();
        let status = pod.status.as_ref();
        let needs = PodNeeds::of(pod, &self.pod_ips);
        let labels = pod.metadata.labels.clone().unwrap_or_default();
        let start = status.and_then(|status| status.start_time.as_ref());
        PodInfo {
            uid: pod.uid().into(),
            key: pod.key(),
            resource_version: pod.resource_version().into(),
            labels: self.labels.intern(labels),
            needs: self.needs.intern(needs),
            node_name: node_name(spec.and_then(|spec| spec.node_name.as_deref())),
            nominated_node: node_name(
                status.and_then(|status| status.nominated_node_name.as_deref()),
            ),
            start_time: start.map(|time| time.0),
            bound_at: bound_at(pod),
            held_ips: self.pod_ips.addresses_held(pod),
            is_deleting: pod.is_deleting(),
            end: PodEnd::of(pod),
            progress: PodProgress::of(pod),
        }
    }
}

impl PodProgress {
    fn of(pod: &Pod) -> Self {
        let status = pod.status.as_ref();
        let ip = status.and_then(|status| status.pod_ip.as_deref());
        match status.and_then(|status| status.phase.as_deref()) {
            Some("Running") => Self::Running,
            _ if ip.is_none_or(str::is_empty) => Self::WithoutAddress,
            _ => Self::Pending,
        }
    }
}

impl PodEnd {
    fn of(pod: &Pod) -> Option<Self> {
        let status = pod.status.as_ref()?;
        match (status.phase.as_deref()?, status.reason.as_deref()) {
            ("Succeeded", _) => Some(Self::Succeeded),
            ("Failed", Some(OUT_OF_POD_IPS)) => Some(Self::OutOfPodIps),
            ("Failed", _) => Some(Self::Failed),
            _ => None,
        }
    }

    /// `status.phase`.
    pub fn phase(self) -> &'static str {
        match self {
            Self::Succeeded => "Succeeded",
            Self::Failed | Self::OutOfPodIps => "Failed",
        }
    }
}

impl PodInfo {
    /// Reads one pod, as [`PodReader`] does.
    pub fn new(pod: &Pod, pod_ips: &PodIpResource) -> Self {
        PodReader::new(pod_ips.clone()).read(pod)
    }

    /// `metadata.namespace`.
    pub fn namespace(&self) -> &str {
        &self.key.namespace
    }

    /// `spec.priority`, 0 if absent.
    pub fn priority(&self) -> i32 {
        self.needs.priority
    }

    /// Returns true if the pod has ended for good. Its address may still be in use.
    pub fn is_terminal(&self) -> bool {
        self.end.is_some()
    }

    /// Returns true if the pod has ended for good and holds no resources any more, its address
    /// included.
    pub fn is_released(&self) -> bool {
        self.is_terminal() && self.held_ips == 0
    }

    /// Returns true if the kubelet refused the pod for want of an address.
    pub fn was_out_of_pod_ips(&self) -> bool {
        self.end == Some(PodEnd::OutOfPodIps)
    }

    /// The name of the scheduler that the pod is for.
    pub fn scheduler_name(&self) -> &str {
        let name = self.needs.scheduler_name.as_deref();
        name.unwrap_or(DEFAULT_SCHEDULER_NAME)
    }

    /// Returns true if the pod waits for the scheduler of that name.
    pub fn is_schedulable_by(&self, scheduler: &str) -> bool {
        self.scheduler_name() == scheduler
            && self.needs.scheduling_gates.is_empty()
            && !self.is_terminal()
            && !self.is_deleting
            && self.node_name.is_none()
    }

    /// Returns true if `other`, the same pod at another time, has other needs. The status does not
    /// matter.
    pub fn has_other_needs_than(&self, other: &Self) -> bool {
        self.needs != other.needs
            || self.labels != other.labels
            || self.node_name != other.node_name
    }

    /// The reference to the pod in events.
    pub fn reference(&self) -> ObjectReference {
        ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            name: Some(self.key.name.clone()),
            namespace: Some(self.key.namespace.clone()),
            resource_version: Some(self.resource_version.to_string()),
            uid: Some(self.uid.to_string()),
            field_path: None,
        }
    }
}

impl podplane_client::CacheItem for PodInfo {
    fn key(&self) -> ObjectKey {
        self.key.clone()
    }

    fn uid(&self) -> &str {
        self.uid.as_str()
    }
}

fn node_name(name: Option<&str>) -> Option<NodeName> {
    name.filter(|name| !name.is_empty()).map(NodeName::from)
}

fn bound_at(pod: &Pod) -> Option<Timestamp> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let scheduled = conditions
        .iter()
        .find(|condition| condition.type_ == "PodScheduled" && condition.status == "True")?;
    Some(scheduled.last_transition_time.as_ref()?.0)
}

#[cfg(test)]
mod tests {
    use podplane_test_support::PodBuilder;

    use super::*;

    #[test]
    fn pods_of_one_workload_share_needs_and_labels() {
        let mut reader = PodReader::new(PodIpResource::default());
        let with = |name: &str, app: &str, cpu: &str| {
            let pod = PodBuilder::new(name).ask("cpu", cpu);
            pod.set("/metadata/labels", serde_json::json!({"app": app}))
                .pod()
        };
        let one = reader.read(&with("a", "web", "1"));
        let other = reader.read(&with("b", "web", "1"));
        assert!(Arc::ptr_eq(&one.needs, &other.needs));
        assert!(Arc::ptr_eq(&one.labels, &other.labels));
        assert!(!one.has_other_needs_than(&other));
        let larger = reader.read(&with("c", "web", "2"));
        assert!(Arc::ptr_eq(&one.labels, &larger.labels));
        assert!(one.has_other_needs_than(&larger));
        assert!(one.has_other_needs_than(&reader.read(&with("d", "db", "1"))));
        assert!(one.has_other_needs_than(&reader.read(&PodBuilder::new("a").on("n").pod())));
    }

    #[test]
    fn a_pod_in_the_cache_is_small() {
        // 150,000 of them must fit in 300 MiB with all that refers to them.
        assert!(size_of::<PodInfo>() <= 256, "{}", size_of::<PodInfo>());
    }
}
