//! The findings about the addresses of a cluster: those of the audit, each with its place on the
//! map, and what only the map knows.

use std::{cmp::Reverse, collections::BTreeSet};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use podplane_audit::{AuditReport, Code, Severity};
use podplane_map::{
    AddressRecord, AddressSpace, AddressState, Holder, Network, Overlap, OverlapPart,
};
use serde::Serialize;

/// The most findings of a report.
pub const MOST_FINDINGS: usize = 200;

/// A finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// The rule that is violated.
    pub code: Code,
    /// The severity.
    pub severity: Severity,
    /// The fault, in one sentence.
    pub message: String,
    /// The advice.
    pub repair: String,
    /// The places on the map, by address.
    pub places: Vec<FindingPlace>,
    /// The pods, as `NAMESPACE/NAME`.
    pub pods: Vec<String>,
    /// The nodes.
    pub nodes: Vec<String>,
}

/// A place of a finding on the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FindingPlace {
    /// The block or address.
    pub prefix: IpNet,
    /// The narrowest network around it.
    pub network: Option<IpNet>,
}

/// A rule, and whether the cluster was checked by it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CheckRow {
    /// The rule.
    pub code: Code,
    /// Its meaning, in one sentence.
    pub meaning: &'static str,
    /// True if it was checked.
    pub is_made: bool,
    /// `on`, what it went by, or the reason for which it was not checked.
    pub state: String,
}

/// The findings about a cluster at a moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FindingReport {
    /// The worst first, at most [`MOST_FINDINGS`].
    pub findings: Vec<Finding>,
    /// The number of all findings.
    #[serde(rename = "findingsTotal")]
    pub total: usize,
    /// All rules.
    pub checks: Vec<CheckRow>,
}

impl FindingReport {
    /// The report of an audit and of the map of the same moment. `orphaned` has the nodes with
    /// orphaned addresses and their numbers.
    pub(crate) fn new(
        audit: AuditReport,
        space: &AddressSpace,
        orphaned: impl Iterator<Item = (String, u64)>,
    ) -> Self {
        let checks = Code::ALL.map(|code| {
            let state = audit.summary.checks.get(code.as_str()).cloned();
            CheckRow::new(code, state.unwrap_or_default())
        });
        let audited: Vec<Finding> = audit
            .findings
            .into_iter()
            .map(|finding| of_audit(space, finding))
            .collect();
        let known: BTreeSet<(Code, IpNet)> = audited
            .iter()
            .flat_map(|finding| {
                let places = finding.places.iter();
                places.map(|place| (finding.code, place.prefix))
            })
            .collect();
        let of_map = of_map(space, orphaned).into_iter();
        let is_known =
            |finding: &Finding, place: &FindingPlace| known.contains(&(finding.code, place.prefix));
        // The audit compares blocks with each other and with service ranges; the map adds the
        // other networks.
        let is_new = |finding: &Finding| {
            let mut places = finding.places.iter();
            finding.code == Code::OverlappingPodCidr
                || !places.any(|place| is_known(finding, place))
        };
        let mut findings = audited;
        findings.extend(of_map.filter(is_new));
        findings.sort_by_key(|finding| (Reverse(finding.severity), finding.code));
        let total = findings.len();
        findings.truncate(MOST_FINDINGS);
        Self {
            findings,
            total,
            checks: checks.into(),
        }
    }
}

impl CheckRow {
    fn new(code: Code, state: String) -> Self {
        use Code::{BlockOutsidePool, DuplicateAllocation, LeakedAllocation, MissingAllocation};
        let state = match code {
            LeakedAllocation if state.starts_with("off: ") => {
                "by what kubelets report and held blocks have; podplane audit also reads the objects of other networks".to_owned()
            }
            BlockOutsidePool | Code::OrphanedBlock | DuplicateAllocation | MissingAllocation
                if state.starts_with("off: the input has no") =>
            {
                "off: podplane audit reads the objects of other networks that it needs".to_owned()
            }
            _ => state,
        };
        Self {
            code,
            meaning: code.meaning(),
            is_made: !state.starts_with("off: ") && !state.starts_with("incomplete: "),
            state,
        }
    }
}

fn of_audit(space: &AddressSpace, finding: podplane_audit::Finding) -> Finding {
    let named = |kind: &str| {
        let objects = finding.objects.iter();
        let names = objects.filter_map(|object| object.strip_prefix(kind)?.strip_prefix('/'));
        names.map(str::to_owned).collect()
    };
    Finding {
        code: finding.code,
        severity: finding.severity,
        pods: named("Pod"),
        nodes: named("Node"),
        repair: finding.repair,
        message: finding.message,
        places: places(space, finding.prefixes),
    }
}

/// The faults on the map. The audit does not know the addresses of held blocks and of Services,
/// and takes an ended pod for one without addresses.
fn of_map(space: &AddressSpace, orphaned: impl Iterator<Item = (String, u64)>) -> Vec<Finding> {
    let everywhere = [
        IpNet::from(Ipv4Net::default()),
        IpNet::from(Ipv6Net::default()),
    ];
    let faults = everywhere.iter().flat_map(|all| space.faults(all));
    let mut findings: Vec<Finding> = faults
        .filter_map(|fault| of_address(space, &fault))
        .collect();
    findings.extend(
        space
            .overlaps()
            .iter()
            .filter_map(|overlap| of_overlap(space, overlap)),
    );
    findings.extend(
        orphaned
            .filter(|(_, count)| *count > 0)
            .map(|(node, count)| of_node(node, count)),
    );
    findings
}

fn of_address(space: &AddressSpace, fault: &AddressRecord<'_>) -> Option<Finding> {
    let holders = || fault.claims.iter().map(|claim| claim.holder());
    let holder_list: Vec<String> = holders().map(ToString::to_string).collect();
    let holder_list = holder_list.join(", ");
    let ip = fault.ip;
    let (code, severity, message, repair) = match fault.state {
        AddressState::Duplicate => (
            Code::DuplicatePodIp,
            Severity::Error,
            format!("address {ip} has several holders: {holder_list}"),
            "delete all of them but one",
        ),
        AddressState::Outside => (
            Code::PodOutsideBlock,
            Severity::Error,
            format!("address {ip} is not in a block of its pod's node: {holder_list}"),
            "delete the pod, so that its owner makes another, which gets an address of the node's block",
        ),
        AddressState::Orphaned => (
            Code::LeakedAllocation,
            Severity::Warning,
            format!("address {ip} is allocated, and its owner does not exist: {holder_list}"),
            "end the sandbox that holds it",
        ),
        _ => return None,
    };
    let pods = holders().filter(|holder| matches!(holder, Holder::Pod { .. }));
    let nodes: BTreeSet<&str> = holders().filter_map(Holder::node).collect();
    Some(Finding {
        code,
        severity,
        message,
        repair: repair.to_owned(),
        places: places(space, [ip.into()]),
        pods: pods.map(|holder| holder.name().to_owned()).collect(),
        nodes: nodes.into_iter().map(str::to_owned).collect(),
    })
}

/// An overlap with a network; those of blocks are the audit's.
fn of_overlap(space: &AddressSpace, overlap: &Overlap) -> Option<Finding> {
    let parts = [&overlap.wide, &overlap.narrow];
    let networks = parts.into_iter().filter_map(|part| match part {
        OverlapPart::Network { role, .. } => Some(*role),
        OverlapPart::Block { .. } => None,
    });
    let networks: Vec<_> = networks.collect();
    let code = match networks.as_slice() {
        [] => return None,
        [podplane_map::NetworkRole::Services] => Code::ServiceRangeOverlap,
        _ => Code::OverlappingPodCidr,
    };
    let nodes = parts.into_iter().filter_map(|part| match part {
        OverlapPart::Block { node, .. } => node.clone(),
        OverlapPart::Network { .. } => None,
    });
    Some(Finding {
        code,
        severity: Severity::Error,
        message: overlap.to_string(),
        repair: "give one of them another range".to_owned(),
        places: places(space, overlap.prefixes()),
        pods: Vec::new(),
        nodes: nodes.collect(),
    })
}

fn of_node(node: String, orphaned: u64) -> Finding {
    let addresses = if orphaned == 1 {
        "address"
    } else {
        "addresses"
    };
    Finding {
        code: Code::LeakedAllocation,
        severity: Severity::Warning,
        message: format!(
            "node {node} has {orphaned} {addresses} that are not free and that no pod owns"
        ),
        repair: "end what holds them: sandboxes of pods that are gone, or leaked allocation files"
            .to_owned(),
        places: Vec::new(),
        pods: Vec::new(),
        nodes: vec![node],
    }
}

fn places(space: &AddressSpace, prefixes: impl IntoIterator<Item = IpNet>) -> Vec<FindingPlace> {
    let place = |prefix| FindingPlace {
        prefix,
        network: network_around(space, &prefix),
    };
    prefixes.into_iter().map(place).collect()
}

/// The narrowest network that contains the prefix.
fn network_around(space: &AddressSpace, prefix: &IpNet) -> Option<IpNet> {
    let networks = space.networks().iter().map(Network::cidr);
    let around = networks.filter(|cidr| cidr.contains(prefix));
    around.max_by_key(IpNet::prefix_len)
}
