//! `podplane test` itself: its exit codes, its output, and that it leaves nothing behind.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc::{self, Receiver, RecvTimeoutError},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result};
use podplane_test_cluster::ProgramOutput;
use podplane_tests::{
    Machine, eventually, peers, processes_of,
    programs::{finish, podplane},
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

/// A directory of scenarios, and another that `podplane test` takes for the directory of temporary
/// files.
struct ScenarioDir {
    scenarios: TempDir,
    temporary: TempDir,
}

impl ScenarioDir {
    fn new(scenarios: &[(&str, &str)]) -> Self {
        let dir = |prefix| tempfile::Builder::new().prefix(prefix).tempdir();
        let place = Self {
            scenarios: dir("scenarios-").expect("room"),
            // A short name, since sockets are in it.
            temporary: dir("t").expect("room"),
        };
        for (name, text) in scenarios {
            fs::write(place.scenarios.path().join(name), text).expect("room");
        }
        place
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = podplane(["test"]);
        command.args(args).current_dir(self.scenarios.path());
        command.env("TMPDIR", self.temporary.path());
        command
    }

    fn run(&self, args: &[&str]) -> ProgramOutput {
        finish(&mut self.command(args))
    }

    /// The contents of the directory of temporary files.
    fn left(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.temporary.path()).expect("it is there");
        entries.flatten().map(|entry| entry.path()).collect()
    }

    fn processes(&self) -> Vec<(u32, String)> {
        processes_of(&self.temporary.path().display().to_string()).expect("/proc")
    }

    fn assert_nothing_runs(&self) {
        assert_eq!(self.processes(), []);
    }

    fn assert_nothing_is_left(&self) {
        self.assert_nothing_runs();
        assert_eq!(self.left(), [] as [PathBuf; 0]);
        // Where another user may not look, nothing is of this one.
        let indexes = fs::read_dir("/run/podplane/host-local");
        let names = indexes.into_iter().flatten().flatten();
        let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
        let own = self.temporary.path().display().to_string();
        let own = own.replace('/', "%2F");
        let left: Vec<_> = names.filter(|name| name.starts_with(&own)).collect();
        assert_eq!(left, [] as [String; 0]);
    }

    fn assert_report_says_interrupted(&self) -> Result<()> {
        let report = fs::read_to_string(self.scenarios.path().join("report.xml"))?;
        assert!(
            report.contains(r#"<skipped message="interrupted"/>"#),
            "{report}"
        );
        Ok(())
    }
}

const PASSES: &str = "
cluster: {nodes: 1}
steps:
- run: {command: [podplane, run, web]}
- wait:
    timing: until it runs
    expect: [{object: pod/web, jsonpath: .status.phase, equals: Running}]
";

/// A scenario that is valid; its node waits for somebody else's runtime.
const BROKEN: &str = "
cluster: {nodes: 1, criEndpoint: 'unix:/nowhere/cri.sock'}
steps:
- expect: [{count: pods, equals: 0}]
";

const FAILS: &str = "
cluster: {nodes: 1, nodeCIDRMaskSize: 30}
steps:
- run: {command: [podplane, run, web, --replicas, '2']}
- wait: {expect: [{event: FailedScheduling, message: pod IPs}, {count: pods, where: 'object.status.phase == \"Running\"', equals: 1}]}
- name: two run
  wait:
    within: 500ms
    expect:
    - {count: pods, where: 'object.status.phase == \"Running\"', equals: 2}
";

const FOREVER: &str = "
cluster: {nodes: 2, network: NETWORK}
steps:
- run: {command: [podplane, run, web, --replicas, '2', --wait]}
- name: what never comes
  wait: {within: 10m, expect: [{object: pod/godot}]}
";

#[test]
fn exits_with_0_and_leaves_nothing_if_all_pass() {
    let place = ScenarioDir::new(&[("passes.yaml", PASSES)]);
    let before = Machine::now();
    let said = place.run(&["passes.yaml"]).ok();
    assert!(said.contains("PASS passes "), "{said}");
    assert!(said.contains("  until it runs: "), "{said}");
    assert!(said.contains("1 passed; seed "), "{said}");
    place.assert_nothing_is_left();
    assert_eq!(before, Machine::now());
}

#[test]
fn exits_with_1_and_shows_expected_and_actual_after_a_failure() {
    let place = ScenarioDir::new(&[("fails.yaml", FAILS), ("passes.yaml", PASSES)]);
    let finished = place.run(&["--seed", "7", "."]);
    assert_eq!(finished.code, Some(1), "{finished:?}");
    let said = finished.stdout;
    for part in [
        "FAIL fails ",
        "fails.yaml:6:3: step 3, two run: not within 500ms:",
        "line 10:7: count: pods, equals: 2",
        "expected: 2",
        "was:      1: web-",
        "the last events:",
        "Warning FailedScheduling pod/web-",
        "again: podplane test ./fails.yaml --seed 7",
        "PASS passes ",
        "1 passed, 1 failed; seed 7; ",
    ] {
        assert!(said.contains(part), "no {part:?} in:\n{said}");
    }
    // At the failure, and again at the end, after all other output, with the step and the reason.
    for part in [
        "FAIL fails ",
        "fails.yaml:6:3: step 3, two run: not within 500ms:",
    ] {
        assert_eq!(said.matches(part).count(), 2, "{said}");
    }
    let last = |part: &str| said.rfind(part).expect("just found");
    assert!(last("PASS passes ") < last("step 3, two run"), "{said}");
    let kept = line_after(&said, "logs: ");
    for file in ["scheduler.log", "recording.jsonl"] {
        assert!(Path::new(kept).join(file).exists(), "{kept}/{file}");
    }
    let replayed = finish(&mut podplane(["replay", kept])).ok();
    assert!(replayed.contains("two run"), "{replayed}");
    place.assert_nothing_runs();
    // Nothing but that directory is left.
    assert_eq!(place.left(), [place.temporary.path().join("podplane-test")]);
}

fn line_after<'a>(text: &'a str, prefix: &str) -> &'a str {
    let line = text
        .lines()
        .find_map(|line| line.trim().strip_prefix(prefix));
    line.unwrap_or_else(|| panic!("no {prefix:?} in:\n{text}"))
}

#[test]
fn steps_about_things_that_do_not_exist_fail() {
    let heals = "
matrix: {who: [kubelet-node-0]}
cluster: {nodes: 1}
steps:
- partition: {process: scheduler, from: apiserver}
- heal: {process: '${who}'}
";
    let deletes = "cluster: {nodes: 0}\nsteps: [{delete: pod/none}]\n";
    let counts = "
cluster: {nodes: 0}
steps:
- wait:
    within: 1ms
    expect: [{metric: scheduler_pending_pods, service: scheduler, labels: {queu: active}, equals: 0}]
";
    let place = ScenarioDir::new(&[
        ("heals.yaml", heals),
        ("deletes.yaml", deletes),
        ("counts.yaml", counts),
    ]);
    let finished = place.run(&["--seed", "7", "."]);
    assert_eq!(finished.code, Some(1), "{finished:?}");
    let said = finished.stdout;
    for part in [
        "kubelet-node-0 is not cut off; scheduler is",
        "again: podplane test ./heals.yaml --seed 7 --only 'heals[who=kubelet-node-0]'",
        "delete pod/none: pods \"none\" not found",
        "scheduler_pending_pods has no label queu; did you mean \"queue\"?",
        "0 passed, 3 failed; seed 7; ",
    ] {
        assert!(said.contains(part), "no {part:?} in:\n{said}");
    }
    place.assert_nothing_runs();
}

#[test]
fn exits_with_2_and_runs_nothing_if_the_report_cannot_be_written() {
    let place = ScenarioDir::new(&[("passes.yaml", PASSES)]);
    let finished = place.run(&["--junit", "none/report.xml", "passes.yaml"]);
    assert_eq!(finished.stdout, "");
    let said = finished.failed(2);
    assert!(said.contains("write none/report.xml"), "{said}");
    place.assert_nothing_is_left();
}

#[test]
fn exits_with_2_and_runs_nothing_if_the_input_is_invalid() {
    let wrong = "steps:\n- kill: {process: shceduler}\n- wait: {expect: [{object: pod/a, cel: 'object.status.'}]}\n";
    let place = ScenarioDir::new(&[("wrong.yaml", wrong), ("passes.yaml", PASSES)]);
    let said = place.run(&["."]);
    assert_eq!(said.stdout, "");
    let said = said.failed(2);
    assert!(
        said.starts_with("./wrong.yaml:2:19: there is no process \"shceduler\""),
        "{said}"
    );
    assert!(said.contains("\n./wrong.yaml:3:"), "{said}");
    place.assert_nothing_is_left();
    for args in [
        &["none.yaml"][..],
        &["--only", "sheep", "passes.yaml"],
        &["--repeat", "0", "passes.yaml"],
        &[],
    ] {
        place.run(args).failed(2);
    }
}

#[test]
fn exits_with_2_if_a_cluster_does_not_start() {
    let place = ScenarioDir::new(&[("broken.yaml", BROKEN)]);
    let finished = place.run(&["--patience", "0.1", "broken.yaml"]);
    assert_eq!(finished.code, Some(2), "{finished:?}");
    assert!(
        finished.stdout.contains("ERROR broken "),
        "{}",
        finished.stdout
    );
    assert!(
        finished.stdout.contains("not Ready after "),
        "{}",
        finished.stdout
    );
    place.assert_nothing_runs();
}

/// The longest silence of `podplane test`.
const PATIENCE: Duration = Duration::from_secs(120);

/// `podplane test`, and its output line by line: the results, and the progress on standard error.
struct RunningTest {
    child: Child,
    said: Receiver<String>,
}

impl RunningTest {
    fn start(command: &mut Command) -> Result<Self> {
        let (stdout, writer) = std::io::pipe()?;
        let child = command.stdout(writer.try_clone()?).stderr(writer).spawn()?;
        // The command keeps the pipe open, whose end would never come.
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let (sender, said) = mpsc::channel();
        // The thread ends with its pipe.
        thread::spawn(move || {
            let lines = BufReader::new(stdout).lines().map_while(Result::ok);
            lines.for_each(|line| _ = sender.send(line));
        });
        Ok(Self { child, said })
    }

    /// Reads on until a line has the text.
    fn until(&mut self, text: &str) -> Result<String> {
        loop {
            let line = self.said.recv_timeout(PATIENCE);
            let line = line.with_context(|| format!("it never said {text:?}"))?;
            if line.contains(text) {
                return Ok(line);
            }
        }
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        Ok(kill_process(Pid::from_child(&self.child), signal)?)
    }

    /// Its exit code.
    fn end(mut self) -> Result<Option<i32>> {
        while self.said.recv_timeout(PATIENCE) != Err(RecvTimeoutError::Disconnected) {}
        Ok(self.child.wait()?.code())
    }
}

/// Leaves no clusters running after a failed test.
impl Drop for RunningTest {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            // A cluster ends by itself when the processes that want it are gone.
            _ = self.child.kill();
            _ = self.child.wait();
        }
    }
}

#[test]
fn ctrl_c_leaves_nothing_behind() -> Result<()> {
    for network in ["ledger", "kernel"] {
        if network == "kernel" && !peers::root() {
            continue;
        }
        let text = FOREVER.replace("NETWORK", network);
        let place = ScenarioDir::new(&[("a.yaml", &text), ("b.yaml", &text)]);
        let before = Machine::now();
        let mut running = RunningTest::start(&mut place.command(&["-j", "2", "."]))?;
        running.until("1/2 ")?;
        assert!(!place.processes().is_empty());
        running.signal(Signal::INT)?;
        assert_eq!(running.end()?, Some(130));
        place.assert_nothing_is_left();
        assert_eq!(before, Machine::now());
    }
    Ok(())
}

/// A shell sends SIGHUP when its terminal is closed, and the kernel does when the shell has ended.
#[test]
fn sighup_twice_takes_the_clusters_down_in_order_and_writes_the_report() -> Result<()> {
    let place = ScenarioDir::new(&[("a.yaml", &FOREVER.replace("NETWORK", "ledger"))]);
    let args = ["--junit", "report.xml", "a.yaml"];
    let mut running = RunningTest::start(&mut place.command(&args))?;
    running.until("1/2 ")?;
    running.signal(Signal::HUP)?;
    // The second signal arrives while the cluster ends, which takes longer.
    running.signal(Signal::HUP)?;
    assert_eq!(running.end()?, Some(130));
    place.assert_nothing_is_left();
    place.assert_report_says_interrupted()
}

/// Runs a command line on a terminal of its own, which is closed as soon as it shows the text.
const TERMINAL: &str = "
import os, pty, sys
text, program = sys.argv[1].encode(), sys.argv[2:]
pid, terminal = pty.fork()
if pid == 0:
    os.execv(program[0], program)
shown = b''
while text not in shown:
    shown += os.read(terminal, 65536)
os.close(terminal)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
";

/// Nothing can be written to the terminal any more.
#[test]
fn a_closed_terminal_leaves_nothing_behind() -> Result<()> {
    if !peers::python3() {
        return Ok(());
    }
    let place = ScenarioDir::new(&[("a.yaml", &FOREVER.replace("NETWORK", "ledger"))]);
    let command = place.command(&["--junit", "report.xml", "a.yaml"]);
    let mut python = wrapped("python3", &["-c", TERMINAL, "1/2 "], &command);
    let finished = finish(&mut python);
    assert_eq!(finished.code, Some(130), "{finished:?}");
    place.assert_nothing_is_left();
    place.assert_report_says_interrupted()
}

/// A program that runs the command, in the same place.
fn wrapped(program: &str, args: &[&str], command: &Command) -> Command {
    let mut wrapper = Command::new(program);
    wrapper.args(args).arg(command.get_program());
    wrapper.args(command.get_args());
    if let Some(dir) = command.get_current_dir() {
        wrapper.current_dir(dir);
    }
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => wrapper.env(name, value),
            None => wrapper.env_remove(name),
        };
    }
    wrapper
}

#[test]
fn a_run_under_nohup_continues_without_its_terminal() -> Result<()> {
    let text = "
cluster: {nodes: 0}
steps:
- expect: [{count: pods, equals: 0}]
- run: {command: 'until [ -e signalled ]; do sleep 0.1; done'}
";
    let place = ScenarioDir::new(&[("a.yaml", text)]);
    let command = place.command(&["a.yaml"]);
    let mut nohup = wrapped("nohup", &[], &command);
    let mut running = RunningTest::start(nohup.stdin(Stdio::null()))?;
    running.until("1/2 ")?;
    running.signal(Signal::HUP)?;
    fs::write(place.scenarios.path().join("signalled"), "")?;
    assert_eq!(running.end()?, Some(0));
    place.assert_nothing_is_left();
    Ok(())
}

#[tokio::test]
async fn a_second_signal_ends_the_runner_at_once_and_its_clusters_follow() -> Result<()> {
    let text = FOREVER.replace("NETWORK", "ledger");
    let place = ScenarioDir::new(&[("a.yaml", &text), ("b.yaml", &text)]);
    let mut running = RunningTest::start(&mut place.command(&["-j", "2", "."]))?;
    running.until("1/2 ")?;
    running.signal(Signal::INT)?;
    running.signal(Signal::TERM)?;
    assert_eq!(running.end()?, Some(130));
    assert_ne!(
        place.left(),
        [] as [PathBuf; 0],
        "nothing waits for what is removed in order"
    );
    let none = |seen: &Vec<_>| seen.is_empty();
    eventually("no process", || std::future::ready(place.processes()), none).await;
    Ok(())
}

#[tokio::test]
async fn clusters_end_when_the_runner_is_killed() -> Result<()> {
    let place = ScenarioDir::new(&[("a.yaml", &FOREVER.replace("NETWORK", "ledger"))]);
    let mut running = RunningTest::start(&mut place.command(&["a.yaml"]))?;
    running.until("1/2 ")?;
    running.signal(Signal::KILL)?;
    assert_eq!(running.end()?, None);
    let none = |seen: &Vec<_>| seen.is_empty();
    eventually("no process", || std::future::ready(place.processes()), none).await;
    Ok(())
}

#[test]
fn clusters_are_kept_until_ctrl_c() -> Result<()> {
    let place = ScenarioDir::new(&[("passes.yaml", PASSES)]);
    let mut running = RunningTest::start(&mut place.command(&["--keep", "passes.yaml"]))?;
    let line = running.until("the cluster goes on: ")?;
    running.until("Ctrl-C ends them")?;
    let dir = line.rsplit_once(' ').context("a path")?.1.to_owned();
    let pods = finish(&mut podplane(["get", "pods", "--data-dir", &dir])).ok();
    assert!(pods.contains("web"), "{pods}");
    running.signal(Signal::INT)?;
    assert_eq!(running.end()?, Some(0));
    place.assert_nothing_is_left();
    Ok(())
}

#[test]
fn reports_are_valid_junit() -> Result<()> {
    let Some(path) = peers::python_junitparser() else {
        return Ok(());
    };
    let place = ScenarioDir::new(&[
        ("passes.yaml", PASSES),
        ("fails.yaml", FAILS),
        ("broken.yaml", BROKEN),
    ]);
    place
        .run(&[
            "--junit",
            "report.xml",
            "--seed",
            "3",
            "--patience",
            "0.1",
            ".",
        ])
        .failed(1);
    let script = "import json, junitparser\n\
        suites = list(junitparser.JUnitXml.fromfile('report.xml'))\n\
        print(json.dumps([[case.name, [type(result).__name__ for result in case.result], case.time > 0,\n\
            case.result[0].text if case.result else case.system_out, {p.name: p.value for p in case.child(junitparser.Properties)}]\n\
            for suite in suites for case in suite]))";
    let mut python = Command::new("python3");
    let python = python.args(["-c", script]).env("PYTHONPATH", path);
    let read = finish(python.current_dir(place.scenarios.path())).ok();
    let mut cases: Vec<Value> = serde_json::from_str(&read)?;
    cases.sort_by_key(|case| case[0].as_str().map(String::from));
    let of = |case: &Value| (case[0].clone(), case[1].clone(), case[2].clone());
    let want = [
        ("broken", vec!["Error"]),
        ("fails", vec!["Failure"]),
        ("passes", vec![]),
    ];
    for (case, (name, results)) in cases.iter().zip(want) {
        assert_eq!(
            of(case),
            (name.into(), results.into(), true.into()),
            "{read}"
        );
        assert_eq!(case[4]["seed"], "3");
    }
    assert!(cases[1][3].to_string().contains("expected: 2"), "{read}");
    assert!(
        cases[2][3].to_string().contains("1 run podplane run web"),
        "{read}"
    );
    assert!(cases[2][4]["timing.until it runs"].is_string(), "{read}");
    Ok(())
}

#[test]
fn scenarios_run_in_parallel() {
    // Each waits for the other, so that none would pass if they ran one after another.
    let meet = |own: &str, other: &str| {
        format!(
            "cluster: {{nodes: 0}}\nsteps:\n- run: {{command: 'touch {own}; until [ -e {other} ]; do sleep 0.1; done', within: 60s}}\n"
        )
    };
    let place = ScenarioDir::new(&[("a.yaml", &meet("a", "b")), ("b.yaml", &meet("b", "a"))]);
    let said = place.run(&["-j", "2", "."]).ok();
    assert!(said.contains("2 passed; "), "{said}");
    place.assert_nothing_is_left();
}

#[test]
fn random_choices_follow_from_the_seed() {
    let text = "
cluster: {nodes: 4, nodesPerProcess: 1}
steps:
- kill: {process: 'kubelet-*'}
- kill: {process: 'cri-*', signal: TERM}
- rebootNode: {node: '*'}
";
    let place = ScenarioDir::new(&[("chance.yaml", text)]);
    let chosen = |seed: &str| {
        let done = place.run(&["chance.yaml", "--seed", seed]);
        assert_eq!(done.code, Some(0), "{done:?}");
        let steps = done.stderr.lines().filter(|line| line.contains("/3 "));
        let choices =
            steps.filter_map(|line| Some(line.rsplit_once('(')?.1.split_once(')')?.0.to_owned()));
        choices.collect::<Vec<_>>()
    };
    let first = chosen("1");
    assert_eq!(first.len(), 3, "{first:?}");
    assert_eq!(first, chosen("1"));
    assert!((2..6).any(|seed: u32| chosen(&seed.to_string()) != first));
}

#[test]
fn process_steps_wait_for_a_restarting_process() {
    let text = "
cluster: {nodes: 0}
steps:
- kill: {process: scheduler}
- kill: {process: scheduler}
- pause: {process: scheduler, for: 1ms}
- kill: {process: 'sched*'}
";
    let place = ScenarioDir::new(&[("again.yaml", text)]);
    place.run(&["again.yaml"]).ok();
    place.assert_nothing_is_left();
}

#[test]
fn repeats_each_scenario_and_summarizes_its_times() {
    let place = ScenarioDir::new(&[("passes.yaml", PASSES)]);
    let said = place
        .run(&[
            "passes.yaml",
            "--repeat",
            "3",
            "-j",
            "3",
            "--output",
            "kept",
        ])
        .ok();
    for part in [
        "PASS passes#1 ",
        "PASS passes#3 ",
        "passes: until it runs: ",
        ", of 3\n",
        "3 passed; ",
    ] {
        assert!(said.contains(part), "no {part:?} in:\n{said}");
    }
    let kept = fs::read_dir(place.scenarios.path().join("kept")).expect("it is there");
    assert_eq!(kept.count(), 3);
    place.assert_nothing_is_left();
}

#[test]
fn a_violation_fails_a_step_that_does_not_name_it() {
    let node = |name: &str| {
        format!(
            "{{apiVersion: v1, kind: Node, metadata: {{name: {name}}}, spec: {{podCIDR: 10.244.0.0/24, podCIDRs: [10.244.0.0/24]}}}}"
        )
    };
    let text = |violations: &str| {
        format!(
            "cluster: {{nodes: 0, compat: upstream}}\nsteps:\n- apply: [{}, {}]\n  settle: 1s\n{violations}",
            node("a"),
            node("b")
        )
    };
    let place = ScenarioDir::new(&[
        ("silent.yaml", &text("")),
        ("said.yaml", &text("  violations: [overlapping-pod-cidr]\n")),
        (
            "other.yaml",
            &text("  violations: [overlapping-pod-cidr, leaked-address]\n"),
        ),
    ]);
    let finished = place.run(&["."]);
    assert_eq!(finished.code, Some(1), "{finished:?}");
    let said = finished.stdout;
    for part in [
        "PASS said ",
        "FAIL silent ",
        "expected: no violation",
        "was:      overlapping-pod-cidr",
        "overlapping-pod-cidr: block 10.244.0.0/24 of node b overlaps block 10.244.0.0/24 of node a",
        "FAIL other ",
        "expected: overlapping-pod-cidr, leaked-address",
    ] {
        assert!(said.contains(part), "no {part:?} in:\n{said}");
    }
}

#[test]
fn kills_a_command_and_its_children_at_the_deadline() {
    let text = "cluster: {nodes: 0}\nsteps:\n- run: {command: 'sleep 4242.4242 & sleep 4242.4242', within: 300ms}\n";
    let place = ScenarioDir::new(&[("hangs.yaml", text)]);
    let finished = place.run(&["hangs.yaml"]);
    assert_eq!(finished.code, Some(1), "{finished:?}");
    assert!(
        finished.stdout.contains("expected: to end within 300ms"),
        "{}",
        finished.stdout
    );
    assert_eq!(processes_of("4242.4242").expect("/proc"), []);
}

#[test]
fn a_process_that_a_command_leaves_behind_is_refused() {
    let text = |command: &str| {
        format!(
            "cluster: {{nodes: 0}}\nsteps:\n- run: {{command: '{command}', stdout: {{equals: said}}}}\n"
        )
    };
    let place = ScenarioDir::new(&[
        ("job.yaml", &text("echo said; sleep 4343.4343 &")),
        (
            "daemon.yaml",
            &text("echo said; setsid sleep 4343.4343 > /dev/null 2>&1 &"),
        ),
        ("ends.yaml", &text("echo said; sleep 0.1 &")),
        ("ended.yaml", &text("echo said; sleep 4343.4343 & kill $!")),
    ]);
    let finished = place.run(&["."]);
    assert_eq!(finished.code, Some(1), "{finished:?}");
    let said = finished.stdout;
    for part in ["PASS ends ", "PASS ended ", "FAIL job ", "FAIL daemon "] {
        assert!(said.contains(part), "no {part:?} in:\n{said}");
    }
    // Both when the run ends and at the end of all.
    let expected = "expected: no process that outlives the command: wait for it or end it there";
    assert_eq!(said.matches(expected).count(), 2 * 2, "{said}");
    let was = "was:      went on: sleep 4343.4343 (pid ";
    assert_eq!(said.matches(was).count(), 2 * 2, "{said}");
    assert_eq!(processes_of("4343.4343").expect("/proc"), []);
}

#[test]
fn a_scenario_with_a_long_matrix_value_keeps_logs_and_can_be_selected() {
    let text = format!(
        "matrix: {{text: ['{}']}}\ncluster: {{nodes: 0}}\nsteps:\n- expect: [{{count: pods, equals: 1}}]\n",
        "long ".repeat(100)
    );
    let place = ScenarioDir::new(&[("long.yaml", &text)]);
    let finished = place.run(&["long.yaml"]);
    assert_eq!(finished.code, Some(1), "{finished:?}");
    let kept = line_after(&finished.stdout, "logs: ");
    assert!(Path::new(kept).join("recording.jsonl").exists(), "{kept}");
    let again = line_after(&finished.stdout, "again: ");
    let only = again.split('\'').nth(1).expect("a quoted title");
    let listed = place.run(&["--list", "--only", only, "long.yaml"]).ok();
    assert_eq!(listed.lines().count(), 1, "{listed}");
}

/// Both pods have the address for 200 ms, in the middle of a step.
const MOMENT: &str = r#"
cluster: {nodes: 0}
steps:
- apply:
  - {apiVersion: v1, kind: Node, metadata: {name: a}, spec: {podCIDR: 10.244.0.0/24, podCIDRs: [10.244.0.0/24]}}
  - {apiVersion: v1, kind: Pod, metadata: {name: x}, spec: {nodeName: a, containers: [{name: c, image: pause}]}}
  - {apiVersion: v1, kind: Pod, metadata: {name: y}, spec: {nodeName: a, containers: [{name: c, image: pause}]}}
- name: both have it
  VIOLATIONS
  run:
    command: [python3, '-']
    stdin: |
      import http.client, os, socket, time
      server = http.client.HTTPConnection("localhost")
      server.sock = socket.socket(socket.AF_UNIX)
      server.sock.connect(os.environ["PODPLANE_DATA_DIR"] + "/apiserver.sock")
      def set_ip(pod, ip):
          status = '{"status": {"phase": "Running", "podIP": "%s", "podIPs": [{"ip": "%s"}]}}' % (ip, ip)
          path = f"/api/v1/namespaces/default/pods/{pod}/status"
          server.request("PATCH", path, status, {"Content-Type": "application/merge-patch+json"})
          answer = server.getresponse()
          assert answer.status == 200, answer.read()
          answer.read()
      set_ip("x", "10.244.0.2")
      set_ip("y", "10.244.0.2")
      time.sleep(0.2)
      set_ip("y", "10.244.0.3")
"#;

#[test]
fn an_address_that_two_pods_have_for_a_moment_is_found() {
    if !peers::python3() {
        return;
    }
    let named = MOMENT.replace("VIOLATIONS", "violations: [duplicate-pod-ip]");
    // The violation is over, so this step names nothing.
    let named = named + "- expect: [{count: pods, equals: 2}]\n";
    let place = ScenarioDir::new(&[
        ("silent.yaml", &MOMENT.replace("  VIOLATIONS\n", "")),
        ("named.yaml", &named),
    ]);
    let finished = place.run(&["."]);
    assert_eq!(finished.code, Some(1), "{finished:?}");
    for part in [
        "PASS named ",
        "FAIL silent ",
        "step 2, both have it: the invariants:",
        "expected: no violation",
        "was:      duplicate-pod-ip",
        "address 10.244.0.2 is used by live pods default/x and default/y: from revision ",
        " to revision ",
    ] {
        let said = &finished.stdout;
        assert!(said.contains(part), "no {part:?} in:\n{said}");
    }
}

#[test]
fn a_reboot_resets_the_status_of_its_pods() {
    let text = "
cluster: {nodes: 1}
steps:
- run: {command: podplane run web --replicas 3 --wait}
- calls: {of: kubelet-node-0, method: RunPodSandbox, delay: 1m}
- rebootNode: {node: node-0}
- expect: [{count: pods, where: 'object.status.phase == \"Pending\"', equals: 3}]
- calls: {of: kubelet-node-0, clear: true}
- wait: {expect: [{count: pods, where: 'object.status.phase == \"Running\"', equals: 3}]}
- partition: {node: node-0, from: apiserver}
- rebootNode: {node: node-0, wait: false}
- expect: [{count: pods, where: 'object.status.phase == \"Running\"', equals: 3}]
";
    let place = ScenarioDir::new(&[("reboot.yaml", text)]);
    let said = place.run(&["reboot.yaml"]).ok();
    assert!(said.contains("1 passed; "), "{said}");
    place.assert_nothing_is_left();
}

#[test]
fn lists_scenarios_without_running_them() {
    let text = "matrix: {mask: [30, 29]}\ncluster: {nodeCIDRMaskSize: '${mask}'}\nsteps: [{expect: [{count: pods, equals: 0}]}]\n";
    let place = ScenarioDir::new(&[("full.yaml", text)]);
    let said = place.run(&["--list", "."]).ok();
    assert_eq!(
        said,
        "./full.yaml: full[mask=30]\n./full.yaml: full[mask=29]\n"
    );
    let said = place.run(&["--list", "--only", "=29", "full.yaml"]).ok();
    assert_eq!(said, "full.yaml: full[mask=29]\n");
    let schema: Value = serde_json::from_str(&place.run(&["--schema"]).ok()).expect("JSON");
    assert_eq!(schema["title"], "podplane scenario");
}
