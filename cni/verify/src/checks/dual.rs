//! Checks of several range sets, and of the bounds of ranges, for configurations like host-local's.

use std::net::IpAddr;

use serde_json::{Value, json};

use super::{CheckVerdict, OTHER_KEYS, skipped};
use crate::{
    Halt, RangeKeys, Severity,
    exchange::Interruption,
    network::{AddOutcome, AttachmentKey},
    session::Session,
    template::{SupportedKeys, known_ranges},
};

/// Determines which keys of ranges the plugin follows. A plugin that ignores a key, or has others,
/// is not tested with it.
pub(crate) fn learn_range_keys(session: &mut Session) -> Result<(), Halt> {
    session.range_keys = match session.options.range_keys {
        RangeKeys::None => SupportedKeys::default(),
        _ if !session.options.template.has_ranges() => SupportedKeys::default(),
        RangeKeys::HostLocal => SupportedKeys::ALL,
        RangeKeys::Auto => {
            let subnet = json!([[{"subnet": "10.94.0.0/29"}]]);
            let two = json!([[{"subnet": "10.95.0.0/28", "rangeStart": "10.95.0.9", "rangeEnd": "10.95.0.10"}]]);
            let dual = json!([[{"subnet": "10.96.0.0/29"}], [{"subnet": "fd00:96::/120"}]]);
            SupportedKeys {
                sets: follows(session, &subnet, 1)?,
                bounds: follows(session, &two, 2)?,
                families: follows(session, &dual, 1)?,
            }
        }
    };
    if session.is_quick() && session.range_keys.sets {
        // Three addresses, or five.
        session.small_ranges = Some(match session.range_keys.bounds {
            true => {
                json!([[{"subnet": "10.89.0.0/29", "rangeStart": "10.89.0.2", "rangeEnd": "10.89.0.4"}]])
            }
            false => json!([[{"subnet": "10.89.0.0/29"}]]),
        });
    }
    Ok(())
}

/// Returns true if each ADD gets an address of each set. If `count` is more than one, it must also
/// be the number of ADDs that succeed.
fn follows(session: &Session, ranges: &Value, count: usize) -> Result<bool, Halt> {
    let network = session.network_to_try(ranges);
    let known = known_ranges(&network.config);
    let mut follows = true;
    for number in 0..count {
        let added = network.add(&AttachmentKey::new(format!("try-{number}")))?;
        follows &= matches!(added, AddOutcome::Given(ips) if ips.len() == known.len()
            && known.iter().all(|range| ips.iter().any(|ip| range.contains(*ip))));
    }
    if count > 1 {
        let added = network.add(&AttachmentKey::new("too-many"))?;
        follows &= matches!(added, AddOutcome::Refused);
    }
    network.clear()?;
    Ok(follows)
}

/// A set with one IPv6 address.
fn one_v6() -> Value {
    json!([{"subnet": "fd00:89::/120", "rangeStart": "fd00:89::5", "rangeEnd": "fd00:89::5"}])
}

fn some_v4() -> Value {
    json!([{"subnet": "10.90.0.0/29", "rangeStart": "10.90.0.2", "rangeEnd": "10.90.0.4"}])
}

/// A failed dual-stack ADD keeps the addresses of before.
///
/// A container has an IPv6 address. An ADD for it that also wants an IPv4 address fails, since
/// there is only one IPv6 address. The container must still have its first address.
pub(super) fn rollback_keeps_others(session: &Session) -> Result<CheckVerdict, Halt> {
    let both = json!([some_v4(), one_v6()]);
    let Some(mut network) = session.network_with(&both) else {
        return skipped(OTHER_KEYS);
    };
    network.set_ranges(&json!([one_v6()]));
    let key = AttachmentKey::new("one");
    let (first, add) = network.add_exchange(&key, Interruption::None)?;
    let AddOutcome::Given(addresses) = first else {
        return skipped("the plugin gives no address of an IPv6 range");
    };
    network.set_ranges(&both);
    let (second, failed) = network.add_exchange(&key, Interruption::None)?;
    if !matches!(second, AddOutcome::Refused) {
        network.clear()?;
        return skipped("ADD for more ranges does not fail");
    }
    network.set_ranges(&json!([one_v6()]));
    let (third, stolen) = network.add_exchange(&AttachmentKey::new("other"), Interruption::None)?;
    if let AddOutcome::Given(given) = third
        && given == addresses
    {
        session.find(
            "rollback-keeps-others",
            Severity::Violation,
            format!("the failed ADD took {given:?} away, and another attachment was given it"),
            "a failed ADD takes back what it has made itself, and nothing else",
            vec![
                session.step(&add),
                session.step(&failed),
                session.step(&stolen),
            ],
        );
    }
    network.clear()?;
    Ok(CheckVerdict::Done)
}

/// Repeated failures of a dual-stack ADD, for want of an IPv6 address, must not use up IPv4
/// addresses.
pub(super) fn failed_add_leaves_nothing(session: &Session) -> Result<CheckVerdict, Halt> {
    let both = json!([some_v4(), one_v6()]);
    let Some(mut network) = session.network_with(&both) else {
        return skipped(OTHER_KEYS);
    };
    network.set_ranges(&json!([some_v4()]));
    let all = network.free("before")?;
    network.set_ranges(&both);
    if !matches!(
        network.add(&AttachmentKey::new("one"))?,
        AddOutcome::Given(_)
    ) {
        return skipped("the plugin gives no addresses of two families");
    }
    let mut failed = Vec::new();
    for number in 0..4 {
        let key = AttachmentKey::new(format!("failing-{number}"));
        match network.add_exchange(&key, Interruption::None)? {
            (AddOutcome::Refused, exchange) => failed.push(exchange),
            // The ADD got an address of the other range, which is allowed.
            _ => drop(network.del(&key)?),
        }
    }
    let Some(last) = failed.last() else {
        network.clear()?;
        return skipped("no ADD fails when one of two ranges is full");
    };
    network.set_ranges(&json!([some_v4()]));
    if let (Some(all), Some(free)) = (all, network.free("free")?)
        && free + 1 < all
    {
        session.find(
            "failed-add-leaves-nothing",
            Severity::Weakness,
            format!(
                "after {} ADDs that failed, {free} of {} addresses of the other range are free",
                failed.len(),
                all - 1
            ),
            "a failed ADD takes back what it has made",
            vec![session.step(last)],
        );
    }
    network.set_ranges(&both);
    network.clear()?;
    Ok(CheckVerdict::Done)
}

/// Ranges that start or end at an edge, or are reversed: the plugin must fail, or give addresses of
/// the subnet.
pub(super) fn range_bounds(session: &Session) -> Result<CheckVerdict, Halt> {
    let subnet = "10.91.0.0/29";
    let cases = [
        json!({"subnet": subnet, "rangeStart": "10.91.0.7"}),
        json!({"subnet": subnet, "rangeStart": "10.91.0.6", "rangeEnd": "10.91.0.3"}),
        json!({"subnet": subnet, "rangeEnd": "10.91.0.0"}),
        json!({"subnet": subnet, "rangeStart": "10.91.0.8"}),
        json!({"subnet": subnet, "rangeEnd": "10.91.1.1"}),
        json!({"subnet": subnet, "rangeStart": "10.91.0.3", "rangeEnd": "10.91.0.3", "gateway": "10.91.0.3"}),
        json!({"subnet": "fd00:91::/126", "rangeStart": "fd00:91::3"}),
    ];
    for case in cases {
        let Some(network) = session.network_with(&json!([[&case]])) else {
            return skipped(OTHER_KEYS);
        };
        let inside = known_ranges(&network.config);
        let mut walk = Vec::new();
        // An allocation that leaves the subnet shows within a few addresses.
        for number in 0..12 {
            let key = AttachmentKey::new(format!("walk-{number}"));
            let (added, exchange) = network.add_exchange(&key, Interruption::None)?;
            walk.push(session.step(&exchange));
            let AddOutcome::Given(addresses) = added else {
                break;
            };
            let is_out = |ip: &&IpAddr| !inside.iter().any(|range| range.subnet.contains(*ip));
            if let Some(out) = addresses.iter().find(is_out) {
                session.find(
                    "range-bounds",
                    Severity::Violation,
                    format!("the range {case} gives {out}"),
                    "an error, or addresses of the subnet",
                    walk,
                );
                break;
            }
        }
        if network.live().is_empty() {
            network.abandon();
        }
        network.clear()?;
    }
    Ok(CheckVerdict::Done)
}
