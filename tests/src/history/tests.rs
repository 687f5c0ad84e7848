//! Tests of the check: histories that must pass, and those that must not.

use super::*;

/// A history in words: `a+` begins the operation named a, `a-` ends it.
fn history(steps: &[(&str, KeyOp, OpOutcome)]) -> Recorder {
    let recorder = Recorder::default();
    let mut ids = BTreeMap::new();
    for (step, op, outcome) in steps {
        let (name, edge) = step.split_at(step.len() - 1);
        match edge {
            "+" => {
                ids.insert(name, recorder.began("k", *op));
            }
            _ => recorder.ended(ids[name], *outcome),
        }
    }
    recorder
}

/// Operations one after the other.
fn serial(ops: &[(KeyOp, OpOutcome)]) -> Recorder {
    let recorder = Recorder::default();
    for (op, outcome) in ops {
        let id = recorder.began("k", *op);
        recorder.ended(id, *outcome);
    }
    recorder
}

use KeyOp::{Create, Delete, Get, Put, Swap};
use OpOutcome::{Absent, Done, Found, Lost, Refused};

#[test]
fn accepts_sequential_operations() {
    let ops = [
        (Get, Absent),
        (Put(9), Absent),
        (Create(1), Done),
        (Create(2), Refused),
        (Swap(1, 3), Done),
        (Swap(1, 4), Refused),
        (Put(5), Done),
        (Get, Found(5)),
        (Delete, Found(5)),
        (Delete, Absent),
        (Swap(5, 6), Absent),
        (Create(7), Done),
    ];
    assert_eq!(serial(&ops).check(), Ok(()));
}

#[test]
fn rejects_a_stale_read() {
    let stale = serial(&[(Create(1), Done), (Put(2), Done), (Get, Found(1))]);
    let violation = stale.check().unwrap_err();
    assert_eq!((violation.op, violation.outcome), (Get, Found(1)));
    assert_eq!(violation.possible, BTreeSet::from([Some(2)]));
}

#[test]
fn rejects_a_lost_write() {
    for lost in [
        serial(&[(Create(1), Done), (Get, Absent)]),
        serial(&[(Create(1), Done), (Put(2), Done), (Swap(1, 3), Done)]),
        serial(&[(Create(1), Done), (Delete, Found(1)), (Create(2), Refused)]),
        serial(&[(Create(1), Done), (Put(2), Done), (Delete, Found(1))]),
    ] {
        lost.check().unwrap_err();
    }
}

#[test]
fn rejects_two_winners_of_one_guard() {
    let both = history(&[
        ("c+", Create(1), Done),
        ("c-", Create(1), Done),
        ("a+", Swap(1, 2), Done),
        ("b+", Swap(1, 3), Done),
        ("a-", Swap(1, 2), Done),
        ("b-", Swap(1, 3), Done),
    ]);
    both.check().unwrap_err();
}

/// A reader does not see the write by which another one was refused before.
#[test]
fn rejects_a_refusal_by_a_write_that_is_not_read_afterwards() {
    let unseen = history(&[
        ("w+", Create(1), Done),
        ("x+", Create(2), Done),
        ("x-", Create(2), Refused),
        ("r+", Get, Done),
        ("r-", Get, Absent),
        ("w-", Create(1), Done),
    ]);
    unseen.check().unwrap_err();
}

#[test]
fn accepts_concurrent_operations_in_either_order() {
    for read in [Absent, Found(1)] {
        let either = history(&[
            ("w+", Create(1), Done),
            ("r+", Get, Done),
            ("r-", Get, read),
            ("w-", Create(1), Done),
        ]);
        assert_eq!(either.check(), Ok(()));
    }
    // But not in both.
    let back = history(&[
        ("w+", Create(1), Done),
        ("r+", Get, Done),
        ("r-", Get, Found(1)),
        ("s+", Get, Done),
        ("s-", Get, Absent),
        ("w-", Create(1), Done),
    ]);
    back.check().unwrap_err();
}

#[test]
fn unanswered_operations_may_take_effect_later_or_never() {
    for read in [Absent, Found(1)] {
        let open = history(&[
            ("w+", Create(1), Done),
            ("r+", Get, Done),
            ("r-", Get, Absent),
            ("s+", Get, Done),
            ("s-", Get, read),
        ]);
        assert_eq!(open.check(), Ok(()));
    }
}

#[test]
fn lost_operations_took_effect_before_or_never() {
    let lost = |before, later| {
        history(&[
            ("w+", Create(1), Done),
            ("r+", Get, Done),
            ("r-", Get, before),
            ("w-", Create(1), Lost),
            ("s+", Get, Done),
            ("s-", Get, later),
            ("t+", Get, Done),
            ("t-", Get, later),
        ])
        .check()
    };
    assert_eq!(lost(Absent, Absent), Ok(()));
    assert_eq!(lost(Absent, Found(1)), Ok(()));
    assert_eq!(lost(Found(1), Found(1)), Ok(()));
    lost(Found(1), Absent).unwrap_err();
    let late = history(&[
        ("w+", Create(1), Done),
        ("w-", Create(1), Lost),
        ("r+", Get, Done),
        ("r-", Get, Absent),
        ("s+", Get, Done),
        ("s-", Get, Found(1)),
    ]);
    late.check().unwrap_err();
}

#[test]
fn keys_are_independent() {
    let recorder = Recorder::default();
    for key in ["a", "b"] {
        let id = recorder.began(key, Create(1));
        recorder.ended(id, Done);
    }
    assert_eq!(recorder.check(), Ok(()));
}
