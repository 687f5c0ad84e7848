//! The checks. Each is a function, which records its findings in the session.

pub(super) mod answers;
mod collect;
pub(super) mod dual;
mod environment;
mod junk;
mod kill;
mod lease;
mod random;

use std::sync::atomic::Ordering;

use super::{Amount, Halt, session::Session};

/// The end of a check that was begun.
#[derive(Debug)]
pub(super) enum CheckVerdict {
    Done,
    /// The check could not be run on this plugin, for this reason.
    Skipped(String),
    /// The verification was stopped meanwhile.
    Stopped,
}

fn skipped(why: &str) -> Result<CheckVerdict, Halt> {
    Ok(CheckVerdict::Skipped(why.to_owned()))
}

const ENDLESS: &str = "the range seems to have no end; give one of at most --max-addresses";
const MANY: &str = "the range is too large for --quick; give one with a few addresses";
const STATELESS: &str = "the plugin keeps no state";
const SAME_ADDRESS: &str = "two containers were given the same address; see --stateless";
const OTHER_KEYS: &str =
    "the plugin does not follow the keys of host-local's ranges that this takes; see --range-keys";
const NO_1_1_0: &str = "the plugin does not support CNI 1.1.0";

/// Skips a check that has to count addresses, since they cannot be counted.
fn uncountable(session: &Session) -> Result<CheckVerdict, Halt> {
    skipped(match session.options.amount {
        _ if session.is_stateless() => STATELESS,
        _ if session.gives_same_address.load(Ordering::Relaxed) => SAME_ADDRESS,
        Amount::Quick => MANY,
        _ => ENDLESS,
    })
}

type CheckFn = fn(&Session) -> Result<CheckVerdict, Halt>;

/// An entry of the table of checks.
pub(super) struct Check {
    pub(super) id: &'static str,
    pub(super) title: &'static str,
    pub(super) basis: &'static str,
    /// `None` for checks that look at every answer of all calls.
    pub(super) run: Option<CheckFn>,
}

macro_rules! checks {
    ($($id:literal, $title:literal, $basis:literal, $run:expr;)*) => {
        &[$(Check { id: $id, title: $title, basis: $basis, run: $run }),*]
    };
}

/// All checks, in the order in which they are run. The ids are stable.
pub(super) const CHECKS: &[Check] = checks! {
    "version-answer", "VERSION tells the supported versions", "CNI 1.1.0 §2 VERSION, §5 VERSION Success", Some(answers::version_answer);
    "every-version", "ADD answers in each supported version, DEL takes it back", "CNI 1.1.0 §5 ADD Success; the specification of each version", Some(answers::every_version);
    "unsupported-version", "an unknown cniVersion is refused with code 1", "CNI 1.1.0 §5 Error, code 1", Some(answers::unsupported_version);
    "env-missing", "a missing variable is refused with code 4 and named", "CNI 1.1.0 §2 required parameters, §5 Error, code 4", Some(environment::missing);
    "env-invalid", "invalid ids and interface names are refused with code 4", "CNI 1.1.0 §2 CNI_CONTAINERID, CNI_IFNAME", Some(environment::invalid);
    "unknown-command", "an unknown command is refused", "CNI 1.1.0 §5 Error, code 4", Some(environment::unknown_command);
    "own-netns", "the plugin's own namespace is refused cleanly, or ignored", "CNI 1.1.0 §2 CNI_NETNS: isolation domain of the container", Some(environment::own_netns);
    "bad-json", "what is not JSON is refused with code 6", "CNI 1.1.0 §5 Error, code 6", Some(junk::bad_json);
    "bad-config", "a network without a valid name is refused with code 7", "CNI 1.1.0 §1 name; §5 Error, code 7", Some(junk::bad_config);
    "junk-input", "nonsense neither crashes the plugin nor leaks", "CNI 1.1.0 §2 Errors: non-zero exit and an error object", Some(junk::junk_input);
    "exhaustion", "a full range is an error, and not the end", "CNI 1.1.0 §2 Errors", Some(lease::exhaustion);
    "add-repeat", "ADD again errors or gives the same, and leaks nothing", "CNI 1.1.0 §2 ADD: not called twice; one reservation for each attachment", Some(lease::add_repeat);
    "del-idempotent", "DEL again, and of what was never added, succeeds", "CNI 1.1.0 §2 DEL: must accept multiple calls", Some(lease::del_idempotent);
    "del-exact", "DEL frees one attachment and no other", "CNI 1.1.0 §2: attachments are told apart by container and interface", Some(lease::del_exact);
    "del-without-netns", "DEL without CNI_NETNS and prevResult frees the address", "CNI 1.1.0 §2 DEL: CNI_NETNS is optional", Some(lease::del_without_netns);
    "check-answer", "CHECK succeeds after ADD and fails after DEL", "CNI 1.1.0 §2 CHECK: should fail when an IP reservation is missing", Some(lease::check_answer);
    "networks-apart", "networks do not touch each other's attachments", "CNI 1.1.0 §1 name: unique across all networks of a host", Some(lease::networks_apart);
    "rollback-keeps-others", "a failed ADD takes nothing away that was there before", "CNI 1.1.0 §2 ADD; an address of a live attachment is its own", Some(dual::rollback_keeps_others);
    "failed-add-leaves-nothing", "an ADD that fails keeps no address of another range", "CNI 1.1.0 §2 Errors; a retry must not eat the range up", Some(dual::failed_add_leaves_nothing);
    "range-bounds", "no configured start or end leads out of the subnet", "CNI 1.1.0 §5 Error, code 7", Some(dual::range_bounds);
    "gc-supported", "GC can be used", "CNI 1.1.0 §2 GC; without it leases survive a reboot", Some(collect::gc_supported);
    "gc-frees-stale", "GC frees what is not in the list of valid attachments", "CNI 1.1.0 §2 GC: should remove stale IPAM reservations", Some(collect::gc_frees_stale);
    "gc-keeps-valid", "GC keeps what is in the list", "CNI 1.1.0 §2 GC", Some(collect::gc_keeps_valid);
    "gc-absent-list", "GC without a list frees nothing", "CNI 1.1.0 §2 GC: only what is known not to be valid; libcni omits an absent list", Some(collect::gc_absent_list);
    "status-answer", "STATUS succeeds when addresses are free, and is 50 or 51 when none is", "CNI 1.1.0 §2 STATUS", Some(collect::status_answer);
    "random-sequence", "random ADD, DEL, CHECK, GC and SIGKILL agree with a model", "an address has one owner at a time, and DEL frees it", Some(random::sequence);
    "concurrent-fill", "as many concurrent ADDs succeed as there are addresses", "CNI 1.1.0 §3: plugins are run in parallel for different containers", Some(random::concurrent_fill);
    "concurrent-sequence", "concurrent ADD and DEL neither leak nor fail", "CNI 1.1.0 §3: plugins are run in parallel for different containers", Some(random::concurrent);
    "concurrent-kill", "the same with SIGKILL at random moments", "CNI 1.1.0 §2 DEL: frees what an ADD that did not finish has left", Some(random::concurrent_kill);
    "kill-add-leaks-nothing", "SIGKILL in ADD, then DEL: the address is free", "CNI 1.1.0 §2 DEL: frees what an ADD that did not finish has left", Some(kill::kill_add);
    "kill-del-leaks-nothing", "SIGKILL in DEL, then DEL again: the address is free", "CNI 1.1.0 §2 DEL: must accept multiple calls", Some(kill::kill_del);
    "full-disk", "what cannot be written is not leased", "CNI 1.1.0 §5 Error, code 5; a failed ADD has no address", Some(kill::full_disk);
    "add-unique", "no address has two live attachments", "what an IPAM plugin is for (CNI 1.1.0 §4)", None;
    "result-range", "addresses are of the range, and not the gateway's", "CNI 1.1.0 §5 ADD Success", None;
    "result-form", "each result has the form of its version", "CNI 1.1.0 §5 ADD Success, Delegated plugins (IPAM)", None;
    "del-succeeds", "DEL succeeds", "CNI 1.1.0 §2 DEL: completes without error even if resources are missing", None;
    "error-shape", "failures print an error object", "CNI 1.1.0 §5 Error", None;
    "stdout-clean", "one JSON document on standard output, and nothing else", "CNI 1.1.0 §2: the result is standard output", None;
    "silent-success", "DEL, CHECK, GC and STATUS print nothing when they succeed", "CNI 1.1.0 §2 CHECK, GC: no output on success", None;
    "no-crash", "the plugin does not crash", "CNI 1.1.0 §2 Errors", None;
    "no-hang", "every call ends in time", "CNI 1.1.0 §2", None;
};
