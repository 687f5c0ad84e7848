//! The imitation of the reference's allocator against all known behaviour of the reference.

use std::collections::BTreeMap;

use ipnet::IpNet;
use podplane_ipam::{
    Generation,
    net::parse_cidr,
    upstream::{AllocatorError, CidrSet, NodeView, RangeAllocator, SyncOutcome},
};
use serde::Deserialize;

#[derive(Deserialize)]
struct UpstreamCase {
    name: String,
    cluster_cidr: String,
    node_mask: u8,
    canonical_cluster_cidr: Option<String>,
    max_cidrs: u64,
    new_err: Option<String>,
    ops: Vec<TableOp>,
}

#[derive(Deserialize)]
struct TableOp {
    op: OpKind,
    #[serde(default)]
    n: usize,
    #[serde(default)]
    cidr: String,
    want: Option<String>,
    want_err: Option<String>,
    used_after: u64,
    next_candidate_after: u64,
}

#[derive(Deserialize, Clone, Copy, Debug)]
#[serde(rename_all = "lowercase")]
enum OpKind {
    Alloc,
    Occupy,
    Release,
}

fn set(cluster: &str, mask: u8) -> Result<CidrSet, String> {
    // The sequences were run with the fork's parser.
    let cidr = Generation::Gcp
        .parse_cidr(cluster)
        .map_err(|error| error.to_string())?;
    CidrSet::new(cidr, mask).map_err(|error| error.to_string())
}

fn allocate(set: &mut CidrSet) -> Result<String, String> {
    let given = set.allocate_next();
    given
        .map(|given| given.cidr.to_string())
        .map_err(|error| error.to_string())
}

#[test]
fn every_sequence_ends_as_in_the_reference() {
    let cases: Vec<UpstreamCase> =
        serde_json::from_str(include_str!("data/cidrset_ops.json")).unwrap();
    for case in cases {
        let name = case.name;
        let mut set = match (set(&case.cluster_cidr, case.node_mask), case.new_err) {
            (Ok(set), None) => set,
            (Err(got), Some(want)) => {
                assert_eq!(got, want, "{name}");
                continue;
            }
            (got, want) => panic!("{name}: got {got:?}, want {want:?}"),
        };
        assert_eq!(
            Some(set.cluster().to_string()),
            case.canonical_cluster_cidr,
            "{name}"
        );
        assert_eq!(set.max_cidrs(), case.max_cidrs, "{name}");
        for (number, op) in case.ops.iter().enumerate() {
            let got = match op.op {
                OpKind::Alloc => (0..op.n)
                    .map(|_| allocate(&mut set))
                    .last()
                    .expect("at least one"),
                OpKind::Occupy => set
                    .occupy(&net(&op.cidr))
                    .map(|()| op.cidr.clone())
                    .map_err(|e| e.to_string()),
                OpKind::Release => set
                    .release(&net(&op.cidr))
                    .map(|()| op.cidr.clone())
                    .map_err(|e| e.to_string()),
            };
            let given = op.want.clone().unwrap_or_else(|| op.cidr.clone());
            let want = op.want_err.clone().map_or(Ok(given), Err);
            assert_eq!(
                (got, set.used(), set.next_candidate()),
                (want, op.used_after, op.next_candidate_after),
                "{name}, {:?} {number}",
                op.op
            );
        }
    }
}

#[derive(Deserialize)]
struct UpstreamTables {
    fully_allocated: Vec<SingleBlockCase>,
    double_occupy_release: DuplicateCases,
    metrics: MetricTables,
}

#[derive(Deserialize)]
struct SingleBlockCase {
    cluster: String,
    mask: u8,
    only_cidr: String,
}

#[derive(Deserialize)]
struct DuplicateCases {
    cluster: String,
    mask: u8,
    ops: Vec<DuplicateCase>,
    then_allocatable: usize,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct DuplicateCase {
    cidr_str: String,
    num_occupied: u64,
    operation: OpKind,
}

#[derive(Deserialize)]
struct MetricTables {
    cluster: String,
    mask: u8,
    after: Vec<MetricCase>,
}

#[derive(Deserialize)]
struct MetricCase {
    step: String,
    usage: f64,
    allocs: u64,
    releases: Option<u64>,
    tries_sum: Option<u64>,
}

fn upstream() -> UpstreamTables {
    serde_json::from_str(include_str!("data/upstream_cidrset.json")).expect("the table is valid")
}

#[test]
fn a_set_of_one_block_is_full_and_free_again() {
    for SingleBlockCase {
        cluster,
        mask,
        only_cidr,
    } in upstream().fully_allocated
    {
        let mut set = set(&cluster, mask).unwrap();
        for _ in 0..2 {
            assert_eq!(allocate(&mut set).unwrap(), only_cidr);
            assert!(allocate(&mut set).is_err());
            set.release(&parse_cidr(&only_cidr).unwrap()).unwrap();
        }
    }
}

#[test]
fn a_second_occupation_or_release_changes_nothing() {
    let table = upstream().double_occupy_release;
    let mut set = set(&table.cluster, table.mask).unwrap();
    for DuplicateCase {
        cidr_str,
        num_occupied,
        operation,
    } in table.ops
    {
        let net = parse_cidr(&cidr_str).unwrap();
        match operation {
            OpKind::Occupy => set.occupy(&net).unwrap(),
            OpKind::Release => set.release(&net).unwrap(),
            OpKind::Alloc => unreachable!("there is none"),
        }
        assert_eq!(set.used(), num_occupied, "{cidr_str}");
    }
    let given = std::iter::from_fn(|| set.allocate_next().ok()).count();
    assert_eq!(given, table.then_allocatable);
}

#[test]
fn counters_count_changes() {
    let MetricTables {
        cluster,
        mask,
        after,
    } = upstream().metrics;
    let whole = parse_cidr(&cluster).unwrap();
    let fresh = || set(&cluster, mask).unwrap();
    let mut set = fresh();
    let mut tries = 0;
    for want in after {
        match want.step.as_str() {
            "256 x AllocateNext" => {
                for _ in 0..256 {
                    tries += set.allocate_next().unwrap().tries;
                }
            }
            "Release(whole)" => set.release(&whole).unwrap(),
            "Occupy(whole)" => set.occupy(&whole).unwrap(),
            "fresh set: Occupy 10.0.0.0/17 then AllocateNext" => {
                set = fresh();
                set.occupy(&parse_cidr("10.0.0.0/17").unwrap()).unwrap();
                tries = set.allocate_next().unwrap().tries;
            }
            other => panic!("an unknown step: {other}"),
        }
        #[expect(clippy::cast_precision_loss, reason = "256 blocks")]
        let usage = set.used() as f64 / set.max_cidrs() as f64;
        assert_eq!(
            (usage, set.allocations()),
            (want.usage, want.allocs),
            "{}",
            want.step
        );
        assert!(
            want.releases
                .is_none_or(|releases| releases == set.releases())
        );
        assert!(
            want.tries_sum.is_none_or(|sum| sum == tries),
            "{}",
            want.step
        );
    }
}

#[derive(Deserialize)]
struct Allocators {
    start_up: Vec<StartTables>,
    allocate: Vec<StartTables>,
    allocate_fails: Vec<StartTables>,
    release: Vec<StartTables>,
}

#[derive(Deserialize)]
struct StartTables {
    name: String,
    cluster_cidrs: Vec<String>,
    node_masks: Vec<u8>,
    service_cidr: Option<String>,
    secondary_service_cidr: Option<String>,
    nodes: Vec<NodeFields>,
    #[serde(default)]
    constructor_fails: bool,
    #[serde(default)]
    pre_occupied: BTreeMap<usize, Vec<String>>,
    #[serde(default)]
    want: BTreeMap<usize, String>,
    #[serde(default)]
    want_first_round: BTreeMap<usize, String>,
    #[serde(default)]
    want_second_round: BTreeMap<usize, String>,
    #[serde(default)]
    release: Vec<Vec<String>>,
}

#[derive(Deserialize)]
struct NodeFields {
    name: String,
    pod_cidrs: Vec<String>,
}

impl StartTables {
    fn allocator(&self, generation: Generation) -> Result<RangeAllocator, AllocatorError> {
        let sets = self.cluster_cidrs.iter().zip(&self.node_masks);
        let sets = sets
            .map(|(cidr, mask)| set(cidr, *mask).expect("the table has sets"))
            .collect();
        let services = self.service_cidr.iter().chain(&self.secondary_service_cidr);
        let services: Vec<_> = services.map(|cidr| net(cidr).trunc()).collect();
        let nodes: Vec<_> = self.nodes.iter().map(view).collect();
        let mut allocator = RangeAllocator::new(generation, sets, &services, &nodes)?;
        for (index, cidrs) in &self.pre_occupied {
            for cidr in cidrs {
                let occupied = allocator.sets_mut()[*index].occupy(&net(cidr));
                occupied.expect("the table's blocks are of its ranges");
            }
        }
        Ok(allocator)
    }
}

fn net(text: &str) -> IpNet {
    parse_cidr(text).expect("the table's prefixes are valid")
}

fn view(node: &NodeFields) -> NodeView {
    NodeView {
        name: node.name.clone(),
        pod_cidr: node.pod_cidrs.first().cloned().unwrap_or_default(),
        pod_cidrs: node.pod_cidrs.clone(),
        deleting: false,
    }
}

/// The blocks that a worker of the work queue reserves for a node without blocks.
fn given(allocator: &mut RangeAllocator) -> Result<Vec<String>, AllocatorError> {
    let node = NodeView {
        name: "node".into(),
        ..NodeView::default()
    };
    match allocator.sync(Some(&node))? {
        SyncOutcome::Assign(reservation) => {
            Ok(reservation.cidrs.iter().map(ToString::to_string).collect())
        }
        SyncOutcome::Done => panic!("the node has no block"),
    }
}

fn agrees(given: &[String], want: &BTreeMap<usize, String>) -> bool {
    want.iter()
        .all(|(index, cidr)| given.get(*index) == Some(cidr))
}

fn allocators() -> Allocators {
    serde_json::from_str(include_str!("data/upstream_range_allocator.json"))
        .expect("the table is valid")
}

#[test]
fn starts_exactly_when_the_reference_starts() {
    for case in allocators().start_up {
        for generation in [
            Generation::G1,
            Generation::G2,
            Generation::G3,
            Generation::Gcp,
        ] {
            let started = case.allocator(generation);
            assert_eq!(
                started.is_err(),
                case.constructor_fails,
                "{}: {started:?}",
                case.name
            );
        }
    }
}

#[test]
fn nodes_are_given_the_blocks_that_the_reference_gives() {
    let table = allocators();
    for case in table.allocate {
        let given = given(&mut case.allocator(Generation::G3).unwrap()).unwrap();
        assert!(agrees(&given, &case.want), "{}: {given:?}", case.name);
    }
    for case in table.allocate_fails {
        let error = given(&mut case.allocator(Generation::G3).unwrap()).unwrap_err();
        assert_eq!(error.event(), Some("CIDRNotAvailable"), "{}", case.name);
        assert_eq!(
            error.to_string(),
            "failed to allocate cidr from cluster cidr at idx:0: CIDR allocation failed; there are no remaining CIDRs left to \
             allocate in the accepted range"
        );
    }
    for case in table.release {
        let mut allocator = case.allocator(Generation::G3).unwrap();
        let first = given(&mut allocator);
        match case.want_first_round.is_empty() {
            true => assert!(first.is_err(), "{}", case.name),
            false => assert!(
                agrees(&first.unwrap(), &case.want_first_round),
                "{}",
                case.name
            ),
        }
        for cidrs in &case.release {
            let node = NodeFields {
                name: "gone".into(),
                pod_cidrs: cidrs.clone(),
            };
            let handled =
                allocator.deleted(&view(&node), podplane_ipam::upstream::Deletion::Watched);
            assert_eq!(handled.error, None);
        }
        let second = given(&mut allocator).unwrap();
        assert!(
            agrees(&second, &case.want_second_round),
            "{}: {second:?}",
            case.name
        );
    }
}

#[test]
fn start_failures_have_the_texts_of_the_reference() {
    let start = |generation, cidrs: &[&str]| {
        let node = NodeFields {
            name: "n".into(),
            pod_cidrs: cidrs.iter().map(|cidr| (*cidr).to_owned()).collect(),
        };
        let sets = vec![set("10.0.0.0/16", 24).unwrap()];
        let started = RangeAllocator::new(generation, sets, &[], &[view(&node)]);
        started.map(|_| ()).map_err(|error| error.to_string())
    };
    let g3 = |cidrs| start(Generation::G3, cidrs).unwrap_err();
    assert_eq!(g3(&["rubbish"]), "failed to parse node n, CIDR rubbish");
    assert_eq!(
        g3(&["10.0.1.0/24", "fd00::/64"]),
        "node:n has an allocated cidr: fd00::/64 at index:1 that does not exist in cluster cidrs configuration"
    );
    assert_eq!(
        g3(&["10.1.0.7/24"]),
        "failed to mark cidr[10.1.0.0/24] at idx [0] as occupied for node: n: cidr 10.1.0.0/24 is out the range of cluster cidr \
         10.0.0.0/16"
    );
    assert_eq!(start(Generation::G3, &["010.0.1.0/24"]), Ok(()));
    assert_eq!(
        start(Generation::Gcp, &["010.0.1.0/24"]).unwrap_err(),
        "failed to parse node n, CIDR 010.0.1.0/24"
    );
    // Wider than the range, narrower than a block, and with host bits.
    for cidr in ["10.0.0.0/8", "10.0.0.0/26", "10.0.0.1/24"] {
        assert_eq!(start(Generation::G1, &[cidr]), Ok(()));
    }
}
