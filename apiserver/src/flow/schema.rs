//! The flow schemas and priority levels: those that Kubernetes suggests
//! (`apiserver/pkg/apis/flowcontrol/bootstrap`), with podplane's own processes among the components
//! of the system.

use podplane_service_runtime::identity::{
    AUTHENTICATED, Identity, MASTERS, NODES, SERVICE_ACCOUNTS,
};

use super::work::FlowRequest;

const ACCOUNTS_OF_SYSTEM: &str = "system:serviceaccounts:kube-system";
/// The names of users that are processes of the control plane begin so.
const COMPONENTS: [&str; 2] = ["system:kube-", "system:podplane:"];

/// A priority level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    /// Requests that never wait.
    Exempt,
    NodeHigh,
    System,
    LeaderElection,
    WorkloadHigh,
    WorkloadLow,
    GlobalDefault,
    CatchAll,
}

impl Level {
    pub(super) const ALL: [Self; 8] = [
        Self::Exempt,
        Self::NodeHigh,
        Self::System,
        Self::LeaderElection,
        Self::WorkloadHigh,
        Self::WorkloadLow,
        Self::GlobalDefault,
        Self::CatchAll,
    ];

    pub(super) fn index(self) -> usize {
        self as usize
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Exempt => "exempt",
            Self::NodeHigh => "node-high",
            Self::System => "system",
            Self::LeaderElection => "leader-election",
            Self::WorkloadHigh => "workload-high",
            Self::WorkloadLow => "workload-low",
            Self::GlobalDefault => "global-default",
            Self::CatchAll => "catch-all",
        }
    }

    /// The share of the seats (`nominalConcurrencyShares`).
    fn shares(self) -> u32 {
        match self {
            Self::Exempt => 0,
            Self::NodeHigh | Self::WorkloadHigh => 40,
            Self::System => 30,
            Self::LeaderElection => 10,
            Self::WorkloadLow => 100,
            Self::GlobalDefault => 20,
            Self::CatchAll => 5,
        }
    }

    /// The seats of the level, of all seats of the server; `None` for no limit. Where nobody has a
    /// name, one level has all of them.
    pub(super) fn seats(self, all: u32, has_users: bool) -> Option<u32> {
        match self {
            Self::Exempt => None,
            _ if all == 0 => None,
            Self::GlobalDefault if !has_users => Some(all),
            level => {
                let shares: u32 = Self::ALL.into_iter().map(Self::shares).sum();
                let seats = u64::from(all) * u64::from(level.shares());
                let seats = seats.div_ceil(shares.into());
                Some(u32::try_from(seats).unwrap_or(u32::MAX).max(1))
            }
        }
    }
}

/// A flow schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FlowSchema {
    Exempt,
    Probes,
    SystemLeaderElection,
    SystemNodeHigh,
    SystemNodes,
    /// Kubernetes has one for each of its components.
    SystemComponents,
    KubeSystemServiceAccounts,
    ServiceAccounts,
    GlobalDefault,
    CatchAll,
}

impl FlowSchema {
    pub(super) const ALL: [Self; 10] = [
        Self::Exempt,
        Self::Probes,
        Self::SystemLeaderElection,
        Self::SystemNodeHigh,
        Self::SystemNodes,
        Self::SystemComponents,
        Self::KubeSystemServiceAccounts,
        Self::ServiceAccounts,
        Self::GlobalDefault,
        Self::CatchAll,
    ];

    pub(super) fn index(self) -> usize {
        self as usize
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Exempt => "exempt",
            Self::Probes => "probes",
            Self::SystemLeaderElection => "system-leader-election",
            Self::SystemNodeHigh => "system-node-high",
            Self::SystemNodes => "system-nodes",
            Self::SystemComponents => "system-components",
            Self::KubeSystemServiceAccounts => "kube-system-service-accounts",
            Self::ServiceAccounts => "service-accounts",
            Self::GlobalDefault => "global-default",
            Self::CatchAll => "catch-all",
        }
    }

    pub(super) fn level(self) -> Level {
        match self {
            Self::Exempt | Self::Probes => Level::Exempt,
            Self::SystemLeaderElection => Level::LeaderElection,
            Self::SystemNodeHigh => Level::NodeHigh,
            Self::SystemNodes => Level::System,
            Self::SystemComponents | Self::KubeSystemServiceAccounts => Level::WorkloadHigh,
            Self::ServiceAccounts => Level::WorkloadLow,
            Self::GlobalDefault => Level::GlobalDefault,
            Self::CatchAll => Level::CatchAll,
        }
    }
}

/// The flow schema of a request: the first that matches.
pub(super) fn classify(identity: &Identity, request: &FlowRequest, has_users: bool) -> FlowSchema {
    let is_lease = request.is_of("coordination.k8s.io", "leases");
    let is_component = COMPONENTS
        .iter()
        .any(|prefix| identity.user.starts_with(prefix));
    let is_in = |group| identity.is_in(group);
    match () {
        () if is_in(MASTERS) => FlowSchema::Exempt,
        () if request.is_probe => FlowSchema::Probes,
        () if !has_users => FlowSchema::GlobalDefault,
        () if is_in(NODES) && (is_lease || request.is_status_of("", "nodes")) => {
            FlowSchema::SystemNodeHigh
        }
        () if is_in(NODES) => FlowSchema::SystemNodes,
        () if is_component && is_lease => FlowSchema::SystemLeaderElection,
        () if is_component => FlowSchema::SystemComponents,
        () if is_in(ACCOUNTS_OF_SYSTEM) => FlowSchema::KubeSystemServiceAccounts,
        () if is_in(SERVICE_ACCOUNTS) => FlowSchema::ServiceAccounts,
        () if is_in(AUTHENTICATED) => FlowSchema::GlobalDefault,
        () => FlowSchema::CatchAll,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(resource: &str, subresource: &str) -> FlowRequest {
        let group = match resource {
            "leases" => "coordination.k8s.io",
            _ => "",
        };
        FlowRequest::of_resource(group, resource, subresource)
    }

    #[test]
    fn requests_have_the_schemas_of_kubernetes() {
        let pods = request("pods", "");
        let leases = request("leases", "");
        let probe = FlowRequest::probe();
        for (user, groups, request, want) in [
            ("ada", &[MASTERS, AUTHENTICATED][..], &pods, "exempt"),
            ("system:anonymous", &[], &probe, "probes"),
            ("system:anonymous", &[], &pods, "catch-all"),
            ("ada", &[AUTHENTICATED], &pods, "global-default"),
            ("ada", &[AUTHENTICATED], &leases, "global-default"),
            (
                "system:node:a",
                &[NODES, AUTHENTICATED],
                &leases,
                "system-node-high",
            ),
            (
                "system:node:a",
                &[NODES, AUTHENTICATED],
                &request("nodes", "status"),
                "system-node-high",
            ),
            (
                "system:node:a",
                &[NODES, AUTHENTICATED],
                &request("nodes", ""),
                "system-nodes",
            ),
            (
                "system:kube-scheduler",
                &[AUTHENTICATED],
                &leases,
                "system-leader-election",
            ),
            (
                "system:podplane:ipam-controller",
                &[AUTHENTICATED],
                &pods,
                "system-components",
            ),
            (
                "system:serviceaccount:kube-system:a",
                &[SERVICE_ACCOUNTS, ACCOUNTS_OF_SYSTEM, AUTHENTICATED],
                &pods,
                "kube-system-service-accounts",
            ),
            (
                "system:serviceaccount:b:a",
                &[SERVICE_ACCOUNTS, AUTHENTICATED],
                &pods,
                "service-accounts",
            ),
        ] {
            let identity = Identity::new(user, groups.iter().copied());
            let schema = classify(&identity, request, true);
            assert_eq!(schema.name(), want, "{user} {request:?}");
        }
        let anonymous = Identity::anonymous();
        let schema = classify(&anonymous, &pods, false);
        assert_eq!(schema, FlowSchema::GlobalDefault);
    }

    #[test]
    fn levels_share_the_seats_as_in_kubernetes() {
        let seats = |level: Level| level.seats(600, true);
        assert_eq!(seats(Level::Exempt), None);
        assert_eq!(seats(Level::GlobalDefault), Some(49));
        assert_eq!(seats(Level::WorkloadLow), Some(245));
        assert_eq!(seats(Level::CatchAll), Some(13));
        assert_eq!(Level::GlobalDefault.seats(600, false), Some(600));
        assert_eq!(Level::GlobalDefault.seats(0, true), None);
        assert_eq!(Level::CatchAll.seats(1, true), Some(1));
    }

    #[test]
    fn indexes_follow_the_lists() {
        assert!((0..).zip(Level::ALL).all(|(at, one)| one.index() == at));
        assert!(
            (0..)
                .zip(FlowSchema::ALL)
                .all(|(at, one)| one.index() == at)
        );
    }
}
