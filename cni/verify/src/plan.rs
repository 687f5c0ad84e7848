//! Estimates of the time of checks, and their order with `--quick`.

use std::time::Duration;

use super::{Amount, session::Session};

/// The time of a whole quick verification.
pub(super) const QUICK: Duration = Duration::from_secs(10);
/// The part of it that is kept for the last call and the report.
pub(super) const RESERVE: Duration = Duration::from_millis(1500);
/// The rounds of random checks in a quick verification.
pub(super) const QUICK_ROUNDS: u32 = 2;
/// The largest number of addresses that a quick verification counts.
pub(super) const QUICK_ADDRESSES: usize = 16;
/// The number of checks among which a given time is divided.
pub(super) const RANDOM_CHECKS: u32 = 8;

/// The checks in the order of a quick verification: those that find most in the fewest calls come
/// first.
const QUICK_ORDER: [&str; 32] = [
    "version-answer",
    "check-answer",
    "del-idempotent",
    "add-repeat",
    "gc-frees-stale",
    "del-exact",
    "gc-absent-list",
    "failed-add-leaves-nothing",
    "concurrent-fill",
    "exhaustion",
    "kill-add-leaks-nothing",
    "random-sequence",
    "env-missing",
    "unknown-command",
    "full-disk",
    "rollback-keeps-others",
    "status-answer",
    "every-version",
    "unsupported-version",
    "del-without-netns",
    "gc-keeps-valid",
    "gc-supported",
    "networks-apart",
    "bad-config",
    "kill-del-leaks-nothing",
    "concurrent-kill",
    "concurrent-sequence",
    "own-netns",
    "bad-json",
    "env-invalid",
    "range-bounds",
    "junk-input",
];

/// A check's place in the order of a quick verification.
pub(super) fn quick_place(id: &str) -> usize {
    let place = QUICK_ORDER.iter().position(|own| *own == id);
    place.unwrap_or(QUICK_ORDER.len())
}

/// The quantities that the number of calls depends on.
#[derive(Debug, Clone, Copy)]
struct Size {
    /// The number of addresses of a network; 0 if they cannot be counted.
    addresses: u32,
    rounds: u32,
    workers: u32,
    /// The number of calls that measure the time of an ADD.
    time: u32,
    /// The number of calls in a random sequence.
    sequence: u32,
    /// The number of concurrent ADDs beyond the addresses.
    more: u32,
    versions: u32,
}

/// The approximate number of calls that a check makes.
fn calls(id: &str, size: Size) -> u32 {
    let Size {
        addresses: n,
        rounds,
        workers,
        time,
        sequence,
        more,
        versions,
    } = size;
    // The calls that count the free addresses.
    let free = if n > 0 { 2 * n + 1 } else { 0 };
    let counted = |calls: u32| if n > 0 { calls } else { 0 };
    match id {
        "version-answer" | "unknown-command" | "unsupported-version" => 2,
        "gc-supported" => 3,
        "check-answer" | "rollback-keeps-others" | "bad-config" => 5,
        "every-version" => 2 * versions,
        "env-missing" => 10 + free,
        "env-invalid" => 13 + free,
        "own-netns" => 3 + free,
        "bad-json" => 17,
        "junk-input" => 176 + 4 * rounds + free,
        "exhaustion" => counted(4 * n + 4),
        "add-repeat" => counted(4 * n + 3),
        "del-idempotent" => 5 + free,
        "del-exact" => counted(2 * n + 20),
        "del-without-netns" => 3 + free,
        "networks-apart" | "gc-absent-list" | "gc-keeps-valid" => counted(2 * n + 5),
        "failed-add-leaves-nothing" => 27,
        "range-bounds" => 40,
        "gc-frees-stale" => counted(6 * n + 3),
        "status-answer" => 7 + counted(2 * n),
        "random-sequence" => counted(rounds.div_ceil(10) * (time + sequence + n + free)),
        "concurrent-fill" => counted(rounds.div_ceil(20) * (2 * n + 2 * more + free)),
        "concurrent-sequence" => counted(time + n / 2 + free + rounds * workers.min(n)),
        "concurrent-kill" => counted(time + n / 2 + free + rounds * workers.min(n) * 4 / 3),
        "kill-add-leaks-nothing" => counted(time + 12 * rounds),
        "kill-del-leaks-nothing" => counted(time + 5 * rounds),
        "full-disk" => counted(time + 4 * rounds),
        _ => 0,
    }
}

/// Returns true if the check goes on for its share of the time, if one is given.
fn is_random(id: &str) -> bool {
    let one = Size {
        addresses: 20,
        rounds: 20,
        workers: 1,
        time: 0,
        sequence: 20,
        more: 8,
        versions: 1,
    };
    calls(id, one) != calls(id, Size { rounds: 0, ..one })
}

/// The quantities for this verification.
fn size(session: &Session) -> Size {
    let rounds = match session.options.amount {
        Amount::Rounds(rounds) => rounds,
        Amount::Time(_) => 0,
        Amount::Quick => QUICK_ROUNDS,
    };
    let addresses = session.capacity.get().copied().flatten().unwrap_or(0);
    Size {
        addresses: u32::try_from(addresses).unwrap_or(u32::MAX),
        rounds,
        workers: session.options.concurrency,
        time: 2 * session.samples(),
        sequence: session.sequence(),
        more: u32::try_from(session.more_than_addresses()).unwrap_or(u32::MAX),
        versions: u32::try_from(session.supported.len()).unwrap_or(1),
    }
}

/// The approximate number of calls that these checks make.
pub(super) fn calls_of<'a>(session: &Session, checks: impl Iterator<Item = &'a str>) -> u64 {
    let size = size(session);
    checks.map(|id| u64::from(calls(id, size))).sum()
}

/// The time that these checks take, if a call takes as long as those so far.
pub(super) fn estimate<'a>(session: &Session, checks: impl Iterator<Item = &'a str>) -> Duration {
    let size = size(session);
    let each = session.time_of_call();
    checks
        .map(|id| match session.options.amount {
            Amount::Time(time) if is_random(id) => time / RANDOM_CHECKS + each * calls(id, size),
            _ => each * calls(id, size),
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::list;

    #[test]
    fn every_check_has_an_order_and_a_cost() {
        let size = Size {
            addresses: 3,
            rounds: 1,
            workers: 8,
            time: 6,
            sequence: 20,
            more: 4,
            versions: 4,
        };
        for check in list().filter(|check| !check.is_of_every_answer) {
            assert!(quick_place(check.id) < QUICK_ORDER.len(), "{}", check.id);
            assert!(calls(check.id, size) > 0, "{}", check.id);
        }
    }

    #[test]
    fn number_of_random_checks_matches_its_constant() {
        let random = list().filter(|check| is_random(check.id)).count();
        assert_eq!(u32::try_from(random), Ok(RANDOM_CHECKS));
    }
}
