//! Checks with SIGKILL and full disks, in a network that has one free address.

use std::time::Duration;

use rand::{RngExt as _, rngs::StdRng};

use super::{CheckVerdict, uncountable};
use crate::{
    Halt, Severity,
    exchange::{Exchange, Interruption},
    network::{AddOutcome, AttachmentKey, Network},
    session::Session,
};

/// The number of leaks after which a check stops: each needs a fresh network, and they are alike.
const ENOUGH: u32 = 3;

/// The lengths of what plugins write for one lease: an id alone, and most others.
const LEASES: [u64; 2] = [12, 80];

/// A network with one free address, and the time that an ADD takes. If the plugin follows bounds of
/// ranges, another attachment holds a second address: a kill may damage its lease.
fn one_left(session: &Session) -> Result<Option<(Network<'_>, Duration)>, Halt> {
    let two = serde_json::json!([[{"subnet": "10.92.0.0/29", "rangeStart": "10.92.0.2", "rangeEnd": "10.92.0.3"}]]);
    if let Some(network) = session.network_with(&two) {
        let time = session.time_of_add(&network)?;
        network.add(&AttachmentKey::new("other"))?;
        return Ok(Some((network, time)));
    }
    let ranges = serde_json::json!([[{"subnet": "10.92.0.0/30"}]]);
    if let Some(network) = session.network_with(&ranges) {
        let time = session.time_of_add(&network)?;
        return Ok(Some((network, time)));
    }
    let network = session.network();
    let time = session.time_of_add(&network)?;
    let Some(filled) = network.fill("fill")? else {
        return Ok(None);
    };
    network.del(&filled.keys[0])?;
    Ok(Some((network, time)))
}

/// A moment for the kill: a random time within an ADD, or one of its first changes to files if they
/// are visible.
pub(super) fn moment(random: &mut StdRng, network: &Network<'_>, time: Duration) -> Interruption {
    match network.directory() {
        Some(dir) if random.random_bool(0.5) => Interruption::OnChange {
            dir,
            // The first change is the most likely, since it makes the lease.
            nth: random.random_range(1..=6_u32).saturating_sub(2).max(1),
        },
        _ => Interruption::After(time.mul_f64(random.random_range(0.1..1.2))),
    }
}

/// A moment in which a file is half written, every third time; otherwise [`moment`].
fn moment_or_half(
    random: &mut StdRng,
    network: &Network<'_>,
    time: Duration,
    number: u32,
) -> Interruption {
    match network.directory() {
        Some(dir) if number.is_multiple_of(3) => {
            let longest = LEASES[usize::from(random.random_bool(0.5))];
            // With 0 bytes the file has only been created.
            let bytes = random.random_range(0..longest);
            Interruption::HalfWritten { dir, bytes }
        }
        _ => moment(random, network, time),
    }
}

/// Returns the refused ADD if the only address cannot be had: it has leaked.
fn is_lost(network: &Network<'_>) -> Result<Option<Exchange>, Halt> {
    let key = AttachmentKey::new("probe");
    let (added, exchange) = network.add_exchange(&key, Interruption::None)?;
    network.del(&key)?;
    Ok((!matches!(added, AddOutcome::Given(_))).then_some(exchange))
}

/// Runs `round` many times. No round may lose the only address.
fn repeat(
    session: &Session,
    check: &'static str,
    weight: u32,
    mut round: impl FnMut(&Network<'_>, &mut StdRng, Duration, u32) -> Result<Vec<Exchange>, Halt>,
) -> Result<CheckVerdict, Halt> {
    let mut random = session.random(check, 0);
    let Some((mut network, time)) = one_left(session)? else {
        return uncountable(session);
    };
    let mut leaks = 0;
    for number in session.rounds(weight) {
        let done = round(&network, &mut random, time, number)?;
        let Some(refusal) = is_lost(&network)? else {
            continue;
        };
        let what: Vec<_> = done
            .iter()
            .map(|exchange| {
                let (command, interruption) = (exchange.call.command(), &exchange.interruption);
                match interruption {
                    Interruption::None => command.to_owned(),
                    _ => format!("{command} ({interruption})"),
                }
            })
            .collect();
        session.find(
            check,
            Severity::Weakness,
            format!(
                "round {number}: {}, and the address cannot be had any more: {}",
                what.join(", "),
                refusal.summary()
            ),
            "the address is free again",
            done.iter()
                .chain([&refusal])
                .map(|exchange| session.step(exchange))
                .collect(),
        );
        leaks += 1;
        if leaks == ENOUGH {
            break;
        }
        network.clear()?;
        match one_left(session)? {
            Some((fresh, _)) => network = fresh,
            None => break,
        }
    }
    network.clear()?;
    Ok(CheckVerdict::Done)
}

pub(super) fn kill_add(session: &Session) -> Result<CheckVerdict, Halt> {
    repeat(
        session,
        "kill-add-leaks-nothing",
        3,
        |network, random, time, number| {
            let key = AttachmentKey::new(format!("killed-{number}"));
            let (_, add) =
                network.add_exchange(&key, moment_or_half(random, network, time, number))?;
            let del = network.del(&key)?;
            Ok(vec![add, del])
        },
    )
}

pub(super) fn kill_del(session: &Session) -> Result<CheckVerdict, Halt> {
    repeat(
        session,
        "kill-del-leaks-nothing",
        1,
        |network, random, time, number| {
            let key = AttachmentKey::new(format!("killed-{number}"));
            network.add(&key)?;
            let first =
                network.del_exchange(&key, moment_or_half(random, network, time, number))?;
            let second = network.del(&key)?;
            Ok(vec![first, second])
        },
    )
}

/// Limits files to a few bytes. An ADD that reports a failure must not hold an address, even before
/// a DEL.
pub(super) fn full_disk(session: &Session) -> Result<CheckVerdict, Halt> {
    repeat(session, "full-disk", 1, |network, random, _, number| {
        // With short names one file may still be written when the next one cannot.
        let is_short = random.random_bool(0.5);
        let (id, longest) = if is_short {
            (format!("f{}", number % 10), 12)
        } else {
            (format!("full-{number:012}"), 64)
        };
        let key = AttachmentKey::new(id);
        let limit = Interruption::FileSize(random.random_range(0..longest));
        let (added, add) = network.add_exchange(&key, limit)?;
        match added {
            AddOutcome::Refused => Ok(vec![add]),
            AddOutcome::Given(_) | AddOutcome::Unknown => {
                let del = network.del(&key)?;
                Ok(vec![add, del])
            }
        }
    })
}
