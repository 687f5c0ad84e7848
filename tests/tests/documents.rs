//! Every console line of every document, in the order of its page, as a reader would type it.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};
use podplane_tests::{
    Machine,
    console::{ConsoleStep, Session, page},
    peers,
    programs::bin_dir,
};

/// Pages whose lines another test runs and compares with the printed output.
const ELSEWHERE: [(&str, &str); 4] = [
    ("docs/compose.md", "tests/tests/compose"),
    ("docs/duplicates.md", "tests/tests/duplicates.rs"),
    ("docs/grpc.md", "tests/tests/grpc_lines.rs"),
    ("docs/ha.md", "tests/tests/compose/ha.rs"),
];

/// Lines that are not run: their beginnings, and the reasons.
const LEFT_OUT: &[(&str, &str)] = &[
    ("cargo ", "builds, tests or measures"),
    (
        "docker run -d --network host jaeger",
        "needs a registry; tests/tests/traces.rs has a collector",
    ),
    ("kubectl apply -f worker289.yaml", "tests/tests/audit.rs"),
    (
        "podplane cni verify ./my-ipam",
        "a plugin of the reader's, for minutes; cni/verify/tests/verify",
    ),
    (
        "podplane demo cidr-change",
        "minutes; tests/tests/cidr_change.rs",
    ),
    ("podplane demo exhaustion", "tests/tests/exhaustion.rs"),
    (
        "podplane node forget",
        "asks; tests/tests/held_blocks.rs answers",
    ),
    (
        "podplane node reset-bridge",
        "tests/tests/reset_bridge.rs has such a bridge",
    ),
    (
        "podplane plan --cluster-cidr 10.255.0.0/19",
        "needs jq, which no test installs",
    ),
    (
        "podplane test tests/scenarios",
        "minutes; tests/tests/scenarios.rs",
    ),
    (
        "python3 -m venv",
        "needs an index of packages; tests/tests/python_client.rs",
    ),
    ("target/python/bin/", "the same"),
];

/// The command that starts a cluster, as `cargo xtask up` does.
const UP: &str = "podplane up --nodes 3 --filename deploy/sample.yaml --wait";
/// The command that sets up kubectl for it.
const KUBECONFIG: &str = "export KUBECONFIG=/var/lib/podplane/kubeconfig";

/// The commands whose effect the reader of a page already has, as the page says.
const GIVEN: &[(&str, &[&str])] = &[
    ("README.md", &[UP]),
    (
        "docs/audit.md",
        &[
            UP,
            KUBECONFIG,
            "mkdir ~/.kube && cp $KUBECONFIG ~/.kube/config",
        ],
    ),
    (
        "docs/cni.md",
        &["mkdir net.d && cat > net.d/10-mynet.conflist <<EOF\n\
             {\"cniVersion\": \"1.1.0\", \"name\": \"mynet\", \"plugins\": [\n\
             {\"type\": \"bridge\", \"bridge\": \"cni0\", \"isGateway\": true,\n\
             \"ipam\": {\"type\": \"host-local\", \"subnet\": \"10.9.8.0/24\"}}]}\nEOF"],
    ),
    (
        "docs/cri.md",
        &["podplane up --nodes 2 --network kernel --wait", KUBECONFIG],
    ),
    ("docs/ipam-controller.md", &[UP, KUBECONFIG]),
    ("docs/map.md", &[UP]),
    ("docs/node-blocks.md", &[UP]),
    ("docs/scheduler.md", &[UP]),
    ("docs/tour.md", &[UP]),
];

/// Lines that end with another code than 0, as their pages say.
const ENDS_WITH: &[(&str, i32)] = &[("podplane plan --cluster-cidr 10.244.0.0/16", 1)];

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The documents, by their paths in the repository.
fn documents() -> Result<Vec<String>> {
    let mut found = Vec::new();
    for dir in [
        "",
        "docs",
        "deploy",
        "examples",
        "examples/python",
        "examples/my-cni-plugin",
    ] {
        for entry in fs::read_dir(repository().join(dir)).with_context(|| dir.to_owned())? {
            let name = entry?
                .file_name()
                .into_string()
                .ok()
                .context("a name in UTF-8")?;
            if name.ends_with(".md") {
                found.push(Path::new(dir).join(name).display().to_string());
            }
        }
    }
    found.sort();
    Ok(found)
}

fn left_out(command: &str) -> Option<&'static str> {
    let mut begins = LEFT_OUT.iter().map(|(begin, _)| *begin);
    begins.find(|begin| command.starts_with(begin))
}

/// Types the lines of the page into a shell of its own; returns the failures.
fn read(name: &str, steps: &[ConsoleStep], path: &str) -> Result<Vec<String>> {
    let mut session = Session::apart(path)?;
    let root = repository().canonicalize()?;
    let links = format!(
        "mkdir -p project/target && cd project && cp -r {0}/examples . && \
         ln -s {0}/deploy {0}/docs {0}/tests . && ln -s {1} target/release",
        root.display(),
        bin_dir().display()
    );
    let given = GIVEN.iter().filter(|(page, _)| *page == name);
    let given = given.flat_map(|(_, commands)| commands.iter().copied());
    for command in [links.as_str()].into_iter().chain(given) {
        let done = session.run(command)?;
        ensure!(done.code == 0, "{name} begins with {command}: {done:?}");
    }
    let mut failures = Vec::new();
    for ConsoleStep { command, .. } in steps {
        if left_out(command).is_some() {
            continue;
        }
        let done = session.run(command)?;
        let ends = ENDS_WITH.iter().find(|(line, _)| command.starts_with(line));
        if done.code != ends.map_or(0, |(_, code)| *code) {
            failures.push(format!(
                "{name}: $ {command}\nended with {} and printed\n{}",
                done.code, done.shown
            ));
        }
    }
    // Without a cluster there is nothing to end.
    session.run(
        "kill $(jobs -p); podplane down --purge; env -u PODPLANE_DATA_DIR podplane down --purge",
    )?;
    let left = session.run("ps -eo comm= | grep podplane")?;
    if left.code == 0 {
        failures.push(format!("{name}: processes are left: {}", left.shown));
    }
    Ok(failures)
}

#[test]
fn every_documented_console_line_works() -> Result<()> {
    let Some(grpcurl) = peers::grpcurl().filter(|_| peers::root()) else {
        return Ok(());
    };
    let before = Machine::now();
    let path = std::env::var("PATH")?;
    let path = format!("{}:{}:{path}", bin_dir().display(), grpcurl.display());
    let (mut failures, mut skipped) = (Vec::new(), BTreeSet::new());
    for name in documents()? {
        let steps = page(&fs::read_to_string(repository().join(&name))?);
        skipped.extend(steps.iter().filter_map(|step| left_out(&step.command)));
        let elsewhere = ELSEWHERE.iter().any(|(page, _)| *page == name);
        if !elsewhere && steps.iter().any(|step| left_out(&step.command).is_none()) {
            failures.extend(read(&name, &steps, &path)?);
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
    for (begin, why) in LEFT_OUT {
        assert!(
            skipped.contains(begin),
            "no page has {begin} ({why}) any more"
        );
    }
    assert_eq!(before, Machine::now());
    Ok(())
}
