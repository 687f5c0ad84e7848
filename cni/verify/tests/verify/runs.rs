//! The output of a run of `verify` beside its findings: commands, hints, estimates, and checks that
//! were not run.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::Ordering,
    time::Duration,
};

use podplane_cni_verify::{
    Amount, CheckOutcome, Event, Severity, Template, VerifyOptions, VerifyReport,
};
use podplane_test_network::{DEBIAN, our_plugins, require};
use serde_json::json;
use tempfile::TempDir;

use super::{failed, options, print, python_plugin};

/// Makes a program with this text.
fn script(dir: &Path, name: &str, text: &str) -> PathBuf {
    let path = dir.join(name);
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// Runs these lines as if they were pasted, and checks that they leave nothing. `instead` is a
/// plugin to run in place of the verified one.
fn paste(commands: &str, instead: Option<&Path>) -> String {
    let temporary = tempfile::tempdir().unwrap();
    let lines = commands.lines().map(|line| match instead {
        Some(plugin) if line.starts_with("plugin=") => format!("plugin={}", plugin.display()),
        _ => line.to_owned(),
    });
    let lines: Vec<_> = lines.collect();
    let mut shell = Command::new("sh");
    shell.args(["-c", &lines.join("\n")]);
    let output = shell.env("TMPDIR", temporary.path()).output().unwrap();
    assert_eq!(fs::read_dir(temporary.path()).unwrap().count(), 0);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    println!("{text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

fn commands(report: &VerifyReport, check: &str) -> String {
    let mut findings = report.findings();
    let found =
        findings.find(|finding| finding.check == check && finding.severity > Severity::Note);
    found.unwrap_or_else(|| panic!("{check}")).commands.clone()
}

fn verified(plugin: &Path, template: Template, amount: Amount, check: &str) -> VerifyReport {
    let dir = tempfile::tempdir().unwrap();
    let options = VerifyOptions {
        amount,
        max_addresses: 16,
        ..options(plugin, template, dir.path())
    };
    let selected = |id: &str| {
        id == check
            || podplane_cni_verify::list().any(|info| info.id == id && info.is_of_every_answer)
    };
    let report = podplane_cni_verify::verify(options, &selected, &mut |_| {}).unwrap();
    print(&report, 1);
    report
}

fn python_template() -> Template {
    let config = json!({"ipam": {"dataDir": "", "ranges": [[{"subnet": "10.0.0.0/29"}]]}});
    Template::parse(config.to_string().as_bytes()).unwrap()
}

/// A fault of `peers/ipam.py`, the check that finds it, and the exit code of the last call with the
/// fault; a correct plugin has the other one.
const REPEATED: [(&str, &str, i32); 6] = [
    ("keeps", "exhaustion", 1),
    ("greedy-del", "del-exact", 0),
    ("strict-del", "del-idempotent", 1),
    ("blind-check", "check-answer", 0),
    ("wild-gc", "gc-absent-list", 0),
    ("idle-gc", "gc-frees-stale", 1),
];

#[test]
fn commands_repeat_the_finding_from_the_beginning() {
    if !require(&["python3"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let correct = python_plugin(dir.path(), "");
    for (fault, check, code) in REPEATED {
        let plugin = python_plugin(dir.path(), &format!(",{fault}"));
        let report = verified(&plugin, python_template(), Amount::Rounds(1), check);
        let commands = commands(&report, check);
        let ends =
            |text: &str, code: i32| text.trim_end().ends_with(&format!("(exit code {code})"));
        assert!(ends(&paste(&commands, None), code), "{fault}: {commands}");
        let right = paste(&commands, Some(&correct));
        assert!(ends(&right, 1 - code), "{fault}, correct: {commands}");
    }
}

/// The addresses that ADDs got, from the lines that a script prints.
fn given(text: &str) -> Vec<&str> {
    let adds = text.lines().filter(|line| line.starts_with("ADD many-"));
    let address = |line: &'_ str| line.split("\"address\": \"").nth(1).map(str::len);
    adds.filter_map(|line| {
        let rest = address(line)?;
        line[line.len() - rest..].split('"').next()
    })
    .collect()
}

#[test]
fn commands_repeat_calls_at_the_same_time() {
    if !require(&["python3"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let plugin = python_plugin(dir.path(), ",no-lock");
    let report = verified(
        &plugin,
        python_template(),
        Amount::Rounds(1),
        "concurrent-fill",
    );
    let commands = commands(&report, "concurrent-fill");
    assert!(commands.contains("\nwait\n"), "{commands}");
    let twice = |text: &str| given(text).len() - given(text).iter().collect::<BTreeSet<_>>().len();
    // The machine decides which calls run at the same time.
    let found = (0..10).any(|_| twice(&paste(&commands, None)) > 0);
    assert!(found, "{commands}");
    let correct = python_plugin(dir.path(), "");
    assert_eq!(twice(&paste(&commands, Some(&correct))), 0);
}

#[test]
fn commands_repeat_what_the_reference_does() {
    if !require(&["cni-plugins"]) {
        return;
    }
    let plugin = PathBuf::from(DEBIAN).join("host-local");
    let ours = &our_plugins().join("host-local");
    let template = || Template::host_local("host-local");
    for (check, check_of_finding, wrong) in [
        (
            "rollback-keeps-others",
            "rollback-keeps-others",
            "ADD other eth0: {\n",
        ),
        ("range-bounds", "result-range", "10.91.0.8/29"),
        ("full-disk", "full-disk", "no IP addresses available"),
        ("junk-input", "no-crash", "exit code 2"),
    ] {
        let report = verified(&plugin, template(), Amount::Rounds(30), check);
        let commands = commands(&report, check_of_finding);
        let text = paste(&commands, None);
        assert!(text.contains(wrong), "{check}: {commands}");
        let right = paste(&commands, Some(ours));
        let last = right.lines().last().unwrap_or_default();
        assert!(!last.contains(wrong), "{check}: {commands}");
    }
}

#[test]
fn finding_keeps_the_last_lines_of_stderr() {
    let dir = tempfile::tempdir().unwrap();
    let ours = our_plugins().join("host-local");
    let ours = ours.display();
    let text =
        format!("#!/bin/sh\n[ $CNI_COMMAND != FOO ] || {{ seq 20 >&2; exit 0; }}\nexec {ours}\n");
    let plugin = script(dir.path(), "spoiled", &text);
    let template = Template::host_local("host-local");
    let report = verified(&plugin, template, Amount::Rounds(1), "unknown-command");
    let mut findings = report.findings();
    let found = findings
        .find(|finding| finding.check == "unknown-command")
        .unwrap();
    assert_eq!(found.steps[0].last_stderr(2), ["19", "20"]);
}

/// Runs all checks, and calls `each` for each event.
fn observed(options: VerifyOptions, each: &mut dyn FnMut(&Event<'_>)) -> VerifyReport {
    let report =
        podplane_cni_verify::verify(options, &|_| true, &mut |event| each(&event)).unwrap();
    print(&report, 1);
    report
}

fn ours(dir: &TempDir) -> VerifyOptions {
    let plugin = our_plugins().join("host-local");
    options(&plugin, Template::host_local("host-local"), dir.path())
}

fn count(report: &VerifyReport, wanted: impl Fn(&CheckOutcome) -> bool) -> usize {
    let outcomes = report.checks.iter().map(|check| &check.outcome);
    outcomes.filter(|outcome| wanted(outcome)).count()
}

#[test]
fn estimate_is_close_to_the_number_of_calls() {
    let dir = tempfile::tempdir().unwrap();
    let mut estimate = 0;
    let amount = Amount::Rounds(10);
    let report = observed(
        VerifyOptions {
            amount,
            ..ours(&dir)
        },
        &mut |event| {
            if let Event::Began { calls, .. } = event {
                estimate = *calls;
            }
        },
    );
    let (least, most) = (report.calls * 2 / 3, report.calls * 3 / 2);
    assert!(
        (least..most).contains(&estimate),
        "{estimate}, made {}",
        report.calls
    );
}

#[test]
fn reports_each_check_as_it_ends() {
    let dir = tempfile::tempdir().unwrap();
    let (mut begun, mut ended) = (Vec::new(), Vec::new());
    let report = observed(ours(&dir), &mut |event| match event {
        Event::Began { checks, .. } => assert!(*checks > 20),
        Event::CheckBegan { id, .. } => {
            // The checks before have been reported.
            assert_eq!(begun, ended);
            begun.push(*id);
        }
        Event::CheckEnded(check) => ended.push(check.id),
    });
    let all: Vec<_> = report.checks.iter().map(|check| check.id).collect();
    assert_eq!(ended, all);
}

#[test]
fn report_after_a_stop_names_checks_not_run() {
    let dir = tempfile::tempdir().unwrap();
    let options = ours(&dir);
    let stop = options.stop.clone();
    let report = observed(options, &mut |event| {
        if matches!(
            event,
            Event::CheckBegan {
                id: "exhaustion",
                ..
            }
        ) {
            stop.store(true, Ordering::Relaxed);
        }
    });
    assert!(report.is_partial);
    let outcome = |id: &str| {
        let mut checks = report.checks.iter();
        checks
            .find(|check| check.id == id)
            .map(|check| &check.outcome)
    };
    assert_eq!(outcome("bad-json"), Some(&CheckOutcome::Passed));
    assert_eq!(outcome("exhaustion"), Some(&CheckOutcome::Stopped));
    assert!(matches!(
        outcome("add-repeat"),
        Some(CheckOutcome::NotRun(_))
    ));
    assert_eq!(outcome("add-unique"), Some(&CheckOutcome::Stopped));
    assert_eq!(report.checks.len(), podplane_cni_verify::list().count());
}

#[test]
fn report_after_a_stop_of_the_first_calls_has_no_result() {
    let dir = tempfile::tempdir().unwrap();
    let options = ours(&dir);
    options.stop.store(true, Ordering::Relaxed);
    let mut left = Some(Duration::ZERO);
    let report = observed(options, &mut |event| {
        if let Event::Began { left: told, .. } = event {
            left = *told;
        }
    });
    assert!(report.is_partial && left.is_none() && report.calls == 0);
    assert_eq!(
        count(&report, |outcome| *outcome == CheckOutcome::Passed),
        0
    );
}

#[test]
fn quick_takes_ten_seconds_at_most() {
    if !require(&["python3"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    // Slower than any plugin in Python, so that not all checks fit.
    let python = python_plugin(dir.path(), "");
    let text = format!("#!/bin/sh\nsleep 0.1\nexec {} \n", python.display());
    let slow = script(dir.path(), "slow", &text);
    let options = VerifyOptions {
        amount: Amount::Quick,
        ..options(&slow, python_template(), dir.path())
    };
    let report = observed(options, &mut |_| {});
    assert!(report.took <= Duration::from_secs(10), "{:?}", report.took);
    assert_eq!(failed(&report), BTreeSet::new());
    assert_eq!(report.checks.len(), podplane_cni_verify::list().count());
    let is_left_out = |outcome: &CheckOutcome| matches!(outcome, CheckOutcome::NotRun(why) if why.starts_with("no time is left"));
    assert!(count(&report, is_left_out) > 5);
    assert!(!report.is_partial);
    // The checks that find most come first.
    let first = [0, 1].map(|place| report.checks[place].id);
    assert_eq!(first, ["version-answer", "check-answer"]);
}

#[test]
fn quick_runs_all_checks_of_a_plugin_that_is_fast() {
    let dir = tempfile::tempdir().unwrap();
    let report = observed(
        VerifyOptions {
            amount: Amount::Quick,
            ..ours(&dir)
        },
        &mut |_| {},
    );
    assert_eq!(failed(&report), BTreeSet::new());
    assert!(report.took <= Duration::from_secs(10), "{:?}", report.took);
    // The checks of every answer, and some more, however busy the machine is.
    assert!(count(&report, |outcome| *outcome == CheckOutcome::Passed) > 12);
}

#[test]
fn detects_a_plugin_without_state_and_suggests_the_flag() {
    let dir = tempfile::tempdir().unwrap();
    let plugin = &our_plugins().join("static");
    let config = json!({"ipam": {"addresses": [{"address": "10.0.0.5/24"}]}}).to_string();
    let options = || {
        let template = Template::parse(config.as_bytes()).unwrap();
        options(plugin, template, dir.path())
    };
    let report = observed(options(), &mut |_| {});
    let hints = report.about.hints.join("\n");
    assert!(hints.contains("--stateless"), "{hints}");
    assert!(failed(&report).contains("add-unique"));
    let report = observed(
        VerifyOptions {
            stateless: true,
            ..options()
        },
        &mut |_| {},
    );
    assert_eq!(failed(&report), BTreeSet::new());
    assert_eq!(report.about.hints, [""; 0]);
    assert!(count(&report, |outcome| *outcome == CheckOutcome::Passed) > 15);
}

#[test]
fn hints_at_a_store_of_the_plugins_own_and_leaves_it_empty() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let text = format!(
        "#!/bin/sh\nsed 's|\"dataDir\":\"[^\"]*\"|\"dataDir\":\"{}\"|' | {}\n",
        store.display(),
        our_plugins().join("host-local").display()
    );
    let plugin = script(dir.path(), "elsewhere", &text);
    let stopped = options(&plugin, Template::host_local("host-local"), dir.path());
    let stop = stopped.stop.clone();
    let mut calls = 0;
    // Half of the addresses are given.
    let report = observed(stopped, &mut |event| {
        if matches!(
            event,
            Event::CheckBegan {
                id: "exhaustion",
                ..
            }
        ) {
            let stop = stop.clone();
            let leases = store.clone();
            calls += 1;
            std::thread::spawn(move || {
                while leases_in(&leases) < 6 {
                    std::thread::yield_now();
                }
                stop.store(true, Ordering::Relaxed);
            });
        }
    });
    assert_eq!(calls, 1);
    assert!(report.is_partial);
    assert!(report.about.hints[0].contains("ipam.dataDir"));
    assert_eq!(
        (leases_in(&store), report.left.as_slice()),
        (0, [].as_slice())
    );
}

/// The number of leases in all networks of a directory.
fn leases_in(store: &Path) -> usize {
    let networks = fs::read_dir(store).into_iter().flatten().flatten();
    let names = networks.flat_map(|network| fs::read_dir(network.path()).into_iter().flatten());
    let names = names.flatten().map(|entry| entry.file_name());
    names
        .filter(|name| name.to_string_lossy().starts_with("10."))
        .count()
}
