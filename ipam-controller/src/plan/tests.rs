mod sets;

use serde::Deserialize;

use podplane_api::jiff::Timestamp;
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
        ..NodeView::default()
    }
}

/// What was done and told until there was nothing more to do. The server carries out every update.
#[derive(Debug, Default, PartialEq)]
struct Plan {
    assign: Vec<Assignment>,
    starved: Vec<Starved>,
    foreign: Vec<Foreign>,
    fits: Vec<String>,
    draining: Vec<Remains>,
    released: Vec<Remains>,
    updates: Vec<(String, Change)>,
    conditions: Vec<(String, Option<String>)>,
    sets: Vec<String>,
    unusable: Vec<String>,
    again: Option<Timestamp>,
}

#[derive(Debug)]
struct Sut {
    allocator: Allocator,
    now: Timestamp,
}

impl std::ops::Deref for Sut {
    type Target = Allocator;

    fn deref(&self) -> &Allocator {
        &self.allocator
    }
}

impl std::ops::DerefMut for Sut {
    fn deref_mut(&mut self) -> &mut Allocator {
        &mut self.allocator
    }
}

impl Sut {
    fn new(config: &RangeConfig) -> Self {
        Self::delaying(config, 0)
    }

    fn delaying(config: &RangeConfig, seconds: u64) -> Self {
        Self {
            allocator: Allocator::new(config, Duration::from_secs(seconds)),
            now: at(0),
        }
    }

    fn nodes(&mut self, changes: BTreeMap<String, Option<NodeView>>) -> Plan {
        self.observe_all(changes, BTreeMap::new())
    }

    /// A pod of `node` with addresses; without a node it is none.
    fn pod(&mut self, name: &str, node: Option<&str>, addresses: &[&str]) -> Plan {
        self.observe_all(BTreeMap::new(), pod(name, node, addresses))
    }

    fn observe_all(
        &mut self,
        nodes: BTreeMap<String, Option<NodeView>>,
        pods: BTreeMap<ObjectKey, Option<PodView>>,
    ) -> Plan {
        let outcome = self.allocator.observe(nodes, pods);
        self.settle(outcome)
    }

    /// Looks again at nodes whose calls failed, which the server says to be so.
    fn retry(&mut self, live: BTreeMap<String, NodeView>) -> Plan {
        let mut all = Outcome::default();
        for (name, view) in live {
            let Some(outcome) = self.allocator.reread(&name, view) else {
                continue;
            };
            assert!(!outcome.look.contains(&name));
            all.foreign.extend(outcome.foreign);
            all.look.push(name);
        }
        self.settle(all)
    }

    /// Looks again when the time has come.
    fn later(&mut self, name: &str, second: i64) -> Plan {
        self.now = at(second);
        let look = vec![name.to_owned()];
        self.settle(Outcome {
            look,
            ..Outcome::default()
        })
    }

    fn take_in(&mut self, records: Vec<Record>) -> Plan {
        let outcome = self.allocator.take_in(records);
        self.settle(outcome)
    }

    fn settle(&mut self, outcome: Outcome) -> Plan {
        let mut plan = Plan::default();
        let mut queue = plan.note(outcome);
        for _ in 0..1000 {
            if queue.is_empty() {
                return plan;
            }
            let name = queue.remove(0);
            // As the queue does.
            queue.retain(|other| *other != name);
            let (work, outcome) = self.allocator.work(&name, self.now);
            queue.extend(plan.note(outcome));
            plan.assign.extend(work.assign);
            plan.starved.extend(work.starved);
            plan.again = plan.again.or(work.again);
            for update in work.updates {
                let record = match update.change {
                    Change::Mark(standing) => Some(standing),
                    Change::Quarantine(delay) => {
                        Some(Standing::Gone(Phase::Quarantined(self.now + delay)))
                    }
                    Change::Release => None,
                };
                let record = record.map(|standing| record_of(&update, standing));
                plan.updates.push((update.net.to_string(), update.change));
                let outcome = self.allocator.updated(&update, record);
                queue.extend(plan.note(outcome));
            }
            if let Some((uid, verdict)) = work.condition {
                self.allocator.conditioned(&name, &uid, verdict.as_ref());
                let message = verdict.map(|verdict| verdict.message);
                plan.conditions.push((name, message));
            }
        }
        panic!("it never settles: {plan:?}");
    }
}

impl Plan {
    fn note(&mut self, outcome: Outcome) -> Vec<String> {
        let Outcome {
            look,
            foreign,
            fits,
            draining,
            released,
            sets,
            unusable,
            held: _,
        } = outcome;
        self.sets.extend(sets);
        self.unusable
            .extend(unusable.into_iter().map(|(_, _, why)| why));
        self.foreign.extend(foreign);
        self.fits.extend(fits.into_iter().map(|(name, _)| name));
        self.draining.extend(draining);
        self.draining
            .retain(|left| !released.iter().any(|r| r.uid == left.uid));
        self.released.extend(released);
        look
    }
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn record_of(update: &Update, standing: Standing) -> Record {
    Record {
        net: update.net,
        node: update.node.clone(),
        uid: update.uid.clone(),
        standing,
    }
}

fn record(net: &str, node: &str, uid: &str, standing: Standing) -> Record {
    Record {
        net: net.parse().unwrap(),
        node: node.to_owned(),
        uid: uid.to_owned(),
        standing,
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
fn small() -> Sut {
    Sut::new(&config("10.0.0.0/22", &[24], ""))
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
            sut.nodes(one(&name, Some(view(&name, &[block])))).foreign,
            [],
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
    let mut sut = Sut::new(&none);
    assert_eq!(sut.nodes(one("a", Some(view("1", &[])))), Plan::default());
    assert_eq!(
        sut.nodes(one("b", Some(view("2", &["10.0.0.0/24"])))),
        Plan::default()
    );
    assert_eq!(sut.blocks().holders("10.0.0.9".parse().unwrap()).len(), 1);
}

#[test]
fn what_is_held_is_released_when_that_is_ended_or_its_time_is_over() {
    let mut sut = Sut::new(&config("10.0.0.0/24", &[24], ""));
    let held = |until| Standing::Gone(Phase::Held(until));
    let draining = || Standing::Gone(Phase::Draining);
    let of_a = |standing| vec![record("10.0.0.0/24", "a", "1", standing)];
    let plan = sut.take_in(of_a(held(Some(at(40)))));
    assert_eq!((plan.again, &*plan.updates), (Some(at(40)), &[][..]));
    assert_eq!(sut.nodes(one("b", Some(view("2", &[])))).starved.len(), 1);
    assert!(sut.is_pressed());
    // Its kubelet lives, and holds it for longer.
    let plan = sut.take_in(of_a(held(Some(at(60)))));
    assert_eq!(plan.again, Some(at(60)));
    assert_eq!(sut.later("a", 40).again, Some(at(60)));
    for over in [true, false] {
        let mut sut = Sut::new(&config("10.0.0.0/24", &[24], ""));
        sut.take_in(of_a(held(Some(at(60)))));
        sut.nodes(one("b", Some(view("2", &[]))));
        let plan = match over {
            true => sut.later("a", 60),
            false => sut.take_in(of_a(draining())),
        };
        assert_eq!(plan.updates, [("10.0.0.0/24".to_owned(), Change::Release)]);
        assert_eq!(assigned(&plan), [blocks_of("b", &["10.0.0.0/24"])]);
        assert!(!sut.is_pressed());
    }
    // Without a limit no time is long enough.
    let mut sut = Sut::new(&config("10.0.0.0/24", &[24], ""));
    let first = sut.allocator.take_in(of_a(held(None)));
    assert_eq!(first.held.len(), 1);
    assert_eq!(
        sut.allocator.take_in(of_a(held(None))).held,
        [],
        "told once"
    );
    assert_eq!(sut.allocator.held().count(), 1);
    sut.nodes(one("b", Some(view("2", &[]))));
    let plan = sut.later("a", 1_000_000);
    assert_eq!((plan.again, &*plan.updates), (None, &[][..]));
    let plan = sut.take_in(of_a(draining()));
    assert_eq!(plan.updates, [("10.0.0.0/24".to_owned(), Change::Release)]);
}

#[test]
fn what_somebody_else_released_while_it_was_held_is_given_again() {
    let mut sut = Sut::new(&config("10.0.0.0/24", &[24], ""));
    let held = Standing::Gone(Phase::Held(None));
    sut.take_in(vec![record("10.0.0.0/24", "a", "1", held)]);
    assert_eq!(sut.nodes(one("b", Some(view("2", &[])))).starved.len(), 1);
    let plan = sut.take_in(Vec::new());
    // The server is asked, since this list may be older than the record.
    assert_eq!(plan.updates, [("10.0.0.0/24".to_owned(), Change::Release)]);
    assert_eq!(assigned(&plan), [blocks_of("b", &["10.0.0.0/24"])]);
}

#[test]
fn a_released_block_is_kept_back_for_the_delay_also_by_a_successor() {
    let one_block = config("10.0.0.0/24", &[24], "");
    let mut sut = Sut::delaying(&one_block, 30);
    sut.nodes(one("a", Some(view("1", &["10.0.0.0/24"]))));
    let plan = sut.nodes(one("a", None));
    let quarantine = Change::Quarantine(Duration::from_secs(30));
    assert_eq!(plan.updates, [("10.0.0.0/24".to_owned(), quarantine)]);
    assert_eq!((&*plan.released, plan.again), (&[][..], Some(at(30))));
    assert_eq!(sut.nodes(one("b", Some(view("2", &[])))).starved.len(), 1);
    assert_eq!(sut.later("a", 29).updates, []);
    let plan = sut.later("a", 30);
    assert_eq!(plan.updates, [("10.0.0.0/24".to_owned(), Change::Release)]);
    assert_eq!(assigned(&plan), [blocks_of("b", &["10.0.0.0/24"])]);

    let mut successor = Sut::delaying(&one_block, 0);
    let gone = Standing::Gone(Phase::Quarantined(at(30)));
    let plan = successor.take_in(vec![record("10.0.0.0/24", "a", "1", gone)]);
    assert_eq!((plan.again, &*plan.updates), (Some(at(30)), &[][..]));
    assert_eq!(successor.later("a", 30).released.len(), 1);
}

#[test]
fn a_block_whose_release_had_no_answer_is_not_free() {
    let mut sut = small();
    sut.nodes(one("a", Some(view("1", &["10.0.0.0/24"]))));
    sut.allocator.observe(one("a", None), BTreeMap::new());
    for _ in 0..3 {
        let (work, _) = sut.allocator.work("a", at(0));
        assert_eq!(work.updates.len(), 1, "asked again, it says the same");
    }
    assert_eq!(sut.blocks().usage().next().unwrap().used, 1);
}

#[test]
fn records_and_condition_follow_what_is_thought_of_a_block() {
    let wide = config("10.0.0.0/22", &[23], "");
    let mut sut = Sut::new(&wide);
    let old = || one("a", Some(view("1", &["10.0.0.0/24"])));
    let foreign = ("10.0.0.0/24".to_owned(), Change::Mark(Standing::Foreign));
    let message = "cidr 10.0.0.0/24 is a /24, the configured node mask is /23";
    let plan = sut.nodes(old());
    assert_eq!(plan.updates, [foreign]);
    assert_eq!(
        plan.conditions,
        [("a".to_owned(), Some(message.to_owned()))]
    );
    // Its successor finds both.
    let says = NodeView {
        condition: Some(message.to_owned()),
        ..view("1", &["10.0.0.0/24"])
    };
    let recorded = |standing| vec![record("10.0.0.0/24", "a", "1", standing)];
    let mut same = Sut::new(&wide);
    let learned = same
        .allocator
        .observe(one("a", Some(says.clone())), BTreeMap::new());
    same.allocator.take_in(recorded(Standing::Foreign));
    let plan = same.settle(learned);
    assert_eq!(
        (plan.foreign.len(), &*plan.updates, &*plan.conditions),
        (1, &[][..], &[][..])
    );
    // Back under the old mask it fits.
    let mut back = small();
    let learned = back
        .allocator
        .observe(one("a", Some(says)), BTreeMap::new());
    let plan = back.settle(learned);
    assert_eq!(plan.conditions, [("a".to_owned(), None)]);
    let plan = back.take_in(recorded(Standing::Foreign));
    let fits = ("10.0.0.0/24".to_owned(), Change::Mark(Standing::Assigned));
    assert_eq!(plan.updates, [fits]);
}

#[test]
fn one_of_two_that_share_a_block_fits_when_the_other_is_gone() {
    let mut sut = small();
    sut.nodes(one("a", Some(view("1", &["10.0.0.0/24"]))));
    let plan = sut.nodes(one("b", Some(view("2", &["10.0.0.0/24"]))));
    assert_eq!(plan.foreign.len(), 1);
    let plan = sut.nodes(one("a", None));
    assert_eq!(
        (plan.released.len(), &*plan.fits),
        (1, &["b".to_owned()][..])
    );
    let fits = ("10.0.0.0/24".to_owned(), Change::Mark(Standing::Assigned));
    assert_eq!(plan.updates[1..], [fits]);
    assert_eq!(plan.conditions, [("b".to_owned(), None)]);
    assert_eq!(sut.blocks().usage().next().unwrap().used, 1, "b has it");
}

#[test]
fn a_record_whose_node_is_thought_to_live_waits_for_the_watch() {
    let mut sut = small();
    sut.nodes(one("a", Some(view("1", &["10.0.0.0/24"]))));
    let gone = Standing::Gone(Phase::Draining);
    let records = vec![record("10.0.0.0/24", "a", "1", gone)];
    assert_eq!(sut.take_in(records), Plan::default());
    assert_eq!(sut.nodes(one("a", None)).released.len(), 1);
}

/// One block, of node a with pod p, and node b that waits for it.
fn contended(addresses: &[&str]) -> Sut {
    let mut sut = Sut::new(&config("10.0.0.0/24", &[24], ""));
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
    let mut sut = Sut::new(&config("10.0.0.0/23", &[24], ""));
    let mut pods = pod("p", Some("gone"), &["10.0.0.2"]);
    pods.extend(pod("q", Some("b"), &["10.0.0.3"]));
    pods.extend(pod("own", Some("b"), &["10.0.1.2"]));
    let nodes = [("a", view("1", &[])), ("b", view("2", &["10.0.1.0/24"]))];
    let nodes = nodes.map(|(name, view)| (name.to_owned(), Some(view)));
    let plan = sut.observe_all(nodes.into(), pods);
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
    fn start(&self) -> (Sut, Plan) {
        let service = self.service_cidr.clone().unwrap_or_default();
        let mut sut = Sut::new(&config(
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
