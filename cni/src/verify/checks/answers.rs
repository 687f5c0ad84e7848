//! Versions, and the form of results in each.

use serde_json::{Value, json};

use super::{super::network::Key, Verdict};
use crate::{
    types::Version,
    verify::{
        Severity, VerifyError,
        exchange::{Call, Exchange},
        network::Added,
        session::Session,
    },
};

fn ask(session: &Session, version: &str) -> Result<Exchange, VerifyError> {
    session.call(&Call {
        env: vec![("CNI_COMMAND", "VERSION".to_owned())],
        stdin: json!({"cniVersion": version}).to_string().into_bytes(),
        is_junk: false,
    })
}

fn supported(exchange: &Exchange) -> Vec<String> {
    let answer: Value = serde_json::from_slice(&exchange.stdout).unwrap_or_default();
    let versions = answer["supportedVersions"].as_array().into_iter().flatten();
    versions
        .filter_map(|version| version.as_str().map(str::to_owned))
        .collect()
}

/// Asks which versions there are, and decides on the one to use.
pub(in crate::verify) fn learn_versions(session: &mut Session) -> Result<(), VerifyError> {
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

/// An ADD and a DEL, without which there is nothing to verify.
pub(in crate::verify) fn first_attachment(session: &Session) -> Result<(), VerifyError> {
    let network = session.network();
    let key = Key::new("first");
    let (added, exchange) =
        network.add_exchange(&key, crate::verify::exchange::Interruption::None)?;
    match added {
        Added::Given(_) => network.del(&key).map(drop),
        _ => Err(VerifyError::NotWorking {
            answer: exchange.summary(),
            step: Box::new(session.step(&exchange)),
        }),
    }
}

pub(super) fn version_answer(session: &Session) -> Result<Verdict, VerifyError> {
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
        return Ok(Verdict::Done);
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
    Ok(Verdict::Done)
}

pub(super) fn every_version(session: &Session) -> Result<Verdict, VerifyError> {
    let supported = session.supported.iter();
    for version in supported.filter_map(|text| text.parse::<Version>().ok()) {
        let network = session.network_of(version);
        let key = Key::new("one");
        let (added, exchange) =
            network.add_exchange(&key, crate::verify::exchange::Interruption::None)?;
        if !matches!(added, Added::Given(_)) {
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
    Ok(Verdict::Done)
}

pub(super) fn unsupported_version(session: &Session) -> Result<Verdict, VerifyError> {
    for (version, is_required) in [("9.9.9", true), ("not-a-version", false)] {
        let network = session.network();
        let mut config = network.config.clone();
        config["cniVersion"] = version.into();
        let call = network.call("ADD", &Key::new("one"));
        let exchange = session.call(&call.with_stdin(config.to_string()))?;
        let (code, _) = exchange.error();
        // What is no version at all may as well fail to be decoded, or to be valid.
        let codes: &[u64] = if is_required { &[1] } else { &[1, 6, 7] };
        if exchange.succeeded() || !codes.contains(&code) {
            session.find(
                "unsupported-version",
                Severity::Violation,
                format!("ADD in {version}: {}", exchange.summary()),
                "an error with code 1",
                vec![session.step(&exchange)],
            );
            session.call(&network.call("DEL", &Key::new("one")))?;
        }
    }
    Ok(Verdict::Done)
}
