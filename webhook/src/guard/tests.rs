//! The guard by tables, and against a model of an API server that does not count addresses.

use podplane_ipam::capacity::{Basis, NodeCapacity};

use super::*;

mod model;

const LIMIT: Duration = Duration::from_secs(60);

/// A guard, with a clock that the test moves.
struct GuardFixture {
    guard: BindGuard,
    now: Instant,
}

impl GuardFixture {
    fn new() -> Self {
        Self {
            guard: BindGuard::new(LIMIT),
            now: Instant::now(),
        }
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
    }

    fn shows(&mut self, pod: PodAddresses) {
        self.guard.apply(&Arc::new(pod));
    }

    /// Asks for an address of a node with two.
    fn ask(&mut self, pod: &str, node: &str) -> BindDecision {
        self.ask_with(&request(pod, node), None)
    }

    fn ask_with(&mut self, request: &BindRequest, read: Option<&PodRead>) -> BindDecision {
        self.guard.decide(request, Some(&report(2)), read, self.now)
    }

    /// Returns true if the node has an address left.
    fn free(&mut self, node: &str) -> bool {
        self.has_room(node, 2)
    }

    fn has_room(&mut self, node: &str, capacity: u64) -> bool {
        let request = BindRequest {
            is_dry_run: true,
            ..request("probe", node)
        };
        let read = PodRead::Found(waiting("probe"));
        let report = report(capacity);
        let decided = self
            .guard
            .decide(&request, Some(&report), Some(&read), self.now);
        decided == BindDecision::Allowed(AllowReason::DryRun)
    }

    /// Reads the pods of all due reservations, which all are this.
    fn settle(&mut self, read: &PodRead) -> usize {
        let due = self.guard.due(self.now, usize::MAX);
        for each in &due {
            self.guard.settle(each, read);
        }
        due.len()
    }
}

const RESERVED: BindDecision = BindDecision::Allowed(AllowReason::Reserved);
const NOT_BINDABLE: BindDecision = BindDecision::Allowed(AllowReason::NotBindable);

fn report(count: u64) -> AddressReport {
    AddressReport {
        capacity: NodeCapacity::Pods {
            count,
            basis: Basis::Report,
        },
        orphaned: Some(0),
        allocated: None,
    }
}

fn waiting(name: &str) -> PodAddresses {
    PodAddresses {
        key: ObjectKey::new("ns", name),
        uid: format!("{name}-uid").into(),
        node: None,
        needed: 1,
        held: 0,
    }
}

fn bound(name: &str, node: &str) -> PodAddresses {
    PodAddresses {
        node: Some(node.into()),
        held: 1,
        ..waiting(name)
    }
}

fn request(name: &str, node: &str) -> BindRequest {
    BindRequest {
        pod: ObjectKey::new("ns", name),
        uid: Some(format!("{name}-uid").into()),
        node: node.into(),
        is_dry_run: false,
    }
}

#[test]
fn counts_bound_pods_and_reservations() {
    let mut all = GuardFixture::new();
    all.shows(bound("a", "n"));
    all.shows(waiting("b"));
    all.shows(waiting("c"));
    assert_eq!(all.ask("b", "n"), RESERVED);
    let refused = "node n has no address for the pod: 0 of 2 IPs free: 2 pods, 0 orphaned (held by ns/a, ns/b)";
    assert_eq!(all.ask("c", "n"), BindDecision::Refused(refused.into()));
    // The scheduler repeats a binding whose answer was lost.
    assert_eq!(all.ask("b", "n"), RESERVED);
    assert_eq!(all.guard.reservations(), 1);
    assert_eq!(all.ask("c", "m"), RESERVED);
}

#[test]
fn a_reservation_ends_when_the_watch_shows_the_pod_bound_or_gone() {
    for (then, free) in [
        (vec![bound("b", "n")], false),
        (vec![bound("b", "m")], true),
        // It ran and ended between two looks.
        (
            vec![PodAddresses {
                held: 0,
                ..bound("b", "n")
            }],
            true,
        ),
        (vec![], true),
        // Another pod has its name.
        (
            vec![PodAddresses {
                uid: "new".into(),
                ..waiting("b")
            }],
            true,
        ),
    ] {
        let mut all = GuardFixture::new();
        all.shows(bound("a", "n"));
        all.shows(waiting("b"));
        assert_eq!(all.ask("b", "n"), RESERVED);
        assert!(!all.free("n"));
        match then.is_empty() {
            true => all.guard.forget(&waiting("b")),
            false => then.iter().cloned().for_each(|pod| all.shows(pod)),
        }
        assert_eq!(all.free("n"), free, "{then:?}");
        assert_eq!(all.guard.reservations(), 0);
    }
}

#[test]
fn a_pod_that_is_shown_unbound_keeps_its_reservation() {
    let mut all = GuardFixture::new();
    all.shows(waiting("b"));
    assert_eq!(all.ask("b", "n"), RESERVED);
    // Its scheduler writes a condition.
    all.shows(waiting("b"));
    assert_eq!(all.guard.reservations(), 1);
}

#[test]
fn a_pod_that_is_tried_on_several_nodes_has_an_address_of_each_until_it_is_bound() {
    let mut all = GuardFixture::new();
    all.shows(waiting("b"));
    assert_eq!((all.ask("b", "n"), all.ask("b", "m")), (RESERVED, RESERVED));
    assert_eq!(all.guard.reservations(), 2);
    all.shows(bound("b", "m"));
    assert_eq!(all.guard.reservations(), 0);
    all.shows(bound("c", "n"));
    assert!(all.free("n") && all.free("m"));
}

#[test]
fn a_reservation_outlives_its_time_while_its_pod_is_bound() {
    let found = |pod| PodRead::Found(pod);
    let replaced = PodAddresses {
        uid: "new".into(),
        ..bound("b", "n")
    };
    for (read, left) in [
        (found(waiting("b")), 0),
        (found(bound("b", "n")), 1),
        (found(bound("b", "m")), 0),
        (found(replaced), 0),
        (PodRead::Gone, 0),
    ] {
        let mut all = GuardFixture::new();
        all.shows(waiting("b"));
        assert_eq!(all.ask("b", "n"), RESERVED);
        all.pass(LIMIT - Duration::from_nanos(1));
        assert_eq!(all.settle(&read), 0, "it may be carried out now");
        all.pass(Duration::from_nanos(1));
        assert_eq!(all.settle(&read), 1);
        assert_eq!(all.guard.reservations(), left, "{read:?}");
        assert_eq!(all.settle(&read), 0, "read once");
        all.pass(LIMIT);
        assert_eq!(all.settle(&PodRead::Gone), left);
        assert_eq!(all.guard.reservations(), 0);
    }
}

#[test]
fn a_binding_that_is_allowed_during_the_read_keeps_the_reservation() {
    let mut all = GuardFixture::new();
    all.shows(waiting("b"));
    assert_eq!(all.ask("b", "n"), RESERVED);
    all.pass(LIMIT);
    let due = all.guard.due(all.now, 1);
    assert_eq!(all.ask("b", "n"), RESERVED);
    let read = PodRead::Found(waiting("b"));
    due.iter().for_each(|due| all.guard.settle(due, &read));
    assert_eq!(all.guard.reservations(), 1);
}

#[test]
fn pods_that_the_watch_has_not_shown_are_read() {
    let mut all = GuardFixture::new();
    let unknown = BindDecision::UnknownPod;
    assert_eq!(all.ask("b", "n"), unknown);
    let found = |pod| PodRead::Found(pod);
    let plain = request("b", "n");
    let unnamed = BindRequest {
        uid: None,
        ..plain.clone()
    };
    let other = PodAddresses {
        uid: "other".into(),
        ..waiting("b")
    };
    let host = PodAddresses {
        needed: 0,
        ..waiting("b")
    };
    let no_address = BindDecision::Allowed(AllowReason::NoAddress);
    for (request, read, want) in [
        (&plain, found(waiting("b")), RESERVED),
        (&plain, PodRead::Gone, NOT_BINDABLE),
        (&plain, found(other.clone()), NOT_BINDABLE),
        (&plain, found(bound("b", "m")), NOT_BINDABLE),
        (&plain, found(host), no_address),
        (&unnamed, found(waiting("b")), RESERVED),
        (&unnamed, found(other), RESERVED),
    ] {
        let mut all = GuardFixture::new();
        assert_eq!(all.ask_with(request, Some(&read)), want, "{read:?}");
    }
    // The watch may show an older pod of that name.
    all.shows(waiting("b"));
    assert_eq!(all.ask_with(&unnamed, None), unknown);
    let newer = BindRequest {
        uid: Some("newer".into()),
        ..plain
    };
    assert_eq!(all.ask_with(&newer, None), unknown);
}

#[test]
fn refuses_nodes_that_are_not_there_or_have_no_block() {
    let mut all = GuardFixture::new();
    all.shows(waiting("b"));
    let (request, now) = (request("b", "n"), all.now);
    let gone = all.guard.decide(&request, None, None, now);
    let why = "node n has no address for the pod: it does not exist";
    assert_eq!(gone, BindDecision::Refused(why.into()));
    let waits = AddressReport {
        capacity: NodeCapacity::AwaitsBlock,
        ..report(0)
    };
    let refused = all.guard.decide(&request, Some(&waits), None, now);
    let why = "node n has no address for the pod: waits for its podCIDR";
    assert_eq!(refused, BindDecision::Refused(why.into()));
}

#[test]
fn orphaned_addresses_and_larger_needs_count() {
    let mut all = GuardFixture::new();
    let large = PodAddresses {
        needed: 2,
        ..waiting("b")
    };
    all.shows(large);
    let orphaned = AddressReport {
        orphaned: Some(1),
        ..report(2)
    };
    let (request, now) = (request("b", "n"), all.now);
    let refused = all.guard.decide(&request, Some(&orphaned), None, now);
    let why = "node n has no address for the pod: 1 of 2 IPs free: 0 pods, 1 orphaned, and the pod needs 2";
    assert_eq!(refused, BindDecision::Refused(why.into()));
    assert_eq!(all.ask("b", "n"), RESERVED);
    all.shows(waiting("c"));
    assert!(matches!(all.ask("c", "n"), BindDecision::Refused(_)));
}

#[test]
fn a_dry_run_reserves_nothing() {
    let mut all = GuardFixture::new();
    for _ in 0..5 {
        assert!(all.free("n"));
    }
    assert_eq!(all.guard.reservations(), 0);
}

#[test]
fn a_new_leader_reserves_what_a_list_has_and_the_watch_has_not() {
    let mut all = GuardFixture::new();
    all.shows(bound("a", "n"));
    all.shows(waiting("b"));
    let ended = PodAddresses {
        held: 0,
        ..bound("d", "n")
    };
    let list = [bound("a", "n"), bound("b", "n"), waiting("c"), ended];
    assert_eq!(all.guard.adopt(&list, all.now), 1);
    assert!(!all.free("n"));
    all.shows(bound("b", "n"));
    assert_eq!(all.guard.reservations(), 0);
    assert!(!all.free("n"));
    all.guard.forget(&bound("b", "n"));
    assert!(all.free("n"));
}
