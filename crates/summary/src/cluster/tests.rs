use podplane_audit::Code;
use podplane_map::AddressState;
use podplane_proto::ipam::{BlockState as RecordState, Hold, PodAddress};
use proptest::prelude::*;

use super::*;
use crate::{MapChange, MapQuery, MapRequest, MapScene, StreamDocument};

fn pod(name: &str, node: &str, ip: &str) -> Pod {
    let json = serde_json::json!({
        "metadata": {"namespace": "default", "name": name},
        "spec": {"nodeName": node, "containers": []},
        "status": {"phase": "Running", "podIPs": [{"ip": ip}]},
    });
    serde_json::from_value(json).unwrap()
}

fn waiting(name: &str, since: &str, message: &str) -> Pod {
    let json = serde_json::json!({
        "metadata": {"namespace": "default", "name": name},
        "spec": {"containers": []},
        "status": {"phase": "Pending", "conditions": [{
            "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
            "message": message, "lastTransitionTime": since,
        }]},
    });
    serde_json::from_value(json).unwrap()
}

fn node(name: &str, cidr: &str) -> Node {
    let json = serde_json::json!({
        "metadata": {"name": name},
        "spec": {"podCIDR": cidr, "podCIDRs": [cidr]},
        "status": {
            "conditions": [{"type": "Ready", "status": "True"}],
            "addresses": [{"type": "InternalIP", "address": "192.168.7.1"}],
        },
    });
    serde_json::from_value(json).unwrap()
}

fn summary(cluster: &mut Cluster) -> (AddressSpace, ClusterSummary) {
    let space = AddressSpace::new(cluster.space_parts());
    let report = Arc::new(cluster.findings(&space));
    let summary = cluster.summary(&space, "1", Some(&report));
    (space, summary)
}

fn report(summary: &ClusterSummary) -> &FindingReport {
    summary.report.as_deref().unwrap()
}

fn small() -> Cluster {
    let mut cluster = Cluster::default();
    cluster.set_cluster_cidrs(&["10.244.0.0/16".parse().unwrap()]);
    cluster.apply_node(&node("a", "10.244.1.0/24"));
    cluster.apply_node(&node("b", "10.244.2.0/24"));
    cluster.apply_pod(&pod("one", "a", "10.244.1.2"));
    cluster
}

#[test]
fn an_unaudited_cluster_has_the_same_map_and_no_findings() {
    let fill = |mut cluster: Cluster| {
        cluster.apply_node(&node("a", "10.244.1.0/24"));
        cluster.apply_pod(&pod("one", "a", "10.244.9.2"));
        let (space, summary) = summary(&mut cluster);
        (
            space.faults(&"10.0.0.0/8".parse().unwrap()).count(),
            summary,
        )
    };
    let (faults, audited) = fill(Cluster::default());
    let (same, unaudited) = fill(Cluster::unaudited(PodIpResource::default()));
    assert_eq!((faults, same), (1, 1));
    assert!(report(&audited).total > 0 && report(&unaudited).total == 0);
    assert_eq!(audited.networks, unaudited.networks);
}

#[test]
fn a_listing_has_the_blocks_that_objects_do_not_have() {
    let mut server = small();
    let held = Block {
        cidr: "10.244.7.0/24".into(),
        state: RecordState::Draining.into(),
        node_name: "gone".into(),
        hold: Some(Hold {
            instance: "0f2c".into(),
            addresses: vec![PodAddress {
                address: "10.244.7.9".into(),
                namespace: "default".into(),
                name: "late".into(),
                node_name: "gone".into(),
                ..PodAddress::default()
            }],
            ..Hold::default()
        }),
        ..Block::default()
    };
    server.set_blocks(&[held]);
    let listing = BlockListing::of(&AddressSpace::new(server.space_parts()));
    let text = serde_json::to_string(&listing).unwrap();
    let listing: BlockListing = serde_json::from_str(&text).unwrap();
    assert_eq!(listing.cluster_cidrs, ["10.244.0.0/16".parse().unwrap()]);
    let mut client = Cluster::unaudited(PodIpResource::default());
    client.apply_node(&node("a", "10.244.1.0/24"));
    client.apply_node(&node("b", "10.244.2.0/24"));
    client.apply_pod(&pod("one", "a", "10.244.1.2"));
    client.set_block_listing(&listing);
    client.set_cluster_cidrs(&listing.cluster_cidrs);
    let (mine, theirs) = (client.space_parts(), server.space_parts());
    let spaces = [mine, theirs].map(AddressSpace::new);
    assert_eq!(spaces[0].blocks(), spaces[1].blocks());
    let records = spaces.each_ref().map(|space| {
        let all = "10.0.0.0/8".parse().unwrap();
        let records = space.records(&all);
        records
            .map(|one| (one.ip, one.state, one.claims.to_vec()))
            .collect::<Vec<_>>()
    });
    assert_eq!(records[0], records[1]);
}

/// The numbers of an audit, of the networks and of the rows of nodes.
#[test]
fn addresses_of_overlapping_blocks_count_once_and_each_node_has_its_own() {
    let nodes = [
        node("wide", "10.244.0.0/21"),
        node("a", "10.244.1.0/24"),
        node("b", "10.244.3.0/24"),
    ];
    let pods = [
        pod("one", "a", "10.244.1.2"),
        pod("two", "wide", "10.244.5.2"),
    ];
    let mut cluster = Cluster::default();
    cluster.set_cluster_cidrs(&["10.244.0.0/16".parse().unwrap()]);
    let mut collector = podplane_audit::DumpCollector::new(podplane_audit::DumpScope::Fields);
    for node in &nodes {
        cluster.apply_node(node);
        collector.add(&node.to_json().unwrap());
    }
    for pod in &pods {
        cluster.apply_pod(pod);
        collector.add(&pod.to_json().unwrap());
    }
    let flags = podplane_audit::ControllerFlags::default();
    let dump = collector.finish(&flags);
    let expected = podplane_audit::ExpectedBlocks::new(&flags, &dump).unwrap();
    let audited = podplane_audit::audit(&dump, &expected).summary.addresses;
    assert_eq!(
        (audited.capacity, audited.used, audited.free),
        (2045, 2, 2043)
    );
    let (_, summary) = summary(&mut cluster);
    let counts = &summary.networks[0].counts;
    assert_eq!((counts.in_use(), counts.of(AddressState::Free)), (2, 2043));
    let rows = summary.nodes.values();
    let rows: Vec<_> = rows
        .map(|row| (row.name.as_str(), row.used, row.capacity))
        .collect();
    assert_eq!(rows, [("a", 1, 253), ("b", 0, 253), ("wide", 2, 2045)]);
}

#[test]
fn rows_count_the_pods_of_nodes_and_their_addresses() {
    let mut cluster = small();
    let (_, first) = summary(&mut cluster);
    let row = first.nodes.get("a").unwrap();
    assert_eq!((row.used, row.capacity, row.pods), (1, 253, 1));
    assert!(row.ready);
    assert_eq!(
        first.pods,
        PodCounts {
            total: 1,
            running: 1,
            waiting: 0
        }
    );
    let networks: Vec<_> = first
        .networks
        .iter()
        .map(|row| row.cidr.to_string())
        .collect();
    assert_eq!(networks, ["10.244.0.0/16"], "the nodes share an address");
    assert_eq!(first.networks[0].counts.of(AddressState::Pod), 1);
    assert_eq!(report(&first).findings, []);

    // The same pod again, elsewhere; a change of one row is a change of this row alone.
    cluster.apply_pod(&pod("one", "b", "10.244.2.2"));
    let (_, second) = summary(&mut cluster);
    let changes = second.changes_since(&first).unwrap();
    let changed: Vec<_> = changes
        .nodes
        .unwrap()
        .iter()
        .map(|row| (&*row.name, row.pods))
        .collect();
    assert_eq!(changed, [("a", 0), ("b", 1)]);
    assert!(changes.gone_nodes.is_none() && changes.waiting.is_none());

    cluster.delete_node("a");
    let (_, third) = summary(&mut cluster);
    let changes = third.changes_since(&second).unwrap();
    assert_eq!(
        (changes.nodes, changes.gone_nodes),
        (None, Some(vec!["a".to_owned()]))
    );
    let (_, again) = summary(&mut cluster);
    assert_eq!(again.changes_since(&third), None);
}

#[test]
fn nodes_and_the_map_have_the_same_number_of_addresses_in_use() {
    let mut cluster = small();
    // Two nodes have the block, and two pods the address; one more pod waits for an address.
    cluster.apply_node(&node("c", "10.244.1.0/24"));
    cluster.apply_pod(&pod("two", "c", "10.244.1.2"));
    cluster.apply_pod(&pod("three", "c", "10.244.1.3"));
    let mut bound = pod("late", "a", "");
    let status = bound.status.as_mut().unwrap();
    (status.pod_ip, status.pod_ips) = (None, None);
    status.phase = Some("Pending".into());
    cluster.apply_pod(&bound);
    let (space, summary) = summary(&mut cluster);
    let block = "10.244.1.0/24".parse().unwrap();
    let on_map = space.counts(NetworkRole::Pods, &block).in_use();
    assert_eq!((on_map, summary.networks[0].counts.in_use()), (2, 2));
    let numbers = |name: &str| {
        let row = summary.nodes.get(name);
        row.map(|row| (row.used, row.waiting, row.pods))
    };
    assert_eq!(numbers("a"), Some((2, 1, 2)));
    assert_eq!(numbers("c"), Some((2, 0, 2)));
    assert_eq!(summary.pods.waiting, 1);
}

#[test]
fn a_pod_that_has_released_its_addresses_claims_none() {
    let mut cluster = small();
    let mut done = pod("one", "a", "10.244.1.2");
    let status = done.status.as_mut().unwrap();
    status.phase = Some("Succeeded".into());
    cluster.apply_pod(&done);
    let (space, _) = summary(&mut cluster);
    let ip = "10.244.1.2".parse().unwrap();
    assert_eq!(
        space.state(NetworkRole::Pods, ip),
        AddressState::Pod,
        "it may have a sandbox"
    );
    let conditions = serde_json::from_value(serde_json::json!([
        {"type": "PodReadyToStartContainers", "status": "False"}
    ]));
    done.status.as_mut().unwrap().conditions = conditions.unwrap();
    cluster.apply_pod(&done);
    let (space, summary) = summary(&mut cluster);
    assert_eq!(space.state(NetworkRole::Pods, ip), AddressState::Free);
    assert_eq!(
        summary.nodes.get("a").map(|row| (row.used, row.pods)),
        Some((0, 0)),
        "it has ended"
    );
}

/// A cluster of another control plane.
fn other(nodes: &[Node], pods: &[Pod]) -> Cluster {
    let mut cluster = Cluster::unaudited(PodIpResource::default());
    cluster.set_control_plane(ControlPlane::Other);
    nodes.iter().for_each(|node| cluster.apply_node(node));
    pods.iter().for_each(|pod| cluster.apply_pod(pod));
    cluster
}

#[test]
fn a_pod_of_another_control_plane_has_no_address_once_it_has_ended() {
    let mut done = pod("one", "a", "10.244.1.2");
    done.status.as_mut().unwrap().phase = Some("Succeeded".into());
    let next = pod("two", "a", "10.244.1.2");
    let mut cluster = other(&[node("a", "10.244.1.0/24")], &[done, next]);
    let (space, summary) = summary(&mut cluster);
    let ip = "10.244.1.2".parse().unwrap();
    assert_eq!(space.state(NetworkRole::Pods, ip), AddressState::Pod);
    let row = summary.nodes.get("a").unwrap();
    assert_eq!((row.used, row.pods), (1, 1));
}

#[test]
fn addresses_outside_of_blocks_are_faults_where_pods_have_addresses_of_blocks() {
    let ips = ["10.244.1.2", "10.244.1.3", "10.244.1.4", "10.244.9.5"];
    let pods = |on: &str| {
        let pods = ips.iter().zip(["w", "x", "y", "z"]);
        pods.map(|(ip, name)| pod(name, on, ip)).collect::<Vec<_>>()
    };
    let no_block: Node =
        serde_json::from_value(serde_json::json!({"metadata": {"name": "a"}})).unwrap();
    for (what, node, outside) in [
        ("podCIDRs", node("a", "10.244.1.0/24"), 1),
        ("podCIDRs that are not used", node("a", "10.0.1.0/24"), 0),
        ("no podCIDRs", no_block, 0),
    ] {
        let faults = |mut cluster: Cluster| {
            let space = AddressSpace::new(cluster.space_parts());
            space.faults(&"10.0.0.0/8".parse().unwrap()).count()
        };
        let nodes = [node];
        let cluster = other(&nodes, &pods("a"));
        assert_eq!(faults(cluster), outside, "{what}");
        // podplane's own server gives pods no others.
        let mut own = Cluster::unaudited(PodIpResource::default());
        nodes.iter().for_each(|node| own.apply_node(node));
        pods("a").iter().for_each(|pod| own.apply_pod(pod));
        assert_eq!(faults(own), if outside == 1 { 1 } else { 4 }, "{what}");
    }
}

#[test]
fn records_of_blocks_win_over_nodes_and_bring_addresses_of_holds() {
    let mut cluster = small();
    cluster.set_blocks(&[
        Block {
            cidr: "10.244.1.0/24".into(),
            state: RecordState::Foreign.into(),
            node_name: "a".into(),
            ..Block::default()
        },
        held_block("10.244.9.7"),
        Block {
            cidr: "10.96.0.0/16".into(),
            state: RecordState::Reserved.into(),
            ..Block::default()
        },
    ]);
    let (space, summary) = summary(&mut cluster);
    let blocks: Vec<_> = space
        .blocks()
        .iter()
        .map(|block| {
            format!(
                "{} {} {}",
                block.cidr(),
                block.state(),
                block.node().unwrap_or("-")
            )
        })
        .collect();
    assert_eq!(
        blocks,
        [
            "10.96.0.0/16 reserved -",
            "10.244.1.0/24 foreign a",
            "10.244.2.0/24 assigned b",
            "10.244.9.0/24 held gone",
        ]
    );
    let held = space.record("10.244.9.7".parse().unwrap()).unwrap();
    assert_eq!(held.state, AddressState::Draining);
    assert_eq!(held.claims[0].holder().name(), "default/old");
    let services = summary
        .networks
        .iter()
        .find(|row| row.role == NetworkRole::Services);
    assert_eq!(services.unwrap().cidr.to_string(), "10.96.0.0/16");
}

#[test]
fn duplicates_and_overlaps_are_findings_until_they_are_gone() {
    let mut cluster = small();
    cluster.apply_node(&node("c", "10.244.1.0/25"));
    cluster.apply_pod(&pod("two", "c", "10.244.1.2"));
    let (_, faulty) = summary(&mut cluster);
    let found: Vec<_> = report(&faulty)
        .findings
        .iter()
        .map(|finding| {
            let places = finding.places.iter();
            let places: Vec<_> = places.map(|place| place.prefix.to_string()).collect();
            (finding.code, places, finding.pods.len())
        })
        .collect();
    let places = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
    assert_eq!(
        found,
        [
            (
                Code::OverlappingPodCidr,
                places(&["10.244.1.0/24", "10.244.1.0/25"]),
                0
            ),
            (Code::DuplicatePodIp, places(&["10.244.1.2/32"]), 2),
            (Code::WrongSizePodCidr, places(&["10.244.1.0/25"]), 0),
        ]
    );
    let [overlap, duplicate, _] = &report(&faulty).findings[..] else {
        panic!("{:?}", report(&faulty))
    };
    assert_eq!(overlap.nodes, ["a", "c"]);
    assert_eq!(duplicate.pods, ["default/one", "default/two"]);
    let network = duplicate.places[0].network;
    assert_eq!(network.unwrap().to_string(), "10.244.0.0/16");
    cluster.delete_pod("default", "two");
    cluster.delete_node("c");
    let (_, repaired) = summary(&mut cluster);
    assert_eq!(
        (&*report(&repaired).findings, report(&repaired).total),
        (&[][..], 0)
    );
}

/// A block whose node is gone, with the last known address of a sandbox.
fn held_block(ip: &str) -> Block {
    Block {
        cidr: "10.244.9.0/24".into(),
        state: RecordState::Draining.into(),
        node_name: "gone".into(),
        hold: Some(Hold {
            addresses: vec![PodAddress {
                address: ip.into(),
                namespace: "default".into(),
                name: "old".into(),
                node_name: "gone".into(),
                ..PodAddress::default()
            }],
            ..Hold::default()
        }),
        ..Block::default()
    }
}

#[test]
fn every_fault_of_the_map_is_a_finding_once() {
    let mut cluster = small();
    // The sandbox of a held block has the address of a pod: the audit knows pods alone.
    cluster.set_blocks(&[held_block("10.244.1.2")]);
    let (_, held) = summary(&mut cluster);
    let [finding] = &report(&held).findings[..] else {
        panic!("{:?}", report(&held))
    };
    assert_eq!(finding.code, Code::DuplicatePodIp);
    assert!(finding.message.contains("default/old"), "{finding:?}");
    // That of a pod outside of its node's block is known to both.
    cluster.set_blocks(&[]);
    cluster.apply_pod(&pod("out", "b", "10.244.1.9"));
    let (_, outside) = summary(&mut cluster);
    let codes = report(&outside).findings.iter().map(|finding| finding.code);
    assert_eq!(codes.collect::<Vec<_>>(), [Code::PodOutsideBlock]);
}

#[test]
fn checks_that_were_not_made_say_why() {
    let mut cluster = small();
    let (_, summary) = summary(&mut cluster);
    let check = |code| {
        let mut checks = report(&summary).checks.iter();
        checks.find(|check| check.code == code).unwrap()
    };
    assert_eq!(report(&summary).checks.len(), Code::ALL.len());
    assert!(check(Code::DuplicatePodIp).is_made);
    assert!(check(Code::ForeignPodCidr).is_made);
    let services = check(Code::ServiceRangeOverlap);
    assert!(
        !services.is_made,
        "no range of Services is known: {services:?}"
    );
    let orphaned = check(Code::OrphanedBlock);
    assert!(!orphaned.is_made, "{orphaned:?}");
    assert!(orphaned.state.contains("podplane audit"), "{orphaned:?}");
}

#[test]
fn waiting_pods_are_grouped_by_reason_the_oldest_first() {
    let mut cluster = small();
    let full = "0/2 nodes are available: 2 Insufficient pod IPs.";
    cluster.apply_pod(&waiting("new", "2026-11-01T10:00:05Z", full));
    cluster.apply_pod(&waiting(
        "old",
        "2026-11-01T10:00:01Z",
        "0/1 nodes are available: 1 Insufficient pod IPs.",
    ));
    cluster.apply_pod(&waiting(
        "other",
        "2026-11-01T10:00:00Z",
        "0/2 nodes are available: 2 Too many pods.",
    ));
    let (_, first) = summary(&mut cluster);
    let groups: Vec<_> = first
        .waiting
        .iter()
        .map(|group| (&*group.reason, group.count, &*group.pods[0].name))
        .collect();
    assert_eq!(
        groups,
        [
            ("Insufficient pod IPs", 2, "old"),
            ("Too many pods", 1, "other")
        ]
    );
    assert_eq!(first.pods.waiting, 3);
    cluster.apply_pod(&pod("old", "a", "10.244.1.3"));
    let (_, second) = summary(&mut cluster);
    assert_eq!(second.waiting[0].message, full);
    assert_eq!(
        second.pods,
        PodCounts {
            total: 4,
            running: 2,
            waiting: 2
        }
    );
}

#[test]
fn a_bound_pod_waits_until_it_has_an_address() {
    let mut cluster = small();
    let (_, before) = summary(&mut cluster);
    let bound = |change: &dyn Fn(&mut serde_json::Value)| {
        let mut pod = serde_json::json!({
            "metadata": {"namespace": "default", "name": "bound",
                "creationTimestamp": "2026-11-01T10:00:00Z"},
            "spec": {"nodeName": "a", "containers": []},
            "status": {"phase": "Pending", "conditions": [{
                "type": "PodScheduled", "status": "True",
                "lastTransitionTime": "2026-11-01T10:00:02Z",
            }]},
        });
        change(&mut pod);
        serde_json::from_value::<Pod>(pod).unwrap()
    };
    cluster.apply_pod(&bound(&|_| {}));
    let (_, waits) = summary(&mut cluster);
    assert_eq!(
        (waits.pods.total, waits.pods.waiting),
        (before.pods.total + 1, 1)
    );
    let group = &waits.waiting[0];
    assert_eq!(group.reason, "No address on its node yet");
    assert!(group.message.contains("bound to a node"), "{group:?}");
    let since = group.pods[0].since.map(|since| since.to_string());
    assert_eq!(since.as_deref(), Some("2026-11-01T10:00:02Z"));
    // As the audit says; the node is not full.
    let found: Vec<_> = report(&waits)
        .findings
        .iter()
        .map(|it| &*it.message)
        .collect();
    assert_eq!(
        found,
        ["node a has 253 addresses for 2 pods; 1 of them waits for an address"]
    );

    let changes: [&dyn Fn(&mut serde_json::Value); 4] = [
        &|pod| pod["status"]["podIPs"] = serde_json::json!([{"ip": "10.244.1.9"}]),
        &|pod| pod["status"]["phase"] = "Failed".into(),
        &|pod| pod["spec"]["hostNetwork"] = true.into(),
        &|pod| pod["metadata"]["deletionTimestamp"] = "2026-11-01T10:01:00Z".into(),
    ];
    for change in changes {
        let pod = bound(change);
        cluster.apply_pod(&pod);
        assert_eq!(summary(&mut cluster).1.pods.waiting, 0, "{pod:?}");
    }
    cluster.apply_pod(&bound(changes[1]));
    let (_, failed) = summary(&mut cluster);
    assert_eq!(failed.nodes["a"].pods, before.nodes["a"].pods);
}

/// An operation on a cluster of few names and addresses.
#[derive(Clone, Debug)]
enum ClusterChange {
    Pod(u8, u8, u8),
    PodGone(u8),
    Node(u8, u8),
    NodeGone(u8),
    Look,
}

fn step() -> impl Strategy<Value = ClusterChange> {
    prop_oneof![
        4 => (0..6u8, 0..4u8, 0..20u8).prop_map(|(pod, node, ip)| ClusterChange::Pod(pod, node, ip)),
        2 => (0..6u8).prop_map(ClusterChange::PodGone),
        1 => (0..4u8, 0..5u8).prop_map(|(node, block)| ClusterChange::Node(node, block)),
        1 => (0..4u8).prop_map(ClusterChange::NodeGone),
        3 => Just(ClusterChange::Look),
    ]
}

fn request() -> MapRequest {
    let json = serde_json::json!({"columns": "8", "rows": "8", "prefix": "10.244.0.0/21"});
    let query: MapQuery = serde_json::from_value(json).unwrap();
    MapRequest::try_from(&query).unwrap()
}

#[test]
fn a_map_is_of_the_network_of_its_prefix() {
    let mut cluster = Cluster::default();
    let cidrs = ["10.244.0.0/26", "10.245.0.0/16", "fd00:10:240::/56"];
    cluster.set_cluster_cidrs(&cidrs.map(|cidr| cidr.parse().unwrap()));
    let services = "10.96.0.0/16";
    let range = serde_json::json!({"metadata": {"name": "s"}, "spec": {"cidrs": [services]}});
    cluster.apply_service_cidr(&serde_json::from_value(range).unwrap());
    let space = AddressSpace::new(cluster.space_parts());
    for (prefix, network, shown) in [
        (None, cidrs[0], cidrs[0]),
        (Some("10.245.7.0/24"), cidrs[1], "10.245.7.0/24"),
        (Some("fd00:10:240:1::/64"), cidrs[2], "fd00:10:240:1::/64"),
        (Some("10.96.7.0/24"), services, "10.96.7.0/24"),
        // Of a wider prefix the network is shown.
        (Some("10.244.0.0/24"), cidrs[0], cidrs[0]),
        (Some("10.244.0.0/15"), cidrs[0], cidrs[0]),
        (Some("10.96.0.0/15"), services, services),
        // These are refused later.
        (Some("10.0.0.0/16"), cidrs[0], "10.0.0.0/16"),
        (Some("10.244.0.1/24"), cidrs[0], "10.244.0.1/24"),
    ] {
        let query: MapQuery =
            serde_json::from_value(serde_json::json!({"prefix": prefix})).unwrap();
        let request = MapRequest::try_from(&query).unwrap();
        let (of, at) = request.place(&space).unwrap();
        let found = (of.cidr().to_string(), at.to_string());
        assert_eq!(found, (network.into(), shown.into()), "{prefix:?}");
    }
}

/// The document of a map, after a change was applied as a page does.
fn applied(mut shown: serde_json::Value, change: &MapChange<'_>) -> serde_json::Value {
    match change {
        MapChange::Scene(scene) => serde_json::to_value(StreamDocument::Scene(scene)).unwrap(),
        MapChange::Cells(cells) => {
            let change = serde_json::to_value(StreamDocument::Cells(cells.clone())).unwrap();
            for cell in change["cells"].as_array().unwrap() {
                let shown = shown["view"]["cells"].as_array_mut().unwrap();
                let same = |shown: &&mut serde_json::Value| shown["prefix"] == cell["prefix"];
                *shown.iter_mut().find(same).unwrap() = cell.clone();
            }
            shown["view"]["counts"] = change["counts"].clone();
            shown["revision"] = change["revision"].clone();
            shown
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Changes in any order lead to the facts of the objects that are left, and the changes of a
    /// map to the map that is drawn anew.
    #[test]
    fn changes_lead_to_the_whole(steps in prop::collection::vec(step(), 1..60)) {
        let mut cluster = Cluster::default();
        cluster.set_cluster_cidrs(&["10.244.0.0/16".parse().unwrap()]);
        let (mut pods, mut nodes) = (BTreeMap::new(), BTreeMap::new());
        let mut shown: Option<(MapScene, serde_json::Value)> = None;
        for step in steps {
            match step {
                ClusterChange::Pod(name, on, ip) => {
                    let ip = format!("10.244.{}.{}", ip % 5, ip);
                    let pod = pod(&format!("p{name}"), &format!("n{on}"), &ip);
                    cluster.apply_pod(&pod);
                    pods.insert(name, pod);
                }
                ClusterChange::PodGone(name) => {
                    cluster.delete_pod("default", &format!("p{name}"));
                    pods.remove(&name);
                }
                ClusterChange::Node(name, block) => {
                    let node = node(&format!("n{name}"), &format!("10.244.{block}.0/24"));
                    cluster.apply_node(&node);
                    nodes.insert(name, node);
                }
                ClusterChange::NodeGone(name) => {
                    cluster.delete_node(&format!("n{name}"));
                    nodes.remove(&name);
                }
                ClusterChange::Look => {
                    let (space, seen) = summary(&mut cluster);
                    let mut fresh = Cluster::default();
                    fresh.set_cluster_cidrs(&["10.244.0.0/16".parse().unwrap()]);
                    pods.values().for_each(|pod| fresh.apply_pod(pod));
                    nodes.values().for_each(|node| fresh.apply_node(node));
                    let (_, want) = summary(&mut fresh);
                    prop_assert_eq!(&seen, &want);
                    let scene = MapScene::new(&space, "1", &request()).unwrap();
                    let want = serde_json::to_value(StreamDocument::Scene(&scene)).unwrap();
                    let after = match shown.take() {
                        None => want.clone(),
                        Some((old, document)) => match scene.changes_since(&old) {
                            None => document,
                            Some(change) => applied(document, &change),
                        },
                    };
                    prop_assert_eq!(&after, &want);
                    shown = Some((scene, after));
                }
            }
        }
    }
}
