//! `host-local` against Debian's, as whole programs on real files.
//!
//! Random sequences of calls must get the same answers and leave the same files, except for a short
//! list of intended differences ([`intended`]).
//!
//! In one half of the sequences ours has a directory for itself; in the other half both take turns
//! in one directory. Both are compared with the reference alone in another directory.
//!
//! `PODPLANE_SOAK=1` runs ten thousand sequences, `PODPLANE_DIFFERENTIAL=<n>` the one with that
//! number.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod dice;
mod document;
mod generate;
mod intended;
mod outcome;
mod side;
use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs, iter,
    path::{Path, PathBuf},
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use intended::{DIFFERENCES, DifferenceRule, IntendedCall, hide, same};
use podplane_test_network::{DEBIAN, memory_dir, our_plugins, require};
use side::{ObservedResult, PluginInput, PluginSide, Tree};

/// The number of times that the reference is asked again if its answer depends on chance. Go begins
/// its walk of a small map at one of eight places, so the second of two requests comes first in
/// only one of eight cases.
const TRIES: usize = 200;

/// The number of faults that are shown.
const SHOWN: usize = 5;

/// Events, with the number of times each happened.
type Tally = BTreeMap<String, usize>;

#[test]
fn ours_and_debians_give_the_same_answers_and_files() {
    if !require(&["cni-plugins"]) {
        return;
    }
    let number = |key: &str| -> Option<u64> { Some(std::env::var(key).ok()?.parse().expect(key)) };
    let is_soak = std::env::var_os("PODPLANE_SOAK").is_some();
    let all = match number("PODPLANE_DIFFERENTIAL") {
        Some(only) => only..only + 1,
        None if is_soak => 0..10_000,
        None => 0..300,
    };
    let is_single = all.end - all.start == 1;
    let sequences = all.end - all.start;
    let (next, tally, faults) = (
        AtomicU64::new(all.start),
        Mutex::new(Tally::new()),
        Mutex::new(Vec::new()),
    );
    let work = || {
        let arena = Arena::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= all.end || faults.lock().unwrap().len() >= SHOWN {
                return;
            }
            let (reached, fault) = arena.play(number);
            let mut tally = tally.lock().unwrap();
            for (what, times) in reached {
                *tally.entry(what).or_default() += times;
            }
            faults.lock().unwrap().extend(fault);
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(2, usize::from) {
            scope.spawn(work);
        }
    });
    let tally = tally.into_inner().unwrap();
    for (what, times) in &tally {
        println!("{times:>8}  {what}");
    }
    for difference in DIFFERENCES {
        println!("intended: {}: {}", difference.name, difference.why);
    }
    let faults = faults.into_inner().unwrap();
    assert!(
        faults.is_empty(),
        "{} of {sequences} sequences differ:\n{}",
        faults.len(),
        faults.join("\n")
    );
    if !is_single {
        outcome::assert_reached(&tally, sequences);
    }
}

/// Directories for the sequences of one thread.
struct Arena {
    /// In memory if possible: a disk would take most of the time.
    _home: tempfile::TempDir,
    theirs: PluginSide,
    ours: PluginSide,
    /// The directory in which the reference is asked again.
    again: PluginSide,
    debians: PathBuf,
    plugin: PathBuf,
}

impl Arena {
    fn new() -> Self {
        let home = memory_dir();
        let resolv_conf = "# c\nnameserver 10.96.0.10 x\nsearch a b\n search c\ndomain d\noptions ndots:5 <&>\n;x\nsearch\n";
        fs::write(home.path().join("resolv.conf"), resolv_conf).unwrap();
        let side = |name| PluginSide::new(home.path(), name);
        Self {
            theirs: side("theirs"),
            ours: side("ours"),
            again: side("again"),
            _home: home,
            debians: Path::new(DEBIAN).join("host-local"),
            plugin: our_plugins().join("host-local"),
        }
    }

    /// Plays a sequence to its end, or to the first fault.
    fn play(&self, number: u64) -> (Tally, Option<String>) {
        let sequence = generate::sequence(number);
        let mut tally = Tally::new();
        let mut count = |what: String| *tally.entry(what).or_default() += 1;
        count(format!(
            "sequence, {}",
            if sequence.is_shared {
                "taking turns"
            } else {
                "apart"
            }
        ));
        self.theirs.set(&sequence.before);
        self.ours.set(&sequence.before);
        for (index, (call, by_ours)) in sequence.calls.iter().enumerate() {
            let by_ours = *by_ours || !sequence.is_shared;
            let step = IntendedCall {
                call: call.clone(),
                tree: self.theirs.tree(),
            };
            let theirs = self.theirs.run(&self.debians, call);
            let program = if by_ours { &self.plugin } else { &self.debians };
            let ours = self.ours.run(program, call);
            for what in outcome::of(&step, &theirs) {
                count(what);
            }
            if same(&theirs, &ours) {
                continue;
            }
            match self.intended(&step, &theirs, &ours) {
                Ok(names) => {
                    for name in names {
                        count(format!("intended: {name}"));
                    }
                    // Both continue with the same files: ours if ours is right, so that the
                    // reference also works on what ours has left.
                    let tree = if theirs.code == Some(2) || index % 2 == 0 {
                        &ours.tree
                    } else {
                        &theirs.tree
                    };
                    self.theirs.set(tree);
                    self.ours.set(tree);
                }
                Err(reference) => {
                    let fault = describe(number, index, by_ours, &step, &reference, &ours);
                    return (tally, Some(fault));
                }
            }
        }
        (tally, None)
    }

    /// The intended differences that explain our answer, or else the reference's answer with all
    /// differences considered.
    fn intended(
        &self,
        step: &IntendedCall,
        theirs: &ObservedResult,
        ours: &ObservedResult,
    ) -> Result<Vec<&'static str>, Box<ObservedResult>> {
        let ask = |step: &IntendedCall| {
            self.again.set(&step.tree);
            self.again.run(&self.debians, &step.call)
        };
        let mut names = Vec::new();
        let (mut step, mut theirs, mut ours) = (step.clone(), theirs.clone(), ours.clone());
        for difference in DIFFERENCES {
            if let DifferenceRule::Instead(instead) = difference.how
                && let Some(other) = instead(&step)
            {
                ours = hide(&ours, &step.tree, &other.tree);
                step = other;
                theirs = ask(&step);
                names.push(difference.name);
                if same(&theirs, &ours) {
                    return Ok(names);
                }
            }
        }
        let by_chance = DIFFERENCES
            .iter()
            .find(|difference| matches!(difference.how, DifferenceRule::Chance(is_up_to) if is_up_to(&step)));
        let tries = if by_chance.is_some() { TRIES } else { 0 };
        let again = (0..tries).map(|_| ask(&step));
        for (index, theirs) in iter::once(theirs.clone()).chain(again).enumerate() {
            let answer = DIFFERENCES.iter().find(|difference| {
                matches!(difference.how, DifferenceRule::Answer(explains) if explains(&step, &theirs, &ours))
            });
            if answer.is_some() || same(&theirs, &ours) {
                let chance = by_chance.filter(|_| index > 0);
                names.extend([chance, answer].into_iter().flatten().map(|d| d.name));
                return Ok(names);
            }
        }
        Err(Box::new(theirs))
    }
}

fn describe(
    number: u64,
    index: usize,
    by_ours: bool,
    step: &IntendedCall,
    theirs: &ObservedResult,
    ours: &ObservedResult,
) -> String {
    let IntendedCall {
        call: PluginInput { env, config },
        tree,
    } = step;
    let mut text = format!(
        "\n=== PODPLANE_DIFFERENTIAL={number}, call {index}, by ours: {by_ours}\n{env:?}\n{config}\n"
    );
    let mut show = |title: &str, tree: &Tree| {
        _ = writeln!(text, "{title}:");
        for (path, (node, mode)) in tree {
            let node = format!("{node:?}");
            let node = match node.strip_prefix("File(") {
                Some(_) => match &tree[path].0 {
                    side::FileNode::File(content) => {
                        format!("{:?}", String::from_utf8_lossy(content))
                    }
                    _ => node,
                },
                None => node,
            };
            _ = writeln!(text, "    {path} {mode:o} {node}");
        }
    };
    show("before", tree);
    show("reference", &theirs.tree);
    show("ours", &ours.tree);
    for (title, seen) in [("reference", theirs), ("ours", ours)] {
        _ = writeln!(
            text,
            "{title}: {:?}\n{}\n{}",
            seen.code, seen.stdout, seen.stderr
        );
    }
    text
}
