//! Sets of ranges against the reference's MultiCIDR allocator with ClusterCIDRs.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;
use podplane_ipam::{
    Adoption, AllocateError, BlockSet, ClusterRange, NodeBlocks, Owner, net::parse_cidr,
};
use serde::Deserialize;

#[derive(Deserialize)]
struct Tables {
    start_up: Vec<MultiCidrCase>,
    allocate: Vec<MultiCidrCase>,
    allocate_fails: Vec<MultiCidrCase>,
    release: Vec<MultiCidrCase>,
    create: Vec<Create>,
    less: Vec<ExpectedOrder>,
}

#[derive(Clone, Deserialize)]
struct MultiCidrCase {
    name: String,
    cluster_cidrs: Vec<ClusterCidr>,
    service_cidr: Option<String>,
    nodes: Vec<Node>,
    #[serde(default)]
    pre_occupied: ByFamily<Vec<String>>,
    #[serde(default)]
    want: ByFamily<String>,
    #[serde(default)]
    want_first_round: ByFamily<String>,
    #[serde(default)]
    want_second_round: ByFamily<String>,
    #[serde(default)]
    release: Vec<Vec<String>>,
    #[serde(default)]
    constructor_fails: bool,
}

/// Values by the index in a node's podCIDRs.
type ByFamily<T> = BTreeMap<usize, T>;

#[derive(Clone, Deserialize)]
struct ClusterCidr {
    name: String,
    ipv4: String,
    ipv6: String,
    per_node_host_bits: u8,
    node_selector: Option<Vec<Requirement>>,
}

#[derive(Clone, Deserialize)]
struct Requirement {
    key: String,
    op: Operator,
    values: Vec<String>,
}

/// The only operator in the tables.
#[derive(Clone, Copy, Deserialize)]
enum Operator {
    In,
}

#[derive(Clone, Deserialize)]
struct Node {
    name: String,
    labels: BTreeMap<String, String>,
    pod_cidrs: Vec<String>,
}

#[derive(Deserialize)]
struct Create {
    name: String,
    clustercidr: ClusterCidr,
    err: bool,
}

#[derive(Deserialize)]
struct ExpectedOrder {
    name: String,
    i: ComparedSet,
    j: ComparedSet,
    i_before_j: bool,
}

#[derive(Deserialize)]
struct ComparedSet {
    name: String,
    ipv4: String,
    selector: String,
    label_match_count: usize,
    per_node_host_bits: u8,
}

/// The interpretation of the requirements of the tables. Each is a term of its own there; the
/// reference requires all of them, the API says that one is enough.
#[derive(Clone, Copy)]
enum Terms {
    Any,
    All,
}

impl ClusterCidr {
    fn ranges(&self) -> Result<Vec<ClusterRange>, String> {
        let [ipv4, ipv6] = [&self.ipv4, &self.ipv6].map(|text| match text.as_str() {
            "" => Ok(None),
            text => parse_cidr(text)
                .map(Some)
                .map_err(|error| error.to_string()),
        });
        BlockSet::ranges(self.per_node_host_bits, ipv4?, ipv6?).map_err(|error| error.to_string())
    }

    fn set(&self, created: u64) -> BlockSet {
        let text = |requirements: &Vec<Requirement>| {
            let mut parts: Vec<String> = requirements
                .iter()
                .map(
                    |Requirement {
                         key,
                         op: Operator::In,
                         values,
                     }| format!("{key} in ({})", values.join(",")),
                )
                .collect();
            parts.sort();
            parts.join(",")
        };
        BlockSet {
            name: self.name.clone(),
            created,
            selector: self.node_selector.as_ref().map(text),
            ranges: self.ranges().expect("the table's are valid here"),
        }
    }

    fn requirements_met(&self, node: &Node, terms: Terms) -> Option<usize> {
        let all = self.node_selector.as_ref()?;
        let met = all.iter().filter(|requirement| {
            let label = node.labels.get(&requirement.key);
            label.is_some_and(|label| requirement.values.contains(label))
        });
        let met = met.count();
        let selected = match terms {
            Terms::Any => met > 0,
            Terms::All => met == all.len(),
        };
        selected.then_some(met)
    }
}

struct Cluster<'a> {
    case: &'a MultiCidrCase,
    terms: Terms,
    blocks: NodeBlocks,
}

fn nets(texts: &[String]) -> Vec<IpNet> {
    let parse = |text: &String| parse_cidr(text).expect("the table's prefixes are valid");
    texts.iter().map(parse).collect()
}

fn owner(name: &str) -> Owner {
    Owner::new(&format!("uid-{name}"), name)
}

impl<'a> Cluster<'a> {
    /// Creates the sets, the service range, and every block that is occupied beforehand, each held
    /// by a node of its own.
    fn new(case: &'a MultiCidrCase, terms: Terms) -> Self {
        let services: Vec<String> = case.service_cidr.iter().cloned().collect();
        let mut blocks = NodeBlocks::without_sets(&nets(&services));
        for (created, cidr) in (0..).zip(&case.cluster_cidrs) {
            assert_eq!(blocks.add_set(cidr.set(created)), Ok(true));
        }
        for net in case.pre_occupied.values().flat_map(|texts| nets(texts)) {
            blocks.adopt(&owner(&format!("had-{net}")), net);
        }
        Self {
            case,
            terms,
            blocks,
        }
    }

    fn matched(&self, node: &'a Node) -> impl Fn(&str) -> Option<usize> + use<'a> {
        let (case, terms) = (self.case, self.terms);
        move |name| {
            let mut named = case.cluster_cidrs.iter().filter(|cidr| cidr.name == name);
            named.next()?.requirements_met(node, terms)
        }
    }

    fn adopt(&mut self, node: &'a Node) -> Vec<Adoption> {
        let matched = self.matched(node);
        self.blocks
            .adopt_from(&owner(&node.name), &nets(&node.pod_cidrs), matched)
    }

    fn allocate(&mut self, node: &'a Node) -> Result<ByFamily<String>, AllocateError> {
        let matched = self.matched(node);
        let given = self.blocks.allocate_from(&owner(&node.name), matched)?;
        Ok(given.iter().map(ToString::to_string).enumerate().collect())
    }

    fn assert_no_overlap(&self) {
        let mut end: Option<IpNet> = None;
        for block in self.blocks.iter() {
            assert!(end.is_none_or(|end| !end.contains(&block.net)), "{block}");
            end = Some(block.net);
        }
    }
}

fn tables() -> Tables {
    serde_json::from_str(include_str!("data/upstream_multi_cidr.json")).expect("the table is valid")
}

#[test]
fn adopts_the_nodes_of_the_start_up_tables() {
    for case in tables().start_up {
        assert!(!case.constructor_fails, "{}", case.name);
        let mut cluster = Cluster::new(&case, Terms::All);
        for node in &case.nodes {
            let adopted = cluster.adopt(node);
            assert_eq!(
                adopted,
                vec![Adoption::Assigned; node.pod_cidrs.len()],
                "{}",
                case.name
            );
            let sets = cluster.blocks.sets_of(&format!("uid-{}", node.name));
            let of = Some(case.cluster_cidrs[0].name.as_str()).filter(|_| !adopted.is_empty());
            assert_eq!(sets, Vec::from_iter(of), "{}", case.name);
        }
    }
}

/// A set of two terms suits a node that meets one of them; in the tables, all nodes meet all, so
/// both readings agree.
#[test]
fn a_node_gets_the_blocks_that_the_reference_gives() {
    for case in tables().allocate {
        for terms in [Terms::All, Terms::Any] {
            let mut cluster = Cluster::new(&case, terms);
            let (old, new): (Vec<_>, Vec<_>) = case
                .nodes
                .iter()
                .partition(|node| !node.pod_cidrs.is_empty());
            for node in old {
                assert_eq!(cluster.adopt(node), [Adoption::Assigned], "{}", case.name);
            }
            for node in new {
                assert_eq!(cluster.allocate(node).unwrap(), case.want, "{}", case.name);
            }
            cluster.assert_no_overlap();
        }
    }
}

#[test]
fn failures_of_the_reference_are_refused_or_become_foreign() {
    for case in tables().allocate_fails {
        let mut cluster = Cluster::new(&case, Terms::All);
        for node in &case.nodes {
            if node.pod_cidrs.is_empty() {
                let error = cluster.allocate(node).unwrap_err();
                assert_eq!(
                    error.to_string(),
                    format!(
                        "unable to get a clusterCIDR for node {}, no available CIDRs",
                        node.name
                    )
                );
                continue;
            }
            // The reference occupies nothing for the node. Here its blocks are recorded, so that
            // they are not allocated to another.
            let adopted = cluster.adopt(node);
            assert!(
                adopted.iter().any(|one| *one != Adoption::Assigned),
                "{}",
                case.name
            );
            let held = cluster.blocks.blocks_of(&format!("uid-{}", node.name));
            let want: Vec<IpNet> = nets(&node.pod_cidrs).iter().map(IpNet::trunc).collect();
            assert_eq!(held, want, "{}", case.name);
        }
    }
}

#[test]
fn released_blocks_are_given_again() {
    for case in tables().release {
        let mut cluster = Cluster::new(&case, Terms::All);
        let node = &case.nodes[0];
        if case.want_first_round.is_empty() {
            assert!(cluster.allocate(node).is_err(), "{}", case.name);
        } else {
            assert_eq!(
                cluster.allocate(node).unwrap(),
                case.want_first_round,
                "{}",
                case.name
            );
        }
        for net in case.release.iter().flat_map(|texts| nets(texts)) {
            let held = cluster.blocks.overlapping(net);
            let uids: BTreeSet<&str> = held
                .iter()
                .filter_map(|b| Some(b.claim.owner()?.uid()))
                .collect();
            uids.into_iter().for_each(|uid| {
                cluster.blocks.release(uid);
            });
        }
        assert_eq!(
            cluster.allocate(node).unwrap(),
            case.want_second_round,
            "{}",
            case.name
        );
    }
}

#[test]
fn sets_may_overlap_but_need_a_valid_range() {
    let mut blocks = NodeBlocks::default();
    for Create {
        name,
        clustercidr,
        err,
    } in tables().create
    {
        let ranges = clustercidr.ranges();
        assert_eq!(ranges.is_err(), err, "{name}: {ranges:?}");
        if !err {
            assert_eq!(blocks.add_set(clustercidr.set(0)), Ok(true), "{name}");
        }
    }
    assert_eq!(blocks.sets().count(), 9);
}

#[test]
fn order_of_preference_matches_the_reference() {
    for ExpectedOrder {
        name,
        i,
        j,
        i_before_j,
    } in tables().less
    {
        let mut blocks = NodeBlocks::default();
        for one in [&i, &j] {
            let cidr = parse_cidr(&one.ipv4).unwrap();
            let set = BlockSet {
                name: one.name.clone(),
                created: 0,
                selector: Some(one.selector.clone()),
                ranges: BlockSet::ranges(one.per_node_host_bits, Some(cidr), None).unwrap(),
            };
            assert_eq!(blocks.add_set(set), Ok(true));
        }
        let matched = |set: &str| {
            let one = if set == i.name { &i } else { &j };
            Some(one.label_match_count)
        };
        let given = blocks.allocate_from(&owner("node0"), matched).unwrap();
        let of_i = parse_cidr(&i.ipv4).unwrap().contains(&given[0]);
        assert_eq!(of_i, i_before_j, "{name}");
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Blocks {
    overlaps: Vec<Overlaps>,
    #[serde(rename = "index_to_block")]
    index_to_block: Vec<IndexToBlock>,
    limits: Vec<MultiCidrLimit>,
    #[serde(rename = "max_cidrs")]
    max_cidrs: Vec<MaxCidrs>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Overlaps {
    #[serde(rename = "clusterCIDRStr")]
    cluster: String,
    #[serde(rename = "occupyCIDRStr")]
    occupy: String,
    #[serde(rename = "testCIDRStr")]
    test: String,
    per_node_host_bits: u8,
    expect_overlap: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct IndexToBlock {
    #[serde(rename = "clusterCIDRStr")]
    cluster: String,
    #[serde(rename = "CIDRBlock")]
    block: String,
    per_node_host_bits: u8,
    index: u64,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct MultiCidrLimit {
    #[serde(rename = "clusterCIDRStr")]
    cluster: String,
    per_node_host_bits: u8,
    expect_err: bool,
    #[serde(rename = "expectedCIDR")]
    first: Option<String>,
    #[serde(rename = "expectedCIDR2")]
    second: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct MaxCidrs {
    #[serde(rename = "clusterCIDR")]
    cluster: String,
    sub_net_mask_size: u8,
    #[serde(rename = "expectedMaxCIDRs")]
    want: u64,
}

fn blocks() -> Blocks {
    serde_json::from_str(include_str!("data/upstream_multicidrset.json"))
        .expect("the table is valid")
}

fn one_range(cluster: &str, host_bits: u8) -> Result<ClusterRange, String> {
    let cidr = parse_cidr(cluster).expect("the table's prefixes are valid");
    let (ipv4, ipv6) = match cidr {
        IpNet::V4(_) => (Some(cidr), None),
        IpNet::V6(_) => (None, Some(cidr)),
    };
    let ranges = BlockSet::ranges(host_bits, ipv4, ipv6).map_err(|error| error.to_string())?;
    Ok(ranges[0])
}

#[test]
fn detects_every_overlap() {
    for Overlaps {
        cluster,
        occupy,
        test,
        per_node_host_bits,
        expect_overlap,
    } in blocks().overlaps
    {
        let mut blocks = NodeBlocks::default();
        let set = BlockSet {
            name: "a".to_owned(),
            created: 0,
            selector: None,
            ranges: vec![one_range(&cluster, per_node_host_bits).unwrap()],
        };
        assert_eq!(blocks.add_set(set), Ok(true));
        blocks.adopt(&owner("node0"), parse_cidr(&occupy).unwrap());
        let other = blocks.occupy(&owner("node1"), parse_cidr(&test).unwrap());
        assert_eq!(other.is_err(), expect_overlap, "{test} and {occupy}");
    }
}

#[test]
fn blocks_have_the_numbers_of_the_reference() {
    for IndexToBlock {
        cluster,
        block,
        per_node_host_bits,
        index,
    } in blocks().index_to_block
    {
        let range = one_range(&cluster, per_node_host_bits).unwrap();
        assert_eq!(
            range.block(index),
            Some(block.parse().unwrap()),
            "{cluster}"
        );
    }
}

#[test]
fn limits_are_those_of_the_reference() {
    for MultiCidrLimit {
        cluster,
        per_node_host_bits,
        expect_err,
        first,
        second,
    } in blocks().limits
    {
        let range = one_range(&cluster, per_node_host_bits);
        assert_eq!(range.is_err(), expect_err, "{cluster}");
        match range {
            Ok(range) => {
                let given = [0, 1].map(|index| range.block(index).map(|net| net.to_string()));
                assert_eq!(given, [first, second], "{cluster}");
            }
            Err(text) => assert_eq!(
                text,
                "Creation of New CIDR Set failed for beef:1234::/32. PerNodeMaskSize 49 is too big for CIDR Mask 32, Maximum difference allowed is 16"
            ),
        }
    }
    for MaxCidrs {
        cluster,
        sub_net_mask_size,
        want,
    } in blocks().max_cidrs
    {
        // The table has its two ranges by name: a /16 and a /48.
        let cidr = match cluster.as_str() {
            "$clusterCIDRv4" => "10.0.0.0/16",
            "$clusterCIDRv6" => "2001:db8::/48",
            other => panic!("{other}"),
        };
        let range = ClusterRange::new(cidr.parse().unwrap(), sub_net_mask_size).unwrap();
        assert_eq!(range.blocks(), want);
    }
}
