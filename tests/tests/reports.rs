//! The pages that commands write with `--html`: of an audit of story B's duplicates, of a plan, of
//! a test run, and of a trace in a live cluster.

use std::{fs, path::Path};

use anyhow::{Context as _, Result};
use podplane_test_page::Page;
use podplane_tests::{
    Cluster, Network, builder,
    programs::{ProgramOutput, finish, podplane},
};
use serde_json::json;
use tempfile::TempDir;

/// A directory for pages.
struct Pages(TempDir);

impl Pages {
    fn new() -> Result<Self> {
        Ok(Self(tempfile::tempdir()?))
    }

    fn file(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }

    /// Runs `podplane`, which writes a page that is sound.
    fn written(&self, args: &[&str]) -> Result<(ProgramOutput, Page)> {
        let file = self.file("page.html");
        let mut command = podplane(args);
        command.args(["--html", &file]).env("TMPDIR", self.0.path());
        let done = finish(&mut command);
        let text = fs::read_to_string(&file).with_context(|| format!("{done:?}"))?;
        let told = format!("wrote {file}\n");
        assert!(done.stderr.contains(&told), "{done:?}");
        let page = Page::read(&text);
        page.assert_sound();
        Ok((done, page))
    }
}

/// A dump among the test data of the audit.
fn dump(name: &str) -> String {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/audit/tests/data");
    data.join(name).display().to_string()
}

fn texts(page: &Page, element: &str) -> Vec<String> {
    page.all(element).map(|each| each.text()).collect()
}

/// The output of kubectl for a cluster after story B's change of the mask: two nodes have one block,
/// and two of their pods one address.
fn duplicates(pages: &Pages) -> Result<String> {
    dump_of(
        pages,
        &[
            ("worker1", "10.244.7.0/24"),
            ("worker2", "10.244.8.0/24"),
            ("worker289", "10.244.7.0/24"),
        ],
        &[
            ("api-0", "worker1", "10.244.7.2"),
            ("api-1", "worker289", "10.244.7.2"),
            ("web-0", "worker1", "10.244.7.3"),
            ("web-1", "worker2", "10.244.8.2"),
        ],
    )
}

/// The output of kubectl for nodes with their blocks, and for pods with their nodes and addresses.
fn dump_of(pages: &Pages, nodes: &[(&str, &str)], pods: &[(&str, &str, &str)]) -> Result<String> {
    let node = |(name, block): &(&str, &str)| {
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name},
            "spec": {"podCIDR": block, "podCIDRs": [block]}})
    };
    let pod = |(name, node, ip): &(&str, &str, &str)| {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "default", "name": name},
            "spec": {"nodeName": node, "containers": [{"name": "c", "image": "pause"}]},
            "status": {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}]}})
    };
    let items: Vec<_> = nodes.iter().map(node).chain(pods.iter().map(pod)).collect();
    let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
    let file = pages.file("dump.json");
    fs::write(&file, list.to_string())?;
    Ok(file)
}

#[test]
fn audit_does_all_of_its_work_although_nobody_reads_the_output() -> Result<()> {
    let pages = Pages::new()?;
    let (dump, page, repair) = (
        duplicates(&pages)?,
        pages.file("page"),
        pages.file("repair"),
    );
    let metrics = pages.file("metrics");
    let mut command = podplane(["audit", &dump, "--cluster-cidr", "10.244.0.0/16"]);
    command.args(["--service-cidr", "10.96.0.0/16"]);
    command.args(["--html", &page, "--repair", &repair]);
    command.args(["--metrics-file", &metrics]);
    let (reader, output) = std::io::pipe()?;
    drop(reader);
    let ended = command.stdout(output).status()?;
    assert_eq!(ended.code(), Some(1), "it has found something");
    assert!(fs::read_to_string(&metrics)?.contains("podplane_audit_findings"));
    assert!(Path::new(&page).exists());
    assert!(Path::new(&repair).join("RUNBOOK.md").exists());
    Ok(())
}

#[test]
fn a_page_that_cannot_be_written_is_no_verdict() -> Result<()> {
    let pages = Pages::new()?;
    let dump = duplicates(&pages)?;
    for args in [&["audit", &dump][..], &["plan", "--nodes", "1000"]] {
        let error = finish(podplane(args).args(["--html", "/dev/full"])).failed(2);
        assert!(
            error.contains("error: failed to write /dev/full: "),
            "{error}"
        );
    }
    Ok(())
}

#[test]
fn audit_writes_findings_map_and_repair() -> Result<()> {
    let pages = Pages::new()?;
    let dump = duplicates(&pages)?;
    let args = ["audit", &dump, "--cluster-cidr", "10.244.0.0/16"];
    let (done, page) = pages.written(&[&args[..], &["-o", "json"]].concat())?;
    assert_eq!(done.code, Some(1), "{done:?}");
    let wrote = format!("wrote {}\n", pages.file("page.html"));
    assert_eq!(done.stderr, wrote, "nothing else but the report");
    let report: serde_json::Value = serde_json::from_str(&done.stdout)?;
    let cells = texts(&page, "td");
    let findings = report["findings"].as_array().context("findings")?;
    assert!(!findings.is_empty());
    for finding in findings {
        let message = finding["message"].as_str().context("a message")?;
        assert!(
            cells.iter().any(|cell| cell.starts_with(message)),
            "{message}"
        );
    }
    for id in ["findings", "duplicate-pod-cidr", "map", "repair"] {
        assert!(page.ids().iter().any(|each| each == id), "{id}");
    }
    let map = page.within("figure", "svg").next().context("a map")?;
    assert!(map.text().contains("duplicate"), "{}", map.text());
    let marks: Vec<_> = map.all("g").map(|mark| mark.text()).collect();
    let block = "duplicate-pod-cidr: block 10.244.7.0/24 is assigned to 2 nodes";
    assert!(
        marks.iter().any(|mark| mark.contains(block)),
        "the finding about a whole block is marked: {marks:?}"
    );
    let commands = texts(&page, "code");
    assert!(
        commands
            .iter()
            .any(|line| line.starts_with("kubectl cordon")),
        "{commands:?}"
    );

    let dir = pages.file("repair");
    let repair = finish(&mut podplane([&args[..], &["--repair", &dir]].concat()));
    assert_eq!(repair.code, Some(1), "{repair:?}");
    let wrote = format!("wrote {dir}: RUNBOOK.md and ");
    assert!(repair.stderr.starts_with(&wrote), "{repair:?}");
    let manifests = texts(&page, "pre");
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path
            .extension()
            .is_some_and(|extension| extension == "yaml")
        {
            assert!(
                manifests.contains(&fs::read_to_string(path)?),
                "{manifests:?}"
            );
        }
    }
    Ok(())
}

/// A block that contains those of two other nodes.
fn overlap(pages: &Pages) -> Result<String> {
    dump_of(
        pages,
        &[
            ("wide", "10.244.0.0/21"),
            ("worker1", "10.244.1.0/24"),
            ("worker2", "10.244.3.0/24"),
        ],
        &[
            ("api-0", "worker1", "10.244.1.2"),
            ("web-0", "wide", "10.244.5.2"),
        ],
    )
}

#[test]
fn an_overlap_is_marked_at_each_of_its_blocks() -> Result<()> {
    let pages = Pages::new()?;
    let dump = overlap(&pages)?;
    let (_, page) = pages.written(&["audit", &dump, "--cluster-cidr", "10.244.0.0/16"])?;
    let map = page.within("figure", "svg").next().context("a map")?;
    let marks = map.all("g").map(|mark| mark.text());
    let marks = marks.filter(|text| text.contains("overlapping-pod-cidr: "));
    assert_eq!(marks.count(), 3);
    let places = "10.244.0.0/2110.244.1.0/2410.244.3.0/24";
    assert!(texts(&page, "td").iter().any(|cell| cell == places));
    let table = pages.written(&["audit", &dump, "--cluster-cidr", "10.244.1.0/24"])?;
    let cells = texts(&table.1, "td");
    let outside = |row: &[String]| row[0] == "10.244.3.0/24" && row[1].starts_with("overlapping");
    assert!(cells.windows(2).any(outside), "{cells:?}");
    let map = finish(&mut podplane(["map", "--from", &dump])).stdout;
    for line in [
        "10.244.0.0/21 2/2045 wide overlap",
        "10.244.1.0/24 1/253 worker1 overlap",
        "10.244.3.0/24 0/253 worker2 overlap",
    ] {
        assert!(map.contains(line), "{line}: {map}");
    }
    Ok(())
}

#[test]
fn audit_and_map_count_each_address_and_each_block_once() -> Result<()> {
    let pages = Pages::new()?;
    // Three nodes, two blocks; four pods, three addresses.
    counts_are_the_same(&pages, &duplicates(&pages)?, [3, 503])?;
    // Two blocks within a third one, and a pod in one of them and one beside them.
    counts_are_the_same(&pages, &overlap(&pages)?, [2, 2043])
}

/// Compares the numbers of addresses that audit and map have, in all of their forms.
fn counts_are_the_same(pages: &Pages, dump: &str, [used, free]: [u64; 2]) -> Result<()> {
    let json = |args: &[&str]| -> Result<serde_json::Value> {
        Ok(serde_json::from_str(&finish(&mut podplane(args)).stdout)?)
    };
    let range = ["--cluster-cidr", "10.244.0.0/16"];
    let audit = json(&[&["audit", dump, "-o", "json"], &range[..]].concat())?;
    let audit = &audit["summary"]["addresses"];
    let map = json(&[&["map", "--from", dump, "-o", "json"], &range[..]].concat())?;
    let count = |state: &str| map["view"]["counts"][state].as_u64().unwrap_or_default();
    let in_use = ["pod", "duplicate", "outside"].map(count);
    assert_eq!(
        (in_use.iter().sum(), count("free")),
        (used, free),
        "{map:#}"
    );
    assert_eq!(audit["used"], used, "{audit:#}");
    assert_eq!(audit["free"], free, "{audit:#}");
    assert_eq!(audit["capacity"], used + free, "{audit:#}");
    let (_, page) = pages.written(&[&["audit", dump], &range[..]].concat())?;
    let capacity = used + free;
    let line = format!("addresses: {used} of {capacity} used, {free} free");
    assert!(texts(&page, "li").contains(&line), "{line}");
    let svg = page.within("figure", "svg").next().context("a map")?.text();
    assert!(
        svg.contains(&format!("free [.] {free}: can be given")),
        "{svg}"
    );
    let text = finish(&mut podplane(
        [&["map", "--from", dump], &range[..]].concat(),
    ))
    .stdout;
    assert!(text.contains(&format!(".  free       {free}")), "{text}");
    Ok(())
}

#[test]
fn audit_lists_findings_outside_of_its_map() -> Result<()> {
    let pages = Pages::new()?;
    let dump = duplicates(&pages)?;
    let line = ["audit", &dump, "--cluster-cidr", "10.244.8.0/24"];
    let (_, page) = pages.written(&line)?;
    let cells = texts(&page, "td");
    let is_listed =
        |row: &[String]| row[0] == "10.244.7.0/24" && row[1].starts_with("duplicate-pod-cidr: ");
    assert!(cells.windows(2).any(is_listed), "{cells:?}");
    let line = ["audit", &dump, "--cluster-cidr", "10.244.0.0/16"];
    let (_, page) = pages.written(&line)?;
    assert!(!page.text().contains("Findings outside of the networks"));
    Ok(())
}

#[test]
fn audit_names_no_flag_that_was_not_given() -> Result<()> {
    let pages = Pages::new()?;
    let (_, page) = pages.written(&["audit", &duplicates(&pages)?])?;
    let map = page.within("figure", "svg").next().context("a map")?;
    assert!(!map.text().contains("--cluster-cidr"), "{}", map.text());
    Ok(())
}

#[test]
fn audit_says_why_there_is_no_repair() -> Result<()> {
    let pages = Pages::new()?;
    let (done, page) = pages.written(&["audit", &duplicates(&pages)?])?;
    assert_eq!(done.code, Some(1), "{done:?}");
    let notices = texts(&page, "p");
    let reason = "No repair can be written: missing --cluster-cidr";
    assert!(
        notices.iter().any(|text| text.starts_with(reason)),
        "{notices:?}"
    );
    Ok(())
}

#[test]
fn plan_writes_a_page_and_a_picture() -> Result<()> {
    let pages = Pages::new()?;
    let svg = pages.file("plan.svg");
    let line = [
        "plan", "--nodes", "100", "--growth", "20%/year", "--svg", &svg,
    ];
    let (done, page) = pages.written(&line)?;
    assert_eq!(done.code, Some(0), "{done:?}");
    assert_eq!(page.all("figure").count(), 2, "the growth, and a range");
    let shown = page.text();
    for field in ["Total pods", "First limit", "Blocks used up"] {
        assert!(
            done.stdout.contains(field) && shown.contains(field),
            "{field}"
        );
    }
    let picture = fs::read_to_string(svg)?;
    assert!(
        picture.starts_with("<svg") && picture.contains("used up in"),
        "{picture}"
    );
    assert!(picture.contains("The plan is enough: blocks for 256 nodes, 100 needed."));

    let dump = dump("networks/calico-faults.yaml");
    let (live, page) = pages.written(&["plan", "--from", &dump])?;
    assert!(matches!(live.code, Some(0 | 1)), "{live:?}");
    assert_eq!(page.all("figure").count(), 1);
    let labels = texts(&page, "text");
    assert!(
        labels.iter().all(|label| !label.contains('…')),
        "{labels:?}"
    );
    Ok(())
}

/// One scenario passes, the other fails.
const SCENARIO: &str = "
name: two
cluster: {nodes: 1, network: ledger}
matrix: {pods: [1, 2]}
steps:
- name: a pod <b>
  apply:
    apiVersion: v1
    kind: Pod
    metadata: {name: web}
    spec: {containers: [{name: c, image: pause}]}
- name: it runs
  wait:
    within: 60s
    expect:
    - {count: pods, where: 'object.status.phase == \"Running\"', equals: 1}
- run: {command: \"printf 'one\\\\ntwo\\\\n'\"}
- expect:
  - {object: pod/web, jsonpath: .metadata.labels.a_name_that_is_longer_than_the_titles_of_a_terminal, exists: false}
- name: there are as many
  expect:
  - {count: pods, where: '${pods} == 1', equals: 1}
";

/// A command that fails.
const COMMAND: &str = "
cluster: {nodes: 1, network: ledger}
steps: [{run: {command: 'echo lost; exit 3'}}]
";

#[test]
fn a_file_that_cannot_be_written_is_refused_before_the_work() -> Result<()> {
    let pages = Pages::new()?;
    let (scenario, dump) = (pages.file("one.yaml"), duplicates(&pages)?);
    fs::write(&scenario, COMMAND)?;
    let nowhere = pages.file("none/page.html");
    for args in [
        &["test", &scenario][..],
        &["audit", &dump],
        &["plan"],
        &["trace", "pod", "web"],
    ] {
        for file in [&*nowhere, "-"] {
            let done = finish(podplane(args).args(["--html", file]));
            assert_eq!(done.code, Some(2), "{done:?}");
            assert_eq!(done.stdout, "", "{args:?}");
            let why = ["failed to write", "a report is written to a file"];
            assert!(why.iter().any(|why| done.stderr.contains(why)), "{done:?}");
        }
    }
    Ok(())
}

#[test]
fn no_file_is_left_and_none_is_changed_if_the_work_fails() -> Result<()> {
    let pages = Pages::new()?;
    let (broken, new, old) = (
        pages.file("broken.json"),
        pages.file("new"),
        pages.file("old"),
    );
    fs::write(&broken, "{")?;
    fs::write(&old, "of yesterday")?;
    for file in [&new, &old] {
        let done = finish(&mut podplane(["audit", &broken, "--html", file]));
        assert_eq!(done.code, Some(2), "{done:?}");
    }
    assert!(!Path::new(&new).exists());
    assert_eq!(fs::read_to_string(old)?, "of yesterday");
    Ok(())
}

#[test]
fn test_writes_failures_first_with_traces() -> Result<()> {
    let pages = Pages::new()?;
    let scenario = pages.file("two.yaml");
    fs::write(&scenario, SCENARIO)?;
    let command = pages.file("command.yaml");
    fs::write(&command, COMMAND)?;
    let (done, page) = pages.written(&["test", &scenario, &command])?;
    assert_eq!(done.code, Some(1), "{done:?}");
    let headings = texts(&page, "h2");
    let runs: Vec<_> = headings
        .iter()
        .filter(|text| text.starts_with("two["))
        .collect();
    let [failed, passed] = runs.as_slice() else {
        panic!("{headings:?}")
    };
    assert!(
        failed.contains("pods=2") && failed.contains("failed"),
        "{failed}"
    );
    assert!(
        passed.contains("pods=1") && passed.contains("passed"),
        "{passed}"
    );
    let cells = texts(&page, "td");
    for text in ["1. a pod <b>", "4. expect object: pod/web, exists: false"] {
        let cell = cells.iter().find(|cell| cell.starts_with(text));
        let cell = cell.with_context(|| format!("{text}: {cells:?}"))?;
        assert!(!cell.contains('…'), "nothing is cut: {cell}");
    }
    let found = texts(&page, "pre");
    for text in [
        "$ printf 'one\\ntwo\\n'\n  one\n  two\nexit code 0",
        "seen: nothing at .metadata.labels.a_name_that_is_longer_than_the_titles_of_a_terminal",
        "seen: 1: web (of 1 pods)",
        "$ echo lost; exit 3\n  lost\nexit code 3",
        "expected: exit code 0",
    ] {
        assert!(found.iter().any(|pre| pre == text), "{text}: {found:#?}");
    }
    // What was not met is there once, with an object that tells the reason.
    let values = texts(&page, "dd");
    let seen: Vec<_> = values
        .iter()
        .filter(|value| value.starts_with("0 (of 1 pods)"))
        .collect();
    assert_eq!(seen.len(), 1, "{values:?}");
    assert!(!done.stdout.contains("null"), "{}", done.stdout);
    // The terminal has the fields that matter, and no object.
    let lines: Vec<_> = done.stdout.lines().map(str::trim).collect();
    let fields = [
        "was:      0 (of 1 pods)",
        "not counted: web:",
        "spec.nodeName: was \"node-0\"",
        "status.phase: was \"Running\"",
        "--html FILE has the whole objects",
    ];
    let is_there = lines.windows(fields.len()).any(|window| window == fields);
    assert!(is_there, "{}", done.stdout);
    assert!(!done.stdout.contains("containers"), "{}", done.stdout);
    let object = found
        .iter()
        .find(|pre| pre.contains("\"phase\": \"Running\""));
    let object = object.context("the pod that was not counted")?;
    serde_json::from_str::<serde_json::Value>(object).context("the whole of it")?;
    let traces = texts(&page, "summary");
    let traces = traces
        .iter()
        .filter(|text| *text == "Trace of pod default/web");
    assert_eq!(traces.count(), 2);
    let bars = texts(&page, "svg");
    assert!(
        bars.iter().all(|steps| steps.contains("RunPodSandbox")),
        "{bars:?}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn trace_writes_the_steps_that_it_prints() -> Result<()> {
    let Some(cluster) = Cluster::up(builder(Network::Ledger).nodes(1)).await? else {
        return Ok(());
    };
    cluster.podplane("run web --wait").ok();
    let pages = Pages::new()?;
    let data = cluster.data_dir().display().to_string();
    let (done, page) = pages.written(&["trace", "pod", "web", "--data-dir", &data])?;
    assert_eq!(done.code, Some(0), "{done:?}");
    let figure = page.all("figure").next().context("a waterfall")?;
    let cells = texts(&figure, "td");
    for step in ["create", "bind", "RunPodSandbox", "status Running"] {
        assert!(done.stdout.contains(step), "{}", done.stdout);
        assert!(cells.iter().any(|cell| cell == step), "{step}: {cells:?}");
    }
    cluster.finish().await?;
    Ok(())
}
