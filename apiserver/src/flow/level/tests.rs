use std::collections::{BTreeMap, BTreeSet};

use super::*;

const SHORT: Duration = Duration::from_millis(1);

fn level(seats: u32, seats_of_flow: u32) -> PriorityLevel<&'static str> {
    PriorityLevel::new(LevelLimits {
        seats,
        seats_of_flow,
        queue_of_flow: 4,
        queue: 6,
    })
}

fn waits(arrival: Arrival) -> Ticket {
    match arrival {
        Arrival::Waits(ticket) => ticket,
        other => panic!("{other:?}"),
    }
}

fn tickets(dispatched: &[Dispatched]) -> Vec<Ticket> {
    dispatched.iter().map(|one| one.ticket).collect()
}

#[test]
fn executes_while_there_are_seats_and_queues_after_that() {
    let mut level = level(3, 3);
    assert_eq!(level.arrive(&"a", 2), Arrival::Executed(2));
    assert_eq!(level.arrive(&"b", 1), Arrival::Executed(1));
    let waiting = waits(level.arrive(&"b", 1));
    assert_eq!((level.occupied(), level.waiting()), (3, 1));
    assert_eq!(tickets(&level.finish(&"b", 1, SHORT)), [waiting]);
    assert_eq!((level.occupied(), level.waiting()), (3, 0));
}

#[test]
fn a_flow_leaves_seats_to_others() {
    let mut level = level(4, 3);
    assert_eq!(level.arrive(&"a", 9), Arrival::Executed(3));
    let own = waits(level.arrive(&"a", 1));
    assert_eq!(level.arrive(&"b", 1), Arrival::Executed(1), "not behind a");
    assert_eq!(tickets(&level.finish(&"a", 3, SHORT)), [own]);
}

#[test]
fn the_flow_that_was_served_least_is_next() {
    let mut level = level(1, 1);
    assert_eq!(level.arrive(&"flood", 1), Arrival::Executed(1));
    let flood: Vec<_> = (0..3).map(|_| waits(level.arrive(&"flood", 1))).collect();
    let other = waits(level.arrive(&"other", 1));
    assert_eq!(
        tickets(&level.finish(&"flood", 1, Duration::from_secs(1))),
        [other]
    );
    let other = waits(level.arrive(&"other", 1));
    // A millisecond is less than the second of the flood.
    assert_eq!(tickets(&level.finish(&"other", 1, SHORT)), [other]);
    assert_eq!(tickets(&level.finish(&"other", 1, SHORT)), flood[..1]);
}

#[test]
fn a_flow_that_was_idle_has_saved_up_nothing() {
    let mut level = level(1, 1);
    assert_eq!(level.arrive(&"old", 1), Arrival::Executed(1));
    let first = waits(level.arrive(&"old", 1));
    assert_eq!(
        tickets(&level.finish(&"old", 1, Duration::from_secs(9))),
        [first]
    );
    let old = waits(level.arrive(&"old", 1));
    let new: Vec<_> = (0..2).map(|_| waits(level.arrive(&"new", 1))).collect();
    // The new flow is not nine seconds ahead: after one second the old one is next.
    let second = Duration::from_secs(1);
    assert_eq!(tickets(&level.finish(&"old", 1, second)), new[..1]);
    assert_eq!(tickets(&level.finish(&"new", 1, 2 * second)), [old]);
}

#[test]
fn a_wide_request_is_not_passed_over() {
    let mut level = level(4, 4);
    assert_eq!(level.arrive(&"a", 2), Arrival::Executed(2));
    assert_eq!(level.arrive(&"b", 2), Arrival::Executed(2));
    let wide = waits(level.arrive(&"c", 4));
    let narrow = waits(level.arrive(&"d", 1));
    assert_eq!(level.finish(&"a", 2, SHORT), []);
    let both = level.finish(&"b", 2, SHORT);
    assert_eq!(tickets(&both), [wide]);
    assert_eq!(tickets(&level.finish(&"c", 4, SHORT)), [narrow]);
}

#[test]
fn a_queue_is_bounded_for_a_flow_and_for_the_level() {
    let mut level = level(1, 1);
    assert_eq!(level.arrive(&"a", 1), Arrival::Executed(1));
    let first = waits(level.arrive(&"a", 1));
    for _ in 0..3 {
        waits(level.arrive(&"a", 1));
    }
    assert_eq!(level.arrive(&"a", 1), Arrival::Full);
    for flow in ["b", "c"] {
        waits(level.arrive(&flow, 1));
    }
    assert_eq!(level.arrive(&"d", 1), Arrival::Full);
    assert_eq!(level.waiting(), 6);
    assert_eq!(level.give_up(&"a", first), []);
    waits(level.arrive(&"d", 1));
}

/// The executed and waiting requests of a simulated level, kept apart from its own counts.
#[derive(Default)]
struct Model {
    executing: Vec<(u32, u32)>,
    waiting: BTreeMap<Ticket, (u32, u32)>,
    /// The number of times that others were executed while a flow waited with nothing executing.
    passed: BTreeMap<u32, u32>,
}

impl Model {
    fn dispatched(&mut self, dispatched: &[Dispatched]) {
        for one in dispatched {
            let (flow, wanted) = self.waiting.remove(&one.ticket).expect("it waited");
            assert_eq!(one.seats, wanted);
            self.executed(flow, one.seats);
        }
    }

    fn executed(&mut self, flow: u32, seats: u32) {
        self.executing.push((flow, seats));
        self.passed.remove(&flow);
        let waiting: BTreeSet<_> = self.waiting.values().map(|(other, _)| *other).collect();
        for other in waiting {
            if self.executing.iter().all(|(busy, _)| *busy != other) {
                *self.passed.entry(other).or_default() += 1;
            }
        }
    }
}

#[test]
fn seats_are_never_exceeded_and_no_flow_starves() {
    for seed in 0..200 {
        let mut random = fastrand::Rng::with_seed(seed);
        let (seats, own) = (random.u32(1..20), random.u32(1..20));
        let own = own.min(seats);
        let limits = LevelLimits {
            seats,
            seats_of_flow: own,
            queue_of_flow: 20,
            queue: 60,
        };
        let mut level = PriorityLevel::<u32>::new(limits);
        let mut model = Model::default();
        for _ in 0..2000 {
            match random.u32(0..10) {
                // Flow 0 floods with wide requests.
                0..5 => {
                    let flow = random.u32(0..8).saturating_sub(3);
                    let wanted = if flow == 0 { 10 } else { random.u32(1..4) };
                    match level.arrive(&flow, wanted) {
                        Arrival::Executed(seats) => model.executed(flow, seats),
                        Arrival::Waits(ticket) => {
                            model.waiting.insert(ticket, (flow, wanted.min(own)));
                        }
                        Arrival::Full => {}
                    }
                }
                5 if !model.waiting.is_empty() => {
                    let index = random.usize(0..model.waiting.len());
                    let (ticket, (flow, _)) = model.waiting.iter().nth(index).unwrap();
                    let (ticket, flow) = (*ticket, *flow);
                    model.waiting.remove(&ticket);
                    if model.waiting.values().all(|(other, _)| *other != flow) {
                        model.passed.remove(&flow);
                    }
                    let dispatched = level.give_up(&flow, ticket);
                    model.dispatched(&dispatched);
                }
                _ if !model.executing.is_empty() => {
                    let index = random.usize(0..model.executing.len());
                    let (flow, seats) = model.executing.swap_remove(index);
                    let took = Duration::from_millis(random.u64(0..100));
                    let dispatched = level.finish(&flow, seats, took);
                    model.dispatched(&dispatched);
                }
                _ => {}
            }
            let occupied: u32 = model.executing.iter().map(|(_, seats)| seats).sum();
            assert!(occupied <= seats, "seed {seed}: {occupied} of {seats}");
            for flow in 0..5 {
                let of_flow = model.executing.iter().filter(|(one, _)| *one == flow);
                let occupied: u32 = of_flow.map(|(_, seats)| seats).sum();
                assert!(occupied <= own, "seed {seed}: {occupied} of {own}");
            }
            assert_eq!(level.occupied(), occupied);
            assert_eq!(level.waiting(), model.waiting.len());
            // A flow with nothing executing is behind others only by service that it had.
            let passed = model.passed.values().max().copied().unwrap_or_default();
            assert!(passed < 100, "seed {seed}: passed over {passed} times");
        }
        // Whatever waits is executed once the others have ended.
        while let Some((flow, seats)) = model.executing.pop() {
            let dispatched = level.finish(&flow, seats, SHORT);
            model.dispatched(&dispatched);
        }
        assert!(model.waiting.is_empty(), "seed {seed}");
        assert_eq!((level.occupied(), level.waiting()), (0, 0));
        assert!(level.flows.is_empty());
    }
}
