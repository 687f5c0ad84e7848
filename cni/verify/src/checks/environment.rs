//! Checks of the plugin's environment variables.

use super::CheckVerdict;
use crate::{
    Halt, Severity,
    network::{AttachmentKey, Network},
    session::Session,
};

const REQUIRED: [(&str, &[&str]); 3] = [
    ("ADD", &["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"]),
    ("DEL", &["CNI_CONTAINERID", "CNI_IFNAME"]),
    ("CHECK", &["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"]),
];

pub(super) fn missing(session: &Session) -> Result<CheckVerdict, Halt> {
    let network = session.network();
    let key = AttachmentKey::new("one");
    for (command, variables) in REQUIRED {
        for variable in variables {
            let call = network.call(command, &key).with_env(variable, None);
            let exchange = session.call(&call)?;
            let (code, msg) = exchange.error();
            let step = || vec![session.step(&exchange)];
            if exchange.succeeded() || code != 4 {
                session.find(
                    "env-missing",
                    Severity::Violation,
                    format!("{command} without {variable}: {}", exchange.summary()),
                    "an error with code 4",
                    step(),
                );
            } else if !msg.contains(variable) {
                session.find(
                    "env-missing",
                    Severity::Violation,
                    format!("{command} without {variable}: {}", exchange.summary()),
                    "a message that names the variable",
                    step(),
                );
            }
        }
    }
    let exchange = session.call(&network.call("ADD", &key).with_env("CNI_PATH", None))?;
    if !exchange.succeeded() {
        session.find(
            "env-missing",
            Severity::Note,
            format!("ADD without CNI_PATH: {}", exchange.summary()),
            "success, because it is optional",
            vec![session.step(&exchange)],
        );
    }
    network.del(&key)?;
    left_nothing(session, &network, "env-missing")
}

pub(super) fn invalid(session: &Session) -> Result<CheckVerdict, Halt> {
    let network = session.network();
    let variants = [
        (
            "CNI_CONTAINERID",
            ["-a", ".a", "a/b", "../a", "a b", "a\nb", "é"].as_slice(),
        ),
        (
            "CNI_IFNAME",
            &["0123456789abcdef", ".", "..", "a/b", "a:b", "a b"],
        ),
    ];
    for (variable, values) in variants {
        for value in values {
            let call = network.call("ADD", &AttachmentKey::new("one"));
            let exchange = session.call(&call.with_env(variable, Some(value)))?;
            let (code, msg) = exchange.error();
            let seen = format!("{variable}={value:?}: {}", exchange.summary());
            let step = vec![session.step(&exchange)];
            let expected = "an error with code 4, so that the id can be part of a path";
            if exchange.succeeded() || code != 4 {
                session.find("env-invalid", Severity::Weakness, seen, expected, step);
                let undo = network.call("DEL", &AttachmentKey::new("one"));
                session.call(&undo.with_env(variable, Some(value)))?;
            } else if !msg.contains(variable) {
                let expected = "a message that names the variable";
                session.find("env-invalid", Severity::Note, seen, expected, step);
            }
        }
    }
    left_nothing(session, &network, "env-invalid")
}

/// Checks that a refused call holds no address.
fn left_nothing(
    session: &Session,
    network: &Network<'_>,
    check: &'static str,
) -> Result<CheckVerdict, Halt> {
    let fresh = session.network();
    if let (Some(all), Some(free)) = (fresh.capacity()?, network.free("free")?)
        && free < all
    {
        session.find_in(
            network,
            check,
            Severity::Violation,
            format!("afterwards {free} of {all} addresses are free"),
            "a call that is refused keeps no address",
        );
    }
    Ok(CheckVerdict::Done)
}

pub(super) fn unknown_command(session: &Session) -> Result<CheckVerdict, Halt> {
    let network = session.network();
    for command in ["FOO", "add"] {
        let call = network.call("ADD", &AttachmentKey::new("one"));
        let exchange = session.call(&call.with_env("CNI_COMMAND", Some(command)))?;
        if exchange.succeeded() {
            session.find(
                "unknown-command",
                Severity::Violation,
                format!("CNI_COMMAND={command}: {}", exchange.summary()),
                "an error",
                vec![session.step(&exchange)],
            );
        } else if exchange.error().0 != 4 {
            session.find(
                "unknown-command",
                Severity::Weakness,
                format!("CNI_COMMAND={command}: {}", exchange.summary()),
                "an error with code 4",
                vec![session.step(&exchange)],
            );
        }
    }
    Ok(CheckVerdict::Done)
}

/// The plugin's own namespace as `CNI_NETNS`. The reference of 2026 looks only after it has given
/// an address, and prints a result and an error.
pub(super) fn own_netns(session: &Session) -> Result<CheckVerdict, Halt> {
    let network = session.network();
    let before = network.capacity()?;
    let key = AttachmentKey::new("one");
    let call = network
        .call("ADD", &key)
        .with_env("CNI_NETNS", Some("/proc/self/ns/net"));
    let exchange = session.call(&call)?;
    if exchange.succeeded() {
        network.del(&key)?;
    }
    if let (Some(before), Some(after)) = (before, network.free("after")?)
        && after < before
    {
        session.find(
            "own-netns",
            Severity::Weakness,
            format!(
                "ADD with the plugin's own namespace: {}; {after} of {before} addresses are free afterwards",
                exchange.summary()
            ),
            "no address is kept",
            vec![session.step(&exchange)],
        );
    }
    network.del(&key)?;
    Ok(CheckVerdict::Done)
}
