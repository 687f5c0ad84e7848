//! Checks of versions, and of the format of results in each.

use std::sync::atomic::Ordering;

use podplane_cni::types::Version;
use serde_json::{Value, json};

use super::{super::network::AttachmentKey, CheckVerdict};
use crate::{
    Halt, Severity, VerifyError,
    exchange::{Exchange, PluginInput},
    network::AddOutcome,
    session::Session,
};

const NOT_IN_DIRECTORY: &str = "the plugin has made nothing in ipam.dataDir: its own store is used, in \
    networks named verify-…, which are cleared by DEL";
const KEEPS_NO_STATE: &str = "the first two containers were given the same address. A plugin that keeps \
    no state, as the reference's static, is tested with --stateless";

fn ask(session: &Session, version: &str) -> Result<Exchange, Halt> {
    session.call(&PluginInput {
        env: vec![("CNI_COMMAND", "VERSION".to_owned())],
        stdin: json!({"cniVersion": version}).to_string().into_bytes(),
        ..PluginInput::default()
    })
}

fn supported(exchange: &Exchange) -> Vec<String> {
    let answer: Value = serde_json::from_slice(&exchange.stdout).unwrap_or_default();
    let versions = answer["supportedVersions"].as_array().into_iter().flatten();
    versions
        .filter_map(|version| version.as_str().map(str::to_owned))
        .collect()
}

/// Asks for the supported versions, and chooses the one to use.
pub(crate) fn learn_versions(session: &mut Session) -> Result<(), Halt> {
    let exchange = ask(session, Version::LATEST.as_str())?;
    session.supported = supported(&exchange);
    let known = session
        .supported
        .iter()
        .filter_map(|text| text.parse().ok());
    let newest = known.max().unwrap_or(Version::V1_0_0);
    session.version = session.options.cni_version.unwrap_or(newest);
    Ok(())
}

/// Makes an ADD and a DEL; if they fail, nothing can be verified.
pub(crate) fn first_attachment(session: &Session) -> Result<(), Halt> {
    let network = session.network();
    let key = AttachmentKey::new("first");
    let (added, exchange) = network.add_exchange(&key, crate::exchange::Interruption::None)?;
    match added {
        AddOutcome::Given(_) => {
            let has_files = network.directory().is_some();
            let is_own = session.options.template.has_own_directory() && has_files;
            session.has_own_directory.store(is_own, Ordering::Relaxed);
            network.del(&key).map(drop)
        }
        _ => Err(Halt::from(VerifyError::NotWorking {
            answer: exchange.summary(),
            step: Box::new(session.step(&exchange)),
        })),
    }
}

/// Counts the addresses of a network. A plugin that gives two live containers the same address is
/// not asked for more, since there would be no end.
pub(crate) fn learn_capacity(session: &Session) -> Result<Vec<String>, Halt> {
    let mut hints = Vec::new();
    if session.options.template.has_own_directory() && !session.has_own_directory() {
        hints.push(NOT_IN_DIRECTORY.to_owned());
    }
    if session.is_stateless() {
        _ = session.capacity.set(None);
        return Ok(hints);
    }
    let network = session.network();
    let keys = [AttachmentKey::new("count-0"), AttachmentKey::new("count-1")];
    for key in &keys {
        network.add(key)?;
    }
    let [first, second] = keys.each_ref().map(|key| network.held(key));
    if let (Some(first), Some(second)) = (first, second)
        && first.addresses == second.addresses
    {
        _ = session.capacity.set(None);
        session.gives_same_address.store(true, Ordering::Relaxed);
        hints.push(KEEPS_NO_STATE.to_owned());
    } else if let Some(filled) = network.fill("fill")? {
        let held = keys
            .iter()
            .filter(|key| network.held(key).is_some())
            .count();
        _ = session.capacity.set(Some(filled.keys.len() + held));
    } else {
        _ = session.capacity.set(None);
    }
    network.clear()?;
    Ok(hints)
}

pub(super) fn version_answer(session: &Session) -> Result<CheckVerdict, Halt> {
    let exchange = ask(session, Version::LATEST.as_str())?;
    let answer: Value = serde_json::from_slice(&exchange.stdout).unwrap_or_default();
    let supported = supported(&exchange);
    let is_version = |text: &str| {
        let parts: Vec<_> = text.split('.').collect();
        parts.len() == 3 && parts.iter().all(|part| part.parse::<u32>().is_ok())
    };
    let own = answer["cniVersion"].as_str().unwrap_or_default();
    let good = exchange.succeeded()
        && !supported.is_empty()
        && supported.iter().all(|text| is_version(text))
        && is_version(own);
    if !good {
        session.find(
            "version-answer",
            Severity::Violation,
            exchange.summary(),
            "exit code 0, \"cniVersion\", and \"supportedVersions\" as a list of versions",
            vec![session.step(&exchange)],
        );
        return Ok(CheckVerdict::Done);
    }
    if let Some(asked) = supported.iter().find(|text| *text != own) {
        let exchange = ask(session, asked)?;
        let answer: Value = serde_json::from_slice(&exchange.stdout).unwrap_or_default();
        if answer["cniVersion"] != asked.as_str() {
            session.find(
                "version-answer",
                Severity::Note,
                format!("asked in {asked}, it answers in {}", answer["cniVersion"]),
                "the cniVersion of the request",
                vec![session.step(&exchange)],
            );
        }
    }
    Ok(CheckVerdict::Done)
}

pub(super) fn every_version(session: &Session) -> Result<CheckVerdict, Halt> {
    let supported = session.supported.iter();
    for version in supported.filter_map(|text| text.parse::<Version>().ok()) {
        let network = session.network_of(version);
        let key = AttachmentKey::new("one");
        let (added, exchange) = network.add_exchange(&key, crate::exchange::Interruption::None)?;
        if !matches!(added, AddOutcome::Given(_)) {
            session.find(
                "every-version",
                Severity::Violation,
                format!("ADD in {version}: {}", exchange.summary()),
                "success in every version that VERSION tells",
                vec![session.step(&exchange)],
            );
        }
        network.del(&key)?;
    }
    Ok(CheckVerdict::Done)
}

pub(super) fn unsupported_version(session: &Session) -> Result<CheckVerdict, Halt> {
    for (version, is_required) in [("9.9.9", true), ("not-a-version", false)] {
        let network = session.network();
        let mut config = network.config.clone();
        config["cniVersion"] = version.into();
        let call = network.call("ADD", &AttachmentKey::new("one"));
        let exchange = session.call(&call.with_stdin(config.to_string()))?;
        let (code, _) = exchange.error();
        // A version that is not even well-formed may also be refused as undecodable or invalid.
        let codes: &[u64] = if is_required { &[1] } else { &[1, 6, 7] };
        if exchange.succeeded() || !codes.contains(&code) {
            session.find(
                "unsupported-version",
                Severity::Violation,
                format!("ADD in {version}: {}", exchange.summary()),
                "an error with code 1",
                vec![session.step(&exchange)],
            );
            session.call(&network.call("DEL", &AttachmentKey::new("one")))?;
        }
    }
    Ok(CheckVerdict::Done)
}
