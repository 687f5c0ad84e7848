//! Checks of GC and STATUS, which came with CNI 1.1.0.

use super::{CheckVerdict, NO_1_1_0, skipped, uncountable};
use podplane_cni::types::Version;

use crate::{
    Halt, Severity,
    exchange::Interruption,
    network::{AddOutcome, AttachmentKey, Network},
    session::Session,
};

fn has_gc(session: &Session) -> bool {
    session.supports(Version::V1_1_0)
}

fn network(session: &Session) -> Network<'_> {
    session.network_of(Version::V1_1_0)
}

pub(super) fn gc_supported(session: &Session) -> Result<CheckVerdict, Halt> {
    if !has_gc(session) {
        session.find(
            "gc-supported",
            Severity::Note,
            format!("supported are {}", session.supported.join(", ")),
            "CNI 1.1.0, with GC and STATUS; without it what a lost DEL leaves stays for ever",
            Vec::new(),
        );
        return skipped(NO_1_1_0);
    }
    let network = network(session);
    network.add(&AttachmentKey::new("one"))?;
    let exchange = network.gc(Some(&network.live()))?;
    if !exchange.succeeded() {
        session.find(
            "gc-supported",
            Severity::Violation,
            format!("GC: {}", exchange.summary()),
            "success; CNI_COMMAND and CNI_PATH are all that it needs",
            vec![session.step(&exchange)],
        );
    }
    network.clear()?;
    Ok(CheckVerdict::Done)
}

pub(super) fn gc_frees_stale(session: &Session) -> Result<CheckVerdict, Halt> {
    if !has_gc(session) {
        return skipped(NO_1_1_0);
    }
    let network = network(session);
    let Some(filled) = network.fill("fill")? else {
        return uncountable(session);
    };
    let kept = &filled.keys[..1];
    let exchange = network.gc(Some(kept))?;
    let free = network.free("after")?.unwrap_or(0);
    let stale = filled.keys.len() - kept.len();
    if free < stale {
        session.find(
            "gc-frees-stale",
            Severity::Weakness,
            format!(
                "GC: {}; {free} of {stale} stale addresses are free afterwards",
                exchange.summary()
            ),
            "all stale addresses are free",
            vec![session.step(&exchange)],
        );
        network.clear()?;
        return Ok(CheckVerdict::Done);
    }
    // An empty list counts: no attachment is valid.
    let exchange = network.gc(Some(&[]))?;
    let free = network.free("after")?.unwrap_or(0);
    if free < filled.keys.len() {
        session.find(
            "gc-frees-stale",
            Severity::Weakness,
            format!(
                "GC with an empty list: {}; {free} of {} addresses are free afterwards",
                exchange.summary(),
                filled.keys.len()
            ),
            "all addresses are free, because nothing is valid",
            vec![session.step(&exchange)],
        );
    }
    network.clear()?;
    Ok(CheckVerdict::Done)
}

/// Records a finding if a GC with this list frees an address of a live attachment. The range must
/// be full.
fn robs(
    session: &Session,
    check: &'static str,
    network: &Network<'_>,
    valid: Option<&[AttachmentKey]>,
) -> Result<(), Halt> {
    let exchange = network.gc(valid)?;
    let thief = AttachmentKey::new("thief");
    let (added, add) = network.add_exchange(&thief, Interruption::None)?;
    if let AddOutcome::Given(addresses) = added {
        session.find(
            check,
            Severity::Violation,
            format!("GC freed {addresses:?}, which a live attachment has"),
            "what is valid, or not known to be stale, is kept",
            vec![session.step(&exchange), session.step(&add)],
        );
        network.del(&thief)?;
    }
    Ok(())
}

pub(super) fn gc_keeps_valid(session: &Session) -> Result<CheckVerdict, Halt> {
    if !has_gc(session) {
        return skipped(NO_1_1_0);
    }
    let network = network(session);
    network.add(&AttachmentKey::new("fill-0").interface("net1"))?;
    if network.fill("fill")?.is_none() {
        return uncountable(session);
    }
    robs(session, "gc-keeps-valid", &network, Some(&network.live()))?;
    network.clear()?;
    Ok(CheckVerdict::Done)
}

pub(super) fn gc_absent_list(session: &Session) -> Result<CheckVerdict, Halt> {
    if !has_gc(session) {
        return skipped(NO_1_1_0);
    }
    let network = network(session);
    if network.fill("fill")?.is_none() {
        return uncountable(session);
    }
    robs(session, "gc-absent-list", &network, None)?;
    network.clear()?;
    Ok(CheckVerdict::Done)
}

pub(super) fn status_answer(session: &Session) -> Result<CheckVerdict, Halt> {
    if !has_gc(session) {
        return skipped(NO_1_1_0);
    }
    let network = network(session);
    let status = network.call("STATUS", &AttachmentKey::new(""));
    for moment in ["before the first ADD", "after an ADD"] {
        let exchange = session.call(&status)?;
        if !exchange.succeeded() {
            session.find(
                "status-answer",
                Severity::Violation,
                format!("STATUS {moment}: {}", exchange.summary()),
                "success while addresses are free",
                vec![session.step(&exchange)],
            );
        }
        network.add(&AttachmentKey::new("one"))?;
        network.del(&AttachmentKey::new("one"))?;
    }
    if network.fill("fill")?.is_none() {
        return Ok(CheckVerdict::Done);
    }
    let exchange = session.call(&status)?;
    if !matches!(exchange.error().0, 50 | 51) {
        session.find(
            "status-answer",
            Severity::Weakness,
            format!("STATUS when no address is free: {}", exchange.summary()),
            "an error with code 50 or 51",
            vec![session.step(&exchange)],
        );
    }
    network.clear()?;
    Ok(CheckVerdict::Done)
}
