//! docs/grpc.md: its lines as printed, with stock grpcurl and curl.

use std::{collections::BTreeSet, fs, path::Path};

use anyhow::{Context as _, Result};
use podplane_tests::{
    Machine,
    console::{CommandOutcome, ConsoleStep, Session, is_shown, page},
    peers, processes_of,
    programs::bin_dir,
};

/// The data directory in the docs.
const PLACE: &str = "$(mktemp -d)/grpc";

/// The services of every server, which the page calls once for all of them.
const SHARED: [&str; 3] = [
    "grpc.health.v1.Health",
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
];

/// The services that a line lists.
fn listed(done: &CommandOutcome) -> impl Iterator<Item = &str> {
    done.shown.lines().filter(|line| line.contains(".v1"))
}

#[test]
fn every_documented_grpc_line_works() -> Result<()> {
    let Some(grpcurl) = peers::grpcurl() else {
        return Ok(());
    };
    let before = Machine::now();
    let dir = tempfile::Builder::new().prefix("pp-").tempdir()?;
    let place = dir.path().to_str().context("a path of letters")?.to_owned();
    let path = std::env::var("PATH")?;
    let path = format!("{}:{}:{path}", bin_dir().display(), grpcurl.display());
    let mut session = Session::start(dir.path(), &path)?;
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/grpc.md");
    let lines = page(&fs::read_to_string(file)?);
    let all = lines.iter().map(|step| step.command.as_str());
    let all: Vec<_> = all.collect();
    let is_called = |service: &str| all.iter().any(|line| line.contains(&format!("{service}/")));
    // One line lists the objects of every kind, and prints the methods that it has called.
    let mut lists = String::new();
    let mut seen = BTreeSet::new();
    let mut failures = Vec::new();
    for ConsoleStep { command, shows } in &lines {
        let done = session.run(&command.replace(PLACE, &place))?;
        if command.ends_with(" list") {
            seen.extend(listed(&done).map(str::to_owned));
        }
        if command.ends_with("&& echo $method; done") {
            lists.clone_from(&done.shown);
        }
        let shown = done.shown.replace(&place, PLACE);
        let got: Vec<_> = shown.lines().map(str::trim_end).collect();
        let is_as_printed = shows.is_empty() || is_shown(shows, &got);
        // A line that is refused has the refusal as its output.
        let has_ended_well = done.code == 0 || !shows.is_empty();
        if !(is_as_printed && has_ended_well) {
            let shows = shows.join("\n");
            failures.push(format!(
                "$ {command}\nended with {} and printed\n{shown}\n--- where the page has\n{shows}",
                done.code
            ));
        }
    }
    let down = session.run("podplane down --purge")?;
    drop(session);
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
    for service in &seen {
        let is_listed = lists.contains(&format!("{service}.List"));
        assert!(is_called(service) || is_listed, "no line calls {service}");
    }
    for service in SHARED {
        assert!(seen.contains(service), "{service} is listed");
    }
    assert!(
        seen.len() > 20,
        "every process lists its services: {seen:?}"
    );
    assert_eq!(down.code, 0, "{down:?}");
    assert_eq!(processes_of(&place)?, []);
    assert_eq!(before, Machine::now());
    Ok(())
}
