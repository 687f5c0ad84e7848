//! The block allocator against the reference's bitmap, wherever owners make no difference.

use podplane_ipam::{
    Adoption, ClusterRange, NodeBlocks, Owner, RangeConfig, Usage, net::parse_cidr,
};
use serde::Deserialize;

#[derive(Deserialize)]
struct CidrSetCase {
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

#[derive(Deserialize, Clone, Copy)]
#[serde(rename_all = "lowercase")]
enum OpKind {
    Alloc,
    Occupy,
    Release,
}

/// Sequences that end differently here, because the reference's bits have no owner. Each must
/// differ, else it does not belong here.
const OWNERS_DIFFER: [(&str, &str); 6] = [
    (
        "story B stage2 hazard: releasing one old /24 frees the /16 of all",
        "the other /24 still holds its part of the block, which stays used",
    ),
    (
        "story B stage3 hazard: releasing a wide block frees live narrower ones",
        "the /24 inside it still has an owner and is not given again",
    ),
    (
        "issue 90922: mask shrink 24->23",
        "the other /24 of the /23 still has an owner",
    ),
    (
        "narrower than mask",
        "the other /26 of the /24 still has an owner",
    ),
    (
        "double occupy / release are idempotent",
        "10.42.9.0/24 was occupied alone and as a part of 10.42.8.0/22; each release takes back one of the two",
    ),
    (
        "wider than cluster covers all",
        "it releases 10.0.0.0/8, which nobody occupied",
    ),
];

/// Cases that are decided before there is an allocator.
const DECIDED_EARLIER: [(&str, &str); 2] = [
    (
        "leading zero octet",
        "kube-controller-manager since 1.22 reads 010 as 10; the table has the stricter fork's answer",
    ),
    (
        "mask smaller than cluster mask -> zero blocks (the controller refuses earlier)",
        "so does ClusterRange::new",
    ),
];

fn listed(list: &[(&str, &str)], name: &str) -> bool {
    list.iter().any(|(listed, _)| *listed == name)
}

fn range(cluster: &str, mask: u8) -> Result<ClusterRange, String> {
    let cidr = parse_cidr(cluster).map_err(|error| error.to_string())?;
    ClusterRange::new(cidr, mask).map_err(|error| error.to_string())
}

fn blocks(range: ClusterRange) -> NodeBlocks {
    NodeBlocks::new(&RangeConfig {
        ranges: vec![range],
        service_ranges: Vec::new(),
        notices: Vec::new(),
    })
}

fn usage(blocks: &NodeBlocks) -> Usage {
    blocks.usage().next().expect("one range")
}

/// Runs the operations of the table, which name prefixes. Here each prefix has an owner: the node
/// that it was allocated to, or one that is named after it.
struct Runner {
    blocks: NodeBlocks,
    nodes: usize,
}

impl Runner {
    fn allocate(&mut self) -> Result<String, String> {
        self.nodes += 1;
        let node = format!("node{}", self.nodes);
        let given = self
            .blocks
            .allocate(&Owner::new(&node, &node))
            .map_err(|error| error.to_string())?;
        let [net] = given.as_slice() else {
            return Err(format!("one block was expected: {given:?}"));
        };
        assert_eq!(self.blocks.overlapping(*net).len(), 1, "{net} is free");
        Ok(net.to_string())
    }

    fn occupy(&mut self, cidr: &str) -> Result<String, String> {
        let net = parse_cidr(cidr).expect("the table's prefixes are valid");
        match self.blocks.adopt(&Owner::new(cidr, cidr), net) {
            Adoption::Foreign(misfit @ podplane_ipam::Misfit::OutOfRange { .. }) => {
                Err(misfit.to_string())
            }
            Adoption::Assigned | Adoption::Foreign(_) => Ok(cidr.to_owned()),
        }
    }

    fn release(&mut self, cidr: &str) {
        let net = parse_cidr(cidr)
            .expect("the table's prefixes are valid")
            .trunc();
        for block in self
            .blocks
            .overlapping(net)
            .into_iter()
            .filter(|block| block.net == net)
        {
            self.blocks
                .release(block.claim.owner().expect("no service range here").uid());
        }
    }

    /// Runs one operation; the error describes the difference from the table.
    fn run(&mut self, op: &TableOp) -> Result<(), String> {
        let got = match op.op {
            OpKind::Alloc => (0..op.n)
                .map(|_| self.allocate())
                .reduce(Result::and)
                .unwrap_or_else(|| Err(String::new())),
            OpKind::Occupy => self.occupy(&op.cidr),
            OpKind::Release => {
                self.release(&op.cidr);
                // The reference reports a prefix outside of the range here too; without an owner
                // there is nothing to report.
                op.want_err.clone().map_or(Ok(op.cidr.clone()), Err)
            }
        };
        let want = op
            .want_err
            .clone()
            .map_or(Ok(op.want.clone().unwrap_or_else(|| op.cidr.clone())), Err);
        let now = usage(&self.blocks);
        let (got, want) = (
            (got, now.used, now.next_candidate),
            (want, op.used_after, op.next_candidate_after),
        );
        if got == want {
            Ok(())
        } else {
            Err(format!("got {got:?}, want {want:?}"))
        }
    }
}

#[test]
fn sequences_end_as_in_the_reference() {
    let cases: Vec<CidrSetCase> =
        serde_json::from_str(include_str!("data/cidrset_ops.json")).unwrap();
    for (name, _) in OWNERS_DIFFER.iter().chain(&DECIDED_EARLIER) {
        assert!(
            cases.iter().any(|case| case.name == *name),
            "{name} is in the table"
        );
    }
    for case in cases
        .iter()
        .filter(|case| !listed(&DECIDED_EARLIER, &case.name))
    {
        let range = match (range(&case.cluster_cidr, case.node_mask), &case.new_err) {
            (Ok(range), None) => range,
            (Err(got), Some(want)) if got == *want => continue,
            (got, want) => panic!("{}: got {got:?}, want {want:?}", case.name),
        };
        assert_eq!(
            Some(range.cidr().to_string()),
            case.canonical_cluster_cidr,
            "{}",
            case.name
        );
        assert_eq!(range.blocks(), case.max_cidrs, "{}", case.name);
        let mut runner = Runner {
            blocks: blocks(range),
            nodes: 0,
        };
        let difference = case.ops.iter().find_map(|op| runner.run(op).err());
        assert_eq!(
            difference.is_some(),
            listed(&OWNERS_DIFFER, &case.name),
            "{}: {difference:?}",
            case.name
        );
    }
    assert_eq!(
        range("010.0.0.0/8", 16).unwrap().cidr().to_string(),
        "10.0.0.0/8"
    );
    assert!(
        range("10.0.0.0/16", 8)
            .unwrap_err()
            .starts_with("Controller: Invalid --cluster-cidr")
    );
}

/// `double_occupy_release` is in the sequences above; of `metrics`, only the usage belongs to this
/// crate.
#[derive(Deserialize)]
struct CidrSetTables {
    fully_allocated: Vec<SingleBlockCase>,
    index_to_block: Vec<IndexToBlock>,
    block_to_index: Vec<BlockToIndex>,
    occupy_range: Vec<OccupyRange>,
    limits: Vec<CidrSetLimit>,
    release_all_then_realloc_same_order: Vec<String>,
}

#[derive(Deserialize)]
struct SingleBlockCase {
    cluster: String,
    mask: u8,
    only_cidr: String,
}

#[derive(Deserialize)]
struct IndexToBlock {
    cluster: String,
    mask: u8,
    index: u64,
    block: String,
}

#[derive(Deserialize)]
struct BlockToIndex {
    cluster: String,
    mask: u8,
    cidr: String,
    index: Option<u64>,
    err: bool,
}

#[derive(Deserialize)]
struct OccupyRange {
    cluster: String,
    mask: u8,
    cidr: String,
    begin: u64,
    end: u64,
    err: bool,
}

#[derive(Deserialize)]
struct CidrSetLimit {
    cluster: String,
    mask: u8,
    err: bool,
    first: Option<String>,
    second: Option<String>,
}

fn upstream() -> CidrSetTables {
    serde_json::from_str(include_str!("data/upstream_cidrset.json")).expect("the table is valid")
}

#[test]
fn blocks_have_the_numbers_of_the_reference() {
    let table = upstream();
    for IndexToBlock {
        cluster,
        mask,
        index,
        block,
    } in table.index_to_block
    {
        assert_eq!(
            range(&cluster, mask)
                .unwrap()
                .block(index)
                .unwrap()
                .to_string(),
            block,
            "{cluster} {mask}"
        );
    }
    for BlockToIndex {
        cluster,
        mask,
        cidr,
        index,
        err,
    } in table.block_to_index
    {
        let got = range(&cluster, mask)
            .unwrap()
            .indices(&parse_cidr(&cidr).unwrap());
        assert_eq!(
            got,
            index.map(|index| (index, index)),
            "{cidr} in {cluster} {mask}"
        );
        assert_eq!(got.is_none(), err);
    }
    for OccupyRange {
        cluster,
        mask,
        cidr,
        begin,
        end,
        err,
    } in table.occupy_range
    {
        let got = range(&cluster, mask)
            .unwrap()
            .indices(&parse_cidr(&cidr).unwrap());
        assert_eq!(
            got,
            (!err).then_some((begin, end)),
            "{cidr} in {cluster} {mask}"
        );
    }
}

#[test]
fn limits_are_those_of_the_reference() {
    for CidrSetLimit {
        cluster,
        mask,
        err,
        first,
        second,
    } in upstream().limits
    {
        let range = range(&cluster, mask);
        assert_eq!(range.is_err(), err, "{cluster} {mask}");
        let given = range
            .map(|range| [0, 1].map(|index| range.block(index).unwrap().to_string()))
            .ok();
        assert_eq!(given, first.zip(second).map(<[String; 2]>::from));
    }
}

#[test]
fn a_range_of_one_block_is_full_and_free_again() {
    for SingleBlockCase {
        cluster,
        mask,
        only_cidr,
    } in upstream().fully_allocated
    {
        let mut runner = Runner {
            blocks: blocks(range(&cluster, mask).unwrap()),
            nodes: 0,
        };
        for _ in 0..2 {
            assert_eq!(runner.allocate().unwrap(), only_cidr);
            assert!(runner.allocate().is_err());
            runner.release(&only_cidr);
        }
    }
}

#[test]
fn after_everything_is_released_the_order_is_the_same_again() {
    for row in upstream().release_all_then_realloc_same_order {
        let (cluster, mask) = row.split_once(" mask ").unwrap();
        let mut runner = Runner {
            blocks: blocks(range(cluster, mask.parse().unwrap()).unwrap()),
            nodes: 0,
        };
        let mut fill = || {
            let given: Vec<String> = std::iter::from_fn(|| runner.allocate().ok()).collect();
            given.iter().for_each(|net| runner.release(net));
            given
        };
        let first = fill();
        assert_eq!(first.len(), 256);
        assert_eq!(fill(), first);
    }
}
