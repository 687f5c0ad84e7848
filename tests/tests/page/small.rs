//! The page of recordings that the tests write, and parts of the page on their own.

use std::fs;

use anyhow::Result;
use podplane_tests::{
    browser::{Browser, Tab},
    listener::PageListener,
    peers,
    programs::podplane,
};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{live::has_no_frames, recording::ADDRESS, site::assert_content};

/// The page of a recording, and a browser.
struct SmallSite {
    listener: PageListener,
    browser: Browser,
    _dir: TempDir,
}

impl SmallSite {
    /// Starts both; `None` if `PODPLANE_SKIP` names the browser.
    async fn start(lines: Vec<String>) -> Result<Option<Self>> {
        let Some(chromium) = peers::chromium() else {
            return Ok(None);
        };
        let dir = tempfile::tempdir()?;
        fs::write(dir.path().join("recording.jsonl"), lines.concat())?;
        let mut replay = podplane(["replay", "--ui", "--no-open"]);
        replay.arg(dir.path());
        Ok(Some(Self {
            listener: PageListener::start(replay)?,
            browser: Browser::start(&chromium).await?,
            _dir: dir,
        }))
    }

    /// A tab at a view.
    async fn tab(&self, view: &str) -> Result<Tab> {
        let tab = self.browser.tab().await?;
        tab.open(&self.listener.login(view)).await?;
        tab.until_text("#connection", "recording").await;
        Ok(tab)
    }
}

/// A line of a recording.
fn line(at: f64, change: &str, object: &Value) -> String {
    let entry = json!({"at": at, "step": 1, "kind": "object", "change": change, "object": object});
    format!("{entry}\n")
}

fn node() -> Value {
    json!({
        "kind": "Node", "apiVersion": "v1",
        "metadata": {"name": "a"},
        "spec": {"podCIDR": "10.244.1.0/24", "podCIDRs": ["10.244.1.0/24"]},
    })
}

fn pod(name: &str) -> Value {
    json!({
        "kind": "Pod", "apiVersion": "v1",
        "metadata": {"namespace": "default", "name": name},
        "spec": {"nodeName": "a", "containers": []},
        "status": {"phase": "Running", "podIPs": [{"ip": "10.244.1.2"}]},
    })
}

/// A node from 1 s on, and two pods with one address from 2 and 3 s on.
fn few_changes() -> Vec<String> {
    vec![
        line(1.0, "added", &node()),
        line(2.0, "added", &pod("one")),
        line(3.0, "added", &pod("two")),
        line(4.0, "deleted", &pod("two")),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slider_that_moves_leaves_the_links_and_seldom_writes_the_address() -> Result<()> {
    let Some(site) = SmallSite::start(few_changes()).await? else {
        return Ok(());
    };
    let tab = site.tab("#/pods").await?;
    let moved = tab
        .evaluate(
            "(() => {
                let writes = 0;
                const write = history.replaceState.bind(history);
                history.replaceState = (...of) => { writes += 1; write(...of); };
                window.writes = () => writes;
                window.link = document.querySelector('#navigation a[href=\"#/nodes\"]');
                link.focus();
                const range = document.querySelector('#moment');
                window.move = (to) => {
                    range.value = to;
                    range.dispatchEvent(new Event('input'));
                };
                for (let at = 1; at <= 200; at += 1) move(at / 100);
                return link.isConnected && document.activeElement === link;
            })()",
        )
        .await?;
    assert_eq!(moved, true);
    // The last moment is read and written.
    tab.until_text("main", "default/one").await;
    tab.until(&format!("{ADDRESS} === 2")).await;
    let writes = tab.evaluate("writes()").await?;
    assert!(writes.as_u64() <= Some(5), "{writes} writes");
    // A link takes along the moment that the address does not have yet.
    tab.evaluate("move(3); link.click()").await?;
    tab.until_text("h1", "Nodes").await;
    tab.until(&format!("{ADDRESS} === 3")).await;
    tab.until_text(".recording output", "3.00 s").await;
    assert_content(&tab, &[])?;
    site.browser.close().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_moment_without_the_node_or_pods_shows_none() -> Result<()> {
    let Some(site) = SmallSite::start(few_changes()).await? else {
        return Ok(());
    };
    let tab = site.tab("#/node/a?at=2").await?;
    tab.until_text("main", "default/one").await;
    tab.evaluate("document.querySelector('#moment').focus()")
        .await?;
    for key in ["ArrowLeft", "ArrowLeft"] {
        tab.press(key).await?;
    }
    tab.until_text(".recording output", "0.00 s").await;
    tab.until_text(".error", "no node \"a\" at that moment")
        .await;
    has_no_frames(&tab).await;
    tab.press("ArrowRight").await?;
    tab.until_text("main .facts", "10.244.1.0/24").await;

    tab.open(&site.listener.view("#/nodes?at=0")).await?;
    tab.until_text("main", "no nodes at this moment").await;
    tab.open(&site.listener.view("#/pods?at=2")).await?;
    tab.until_text("main", "default/one").await;
    tab.evaluate(
        "(() => {
            const select = document.querySelector('main select');
            select.value = 'status.phase=Failed';
            select.dispatchEvent(new Event('change'));
        })()",
    )
    .await?;
    tab.until_text("main", "This selection has no pods").await;
    assert_content(&tab, &["nodes/a"])?;
    site.browser.close().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recording_that_is_not_audited_at_each_change_says_so() -> Result<()> {
    let mut lines = few_changes();
    let Some(site) = SmallSite::start(lines.clone()).await? else {
        return Ok(());
    };
    let tab = site.tab("#/").await?;
    tab.until("document.querySelectorAll('.faults span[title]').length === 1")
        .await;
    site.browser.close().await?;

    lines.extend((0..1_000).map(|_| line(5.0, "modified", &pod("one"))));
    let Some(site) = SmallSite::start(lines).await? else {
        return Ok(());
    };
    let tab = site.tab("#/").await?;
    tab.until_text(".timeline", "The times of errors are unknown")
        .await;
    assert_eq!(
        tab.evaluate("document.querySelector('.faults')").await?,
        Value::Null
    );
    site.browser.close().await
}

#[tokio::test(flavor = "multi_thread")]
async fn numbers_and_selections_are_of_the_whole_cluster() -> Result<()> {
    let Some(site) = SmallSite::start(few_changes()).await? else {
        return Ok(());
    };
    let tab = site.tab("#/").await?;
    let figures = async |total: u32| {
        let show = "import('./overview.js').then(({ Figures }) => {
            const network = (role, cidr, pod, free) => ({ role, cidr, counts: { pod, free } });
            const figures = new Figures();
            figures.show({
                pods: { total: 0, running: 0, waiting: 0 },
                nodes: new Map(),
                isAudited: true,
                findings: Array(200).fill({ severity: 'error' }),
                findingsTotal: TOTAL,
                networks: [
                    network('pods', '10.0.0.0/16', 3, 7),
                    network('pods', '10.0.1.0/24', 1, 2),
                    network('pods', '10.1.0.0/16', 5, 5),
                    network('pods', 'fd00::/64', 9, 9),
                    network('services', '10.2.0.0/16', 4, 4),
                ],
            });
            return [...figures.element.children].map(({ textContent }) => textContent).join(', ');
        })";
        let show = show.replace("TOTAL", &total.to_string());
        let shown = tab.evaluate(&show).await?;
        anyhow::Ok(shown.as_str().unwrap_or_default().to_owned())
    };
    let cut = figures(250).await?;
    assert!(cut.contains("8in useof 20 IPs in blocks"), "{cut}");
    assert!(cut.ends_with("250findingsat least 200 errors"), "{cut}");
    let whole = figures(200).await?;
    assert!(whole.ends_with("200findings200 errors"), "{whole}");

    // A ready node without a block.
    let selected = "Promise.all([import('./nodes.js'), import('./signal.js')]).then(
        ([{ nodes }, { Signal }]) => {
            const name = 'blockless';
            const counts = { used: 0, capacity: 0, orphaned: 0, pods: 0, waiting: 0 };
            const row = { name, blocks: [], ready: true, unschedulable: false, ...counts };
            const cluster = new Signal({ isKnown: true, nodes: new Map([[name, row]]) });
            const end = new AbortController().signal;
            const { element } = nodes({ feed: { cluster }, end, isLive: true });
            const select = element.querySelector('select');
            return ['not ready', 'full', 'without block'].map((selection) => {
                select.value = selection;
                select.dispatchEvent(new Event('change'));
                return element.querySelector('tbody td').textContent;
            });
        },
    )";
    let none = "This selection has no nodes.";
    assert_eq!(
        tab.evaluate(selected).await?,
        json!([none, none, "blockless"])
    );
    assert_content(&tab, &[])?;
    site.browser.close().await
}
