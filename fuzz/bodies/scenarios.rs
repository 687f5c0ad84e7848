//! Fuzzes the files of scenarios: each is read, or refused with positions that are in it.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::LazyLock,
};

use podplane_api::schema::Type;
use podplane_scenario::{Catalog, Problem, Values, load};

static CATALOG: LazyLock<Catalog> = LazyLock::new(|| {
    let ty = |group, kind| Type::of_kind(group, "v1", kind);
    let kinds = [
        ("pod", ty("", "Pod")),
        ("pods", ty("", "Pod")),
        ("node", ty("", "Node")),
        ("nodes", ty("", "Node")),
        ("namespace", ty("", "Namespace")),
        ("service", ty("", "Service")),
        ("deployment", ty("apps", "Deployment")),
        ("deployments", ty("apps", "Deployment")),
        ("replicasets", ty("apps", "ReplicaSet")),
        ("clustercidr", None),
    ];
    let flags = |names: &[&str]| names.iter().map(ToString::to_string).collect();
    let services = [
        ("apiserver", flags(&["history-bytes", "ip-policy"])),
        (
            "scheduler",
            flags(&["ip-policy", "pod-initial-backoff-seconds"]),
        ),
        ("kubelet", flags(&["max-pods", "ip-policy"])),
        ("controller-manager", flags(&["node-monitor-grace-period"])),
        (
            "ipam-controller",
            flags(&["cluster-cidr", "node-cidr-mask-size"]),
        ),
    ];
    Catalog {
        kinds: kinds.map(|(word, ty)| (word.to_owned(), ty)).into(),
        flags: services
            .map(|(name, flags)| (name.to_owned(), flags))
            .into(),
        value: |_, flag, value| match value {
            "many" => Err(format!("invalid value for --{flag}")),
            _ => Ok(()),
        },
        up: |_| Ok(()),
    }
});

pub(crate) fn run(data: &[u8]) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let file = dir.path().join("fuzz.yaml");
    fs::write(&file, data).expect("the file of the scenario");
    let problems = match load(std::slice::from_ref(&file), &Values::new(), &CATALOG) {
        Ok(cases) => {
            assert!(!cases.is_empty(), "accepted, and nothing is planned");
            return;
        }
        Err(problems) => problems,
    };
    assert!(!problems.is_empty(), "refused without a reason");
    let text = String::from_utf8_lossy(data);
    // As in YAML: a carriage return alone breaks a line, too.
    let lines = text.chars().filter(|at| matches!(at, '\n' | '\r')).count() + 1;
    for problem in &problems {
        check(problem, &file, lines);
    }
}

fn check(problem: &Problem, file: &Path, lines: usize) {
    assert_eq!(problem.file, PathBuf::from(file));
    assert!(!problem.message.is_empty(), "{problem:?}");
    if let Some(position) = problem.position {
        let line = usize::try_from(position.line).expect("a line");
        assert!((1..=lines).contains(&line), "{problem} of {lines} lines");
        assert!(position.column >= 1, "{problem}");
    }
}
