//! Several range sets, and the bounds of ranges. For configurations of host-local's form.

use std::net::IpAddr;

use serde_json::{Value, json};

use super::{NOT_HOST_LOCALS, Verdict, skipped};
use crate::verify::{
    Severity, VerifyError,
    exchange::Interruption,
    network::{Added, Key},
    session::Session,
    template::known_ranges,
};

/// A set with one address.
fn one_v6() -> Value {
    json!([{"subnet": "fd00:89::/120", "rangeStart": "fd00:89::5", "rangeEnd": "fd00:89::5"}])
}

fn some_v4() -> Value {
    json!([{"subnet": "10.90.0.0/29"}])
}

/// A container has an IPv6 address; an ADD for it that also wants an IPv4 address fails, since one IPv6
/// address is all it can have. The one that it had before must still be its own.
pub(super) fn rollback_keeps_others(session: &Session) -> Result<Verdict, VerifyError> {
    let Some(mut network) = session.network_with(&json!([one_v6()])) else {
        return skipped(NOT_HOST_LOCALS);
    };
    let key = Key::new("one");
    let (first, add) = network.add_exchange(&key, Interruption::None)?;
    let Added::Given(addresses) = first else {
        return skipped("the plugin gives no address of an IPv6 range");
    };
    network.set_ranges(&json!([some_v4(), one_v6()]));
    let (second, failed) = network.add_exchange(&key, Interruption::None)?;
    if !matches!(second, Added::Refused) {
        network.clear()?;
        return skipped("ADD for more ranges does not fail");
    }
    network.set_ranges(&json!([one_v6()]));
    let (third, stolen) = network.add_exchange(&Key::new("other"), Interruption::None)?;
    if let Added::Given(given) = third
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
    Ok(Verdict::Done)
}

/// IPv6 is full, so that a dual-stack ADD fails. However often it is tried, IPv4 must not fill up.
pub(super) fn failed_add_leaves_nothing(session: &Session) -> Result<Verdict, VerifyError> {
    let both = json!([some_v4(), one_v6()]);
    let Some(mut network) = session.network_with(&both) else {
        return skipped(NOT_HOST_LOCALS);
    };
    let first = Key::new("one");
    if !matches!(network.add(&first)?, Added::Given(_)) {
        return skipped("the plugin gives no addresses of two families");
    }
    let mut last = None;
    for number in 0..10 {
        let key = Key::new(format!("failing-{number}"));
        last = Some(network.add_exchange(&key, Interruption::None)?.1);
    }
    network.set_ranges(&json!([some_v4()]));
    let free = network.free("free")?;
    // A /29 has five addresses; one of them is taken.
    if let (Some(free @ ..4), Some(last)) = (free, last) {
        session.find(
            "failed-add-leaves-nothing",
            Severity::Weakness,
            format!(
                "after ten ADDs that failed, {free} of 4 addresses of the other range are free"
            ),
            "a failed ADD takes back what it has made",
            vec![session.step(&last)],
        );
    }
    network.set_ranges(&both);
    network.clear()?;
    Ok(Verdict::Done)
}

/// Starts and ends at the edge, and the wrong way round: an error, or addresses of the subnet.
pub(super) fn range_bounds(session: &Session) -> Result<Verdict, VerifyError> {
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
            return skipped(NOT_HOST_LOCALS);
        };
        let inside = known_ranges(&network.config);
        let mut walk = Vec::new();
        // A walk out of the subnet shows within a few addresses.
        for number in 0..12 {
            let key = Key::new(format!("walk-{number}"));
            let (added, exchange) = network.add_exchange(&key, Interruption::None)?;
            walk.push(session.step(&exchange));
            let Added::Given(addresses) = added else {
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
    Ok(Verdict::Done)
}
