//! Ingress policies: rules that separate containers of different bridges, or of one bridge.
//!
//! `FORWARD` jumps to `CNI-ISOLATION-STAGE-1` before anything is accepted. That chain sends packets
//! that leave an isolated bridge for another link to `CNI-ISOLATION-STAGE-2`, which drops them if
//! that link is an isolated bridge too. The rules belong to the bridge and not to a container, so
//! they stay when containers go, as in the reference.

use super::iptables::{FORWARD, FilterRules, RuleCommands, quote};

const STAGE_1: &str = "CNI-ISOLATION-STAGE-1";
const STAGE_2: &str = "CNI-ISOLATION-STAGE-2";
const COMMENT: &str =
    r#"-m comment --comment "CNI firewall plugin rules (ingressPolicy: same-bridge|isolated)""#;

/// The isolation of a bridge.
#[derive(Debug)]
pub(super) struct Isolation {
    pub(super) bridge: String,
    /// Also separate the containers of this bridge from each other.
    pub(super) is_isolated: bool,
}

/// A rule of the policy.
struct IsolationRule {
    chain: &'static str,
    /// Place the rule at the beginning of its chain; otherwise at its end.
    is_first: bool,
    /// The rule as `iptables` shows it.
    shown: String,
    /// The rule as `iptables-restore` reads it.
    written: String,
}

impl Isolation {
    /// The rules, in the order in which the reference makes them.
    fn rules(&self) -> [Option<IsolationRule>; 5] {
        let policy = if self.is_isolated {
            "isolated"
        } else {
            "same-bridge"
        };
        let policy = format!(
            r#"-m comment --comment "CNI firewall plugin rules (ingressPolicy: {policy})""#
        );
        let rule = |chain, is_first, words: &str| IsolationRule {
            chain,
            is_first,
            shown: words.replace("BRIDGE", &self.bridge),
            written: words.replace("BRIDGE", &quote(&self.bridge)),
        };
        let drop_own = format!("-i BRIDGE -o BRIDGE {policy} -j DROP");
        let leaving = format!("-i BRIDGE ! -o BRIDGE {policy} -j {STAGE_2}");
        let drop_entering = format!("-o BRIDGE {COMMENT} -j DROP");
        let back = format!("{COMMENT} -j RETURN");
        [
            Some(rule(STAGE_1, true, &leaving)),
            self.is_isolated.then(|| rule(STAGE_1, true, &drop_own)),
            Some(rule(STAGE_1, false, &back)),
            Some(rule(STAGE_2, true, &drop_entering)),
            Some(rule(STAGE_2, false, &back)),
        ]
    }

    /// Makes the missing chains and rules, except the jump from `FORWARD`.
    pub(super) fn make(&self, present: &FilterRules, commands: &mut RuleCommands) {
        commands.ensure_chain(present, STAGE_1);
        commands.ensure_chain(present, STAGE_2);
        for rule in self.rules().into_iter().flatten() {
            if !is_present(present, rule.chain, &rule.shown) {
                let place = if rule.is_first { "-I" } else { "-A" };
                commands.push_shared(&format!("{place} {} {}", rule.chain, rule.written));
            }
        }
    }

    /// Checks that all rules exist.
    ///
    /// # Errors
    /// The first missing rule.
    pub(super) fn check(&self, present: &FilterRules) -> Result<(), String> {
        let jump = IsolationRule {
            chain: FORWARD,
            is_first: true,
            shown: entrance(),
            written: entrance(),
        };
        let rules = self.rules().into_iter().flatten();
        for rule in [jump].into_iter().chain(rules) {
            if !is_present(present, rule.chain, &rule.shown) {
                let words = rule.shown.replace('"', "");
                return Err(format!("expected {} rule [{words}] not found", rule.chain));
            }
        }
        Ok(())
    }
}

fn entrance() -> String {
    format!("{COMMENT} -j {STAGE_1}")
}

/// Moves the jump to the first stage before the rule `accepting`, which would otherwise precede it.
/// Makes the jump if it is missing and `is_wanted`.
pub(super) fn put_first(
    present: &FilterRules,
    is_wanted: bool,
    accepting: &str,
    commands: &mut RuleCommands,
) {
    let own = without_comment(&entrance());
    let jumps: Vec<_> = present
        .of(FORWARD)
        .filter(|rule| without_comment(rule) == own)
        .collect();
    let rules = || present.of(FORWARD);
    let accepts = rules().position(|rule| rule == accepting);
    let isolates = rules().position(|rule| jumps.first() == Some(&rule));
    let is_first = match (isolates, accepts) {
        (Some(isolates), Some(accepts)) => isolates < accepts,
        (Some(_), None) => !commands.inserts_first(accepting),
        (None, _) => !is_wanted,
    };
    if is_first {
        return;
    }
    for jump in jumps {
        commands.push_shared(&format!("-D {FORWARD} {jump}"));
    }
    commands.push_shared(&format!("-I {FORWARD} {}", entrance()));
}

/// Compares without comments, since versions of the reference differ in them.
fn is_present(present: &FilterRules, chain: &str, rule: &str) -> bool {
    let rule = without_comment(rule);
    present
        .of(chain)
        .any(|other| without_comment(other) == rule)
}

fn without_comment(rule: &str) -> String {
    const START: &str = r#"-m comment --comment "CNI firewall plugin rules"#;
    let split = rule.split_once(START).and_then(|(before, rest)| {
        let (_, after) = rest.split_once("\" ")?;
        Some(format!("{before}{after}"))
    });
    split.unwrap_or_else(|| rule.to_owned())
}
