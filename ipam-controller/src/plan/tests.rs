use serde::Deserialize;

use podplane_ipam::RangeFlags;

use super::*;

fn config(cidrs: &str, masks: &[u8], services: &str) -> RangeConfig {
    let single = masks.len() == 1;
    let of_family = |v6: bool| {
        let index = cidrs.split(',').position(|cidr| cidr.contains(':') == v6)?;
        (!single).then(|| masks[index])
    };
    let flags = RangeFlags {
        cluster_cidr: cidrs.to_owned(),
        node_cidr_mask_size: single.then(|| masks[0]),
        node_cidr_mask_size_ipv4: of_family(false),
        node_cidr_mask_size_ipv6: of_family(true),
        service_cluster_ip_range: services.to_owned(),
    };
    flags.validate().unwrap()
}

fn view(uid: &str, pod_cidrs: &[&str]) -> NodeView {
    NodeView {
        uid: uid.to_owned(),
        resource_version: "1".to_owned(),
        pod_cidrs: pod_cidrs.iter().map(ToString::to_string).collect(),
        deleting: false,
    }
}

impl Allocator {
    fn nodes(&mut self, changes: BTreeMap<String, Option<NodeView>>) -> Plan {
        self.plan(changes, BTreeMap::new())
    }

    /// A pod of `node` with addresses; without a node it is none.
    fn pod(&mut self, name: &str, node: Option<&str>, addresses: &[&str]) -> Plan {
        self.plan(BTreeMap::new(), pod(name, node, addresses))
    }
}

fn pod(name: &str, node: Option<&str>, addresses: &[&str]) -> BTreeMap<ObjectKey, Option<PodView>> {
    let view = node.map(|node| PodView {
        node: node.to_owned(),
        addresses: addresses.iter().map(|ip| ip.parse().unwrap()).collect(),
    });
    BTreeMap::from([(ObjectKey::new("default", name), view)])
}

fn one(name: &str, view: Option<NodeView>) -> BTreeMap<String, Option<NodeView>> {
    BTreeMap::from([(name.to_owned(), view)])
}

fn assigned(plan: &Plan) -> Vec<(String, Vec<String>)> {
    let texts = |assignment: &Assignment| {
        assignment
            .pod_cidrs
            .iter()
            .map(ToString::to_string)
            .collect()
    };
    plan.assign
        .iter()
        .map(|assignment| (assignment.node.clone(), texts(assignment)))
        .collect()
}

fn blocks_of(name: &str, blocks: &[&str]) -> (String, Vec<String>) {
    (
        name.to_owned(),
        blocks.iter().map(ToString::to_string).collect(),
    )
}

/// Four blocks.
fn small() -> Allocator {
    Allocator::new(&config("10.0.0.0/22", &[24], ""))
}

#[test]
fn what_nodes_have_is_known_before_anything_is_given() {
    let mut sut = small();
    let changes = [
        ("a", view("1", &[])),
        ("b", view("2", &["10.0.0.0/24"])),
        ("c", view("3", &["10.0.2.0/24"])),
    ];
    let plan = sut.nodes(
        changes
            .into_iter()
            .map(|(name, view)| (name.to_owned(), Some(view)))
            .collect(),
    );
    assert_eq!(assigned(&plan), [blocks_of("a", &["10.0.1.0/24"])]);
    assert_eq!(
        (
            plan.assign[0].uid.as_str(),
            plan.assign[0].resource_version.as_str()
        ),
        ("1", "1")
    );
}

#[test]
fn an_assignment_that_was_not_confirmed_is_made_again_with_the_same_blocks() {
    let mut sut = small();
    sut.nodes(one("a", Some(view("1", &[]))));
    let newer = NodeView {
        resource_version: "7".to_owned(),
        ..view("1", &[])
    };
    let plan = sut.retry(BTreeMap::from([("a".to_owned(), newer)]));
    assert_eq!(assigned(&plan), [blocks_of("a", &["10.0.0.0/24"])]);
    assert_eq!(plan.assign[0].resource_version, "7");
    assert_eq!(
        assigned(&sut.nodes(one("b", Some(view("2", &[]))))),
        [blocks_of("b", &["10.0.1.0/24"])]
    );
}

#[test]
fn an_assignment_that_was_refused_is_made_again_with_other_blocks() {
    let mut sut = small();
    let first = sut.nodes(one("a", Some(view("1", &[])))).assign.remove(0);
    sut.refused(&first);
    let again = || BTreeMap::from([("a".to_owned(), view("1", &[]))]);
    let plan = sut.retry(again());
    assert_eq!(assigned(&plan), [blocks_of("a", &["10.0.1.0/24"])]);
    // A refusal of what is no longer planned changes nothing.
    sut.refused(&first);
    assert_eq!(assigned(&sut.retry(again())), assigned(&plan));
    assert_eq!(sut.blocks().held_by("1").len(), 1);
}

#[test]
fn an_assignment_that_was_applied_although_the_call_failed_is_found() {
    let mut sut = small();
    sut.nodes(one("a", Some(view("1", &[]))));
    let plan = sut.retry(BTreeMap::from([(
        "a".to_owned(),
        view("1", &["10.0.0.0/24"]),
    )]));
    assert_eq!(plan, Plan::default());
    assert_eq!(sut.blocks().held_by("1").len(), 1);
}

#[test]
fn blocks_that_somebody_else_wrote_replace_those_set_aside() {
    let mut sut = small();
    sut.nodes(one("a", Some(view("1", &[]))));
    assert_eq!(
        sut.nodes(one("a", Some(view("1", &["10.0.3.0/24"])))),
        Plan::default()
    );
    assert_eq!(sut.blocks().held_by("1"), ["10.0.3.0/24".parse().unwrap()]);
    assert_eq!(sut.blocks().usage().next().unwrap().used, 1);
}

#[test]
fn after_confirmation_an_old_view_changes_nothing() {
    let mut sut = small();
    let plan = sut.nodes(one("a", Some(view("1", &[]))));
    sut.confirm(&plan.assign[0]);
    assert_eq!(sut.nodes(one("a", Some(view("1", &[])))), Plan::default());
    assert_eq!(
        sut.nodes(one("a", Some(view("1", &["10.0.0.0/24"])))),
        Plan::default()
    );
}

#[test]
fn a_node_made_again_under_its_name_is_another() {
    let mut sut = small();
    let first = sut.nodes(one("a", Some(view("1", &[]))));
    sut.confirm(&first.assign[0]);
    let plan = sut.nodes(one("a", Some(view("2", &[]))));
    assert_eq!(plan.released.len(), 1);
    assert_eq!(assigned(&plan), [blocks_of("a", &["10.0.1.0/24"])]);
    // The first one's answer comes late.
    sut.confirm(&first.assign[0]);
    assert_eq!(
        sut.retry(BTreeMap::from([("a".to_owned(), view("2", &[]))]))
            .assign,
        plan.assign
    );
}

#[test]
fn a_live_read_never_says_which_nodes_exist() {
    let mut sut = small();
    sut.nodes(one("a", Some(view("1", &[]))));
    let ahead = BTreeMap::from([
        ("a".to_owned(), view("2", &["10.0.0.0/24"])),
        ("b".to_owned(), view("3", &[])),
    ]);
    assert_eq!(sut.retry(ahead), Plan::default());
    assert_eq!(sut.blocks().held_by("1").len(), 1);
}

#[test]
fn who_finds_no_block_is_told_once_and_gets_the_next_free_one() {
    let mut sut = small();
    let taken = ["10.0.0.0/24", "10.0.1.0/24", "10.0.2.0/24", "10.0.3.0/24"];
    for block in taken {
        sut.nodes(one(block, Some(view(block, &[block]))));
    }
    let plan = sut.nodes(one("late", Some(view("9", &[]))));
    assert_eq!(
        plan.starved[0].error.to_string(),
        "CIDR allocation failed; there are no remaining CIDRs left to allocate in the accepted range"
    );
    assert_eq!(
        sut.nodes(one("late", Some(view("9", &[])))),
        Plan::default(),
        "told once"
    );
    assert_eq!(
        sut.nodes(one("later", Some(view("8", &[])))).starved.len(),
        1
    );
    let plan = sut.nodes(one(taken[2], None));
    assert_eq!(plan.released[0].pod_cidrs, ["10.0.2.0/24".parse().unwrap()]);
    assert_eq!(assigned(&plan), [blocks_of("late", &["10.0.2.0/24"])]);
    assert_eq!(plan.starved, [], "later is told already");
}

#[test]
fn a_node_on_its_way_out_keeps_its_block_and_is_given_none() {
    let mut sut = small();
    let leaving = |view: NodeView| NodeView {
        deleting: true,
        ..view
    };
    assert_eq!(
        sut.nodes(one("a", Some(leaving(view("1", &[]))))),
        Plan::default()
    );
    assert_eq!(
        sut.nodes(one("b", Some(leaving(view("2", &["10.0.0.0/24"]))))),
        Plan::default()
    );
    assert_eq!(
        assigned(&sut.nodes(one("c", Some(view("3", &[]))))),
        [blocks_of("c", &["10.0.1.0/24"])]
    );
}

#[test]
fn what_does_not_fit_is_reported_and_never_given_to_another() {
    let mut sut = small();
    let odd = ["10.0.0.0/23", "10.0.0.0/24", "192.168.0.0/24", "rubbish"];
    for (index, block) in odd.iter().enumerate() {
        let name = index.to_string();
        let plan = sut.nodes(one(&name, Some(view(&name, &[block]))));
        assert_eq!(plan.foreign.len(), 1, "{block}");
        assert_eq!(
            sut.nodes(one(&name, Some(view(&name, &[block])))),
            Plan::default(),
            "{block} is told once"
        );
    }
    assert_eq!(
        assigned(&sut.nodes(one("new", Some(view("new", &[]))))),
        [blocks_of("new", &["10.0.2.0/24"])]
    );
}

#[test]
fn without_a_range_blocks_are_only_known() {
    let none = RangeConfig {
        ranges: Vec::new(),
        service_ranges: Vec::new(),
        notices: Vec::new(),
    };
    let mut sut = Allocator::new(&none);
    assert_eq!(sut.nodes(one("a", Some(view("1", &[])))), Plan::default());
    assert_eq!(
        sut.nodes(one("b", Some(view("2", &["10.0.0.0/24"])))),
        Plan::default()
    );
    assert_eq!(sut.blocks().holders("10.0.0.9".parse().unwrap()).len(), 1);
}

/// One block, of node a with pod p, and node b that waits for it.
fn contended(addresses: &[&str]) -> Allocator {
    let mut sut = Allocator::new(&config("10.0.0.0/24", &[24], ""));
    sut.nodes(one("a", Some(view("1", &["10.0.0.0/24"]))));
    sut.pod("p", Some("a"), addresses);
    assert_eq!(sut.nodes(one("b", Some(view("2", &[])))).starved.len(), 1);
    sut
}

#[test]
fn a_block_drains_until_its_last_pod_is_gone() {
    let mut sut = contended(&["10.0.0.2"]);
    sut.pod("q", Some("a"), &["10.0.0.3"]);
    let plan = sut.nodes(one("a", None));
    assert_eq!((plan.draining.len(), &*plan.released), (1, &[][..]));
    assert_eq!(plan.assign, []);
    let block = &sut.blocks().holders("10.0.0.9".parse().unwrap())[0];
    assert_eq!(block.claim, Claim::Draining(Some(Owner::new("1", "a"))));
    assert_eq!(sut.pod("p", None, &[]), Plan::default());
    let plan = sut.pod("q", None, &[]);
    assert_eq!(
        (plan.released.len(), plan.released[0].uid.as_str()),
        (1, "1")
    );
    assert_eq!(assigned(&plan), [blocks_of("b", &["10.0.0.0/24"])]);
}

#[test]
fn a_pod_without_a_reported_address_counts_until_its_node_is_made_again() {
    for made_again in [false, true] {
        let mut sut = contended(&[]);
        assert_eq!(sut.nodes(one("a", None)).assign, []);
        let plan = if made_again {
            sut.nodes(one("a", Some(view("3", &[]))))
        } else {
            sut.pod("p", None, &[])
        };
        assert_eq!(assigned(&plan), [blocks_of("b", &["10.0.0.0/24"])]);
    }
}

#[test]
fn an_address_reported_after_its_node_is_gone_counts() {
    let mut sut = contended(&[]);
    sut.nodes(one("a", None));
    assert_eq!(sut.pod("p", Some("a"), &["10.0.0.2"]), Plan::default());
    assert_eq!(sut.pod("p", None, &[]).assign.len(), 1);
}

#[test]
fn a_node_made_again_waits_like_others_while_its_old_pods_live() {
    let mut sut = contended(&["10.0.0.2"]);
    sut.nodes(one("b", None));
    let plan = sut.nodes(one("a", Some(view("3", &[]))));
    assert_eq!((plan.draining.len(), plan.starved.len()), (1, 1));
    assert_eq!(plan.assign, []);
    let plan = sut.pod("p", None, &[]);
    assert_eq!(assigned(&plan), [blocks_of("a", &["10.0.0.0/24"])]);
    assert_eq!(plan.assign[0].uid, "3");
}

#[test]
fn a_node_made_again_with_its_old_block_has_it_back() {
    let mut sut = contended(&["10.0.0.2"]);
    let plan = sut.nodes(one("a", Some(view("3", &["10.0.0.0/24"]))));
    assert_eq!((&*plan.foreign, &*plan.draining), (&[][..], &[][..]));
    let holders = sut.blocks().holders("10.0.0.2".parse().unwrap());
    assert_eq!(holders.len(), 1, "{holders:?}");
    assert_eq!(sut.pod("p", None, &[]).assign, [], "a lives");
}

#[test]
fn after_a_restart_pods_hold_back_blocks_of_nodes_that_are_gone() {
    let mut sut = Allocator::new(&config("10.0.0.0/23", &[24], ""));
    let mut pods = pod("p", Some("gone"), &["10.0.0.2"]);
    pods.extend(pod("q", Some("b"), &["10.0.0.3"]));
    pods.extend(pod("own", Some("b"), &["10.0.1.2"]));
    let nodes = [("a", view("1", &[])), ("b", view("2", &["10.0.1.0/24"]))];
    let nodes = nodes.map(|(name, view)| (name.to_owned(), Some(view)));
    let plan = sut.plan(nodes.into(), pods);
    assert_eq!((plan.draining.len(), plan.starved.len()), (1, 1));
    assert_eq!(
        sut.blocks().holders("10.0.0.9".parse().unwrap())[0].claim,
        Claim::Draining(None)
    );
    assert_eq!(sut.pod("p", None, &[]), Plan::default());
    let plan = sut.pod("q", None, &[]);
    assert_eq!(assigned(&plan), [blocks_of("a", &["10.0.0.0/24"])]);
}

#[test]
fn a_block_held_for_its_pods_is_the_nodes_that_is_found_to_have_it() {
    let mut sut = small();
    assert_eq!(sut.pod("p", Some("a"), &["10.0.0.2"]).draining.len(), 1);
    let plan = sut.nodes(one("a", Some(view("1", &["10.0.0.0/24"]))));
    assert_eq!(plan, Plan::default());
    let holders = sut.blocks().holders("10.0.0.2".parse().unwrap());
    assert_eq!(holders.len(), 1, "{holders:?}");
    assert_eq!(sut.blocks().usage().next().unwrap().used, 1);
    assert_eq!(sut.pod("p", None, &[]), Plan::default());
}

#[derive(Deserialize)]
struct Upstream {
    start_up: Vec<Case>,
    allocate: Vec<Case>,
    allocate_fails: Vec<Case>,
    release: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    cluster_cidrs: Vec<String>,
    node_masks: Vec<u8>,
    service_cidr: Option<String>,
    nodes: Vec<CaseNode>,
    constructor_fails: Option<bool>,
    #[serde(default)]
    pre_occupied: BTreeMap<usize, Vec<String>>,
    want: Option<BTreeMap<usize, String>>,
    want_first_round: Option<BTreeMap<usize, String>>,
    want_second_round: Option<BTreeMap<usize, String>>,
    #[serde(default)]
    release: Vec<Vec<String>>,
}

#[derive(Deserialize)]
struct CaseNode {
    name: String,
    pod_cidrs: Vec<String>,
}

impl Case {
    /// The first plan, of all nodes. A block that the table only says is occupied belongs to a node of its own.
    fn start(&self) -> (Allocator, Plan) {
        let service = self.service_cidr.clone().unwrap_or_default();
        let mut sut = Allocator::new(&config(
            &self.cluster_cidrs.join(","),
            &self.node_masks,
            &service,
        ));
        let node = |name: &str, blocks: &[String]| {
            (
                name.to_owned(),
                Some(NodeView {
                    pod_cidrs: blocks.to_vec(),
                    ..view(name, &[])
                }),
            )
        };
        let named = self.nodes.iter().map(|n| node(&n.name, &n.pod_cidrs));
        let others = self
            .pre_occupied
            .values()
            .flatten()
            .map(|block| node(block, std::slice::from_ref(block)));
        let plan = sut.nodes(named.chain(others).collect());
        (sut, plan)
    }
}

fn only_assignment(plan: &Plan) -> Option<BTreeMap<usize, String>> {
    let [assignment] = plan.assign.as_slice() else {
        return None;
    };
    Some(
        assignment
            .pod_cidrs
            .iter()
            .map(ToString::to_string)
            .enumerate()
            .collect(),
    )
}

fn upstream() -> Upstream {
    serde_json::from_str(include_str!(
        "../../tests/data/upstream_range_allocator.json"
    ))
    .unwrap()
}

/// Where the reference's constructor fails, the controller here starts and reports.
#[test]
fn existing_blocks_are_judged_as_the_reference_does() {
    for case in upstream().start_up {
        let (_, plan) = case.start();
        // Its a00::/86 is in range, but the node mask is 24; the reference takes any length silently.
        let wrong_size = case.name == "success, dual stack both allocated correctly";
        assert_eq!(
            !plan.foreign.is_empty(),
            case.constructor_fails.unwrap() || wrong_size,
            "{}: {plan:?}",
            case.name
        );
        let bare = case
            .nodes
            .iter()
            .filter(|node| node.pod_cidrs.is_empty())
            .count();
        assert_eq!(plan.assign.len(), bare, "{}", case.name);
    }
}

#[test]
fn blocks_are_given_as_the_reference_does() {
    // The flags refuse three ranges, there as here; its test goes around them.
    for case in upstream()
        .allocate
        .iter()
        .filter(|case| case.cluster_cidrs.len() < 3)
    {
        let (_, plan) = case.start();
        match &case.want {
            Some(want) => assert_eq!(only_assignment(&plan).as_ref(), Some(want), "{}", case.name),
            None => assert_eq!(
                plan.assign[0].pod_cidrs.len(),
                case.cluster_cidrs.len(),
                "{}",
                case.name
            ),
        }
    }
    for case in upstream().allocate_fails {
        let (_, plan) = case.start();
        assert_eq!(
            (plan.assign.len(), plan.starved.len()),
            (0, 1),
            "{}",
            case.name
        );
    }
}

/// A release there is the deletion of the node that holds the block here; where that is the node under test, it joins again.
#[test]
fn released_blocks_are_given_as_the_reference_does() {
    for case in upstream().release {
        let (mut sut, first) = case.start();
        assert_eq!(
            only_assignment(&first),
            case.want_first_round,
            "{}",
            case.name
        );
        let mut second = Plan::default();
        for block in case.release.iter().flatten() {
            let holder = if first.assign.is_empty() {
                block.clone()
            } else {
                first.assign[0].node.clone()
            };
            second = sut.nodes(one(&holder, None));
        }
        if !first.assign.is_empty() {
            second = sut.nodes(one("again", Some(view("again", &[]))));
        }
        assert_eq!(
            only_assignment(&second),
            case.want_second_round,
            "{}",
            case.name
        );
    }
}
