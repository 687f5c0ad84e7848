//! Checks of ADD, DEL and CHECK and their addresses, one call at a time.

use super::{CheckVerdict, skipped, uncountable};
use podplane_cni::types::Version;

use crate::{
    Halt, Severity,
    exchange::{Exchange, Interruption, PluginEnd},
    network::{AddOutcome, AttachmentKey, Network},
    session::Session,
};

/// Compares the number of free addresses with the one before.
pub(super) fn nothing_leaked(
    network: &Network<'_>,
    (check, severity): (&'static str, Severity),
    before: impl Into<Option<usize>>,
    last: &[&Exchange],
) -> Result<(), Halt> {
    let (Some(before), Some(after)) = (before.into(), network.free("after")?) else {
        return Ok(());
    };
    if after < before {
        let session = network.session;
        let seen = format!("{after} of {before} addresses are free afterwards");
        let expected = "as many free addresses as before";
        if last.is_empty() {
            session.find_in(network, check, severity, seen, expected);
        } else {
            let steps = last.iter().map(|exchange| session.step(exchange)).collect();
            session.find(check, severity, seen, expected, steps);
        }
    }
    Ok(())
}

pub(super) fn exhaustion(session: &Session) -> Result<CheckVerdict, Halt> {
    let network = session.network();
    let Some(filled) = network.fill("fill")? else {
        return uncountable(session);
    };
    let all = filled.keys.len();
    if let PluginEnd::Exit(0) | PluginEnd::Hung | PluginEnd::Signal(_) = filled.refusal.end {
        return Ok(CheckVerdict::Done); // Reported already as a fault of the answer.
    }
    // A released address must be the next one given: there is no other.
    let key = &filled.keys[all / 2];
    let expected = network.held(key).map(|held| held.addresses);
    network.del(key)?;
    let (added, exchange) =
        network.add_exchange(&AttachmentKey::new("next"), Interruption::None)?;
    match added {
        AddOutcome::Given(addresses) if Some(&addresses) == expected.as_ref() => {}
        _ => session.find(
            "exhaustion",
            Severity::Violation,
            format!("after DEL of one of {all}, ADD: {}", exchange.summary()),
            "the address that has become free",
            vec![session.step(&filled.refusal), session.step(&exchange)],
        ),
    }
    network.clear()?;
    nothing_leaked(
        &network,
        ("exhaustion", Severity::Violation),
        all,
        &[&filled.refusal],
    )?;
    Ok(CheckVerdict::Done)
}

pub(super) fn add_repeat(session: &Session) -> Result<CheckVerdict, Halt> {
    let network = session.network();
    let Some(before) = network.capacity()? else {
        return uncountable(session);
    };
    let key = AttachmentKey::new("one");
    let (first, _) = network.add_exchange(&key, Interruption::None)?;
    let (second, exchange) = network.add_exchange(&key, Interruption::None)?;
    if let (AddOutcome::Given(first), AddOutcome::Given(second)) = (&first, &second)
        && first != second
    {
        session.find(
            "add-repeat",
            Severity::Weakness,
            format!("the second ADD of one attachment gives {second:?} after {first:?}"),
            "an error, or the same addresses",
            vec![session.step(&exchange)],
        );
    }
    // Whatever the second ADD did, the addresses of the first one must still be the attachment's.
    if let AddOutcome::Given(_) = first {
        let filled = network.fill("other")?;
        for key in filled.into_iter().flat_map(|filled| filled.keys) {
            network.del(&key)?;
        }
    }
    network.del(&key)?;
    nothing_leaked(
        &network,
        ("add-repeat", Severity::Violation),
        before,
        &[&exchange],
    )?;
    Ok(CheckVerdict::Done)
}

pub(super) fn del_idempotent(session: &Session) -> Result<CheckVerdict, Halt> {
    let network = session.network();
    let before = network.capacity()?;
    let expect_success = |what: &str, exchange: &Exchange| {
        if !exchange.succeeded() {
            session.find(
                "del-idempotent",
                Severity::Violation,
                format!("{what}: {}", exchange.summary()),
                "success",
                vec![session.step(exchange)],
            );
        }
    };
    let key = AttachmentKey::new("one");
    let untouched = session.network();
    let call = untouched.call("DEL", &key);
    expect_success(
        "DEL in a network that was never used",
        &session.call(&call)?,
    );
    network.add(&key)?;
    let with_result = network.call("DEL", &key);
    network.del(&key)?;
    expect_success("second DEL", &session.call(&with_result)?);
    let unknown = network.call("DEL", &AttachmentKey::new("never-added"));
    expect_success("DEL of what was never added", &session.call(&unknown)?);
    nothing_leaked(
        &network,
        ("del-idempotent", Severity::Violation),
        before,
        &[],
    )?;
    Ok(CheckVerdict::Done)
}

/// DELs that must not free the address of an attachment, each tried while no other address is free.
pub(super) fn del_exact(session: &Session) -> Result<CheckVerdict, Halt> {
    let network = session.network();
    let key = AttachmentKey::new("one");
    network.add(&key)?;
    if network.fill("fill")?.is_none() {
        return uncountable(session);
    }
    let others = [
        AttachmentKey::new("one").interface("net1"),
        AttachmentKey::new("one").interface("eth"),
        AttachmentKey::new("on"),
        AttachmentKey::new("one1"),
        AttachmentKey::new("ONE"),
        AttachmentKey::new("never-added"),
    ];
    for other in others {
        let exchange = network.del(&other)?;
        let (added, add) =
            network.add_exchange(&AttachmentKey::new("thief"), Interruption::None)?;
        if let AddOutcome::Given(_) = added {
            session.find(
                "del-exact",
                Severity::Violation,
                format!(
                    "DEL of {}/{} freed the address of another attachment",
                    other.id, other.ifname
                ),
                "DEL frees what was given to this container and interface",
                vec![session.step(&exchange), session.step(&add)],
            );
            network.del(&AttachmentKey::new("thief"))?;
        }
    }
    network.clear()?;
    // Two interfaces of a container are two attachments.
    let second = AttachmentKey::new("one").interface("net1");
    network.add(&key)?;
    let (added, exchange) = network.add_exchange(&second, Interruption::None)?;
    if !matches!(added, AddOutcome::Given(_)) {
        session.find(
            "del-exact",
            Severity::Violation,
            format!(
                "ADD of a container's second interface: {}",
                exchange.summary()
            ),
            "an address for each interface",
            vec![session.step(&exchange)],
        );
    }
    network.del(&key)?;
    if session.version >= Version::V0_4_0 && matches!(added, AddOutcome::Given(_)) {
        let exchange = network.check(&second)?;
        if !exchange.succeeded() {
            session.find(
                "del-exact",
                Severity::Violation,
                format!("CHECK of net1 after DEL of eth0: {}", exchange.summary()),
                "the second interface keeps its address",
                vec![session.step(&exchange)],
            );
        }
    }
    network.clear()?;
    Ok(CheckVerdict::Done)
}

pub(super) fn del_without_netns(session: &Session) -> Result<CheckVerdict, Halt> {
    let network = session.network();
    let before = network.capacity()?;
    let key = AttachmentKey::new("one");
    network.add(&key)?;
    network.forget(&key); // So that there is no prevResult.
    let call = network.call("DEL", &key).with_env("CNI_NETNS", None);
    let exchange = session.call(&call)?;
    if !exchange.succeeded() {
        session.find(
            "del-without-netns",
            Severity::Violation,
            format!(
                "DEL without CNI_NETNS and prevResult: {}",
                exchange.summary()
            ),
            "success",
            vec![session.step(&exchange)],
        );
    }
    nothing_leaked(
        &network,
        ("del-without-netns", Severity::Violation),
        before,
        &[&exchange],
    )?;
    network.del(&key)?;
    Ok(CheckVerdict::Done)
}

pub(super) fn check_answer(session: &Session) -> Result<CheckVerdict, Halt> {
    if session.version < Version::V0_4_0 {
        return skipped("CHECK came with CNI 0.4.0");
    }
    let network = session.network();
    let key = AttachmentKey::new("one");
    network.add(&key)?;
    let call = network.call("CHECK", &key);
    let exchange = session.call(&call)?;
    if !exchange.succeeded() {
        session.find(
            "check-answer",
            Severity::Violation,
            format!("CHECK after ADD: {}", exchange.summary()),
            "success",
            vec![session.step(&exchange)],
        );
    }
    network.del(&key)?;
    if session.is_stateless() {
        return Ok(CheckVerdict::Done);
    }
    let exchange = session.call(&call)?;
    if exchange.succeeded() {
        session.find(
            "check-answer",
            Severity::Weakness,
            "CHECK succeeds after DEL",
            "an error, because the reservation is missing",
            vec![session.step(&exchange)],
        );
    }
    Ok(CheckVerdict::Done)
}

pub(super) fn networks_apart(session: &Session) -> Result<CheckVerdict, Halt> {
    let (one, mut two) = (session.network(), session.network());
    if session.options.template.has_own_directory() {
        // The usual directory is shared by all networks.
        two.config["ipam"] = one.config["ipam"].clone();
    }
    let key = AttachmentKey::new("one");
    one.add(&key)?;
    if one.fill("fill")?.is_none() {
        return uncountable(session);
    }
    let exchange = two.del(&key)?;
    let (added, add) = one.add_exchange(&AttachmentKey::new("thief"), Interruption::None)?;
    if let AddOutcome::Given(_) = added {
        session.find(
            "networks-apart",
            Severity::Violation,
            "DEL in one network freed an address of another",
            "DEL frees what was given in its own network",
            vec![session.step(&exchange), session.step(&add)],
        );
    }
    one.clear()?;
    Ok(CheckVerdict::Done)
}
