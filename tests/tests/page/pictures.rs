//! The pictures of the page in the documentation: `cargo xtask pictures` writes them.

use std::{fs, path::PathBuf};

use anyhow::{Result, ensure};
use podplane_tests::browser::{Screen, Tab};

use crate::site::{Site, ledger};

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
    let images = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/images");
    PathBuf::from(images).join(format!("page-{name}.png"))
}

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
    for (name, view, sign, screen) in [
        ("overview", "#/", ".legend", WIDE),
        ("overview-dark", "#/", ".legend", DARK),
        ("overview-small", "#/", ".legend", SMALL),
        ("map", "#/map?prefix=10.244.0.0/24", ".legend", WIDE),
        ("nodes", "#/nodes", "td a", WIDE),
        ("node", "#/node/node-0", "td a", WIDE),
        ("pods", "#/pods", "td a", WIDE),
        ("pod", "#/pod/default/web-0", ".waterfall li", WIDE),
        ("waiting", "#/waiting", ".columns a", WIDE),
        ("findings", "#/findings", "td", WIDE),
    ] {
        tab.set_screen(screen).await?;
        tab.open(&site.view(view)?).await?;
        take(&tab, name, sign).await?;
    }
    let tab = site.browser.tab().await?;
    tab.set_screen(WIDE).await?;
    tab.open(&site.view("")?).await?;
    take(&tab, "login", "#token").await?;
    site.finish().await
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
