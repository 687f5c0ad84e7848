use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::{Just, Strategy, prop, prop_assert, prop_assert_eq, prop_oneof, proptest};
use serde_json::Value;

use super::*;
use crate::testing::{AsInfo as _, PodBuilder};

fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn uid(name: &str) -> PodUid {
    name.into()
}

fn popped(queue: &mut Queue, now: Duration) -> Option<String> {
    queue.pop(now).map(|pod| pod.uid.to_string())
}

fn reject(queue: &mut Queue, name: &str, by: &'static str, now: Duration) {
    queue.reject(&uid(name), BTreeSet::from([by]), "full".into(), now);
}

/// Wakes the pods that the filter refused, by an event of its own.
fn wake(queue: &mut Queue, by: &'static str, now: Duration) {
    static EVENTS: AtomicU64 = AtomicU64::new(1);
    let event = EventId(EVENTS.fetch_add(1, Ordering::Relaxed));
    let refused = |waiting: &&WaitingPod| waiting.rejected_by.contains(by);
    let uids = queue.unschedulable(event).filter(refused);
    for uid in uids.map(|w| w.pod.uid.clone()).collect::<Vec<_>>() {
        queue.wake(&uid, event, Some("n".into()), now);
    }
}

#[test]
fn backoff_matches_the_reference() {
    let file = include_str!("../../tests/data/scheduler_tables.json");
    let file: Value = serde_json::from_str(file).unwrap();
    let rows = file["backoff_seconds"].as_array().unwrap();
    assert_eq!(rows.len(), 8);
    for row in rows {
        let count = u32::try_from(row["count"].as_u64().unwrap()).unwrap();
        assert_eq!(backoff(count), s(row["want"].as_u64().unwrap()), "{row}");
    }
    assert_eq!(backoff(u32::MAX), s(10));
}

#[test]
fn orders_by_priority_then_age_then_name() {
    let mut queue = Queue::default();
    queue.upsert(PodBuilder::new("z-old").info(), s(0));
    queue.upsert(PodBuilder::new("a-young").info(), s(1));
    queue.upsert(PodBuilder::new("urgent").priority(9).info(), s(2));
    let order = std::iter::from_fn(|| popped(&mut queue, s(3)));
    assert_eq!(order.collect::<Vec<_>>(), ["urgent", "z-old", "a-young"]);
}

#[test]
fn unschedulable_pod_waits_for_a_helpful_event() {
    let mut queue = Queue::default();
    queue.upsert(PodBuilder::new("ip").info(), s(0));
    queue.upsert(PodBuilder::new("taint").info(), s(1));
    queue.pop(s(1));
    queue.pop(s(1));
    reject(&mut queue, "ip", "PodIPs", s(1));
    reject(&mut queue, "taint", "TaintToleration", s(1));
    assert_eq!(popped(&mut queue, s(100)), None);
    wake(&mut queue, "PodIPs", s(100));
    assert_eq!(popped(&mut queue, s(100)).as_deref(), Some("ip"));
    assert_eq!(popped(&mut queue, s(100)), None);
}

#[test]
fn counts_refused_pods_wherever_they_wait() {
    let mut queue = Queue::default();
    let refusals = |queue: &Queue| queue.refusals().iter().collect::<Vec<_>>();
    for name in ["a", "b"] {
        queue.upsert(PodBuilder::new(name).info(), s(0));
        queue.pop(s(0));
    }
    assert!(refusals(&queue).is_empty());
    reject(&mut queue, "a", "PodIPs", s(0));
    let both = BTreeSet::from(["PodIPs", "TaintToleration"]);
    queue.reject(&uid("b"), both, "full".into(), s(0));
    let refused = [("PodIPs", 2), ("TaintToleration", 1)];
    assert_eq!(refusals(&queue), refused);
    // Backing off, active, and in an attempt.
    wake(&mut queue, "PodIPs", s(0));
    assert_eq!(refusals(&queue), refused);
    queue.tick(s(100));
    assert_eq!(refusals(&queue), refused);
    assert_eq!(popped(&mut queue, s(100)).as_deref(), Some("a"));
    assert_eq!(popped(&mut queue, s(100)).as_deref(), Some("b"));
    assert_eq!(refusals(&queue), refused);
    // Each attempt counts anew; an error is no refusal.
    reject(&mut queue, "a", "NodeName", s(100));
    queue.fail(&uid("b"), "lost".into(), s(100));
    assert_eq!(
        refusals(&queue),
        [("NodeName", 1), ("PodIPs", 0), ("TaintToleration", 0)]
    );
    queue.remove(&uid("a"));
    queue.remove(&uid("b"));
    queue.remove(&uid("a"));
    assert_eq!(
        refusals(&queue),
        [("NodeName", 0), ("PodIPs", 0), ("TaintToleration", 0)]
    );
}

#[test]
fn pops_a_pod_that_backs_off_only_if_none_is_active() {
    let mut queue = Queue::default();
    queue.upsert(PodBuilder::new("tried").priority(9).info(), s(0));
    queue.pop(s(0));
    reject(&mut queue, "tried", "PodIPs", s(0));
    queue.upsert(PodBuilder::new("fresh").info(), s(0));
    let half = Duration::from_millis(500);
    wake(&mut queue, "PodIPs", half);
    assert_eq!(
        queue.get(&uid("tried")).unwrap().place,
        QueuePlace::BackingOff(s(2))
    );
    assert_eq!(popped(&mut queue, half).as_deref(), Some("fresh"));
    assert_eq!(popped(&mut queue, half).as_deref(), Some("tried"));
}

#[test]
fn keeps_a_growing_backoff_after_errors() {
    let mut queue = Queue::default();
    queue.upsert(PodBuilder::new("p").info(), s(0));
    let mut now = s(0);
    for wait in [1, 2, 4, 8, 10, 10] {
        assert_eq!(popped(&mut queue, now).as_deref(), Some("p"));
        queue.fail(&uid("p"), "no answer".into(), now);
        let until = now + s(wait + 1);
        assert_eq!(queue.next_deadline(), Some(until));
        assert!(!queue.is_ready(until - Duration::from_nanos(1)));
        assert_eq!(popped(&mut queue, until - Duration::from_nanos(1)), None);
        assert!(queue.is_ready(until));
        now = until;
    }
    // A rejection ends the series of errors.
    queue.pop(now);
    reject(&mut queue, "p", "PodIPs", now);
    wake(&mut queue, "PodIPs", now);
    assert_eq!(
        queue.get(&uid("p")).unwrap().place,
        QueuePlace::BackingOff(now + s(2))
    );
}

#[test]
fn backoffs_that_end_in_one_second_are_taken_by_priority() {
    let mut queue = Queue::default();
    let ms = Duration::from_millis;
    for (n, name) in (0..).zip(["low-0", "low-1", "vip", "low-2"]) {
        let priority = if name == "vip" { 9 } else { 0 };
        queue.upsert(PodBuilder::new(name).priority(priority).info(), s(0));
        let taken = popped(&mut queue, ms(100 * n)).unwrap();
        reject(&mut queue, &taken, "PodIPs", ms(100 * n));
    }
    wake(&mut queue, "PodIPs", ms(500));
    assert_eq!(popped(&mut queue, ms(500)).as_deref(), Some("vip"));
    // An error backs off for longer than the others, and is not taken early.
    queue.fail(&uid("vip"), "no answer".into(), ms(500));
    let order = std::iter::from_fn(|| popped(&mut queue, s(2)));
    assert_eq!(
        order.collect::<Vec<_>>(),
        ["vip", "low-0", "low-1", "low-2"]
    );
}

#[test]
fn the_room_of_a_removed_pod_is_returned() {
    let mut queue = Queue::default();
    for name in ["a", "b"] {
        queue.upsert(PodBuilder::new(name).info(), s(0));
        queue.pop(s(0));
        reject(&mut queue, name, "PodIPs", s(0));
    }
    let event = EventId(7);
    let room = || Room {
        node: "n".into(),
        event,
    };
    queue.wake(&uid("a"), event, Some("n".into()), s(9));
    let waiting = |queue: &Queue| {
        let pods = queue.unschedulable(event);
        pods.map(|w| w.pod.uid.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(waiting(&queue), ["b"]);
    assert_eq!(queue.woken_for(&"n".into()).count(), 1);
    assert_eq!(queue.remove(&uid("a")), Some(room()));
    assert_eq!(queue.woken_for(&"n".into()).count(), 0);
    assert_eq!(queue.remove(&uid("b")), None);
}

#[test]
fn retries_unschedulable_pods_after_five_minutes() {
    let mut queue = Queue::default();
    queue.upsert(PodBuilder::new("p").info(), s(7));
    queue.pop(s(7));
    reject(&mut queue, "p", "PodIPs", s(7));
    queue.tick(s(306)); // One second early, and the next flush is 30 s later.
    assert_eq!(queue.next_deadline(), Some(s(336)));
    queue.tick(s(335));
    assert!(!queue.is_ready(s(335)));
    queue.tick(s(336));
    assert_eq!(popped(&mut queue, s(336)).as_deref(), Some("p"));
}

#[test]
fn retries_a_pod_with_new_needs() {
    let mut queue = Queue::default();
    let pod = PodBuilder::new("p").ask("cpu", "9");
    queue.upsert(pod.info(), s(0));
    queue.pop(s(0));
    reject(&mut queue, "p", "NodeResourcesFit", s(0));
    queue.upsert(pod.clone().ended("Pending", "status only").info(), s(20));
    assert!(!queue.is_ready(s(20)));
    queue.upsert(pod.tolerate("k").info(), s(20));
    assert_eq!(popped(&mut queue, s(20)).as_deref(), Some("p"));
}

#[test]
fn ignores_the_result_for_a_removed_pod() {
    let mut queue = Queue::default();
    queue.upsert(PodBuilder::new("p").info(), s(0));
    queue.pop(s(0));
    queue.remove(&uid("p"));
    queue.fail(&uid("p"), String::new(), s(0));
    assert!(queue.get(&uid("p")).is_none());
    queue.upsert(PodBuilder::new("p").info(), s(1));
    reject(&mut queue, "p", "PodIPs", s(1));
    assert_eq!(queue.get(&uid("p")).unwrap().place, QueuePlace::Active);
}

/// The queue's guarantee for each pod: whether a pop may return it, and whether it must be
/// reachable.
#[derive(Clone, Copy, Debug, PartialEq)]
enum QueueGuarantee {
    Ready,
    /// It may come early, and must by then.
    Soon(Duration),
    NotBefore(Duration),
    Parked(Duration, &'static str),
    Out,
}

#[derive(Clone, Debug)]
enum QueueOp {
    Upsert(u8),
    Remove(u8),
    Pop,
    Reject(u8, &'static str),
    Fail(u8),
    Wake(&'static str),
    Wait(u64),
}

fn op() -> impl Strategy<Value = QueueOp> {
    let filter = || prop_oneof![Just("A"), Just("B")];
    prop_oneof![
        1 => (0..5_u8).prop_map(QueueOp::Upsert),
        1 => (0..5_u8).prop_map(QueueOp::Remove),
        3 => Just(QueueOp::Pop),
        2 => (0..5_u8, filter()).prop_map(|(pod, by)| QueueOp::Reject(pod, by)),
        1 => (0..5_u8).prop_map(QueueOp::Fail),
        1 => filter().prop_map(QueueOp::Wake),
        2 => (0..12_u64).prop_map(QueueOp::Wait),
        1 => (250..400_u64).prop_map(QueueOp::Wait),
    ]
}

/// A pod in the model: its place, its rejections, its errors in a row.
type ModelPod = (QueueGuarantee, u32, u32);

fn requeued((_, rejections, errors): ModelPod, since: Duration, now: Duration) -> ModelPod {
    let elapses = since + backoff(if errors > 0 { errors } else { rejections });
    let until = s(elapses.as_secs() + 1);
    let state = match errors {
        _ if until <= now => QueueGuarantee::Ready,
        0 => QueueGuarantee::Soon(until),
        _ => QueueGuarantee::NotBefore(until),
    };
    (state, rejections, errors)
}

proptest! {
    #[test]
    fn behaves_like_its_model(ops in prop::collection::vec(op(), 1..80)) {
        let mut queue = Queue::default();
        let mut model = BTreeMap::<String, ModelPod>::new();
        let mut now = Duration::ZERO;
        let mut next_flush = Duration::ZERO;
        for op in ops {
            match op {
                QueueOp::Upsert(n) => {
                    queue.upsert(PodBuilder::new(&n.to_string()).info(), now);
                    model.entry(n.to_string()).or_insert((QueueGuarantee::Ready, 0, 0));
                }
                QueueOp::Remove(n) => {
                    queue.remove(&uid(&n.to_string()));
                    model.remove(&n.to_string());
                }
                QueueOp::Pop => {
                    let ready = |row: &ModelPod| matches!(row.0, QueueGuarantee::Ready);
                    match popped(&mut queue, now) {
                        Some(name) => {
                            let any_ready = model.values().any(ready);
                            let row = model.get_mut(&name).unwrap();
                            let soon = matches!(row.0, QueueGuarantee::Soon(_)) && !any_ready;
                            prop_assert!(ready(row) || soon, "{name} was {row:?}");
                            row.0 = QueueGuarantee::Out;
                        }
                        None => {
                            let waits = |row: &ModelPod| ready(row) || matches!(row.0, QueueGuarantee::Soon(_));
                            prop_assert!(!model.values().any(waits), "{model:?}");
                        }
                    }
                }
                QueueOp::Reject(n, by) => {
                    reject(&mut queue, &n.to_string(), by, now);
                    if let Some(row) = model.get_mut(&n.to_string()).filter(|row| row.0 == QueueGuarantee::Out) {
                        *row = (QueueGuarantee::Parked(now, by), row.1 + 1, 0);
                    }
                }
                QueueOp::Fail(n) => {
                    queue.fail(&uid(&n.to_string()), "error".into(), now);
                    if let Some(row) = model.get_mut(&n.to_string()).filter(|row| row.0 == QueueGuarantee::Out) {
                        *row = requeued((QueueGuarantee::Out, row.1, row.2 + 1), now, now);
                    }
                }
                QueueOp::Wake(what) => {
                    wake(&mut queue, what, now);
                    for row in model.values_mut() {
                        if let QueueGuarantee::Parked(since, by) = row.0 && by == what {
                            *row = requeued(*row, since, now);
                        }
                    }
                }
                QueueOp::Wait(seconds) => {
                    now += s(seconds);
                    queue.tick(now);
                    let flush = now >= next_flush;
                    if flush {
                        next_flush = now + s(30);
                    }
                    for row in model.values_mut() {
                        match row.0 {
                            QueueGuarantee::Soon(until) | QueueGuarantee::NotBefore(until) if until <= now => row.0 = QueueGuarantee::Ready,
                            QueueGuarantee::Parked(since, _) if flush && since + s(300) <= now => *row = requeued(*row, since, now),
                            _ => {}
                        }
                    }
                }
            }
            let backing_off = queue.backing_off.len() + queue.backing_off_error.len();
            let indexed = queue.active.len() + backing_off + queue.unschedulable.len();
            prop_assert_eq!(queue.unschedulable.len(), queue.unschedulable_since.len());
            let out = model.values().filter(|row| row.0 == QueueGuarantee::Out).count();
            prop_assert_eq!(indexed + out, model.len(), "each pod is in one place");
            for (name, row) in &model {
                let place = queue.get(&uid(name)).unwrap().place;
                let agree = match (row.0, place) {
                    (QueueGuarantee::Ready, QueuePlace::Active)
                    | (QueueGuarantee::Out, QueuePlace::InFlight)
                    | (QueueGuarantee::Parked(..), QueuePlace::Unschedulable) => true,
                    (QueueGuarantee::Soon(want), QueuePlace::BackingOff(until))
                    | (QueueGuarantee::NotBefore(want), QueuePlace::BackingOffError(until)) => want == until,
                    _ => false,
                };
                prop_assert!(agree, "{name}: {row:?} is {place:?}");
            }
        }
    }
}
