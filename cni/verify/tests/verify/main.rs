//! `verify` finds the known faults of the reference, and none in ours.
#![expect(clippy::unwrap_used, reason = "a test")]
#![expect(clippy::print_stdout, reason = "what was found is what a reader wants")]

mod runs;

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use podplane_cni_verify::{Amount, CheckOutcome, RangeKeys, Template, VerifyOptions, VerifyReport};
use podplane_test_network::{DEBIAN, our_plugins, require};
use serde_json::json;

/// The checks that fail for host-local 1.1.1 in every run. `docs/cni.md` explains each fault.
const ALWAYS: [&str; 6] = [
    "add-unique",
    "full-disk",
    "no-crash",
    "range-bounds",
    "result-range",
    "rollback-keeps-others",
];
/// The check of its lease, which is created empty and then written; it fails if a kill strikes
/// between the two.
const KILLED: &str = "kill-add-leaks-nothing";
/// The checks that may fail by the same fault, if one of their kills strikes there.
const ALSO_KILLED: [&str; 2] = ["concurrent-kill", "random-sequence"];

fn rounds(short: u32, soak: u32) -> u32 {
    let is_soak = std::env::var_os("PODPLANE_SOAK").is_some();
    if is_soak { soak } else { short }
}

fn verify(plugin: &Path, seed: u64, rounds: u32, selected: &dyn Fn(&str) -> bool) -> VerifyReport {
    let timeout = Duration::from_secs(60);
    verify_within(timeout, plugin, seed, rounds, selected)
}

fn verify_within(
    timeout: Duration,
    plugin: &Path,
    seed: u64,
    rounds: u32,
    selected: &dyn Fn(&str) -> bool,
) -> VerifyReport {
    let dir = tempfile::tempdir().unwrap();
    let options = VerifyOptions {
        seed,
        amount: Amount::Rounds(rounds),
        timeout,
        ..options(plugin, Template::host_local("host-local"), dir.path())
    };
    report(options, selected)
}

fn options(plugin: &Path, template: Template, directory: &Path) -> VerifyOptions {
    VerifyOptions {
        plugin: plugin.to_owned(),
        template,
        directory: directory.to_owned(),
        seed: 1,
        amount: Amount::Rounds(1),
        concurrency: 8,
        range_keys: RangeKeys::Auto,
        cni_version: None,
        netns: None,
        timeout: Duration::from_secs(60),
        max_addresses: 256,
        stateless: false,
        stop: Arc::default(),
    }
}

fn report(options: VerifyOptions, selected: &dyn Fn(&str) -> bool) -> VerifyReport {
    let seed = options.seed;
    let report = podplane_cni_verify::verify(options, selected, &mut |_| {}).unwrap();
    print(&report, seed);
    report
}

fn print(report: &VerifyReport, seed: u64) {
    println!(
        "{}: seed {seed}, {} calls, {} kills, {:.1?}",
        report.about.program.display(),
        report.calls,
        report.kills,
        report.took
    );
    for check in &report.checks {
        println!("{:26} {:?} {:.1?}", check.id, check.outcome, check.took);
        for finding in &check.findings {
            println!(
                "    {} ×{}: {}",
                finding.severity, finding.times, finding.seen
            );
            for step in &finding.steps {
                println!("        {step} # {} {}", step.interruption(), step.answer());
            }
        }
    }
}

fn failed(report: &VerifyReport) -> BTreeSet<&'static str> {
    let failed = report
        .checks
        .iter()
        .filter(|check| check.outcome == CheckOutcome::Failed);
    failed.map(|check| check.id).collect()
}

#[test]
fn the_reference_has_its_known_faults_and_no_others() {
    if !require(&["cni-plugins"]) {
        return;
    }
    let plugin = PathBuf::from(DEBIAN).join("host-local");
    let mut found = BTreeSet::new();
    // A kill has to strike between two system calls, which cannot be forced from outside.
    for seed in 1..=20 {
        let report = verify(&plugin, seed, rounds(60, 400), &|check| {
            seed == 1 || check == KILLED
        });
        found.extend(failed(&report));
        if found.contains(KILLED) {
            break;
        }
    }
    for also in ALSO_KILLED {
        found.remove(also);
    }
    let expected: BTreeSet<_> = ALWAYS.into_iter().chain([KILLED]).collect();
    assert_eq!(found, expected);
}

#[test]
fn our_plugin_has_no_faults() {
    let plugin = our_plugins().join("host-local");
    let report = verify(&plugin, 1, rounds(60, 400), &|_| true);
    assert_eq!(failed(&report), BTreeSet::new());
    let skipped: Vec<_> = report
        .checks
        .iter()
        .filter(|check| matches!(check.outcome, CheckOutcome::Skipped(_)))
        .collect();
    assert!(skipped.is_empty(), "{skipped:?}");
}

/// The check that must find a fault, and the script around ours that plants it.
const SPOILED: &[(&str, &str)] = &[
    ("stdout-clean", "echo starting; exec $plugin"),
    (
        "silent-success",
        "$plugin; code=$?; [ $CNI_COMMAND = ADD ] || echo '{}'; exit $code",
    ),
    ("error-shape", "$plugin >/dev/null || exit 1"),
    (
        "error-shape",
        "$plugin | sed 's/\"code\": [0-9]*/\"code\": \"x\"/'; exit ${PIPESTATUS[0]}",
    ),
    (
        "result-form",
        "[ $CNI_COMMAND = VERSION ] && exec $plugin; $plugin | sed 's/cniVersion\": \"[^\"]*/cniVersion\": \"0.9.0/'; exit ${PIPESTATUS[0]}",
    ),
    (
        "result-range",
        "$plugin | sed 's/10.89.0.2/10.89.0.1/'; exit ${PIPESTATUS[0]}",
    ),
    (
        "add-unique",
        "$plugin | sed 's/10.89.0.3/10.89.0.2/'; exit ${PIPESTATUS[0]}",
    ),
    (
        "exhaustion",
        "[ $CNI_COMMAND = DEL ] && exit 0; exec $plugin",
    ),
    (
        "del-succeeds",
        "[ $CNI_COMMAND$CNI_CONTAINERID = DELone ] && fail; exec $plugin",
    ),
    (
        "del-idempotent",
        "[ $CNI_COMMAND = DEL ] && { input=$(cat); CNI_COMMAND=CHECK $plugin <<<$input || exit 1; exec $plugin <<<$input; }; exec $plugin",
    ),
    (
        "del-exact",
        "[ $CNI_COMMAND = DEL ] && export CNI_IFNAME=eth0; exec $plugin",
    ),
    (
        "del-without-netns",
        "[ $CNI_COMMAND = DEL -a -z \"$CNI_NETNS\" ] && exit 0; exec $plugin",
    ),
    (
        "check-answer",
        "[ $CNI_COMMAND = CHECK ] && exit 0; exec $plugin",
    ),
    (
        "networks-apart",
        "sed 's/\"name\":\"[^\"]*/\"name\":\"one/' | $plugin",
    ),
    (
        "gc-frees-stale",
        "[ $CNI_COMMAND = GC ] && exit 0; exec $plugin",
    ),
    (
        "gc-keeps-valid",
        "sed 's/\"cni.dev.valid-attachments\":[^]]*/\"cni.dev\\/valid-attachments\":[/' | $plugin",
    ),
    (
        "gc-absent-list",
        "[ $CNI_COMMAND = GC ] && sed 's/^{/{\"cni.dev\\/valid-attachments\":[],/' | { $plugin; exit $?; } || exec $plugin",
    ),
    (
        "status-answer",
        "[ $CNI_COMMAND = STATUS ] && exit 0; exec $plugin",
    ),
    (
        "unknown-command",
        "[ $CNI_COMMAND = FOO ] && exit 0; exec $plugin",
    ),
    (
        "env-missing",
        "[ -z \"$CNI_IFNAME\" ] && export CNI_IFNAME=eth0; exec $plugin",
    ),
    (
        "no-crash",
        "[ $CNI_COMMAND = CHECK ] && kill -SEGV $$; exec $plugin",
    ),
    (
        "no-hang",
        "[ $CNI_COMMAND = FOO ] && exec sleep 1000; exec $plugin",
    ),
];

#[test]
fn each_check_can_fail() {
    use std::{fs, os::unix::fs::PermissionsExt as _};
    let ours = our_plugins().join("host-local");
    let ours = ours.display();
    let dir = tempfile::tempdir().unwrap();
    for (number, (check, script)) in SPOILED.iter().enumerate() {
        let path = dir.path().join(format!("spoiled-{number}"));
        let fail = r#"fail() { echo '{"code": 999, "msg": "spoiled"}'; exit 1; }"#;
        let text = format!("#!/bin/bash\nplugin={ours}\n{fail}\n{script}\n");
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        // Faults that any answer may have show in these checks.
        let also = ["del-exact", "unknown-command", "check-answer"];
        let is_of_all =
            podplane_cni_verify::list().any(|info| info.id == *check && info.is_of_every_answer);
        let selected = |id: &str| id == *check || is_of_all && also.contains(&id);
        let report = verify_within(Duration::from_secs(5), &path, 1, 1, &selected);
        assert!(failed(&report).contains(check), "{check}: {script}");
    }
}

/// The plugin of `peers/ipam.py` with these switches.
fn python_plugin(dir: &Path, switches: &str) -> PathBuf {
    let plugin = dir.join(format!("ipam{switches}"));
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers/ipam.py");
    std::os::unix::fs::symlink(script, &plugin).unwrap();
    plugin
}

/// Verifies the plugin of `peers/ipam.py`, with a configuration in its format.
fn python(switches: &str, rounds: u32, selected: &dyn Fn(&str) -> bool) -> VerifyReport {
    let dir = tempfile::tempdir().unwrap();
    let plugin = python_plugin(dir.path(), switches);
    let range = match switches {
        ",pool" => json!({"pool": ["10.0.0.1", "10.0.0.7", "10.0.0.9", "10.9.0.0", "10.9.0.255"]}),
        ",no-gc" => json!({"subnet": "10.0.0.0/29"}),
        _ => json!({"ranges": [[{"subnet": "10.0.0.0/29"}]]}),
    };
    let mut config = json!({"ipam": range});
    config["ipam"]["dataDir"] = "set by the test".into();
    let template = Template::parse(config.to_string().as_bytes()).unwrap();
    let options = VerifyOptions {
        amount: Amount::Rounds(rounds),
        max_addresses: 16,
        ..options(&plugin, template, dir.path())
    };
    report(options, selected)
}

#[test]
fn accuses_no_correct_plugin_whatever_its_habits() {
    if !require(&["python3"]) {
        return;
    }
    // Two random sequences of calls, each with the GC of some attachments.
    std::thread::scope(|scope| {
        for habit in [",pool", ",no-gc", ",late"] {
            scope.spawn(move || {
                // What a plugin says to junk does not depend on its habits.
                let selected = |check: &str| habit == ",pool" || check != "junk-input";
                let report = python(habit, rounds(11, 200), &selected);
                assert_eq!(failed(&report), BTreeSet::new(), "ipam{habit}");
            });
        }
    });
}

/// A fault of `peers/ipam.py`, and the checks that may find it; the first one must.
const PLANTED: &[(&str, &[&str])] = &[
    ("shares", &["add-unique"]),
    ("keeps", &["exhaustion", "random-sequence"]),
    ("greedy-del", &["del-exact", "add-unique"]),
    ("strict-del", &["del-idempotent", "del-succeeds"]),
    ("half-add", &["failed-add-leaves-nothing"]),
    ("blind-check", &["check-answer"]),
    ("idle-gc", &["gc-frees-stale"]),
    ("wild-gc", &["gc-absent-list", "add-unique"]),
    ("no-lock", &["concurrent-fill", "add-unique"]),
    ("moves", &["add-repeat", "random-sequence"]),
    (
        "in-place",
        &[
            "kill-add-leaks-nothing",
            "kill-del-leaks-nothing",
            "random-sequence",
            "del-succeeds",
        ],
    ),
    (
        "forgets",
        &[
            "add-unique",
            "kill-add-leaks-nothing",
            "kill-del-leaks-nothing",
            "random-sequence",
        ],
    ),
];

#[test]
fn finds_every_planted_fault() {
    if !require(&["python3"]) {
        return;
    }
    for (fault, checks) in PLANTED {
        // The random calls must not show any other fault.
        let selected = |id: &str| {
            let mut every = podplane_cni_verify::list().filter(|check| check.is_of_every_answer);
            id == "random-sequence" || checks.contains(&id) || every.any(|check| check.id == id)
        };
        let failed = failed(&python(&format!(",{fault}"), rounds(10, 11), &selected));
        assert!(failed.contains(checks[0]), "{fault}: {failed:?}");
        let listed = failed.iter().all(|check| checks.contains(check));
        assert!(listed, "{fault}: {failed:?}");
    }
}
