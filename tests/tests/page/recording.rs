//! The slider through a recording of story B: blocks that two nodes have, duplicate addresses, and
//! the repair that removes them.

use std::{ffi::OsString, fs, path::Path};

use anyhow::{Context as _, Result, ensure};
use podplane_tests::{
    browser::{Browser, Screen, Tab},
    listener::PageListener,
    peers,
    programs::{finish, podplane},
};
use serde::Deserialize;
use serde_json::Value;

use crate::site::assert_content;

/// The scenario of story B, in ledger mode.
const SCENARIO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/duplicate-blocks");
/// The network of its pods.
const NETWORK: &str = "10.244.0.0/21";
/// The step in which pods get the addresses of others.
pub(crate) const DUPLICATES: &str = "their pods get the addresses of others";
/// A part of the findings while addresses are duplicate.
const FOUND: &str = "is assigned to 2 pods";
const NOTHING: &str = "Nothing is wrong";
/// The field for a bearer token.
const FIELD: &str = "document.querySelector('#token')";
const SMALL: Screen = Screen {
    width: 360,
    height: 740,
    is_dark: false,
};

/// The document about the recording, as the page has it.
#[derive(Debug, Deserialize)]
pub(crate) struct RecordingDocument {
    duration: f64,
    steps: Vec<StepRow>,
    times: Vec<f64>,
    faults: Vec<(f64, f64)>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct StepRow {
    title: String,
    from: f64,
    pub(crate) to: f64,
}

impl RecordingDocument {
    pub(crate) async fn read(tab: &Tab) -> Result<Self> {
        let read = "fetch('/summary/v1alpha1/recording').then((answer) => answer.json())";
        Ok(serde_json::from_value(tab.evaluate(read).await?)?)
    }

    pub(crate) fn step(&self, title: &str) -> Result<&StepRow> {
        let step = self.steps.iter().find(|step| step.title == title);
        step.with_context(|| format!("no step {title:?} in {:?}", self.steps))
    }
}

/// Carries the scenario out, and returns the directory of its recording in `dir`.
pub(crate) fn record(dir: &Path) -> Result<OsString> {
    let mut test = podplane(["test", SCENARIO, "--seed", "1", "--output"]);
    finish(test.arg(dir)).ok();
    let mut runs = fs::read_dir(dir)?.flatten();
    let run = runs.find(|entry| entry.path().join("recording.jsonl").is_file());
    Ok(run.context("no recording")?.path().into_os_string())
}

/// The moment that the slider shows.
async fn moment(tab: &Tab) -> Result<f64> {
    let at = tab.evaluate("Number(document.querySelector('#moment').value)");
    at.await?.as_f64().context("a moment")
}

/// The moment that the address names.
pub(crate) const ADDRESS: &str =
    "Number(new URLSearchParams(location.hash.split('?')[1]).get('at') ?? NaN)";

async fn address(tab: &Tab) -> Result<f64> {
    tab.evaluate(ADDRESS).await?.as_f64().context("a moment")
}

/// Fails unless no mark covers another one, and each is within the slider.
async fn assert_marks_are_apart(tab: &Tab) -> Result<()> {
    let covered = "(() => {
        const around = document.querySelector('.timeline').getBoundingClientRect();
        const marks = [...document.querySelectorAll('.mark')];
        const places = marks.map((mark) => mark.getBoundingClientRect());
        return marks.length > 1 && places.every(({ left, right }, index) =>
            left >= (places[index - 1]?.right ?? around.left) && right <= around.right + 1);
    })()";
    tab.until(covered).await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn duplicates_appear_and_the_repair_removes_them() -> Result<()> {
    let Some(chromium) = peers::chromium() else {
        return Ok(());
    };
    let dir = tempfile::tempdir()?;
    let run = record(dir.path())?;
    let mut replay = podplane(["replay", "--ui", "--no-open"]);
    replay.arg(run);
    let listener = PageListener::start(replay)?;
    let browser = Browser::start(&chromium).await?;
    let tab = browser.tab().await?;
    // Without the token there is nothing to type it in; the address that has it is taken by the
    // document that is open.
    tab.open(&listener.view("#/")).await?;
    tab.until_text("main", "podplane replay DIR --ui").await;
    assert_eq!(tab.evaluate(FIELD).await?, Value::Null);
    tab.open(&listener.login("#/findings")).await?;

    // It opens at the beginning, and the address says so.
    tab.until_text(".recording output", "0.00 s").await;
    tab.until_text("main", NOTHING).await;
    assert_eq!(address(&tab).await?, 0.0);
    let recording = RecordingDocument::read(&tab).await?;
    let step = recording.step(DUPLICATES)?;
    let (_, repaired) = *recording.faults.last().context("faults")?;
    let is_faulty =
        |at: f64| (recording.faults.iter()).any(|(from, to)| (*from..*to).contains(&at));
    assert!(
        is_faulty(step.to) && repaired < recording.duration,
        "{recording:?}"
    );
    assert_marks_are_apart(&tab).await?;
    // The part before the first step has no outcome, and has not failed.
    let failed = "document.querySelectorAll('.mark.failed').length";
    assert_eq!(tab.evaluate(failed).await?, 0);

    // From change to change until the first duplicate, by the keyboard.
    tab.open(&listener.view(&format!("#/findings?at={}", step.from)))
        .await?;
    tab.until_text(".recording .step", DUPLICATES).await;
    tab.evaluate("document.querySelector('#moment').focus()")
        .await?;
    let changes = recording.times.iter();
    let most = changes.filter(|at| (step.from..=step.to).contains(at));
    let mut pressed = 0;
    while moment(&tab).await? < step.to && !has_duplicate(&tab).await? {
        pressed += 1;
        ensure!(pressed <= most.clone().count(), "no duplicate in the step");
        tab.press("ArrowRight").await?;
    }
    tab.until_text("main", FOUND).await;
    let found = moment(&tab).await?;
    ensure!(step.from < found && found <= step.to, "{found}: {step:?}");
    // The address follows a little later.
    tab.until(&format!("Math.abs({ADDRESS} - {found}) < 0.002"))
        .await;

    // The finding leads to its place; the link keeps the moment. A block that two nodes have can
    // be found at the same time, in another place.
    let row = "[...document.querySelectorAll('main tbody tr')]
        .find((row) => row.innerText.includes('FOUND'))"
        .replace("FOUND", FOUND);
    let place = format!("{row}.querySelector('td.code a')");
    let ip = tab.evaluate(&format!("{place}.innerText")).await?;
    let ip = ip.as_str().context("an address")?.replace("/32", "");
    tab.evaluate(&format!("{place}.click()")).await?;
    tab.until_text(".cell-prefix", &ip).await;
    tab.until_text(".legend", "duplicate").await;
    tab.until_text(".legend", "has several holders").await;
    assert!((moment(&tab).await? - found).abs() < 0.002, "{found}");
    has_one_number(&tab, &listener, step.to).await?;
    assert_each_place_is_marked(&tab).await?;

    // A link to a moment opens there, also in a page that is loaded anew.
    let map = |at: f64| listener.view(&format!("#/map?network={NETWORK}&at={at}"));
    tab.open(&map(step.to)).await?;
    tab.until_text(".legend", "duplicate").await;
    assert!((moment(&tab).await? - step.to).abs() < 0.002);
    tab.evaluate("window.isFirstDocument = true; location.reload()")
        .await?;
    tab.until("window.isFirstDocument === undefined").await;
    tab.until_text(".legend", "duplicate").await;
    assert!((moment(&tab).await? - step.to).abs() < 0.002);

    marks_stay_within_their_cells(&tab, &listener, step.to).await?;

    // At the end the repair has removed them; at the beginning they are not there yet.
    let has_none = "!document.querySelector('.legend')?.innerText.includes('duplicate')";
    tab.evaluate("document.querySelector('#moment').focus()")
        .await?;
    tab.press("End").await?;
    tab.until(has_none).await;
    tab.until_text(".legend", "of a pod").await;
    assert!((moment(&tab).await? - recording.duration).abs() < 0.002);
    tab.open(&listener.view("#/findings")).await?;
    tab.until_text("main", NOTHING).await;
    assert!((address(&tab).await? - recording.duration).abs() < 0.002);
    tab.evaluate("document.querySelector('#moment').focus()")
        .await?;
    tab.press("Home").await?;
    tab.until_text(".recording output", "0.00 s").await;
    tab.until_text("main", NOTHING).await;

    // What a recording does not have is not asked for.
    tab.open(&listener.view(&format!("#/pods?at={}", recording.duration)))
        .await?;
    let first = "document.querySelector('td a')?.hash ?? ''";
    tab.until(&format!("({first}).startsWith('#/pod/')")).await;
    tab.evaluate("document.querySelector('td a').click()")
        .await?;
    tab.until_text("main", "A recording has no traces").await;
    tab.until_text(".facts", "Running").await;
    // Its events have their times.
    let events = "document.querySelectorAll('[aria-label=Events] tbody time')";
    tab.until(&format!("{events}.length > 0")).await;
    tab.evaluate("document.querySelector('#moment').focus()")
        .await?;
    tab.press("Home").await?;
    tab.until_text("main", "at this moment").await;

    // The marks, on a small screen too, where several steps share one.
    tab.set_screen(SMALL).await?;
    assert_marks_are_apart(&tab).await?;
    let shared = "[...document.querySelectorAll('.mark')].some((mark) =>
        mark.ariaLabel.includes(' steps, ') && mark.title.split('\\n').length > 2)";
    tab.until(shared).await;

    // Findings that the beginning does not have appear beside the map, each time.
    tab.open(&listener.view("#/?at=0")).await?;
    tab.until_text(".hint", "no nodes at this moment").await;
    let go = |at: f64| {
        format!(
            "(() => {{
                const range = document.querySelector('#moment');
                range.value = {at};
                range.dispatchEvent(new Event('input'));
            }})()"
        )
    };
    for _ in 0..2 {
        tab.evaluate(&go(step.to)).await?;
        tab.until("document.querySelector('aside .finding') !== null")
            .await;
        tab.evaluate(&go(0.0)).await?;
        tab.until_text(".hint", "no nodes at this moment").await;
    }

    // The address that was used opens the page as long as there is a session.
    let hash = "location.hash.split('?')[0]";
    tab.open(&listener.login("#/findings")).await?;
    tab.until_text("h1", "Findings").await;
    assert_eq!(tab.evaluate(hash).await?, "#/findings");
    tab.evaluate("[...document.querySelectorAll('#user button')].at(-1).click()")
        .await?;
    tab.until_text("h1", "Log in").await;
    tab.open(&listener.login("#/nodes")).await?;
    tab.until_text(".error", "this address was used already")
        .await;
    assert_eq!(tab.evaluate(hash).await?, "#/nodes");
    assert_eq!(tab.evaluate(FIELD).await?, Value::Null);
    assert_content(&tab, &["/ui/session"])?;
    browser.close().await
}

/// The views agree on the numbers of a moment at which two nodes have one block.
async fn has_one_number(tab: &Tab, listener: &PageListener, at: f64) -> Result<()> {
    let wait_number = async |expression: &str| -> Result<u64> {
        tab.until(&format!("({expression}) > 0")).await;
        tab.evaluate(expression).await?.as_u64().context("a number")
    };
    // The figure of the overview, and the sum of the states beside its map.
    tab.open(&listener.view(&format!("#/?at={at}"))).await?;
    let figure = "Number([...document.querySelectorAll('.figures a')]
        .find((one) => one.innerText.includes('in use'))?.querySelector('strong').innerText)";
    let in_use = wait_number(figure).await?;
    let states = "[...document.querySelectorAll('.legend tbody tr')]
        .filter((row) => /^(D|X|O|~|p|s|n)/.test(row.querySelector('.swatch').textContent))
        .reduce((sum, row) => sum + Number(row.cells[1].innerText), 0)";
    assert_eq!(wait_number(states).await?, in_use);
    // That of the map, and of each node that of its block.
    tab.open(&listener.view(&format!("#/map?network={NETWORK}&at={at}")))
        .await?;
    tab.until_text("main p.quiet", &format!("{in_use} addresses in use;"))
        .await;
    let disagree = "(async () => {
        const read = async (path) => (await fetch(`/summary/v1alpha1/${path}`)).json();
        const { nodes } = await read('cluster?at=AT');
        const used = ['duplicate', 'outside', 'orphaned', 'draining', 'pod'];
        const found = [];
        for (const { name, used: ofNode, blocks: [{ cidr }] } of nodes) {
            const { view } = await read(`map?prefix=${cidr}&at=AT`);
            const ofMap = used.reduce((sum, state) => sum + (view.counts[state] ?? 0), 0);
            if (ofNode !== ofMap) found.push(`${name}: ${ofNode} and ${ofMap}`);
        }
        return found;
    })()";
    let disagree = tab
        .evaluate(&disagree.replace("AT", &at.to_string()))
        .await?;
    assert_eq!(disagree, Value::Array(Vec::new()));

    // Both nodes are named at the cursor.
    tab.open(&listener.view(&format!(
        "#/map?network={NETWORK}&prefix=10.244.0.0/24&at={at}"
    )))
    .await?;
    tab.until_text(".crumbs [aria-current]", "10.244.0.0/24")
        .await;
    tab.evaluate("document.querySelector('.map canvas').focus()")
        .await?;
    tab.press("End").await?;
    let nodes = "document.querySelectorAll('.cell-details dd a[href^=\"#/node/\"]').length";
    tab.until(&format!("{nodes} === 2")).await;
    Ok(())
}

/// Checks that the marks of duplicates do not cover their neighbours.
async fn marks_stay_within_their_cells(tab: &Tab, listener: &PageListener, at: f64) -> Result<()> {
    let prefix = "10.244.0.0/24";
    let view = format!("#/map?network={NETWORK}&prefix={prefix}&at={at}");
    tab.open(&listener.view(&view)).await?;
    tab.until_text(".crumbs [aria-current]", prefix).await;
    tab.until_text(".legend", "duplicate").await;
    // The states of the cells that have a pixel of the marks' colour, but for those at the border
    // of the block.
    let marked = "(async () => {
        const path = '/summary/v1alpha1/map?prefix=PREFIX&at=AT';
        const { view } = await (await fetch(path)).json();
        const canvas = document.querySelector('.map canvas');
        const size = canvas.width / view.width;
        const context = new OffscreenCanvas(canvas.width, canvas.height)
            .getContext('2d', { willReadFrequently: true });
        context.drawImage(canvas, 0, 0);
        const colour = getComputedStyle(canvas).getPropertyValue('--mark');
        const mark = colour.match(/[0-9a-f]{2}/g).map((part) => parseInt(part, 16));
        const isMarked = ({ x, y }) => {
            const { data } = context.getImageData(x * size, y * size, size, size);
            for (let at = 0; at < data.length; at += 4) {
                if (mark.every((part, index) => data[at + index] === part)) return true;
            }
            return false;
        };
        const inner = ({ x, y }) => 0 < x && x < view.width - 1 && 0 < y && y < view.height - 1;
        const cells = view.cells.filter(inner).filter(isMarked);
        return cells.map(({ dominant }) => dominant);
    })()"
        .replace("PREFIX", prefix)
        .replace("AT", &at.to_string());
    tab.until(&format!("{marked}.then((found) => found.length > 0)"))
        .await;
    let marked = tab.evaluate(&marked).await?;
    let marked = marked.as_array().context("cells")?;
    ensure!(marked.iter().all(|one| one == "duplicate"), "{marked:?}");
    Ok(())
}

/// A finding is marked at all of its places in a view, also at a block around it.
async fn assert_each_place_is_marked(tab: &Tab) -> Result<()> {
    let marks = "import('./scene.js').then(({ Scene }) => {
        const cells = [0, 1, 2, 3].map((x) => ({ x, y: 0, prefix: `10.0.${x}.0/24` }));
        const outlines = [
            { cidr: '10.0.1.0/24', rect: { x: 1, y: 0, width: 1, height: 1 } },
            { cidr: '10.0.2.0/23', rect: { x: 2, y: 0, width: 2, height: 1 } },
        ];
        const view = { prefix: '10.0.0.0/22', width: 4, height: 1, cells, outlines };
        const finding = (severity, ...prefixes) =>
            ({ severity, places: prefixes.map((prefix) => ({ prefix, network: null })) });
        const marks = new Scene(view, {}).marks([
            finding('error', '10.0.0.0/21', '10.0.1.0/24', '10.0.2.0/23', '10.9.0.0/24'),
            finding('warning', '10.0.3.7/32'),
            finding('info', '10.0.1.0/24'),
        ]);
        return marks.map(({ rect: { x, width } }) => `${x}+${width}`).join(' ');
    })";
    assert_eq!(tab.evaluate(marks).await?, "0+4 1+1 2+2 3+1");
    Ok(())
}

/// True if the view has a duplicate, as of the moment that the slider shows.
async fn has_duplicate(tab: &Tab) -> Result<bool> {
    let read = "fetch(`/summary/v1alpha1/cluster?at=${document.querySelector('#moment').value}`)
        .then((answer) => answer.json())
        .then(({ findings }) => findings.some(({ message }) => message.includes('FOUND')))"
        .replace("FOUND", FOUND);
    Ok(tab.evaluate(&read).await? == Value::Bool(true))
}
