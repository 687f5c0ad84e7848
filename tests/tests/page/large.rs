//! The large case: the page of an API server with 5,000 nodes and 150,000 pods.

use std::{
    env,
    path::Path,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, Result, ensure};
use http::Method;
use podplane_tests::{
    apiserver::Apiserver,
    browser::{Browser, Tab},
    peers,
};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::site::assert_content;

mod store;

/// The number of pods on the overview.
const PODS: &str = ".figures li:first-child";
/// The most bytes of the page's heap.
const MOST_HEAP: u64 = 300 << 20;

/// An API server with the large case, and a browser.
struct LargeSite {
    dir: TempDir,
    apiserver: Apiserver,
    browser: Browser,
}

impl LargeSite {
    /// Starts both; `None` if `PODPLANE_SKIP` names the browser.
    async fn start() -> Result<Option<Self>> {
        let Some(chromium) = peers::chromium() else {
            return Ok(None);
        };
        let dir = tempfile::tempdir()?;
        store::fill(dir.path()).await?;
        Ok(Some(Self {
            apiserver: apiserver(dir.path()).await?,
            browser: Browser::start(&chromium).await?,
            dir,
        }))
    }

    fn view(&self, fragment: &str) -> String {
        format!("http://{}/ui/{fragment}", self.apiserver.address())
    }

    /// Creates a pod on the node of that number.
    async fn create_pod(&self, name: &str, node: u32) -> Result<()> {
        let mut pod = store::pod(node);
        pod["metadata"] = json!({"name": name});
        let path = "/api/v1/namespaces/default/pods";
        let answer = self
            .apiserver
            .rest()
            .send_json(Method::POST, path, &pod)
            .await?;
        answer.document().map(drop)
    }

    async fn finish(self) -> Result<()> {
        self.browser.close().await?;
        ensure!(self.apiserver.terminated().await?, "the API server failed");
        Ok(())
    }
}

async fn apiserver(dir: &Path) -> Result<Apiserver> {
    Apiserver::start_with(dir, &["--cluster-cidr", "10.0.0.0/8"]).await
}

/// The views, each with an element and a text of it, by which it is complete.
const VIEWS: [(&str, &str, &str); 11] = [
    ("#/", ".legend", "150,000"),
    ("#/", PODS, "150,020"),
    ("#/", "main", "20 pods"),
    ("#/map?prefix=10.19.0.0/16", ".legend", "4,080"),
    ("#/map?prefix=10.19.135.31/32", "main", "web-149999"),
    ("#/nodes", "main", "node-0000"),
    ("#/node/node-4999", "main", "web-149999"),
    ("#/pods", "main", "web-000000"),
    ("#/pod/default/web-149999", "main", "10.19.135.31"),
    ("#/waiting", "main", "Insufficient pod IPs"),
    (
        "#/findings",
        "main",
        "no node has a free address for 20 pods",
    ),
];

/// Opens each view and waits until it is complete; returns the most bytes of the heap.
async fn tour(site: &LargeSite, tab: &Tab) -> Result<u64> {
    let mut heap = 0;
    for (fragment, selector, text) in VIEWS {
        tab.open(&site.view(fragment)).await?;
        tab.until_text(selector, text).await;
        heap = heap.max(tab.heap_bytes().await?);
    }
    Ok(heap)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_of_5_000_nodes_and_150_000_pods_is_drawn_and_followed() -> Result<()> {
    let Some(site) = LargeSite::start().await? else {
        return Ok(());
    };
    let tab = site.browser.tab().await?;
    let heap = tour(&site, &tab).await?;
    assert!(heap <= MOST_HEAP, "a heap of {heap} bytes");

    tab.open(&site.view("#/")).await?;
    site.create_pod("made-now", 0).await?;
    tab.until_text(PODS, "150,021").await;
    // Nobody has traced a pod that was there before the server.
    assert_content(&tab, &["web-149999/trace"])?;
    site.finish().await
}

/// The number of starts of the page.
const STARTS: usize = 5;
/// The number of pods that are created, and the pause after each: what a quiet and what a busy
/// cluster has.
const QUIET: (u32, Duration) = (30, Duration::from_millis(400));
const BUSY: (u32, Duration) = (500, Duration::from_millis(20));

/// Completes with the milliseconds since the address was opened, in the frame after the one in
/// which the map was drawn.
const DRAWN: &str = "new Promise((done) => {
    const look = () => requestAnimationFrame(() => {
        const isDrawn = document.querySelector('.map canvas')?.width > 0
            && document.querySelector('.legend') !== null;
        if (isDrawn) requestAnimationFrame(() => done(performance.now()));
        else look();
    });
    look();
})";

/// Keeps the times at which the number of pods was seen to change.
const WATCH: &str = "(() => {
    window.seen = [];
    const look = () => {
        const text = document.querySelector('.figures strong').textContent.replaceAll(',', '');
        const pods = Number(text);
        if (seen.at(-1)?.[1] !== pods) seen.push([Date.now(), pods]);
        requestAnimationFrame(look);
    };
    look();
})()";

/// Measures what `cargo xtask bench page` reports, and writes it to the file that it names.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "measures: cargo xtask bench page"]
async fn measurements() -> Result<()> {
    let file = env::var_os("PODPLANE_BENCH_OUTPUT").context("PODPLANE_BENCH_OUTPUT is not set")?;
    let is_quick = env::var_os("PODPLANE_BENCH_QUICK").is_some();
    let site = LargeSite::start().await?;
    let mut site = site.context("no browser: PODPLANE_SKIP names it")?;
    let (mut first, mut server) = (Vec::new(), Vec::new());
    for _ in 0..if is_quick { 1 } else { STARTS } {
        // A new server has no summary yet, and a new tab no file of the page.
        ensure!(site.apiserver.terminated().await?, "the API server failed");
        site.apiserver = apiserver(site.dir.path()).await?;
        let before = site.apiserver.resident_bytes()?;
        let tab = site.browser.tab().await?;
        tab.open(&site.view("#/")).await?;
        first.push(number(&tab.evaluate(DRAWN).await?)? / 1e3);
        tab.until_text(PODS, "150,020").await;
        server.push(mebibytes(
            site.apiserver.resident_bytes()?.saturating_sub(before),
        ));
        tab.close().await?;
    }

    let heap = mebibytes(tour(&site, &site.browser.tab().await?).await?);
    let quiet = updates(&site, "quiet", QUIET, is_quick).await?;
    let busy = updates(&site, "busy", BUSY, is_quick).await?;
    let figures = json!({
        "first": first, "server": server, "quiet": quiet, "busy": busy, "heap": [heap],
    });
    std::fs::write(file, figures.to_string())?;
    site.finish().await
}

/// Creates pods; returns the milliseconds from the begin of each request until the page shows the
/// number with this pod.
async fn updates(
    site: &LargeSite,
    name: &str,
    (count, pause): (u32, Duration),
    is_quick: bool,
) -> Result<Vec<f64>> {
    let tab = site.browser.tab().await?;
    tab.open(&site.view("#/")).await?;
    tab.until_text(PODS, "150,").await;
    tab.evaluate(WATCH).await?;
    let before = number(&tab.evaluate("seen.at(-1)[1]").await?)?;
    let mut clock = tokio::time::interval(pause);
    let mut created = Vec::new();
    for node in 0..if is_quick { 3 } else { count } {
        clock.tick().await;
        created.push(SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64() * 1e3);
        site.create_pod(&format!("{name}-{node}"), node).await?;
    }
    let mut wanted = before;
    let wants: Vec<(f64, f64)> = created
        .into_iter()
        .map(|at| {
            wanted += 1.0;
            (at, wanted)
        })
        .collect();
    tab.until(&format!("seen.at(-1)[1] >= {wanted}")).await;
    let seen = tab.evaluate("seen").await?;
    tab.close().await?;
    let seen: Vec<(f64, f64)> = serde_json::from_value(seen)?;
    wants
        .into_iter()
        .map(|(created, wanted)| {
            let shown = seen.iter().find(|(_, pods)| *pods >= wanted);
            let (at, _) = shown.context("a number that was not seen")?;
            Ok(at - created)
        })
        .collect()
}

fn number(value: &Value) -> Result<f64> {
    value
        .as_f64()
        .with_context(|| format!("no number: {value}"))
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
