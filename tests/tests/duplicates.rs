//! docs/duplicates.md: its commands as printed, and again with every other system that has the
//! fault, and without the fault.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result};
use podplane_ipam::Compat;
use podplane_tests::{
    console::{ConsoleStep, blocks, steps},
    eventually, peers, processes_of,
    programs::{ProgramOutput, bin_dir, finish},
};
use tempfile::TempDir;

/// The data directory in the docs.
const PLACE: &str = "$(mktemp -d)/duplicates";

/// The demonstration of one fault.
#[derive(Debug)]
struct Section {
    steps: Vec<ConsoleStep>,
    /// The output of the steps that show any, without the fault.
    without: Vec<Vec<String>>,
}

fn docs() -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/duplicates.md");
    fs::read_to_string(file).expect("the docs are there")
}

/// The lines of the first block of that language in `text`.
fn block<'a>(text: &'a str, language: &str) -> Vec<&'a str> {
    blocks(text, language)
        .into_iter()
        .next()
        .unwrap_or_default()
}

fn section(docs: &str, fault: &str) -> Section {
    let from = docs
        .find(&format!("### {fault}\n"))
        .unwrap_or_else(|| panic!("{fault} has a section"));
    let text = &docs[from..];
    let without = block(text, "text");
    let without = without.split(|line| line.is_empty());
    Section {
        steps: steps(&block(text, "console")),
        without: without
            .map(|lines| lines.iter().map(|line| (*line).to_owned()).collect())
            .collect(),
    }
}

/// The values of `--compat` with which the table says yes.
fn with_fault(docs: &str, fault: &str) -> Vec<Compat> {
    let cells = |line: &str| -> Vec<String> {
        let cells = line.trim_matches('|').split('|');
        cells.map(|cell| cell.trim().to_owned()).collect()
    };
    let row = |start: &str| {
        let mut lines = docs.lines();
        cells(
            lines
                .find(|line| line.starts_with(start))
                .expect("the table has it"),
        )
    };
    let header = row("| fault |");
    let values = row(&format!("| {fault} |"));
    let says_yes = header
        .iter()
        .zip(values)
        .filter(|(_, value)| value == "yes");
    says_yes
        .map(|(name, _)| name.parse().expect("a column is a value of the flag"))
        .collect()
}

/// A shell with the functions of the docs.
struct Shell {
    dir: TempDir,
    prelude: String,
}

impl Shell {
    fn new(docs: &str) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("pp-").tempdir()?;
        let place = dir.path().join("data");
        let place = place.to_str().context("a path of letters")?;
        let prelude = steps(&block(docs, "console"));
        let prelude: Vec<_> = prelude.into_iter().map(|step| step.command).collect();
        let prelude = prelude.join("\n").replace(PLACE, place);
        Ok(Self { dir, prelude })
    }

    fn run(&self, command: &str) -> ProgramOutput {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let dirs = std::iter::once(bin_dir()).chain(std::env::split_paths(&path));
        let path = std::env::join_paths(dirs).expect("no colon in a directory");
        let mut bash = Command::new("bash");
        bash.arg("-c")
            .arg(format!("{}\n{command}", self.prelude))
            .env("PATH", path)
            // kubectl's home, for its cache, whose files the group may write: not the data
            // directory.
            .env("HOME", self.dir.path())
            .stdin(Stdio::null());
        finish(&mut bash)
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        self.run("podplane down --purge");
        let place = self.dir.path().display().to_string();
        if !std::thread::panicking() {
            assert_eq!(processes_of(&place).expect("/proc"), []);
        }
    }
}

async fn run(docs: &str, section: &Section, compat: Compat) -> Result<()> {
    let shell = Shell::new(docs)?;
    let mut without = section.without.iter();
    for ConsoleStep { command, shows } in &section.steps {
        if shows.is_empty() {
            let mut words: Vec<_> = command.split(' ').map(str::to_owned).collect();
            if let Some(at) = words.iter().position(|word| word == "--compat") {
                words[at + 1] = compat.to_string();
                let done = shell.run(&words.join(" "));
                assert_eq!(done.code, Some(0), "{command}: {done:?}");
            } else {
                // Some of them are refused; the next one shows the result.
                shell.run(command);
            }
            continue;
        }
        let without = without.next();
        let want = match compat {
            Compat::None => without.context("the section shows what there is without a fault")?,
            _ => shows,
        };
        let observe = async || {
            let shown = shell.run(command).stdout;
            shown
                .lines()
                .map(str::trim_end)
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        let what = format!("{command}, with {compat}, shows {want:#?}");
        eventually(&what, observe, |shown| shown == want).await;
    }
    Ok(())
}

fn kubectl() -> bool {
    let installed = Command::new("kubectl").arg("help").output().is_ok();
    let install = "put kubectl into a directory of PATH (https://dl.k8s.io/release/v1.33.0/bin/linux/amd64/kubectl)";
    peers::require("kubectl", installed, install)
}

async fn check(fault: &str) -> Result<()> {
    if !kubectl() {
        return Ok(());
    }
    let docs = docs();
    let section = section(&docs, fault);
    for compat in with_fault(&docs, fault).into_iter().chain([Compat::None]) {
        run(&docs, &section, compat).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_block_outside_of_all_ranges_is_fatal_only_in_upstream_mode() -> Result<()> {
    if !kubectl() {
        return Ok(());
    }
    const FATAL: &str = "failed to mark cidr[10.9.0.0/24] at idx [0] as occupied for node: a: cidr 10.9.0.0/24 is out the range of \
                         cluster cidr 10.0.0.0/23";
    for compat in [Compat::Upstream, Compat::None] {
        let shell = Shell::new(&docs())?;
        let fresh = format!("fresh --cluster-cidr 10.0.0.0/23 --compat {compat}");
        shell.run(&fresh).ok();
        shell.run("node a 10.9.0.0/24").ok();
        let log = || fs::read_to_string(shell.dir.path().join("data/logs/ipam-controller.log"));
        if compat == Compat::None {
            shell.run("up").ok();
            shell.run("node b").ok();
            let blocks = async || shell.run("blocks").stdout;
            let given = |shown: &String| shown.contains("b     [10.0.0.0/24]");
            eventually("the next node has a block", blocks, given).await;
            assert!(!log()?.contains(FATAL));
        } else {
            // The controller never serves.
            shell.run("podplane down; podplane up --detach");
            let said = async || log().unwrap_or_default();
            let fatal = |log: &String| log.contains(FATAL);
            eventually("the controller says why it ends", said, fatal).await;
        }
    }
    Ok(())
}

macro_rules! faults {
    ($($test:ident $fault:literal)*) => {$(
        #[tokio::test(flavor = "multi_thread")]
        async fn $test() -> Result<()> {
            check($fault).await
        }
    )*};
}

faults! {
    d1_a_shorter_mask "D1"
    d2_a_longer_mask "D2"
    d3_failed_patches "D3"
    d4_a_finalizer "D4"
    d5_a_block_by_hand "D5"
    d6_a_third_holder "D6"
    d7_the_service_range "D7"
    d8_patches_that_time_out "D8"
    l1_the_second_family "L1"
}
