//! The pictures of the documentation: `cargo xtask pictures` writes them.

use std::{ffi::OsStr, fs, path::PathBuf};

use anyhow::{Result, ensure};
use podplane_tests::{
    browser::{Browser, Screen, Tab},
    listener::PageListener,
    peers,
    programs::{finish, podplane},
};

use crate::{
    recording::{DUPLICATES, RecordingDocument, record},
    site::{Site, ledger},
};

/// The most bytes of a picture.
const MOST: usize = 150_000;
const WIDE: Screen = Screen {
    width: 1200,
    height: 760,
    is_dark: false,
};
const DARK: Screen = Screen {
    is_dark: true,
    ..WIDE
};
const SMALL: Screen = Screen {
    width: 360,
    height: 740,
    ..WIDE
};

fn file(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/images")).join(name)
}

/// Every view, and the map of the README.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "writes docs/images: cargo xtask pictures"]
async fn pictures_of_every_view() -> Result<()> {
    let few = ledger()
        .nodes(4)
        .cluster_cidr("10.244.0.0/22")
        .node_cidr_mask_size(26);
    let Some(site) = Site::start(few).await? else {
        return Ok(());
    };
    site.podplane("run web --replicas 120 --wait").await?;
    site.podplane("run api --replicas 60 --wait").await?;
    // More than there are addresses: 4 nodes with 61 each.
    site.podplane("run batch --replicas 75").await?;
    let tab = site.logged_in("#/").await?;
    tab.until_text("main", "Insufficient pod IPs").await;
    // Of 255 pods, 244 have an address.
    tab.until("document.querySelector('.figures li:nth-child(2) strong').innerText === '11'")
        .await;
    tab.until_text(".legend", "244").await;
    for (name, view, sign, screen) in [
        ("page-overview.png", "#/", ".legend", WIDE),
        ("page-overview-dark.png", "#/", ".legend", DARK),
        ("page-overview-small.png", "#/", ".legend", SMALL),
        (
            "page-map.png",
            "#/map?prefix=10.244.0.0/24",
            ".legend",
            WIDE,
        ),
        ("page-nodes.png", "#/nodes", "td a", WIDE),
        ("page-node.png", "#/node/node-0", "td a", WIDE),
        ("page-pods.png", "#/pods", "td a", WIDE),
        ("page-pod.png", "#/pod/default/web-0", ".waterfall li", WIDE),
        ("page-waiting.png", "#/waiting", ".columns a", WIDE),
        ("page-findings.png", "#/findings", "td", WIDE),
    ] {
        tab.set_screen(screen).await?;
        tab.open(&site.view(view)?).await?;
        take(&tab, name, sign).await?;
    }
    let tab = site.browser.tab().await?;
    tab.set_screen(WIDE).await?;
    tab.open(&site.view("")?).await?;
    take(&tab, "page-login.png", "#token").await?;

    site.podplane("node add node-4 node-5 node-6 node-7 --wait")
        .await?;
    site.podplane("run jobs --replicas 40 --wait").await?;
    site.podplane("node add node-8 --wait").await?;
    site.podplane(&format!("map -o svg={}", file("map.svg").display()))
        .await?;
    site.finish().await
}

/// A cluster that has run out of addresses, as in the tour.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "writes docs/images: cargo xtask pictures"]
async fn pictures_of_exhaustion() -> Result<()> {
    let two = ledger()
        .nodes(2)
        .cluster_cidr("10.244.0.0/28")
        .node_cidr_mask_size(29);
    let Some(site) = Site::start(two).await? else {
        return Ok(());
    };
    site.podplane("run web --replicas 4 --wait").await?;
    site.podplane("run api --replicas 2 --wait").await?;
    site.podplane("run shop --replicas 4 --wait").await?;
    site.podplane("run late").await?;
    let tab = site.logged_in("#/").await?;
    tab.set_screen(WIDE).await?;
    tab.until_text("main", "Insufficient pod IPs").await;
    take(&tab, "out-of-addresses.png", ".legend").await?;
    site.finish().await
}

/// The recording of duplicate blocks, at the end of the step in which pods get addresses of others.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "writes docs/images: cargo xtask pictures"]
async fn pictures_of_a_recording() -> Result<()> {
    let Some(chromium) = peers::chromium() else {
        return Ok(());
    };
    let dir = tempfile::tempdir()?;
    let run = record(dir.path())?;
    let mut replay = podplane(["replay", "--ui", "--no-open"]);
    replay.arg(&run);
    let listener = PageListener::start(replay)?;
    let browser = Browser::start(&chromium).await?;
    let tab = browser.tab().await?;
    tab.set_screen(WIDE).await?;
    tab.open(&listener.login("#/findings")).await?;
    tab.until_text(".recording output", "0.00 s").await;
    let recording = RecordingDocument::read(&tab).await?;
    let at = recording.step(DUPLICATES)?.to;
    let view = format!("#/map?prefix=10.244.0.0/23&at={at}");
    tab.open(&listener.view(&view)).await?;
    tab.until_text(".legend", "duplicate").await;
    take(&tab, "replay.png", ".legend").await?;

    let output = format!("svg={}", file("map-duplicates.svg").display());
    let at = at.to_string();
    let args = ["map", "10.244.0.0/23", "--at", &at, "-o", &output];
    let mut map = podplane(args.map(OsStr::new));
    finish(map.arg("--recording").arg(&run)).ok();
    browser.close().await
}

/// Takes the picture of a view once it has its sign and all frames have been drawn.
async fn take(tab: &Tab, name: &str, sign: &str) -> Result<()> {
    tab.until(&format!("document.querySelector('{sign}') !== null"))
        .await;
    let drawn = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))";
    tab.evaluate(drawn).await?;
    let picture = tab.picture().await?;
    let size = picture.len();
    ensure!(size < MOST, "{name} has {size} bytes, more than {MOST}");
    let file = file(name);
    fs::create_dir_all(file.parent().unwrap_or(&file))?;
    Ok(fs::write(file, picture)?)
}
