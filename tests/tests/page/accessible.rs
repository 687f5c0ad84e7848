//! The views and the reports for everybody: axe-core finds nothing serious in them, in light and
//! dark, on small screens.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use podplane_tests::{
    browser::{Browser, Screen, Tab},
    peers,
    programs::{finish, podplane},
};
use serde_json::Value;
use xtask_bench_page::Benchmark;

use crate::site::{Site, assert_content, ledger};

pub(crate) const SCREENS: [Screen; 3] = [
    Screen {
        width: 1280,
        height: 800,
        is_dark: false,
    },
    Screen {
        width: 1280,
        height: 800,
        is_dark: true,
    },
    Screen {
        width: 360,
        height: 740,
        is_dark: false,
    },
];

#[tokio::test(flavor = "multi_thread")]
async fn axe_finds_nothing_serious_in_any_view() -> Result<()> {
    let Some(axe) = peers::node_module("axe-core") else {
        return Ok(());
    };
    let axe = fs::read_to_string(axe.join("axe.min.js"))?;
    // One node of 5 addresses: some of the pods wait.
    let few = ledger().nodes(1).node_cidr_mask_size(29);
    let Some(site) = Site::start(few).await? else {
        return Ok(());
    };
    site.podplane("run web --replicas 8").await?;
    let tab = site.browser.tab().await?;
    tab.open(&site.view("#/")?).await?;
    tab.until_text("h1", "Log in").await;
    tab.evaluate(&axe).await?;
    for screen in SCREENS {
        tab.set_screen(screen).await?;
        follows_system(&tab).await;
        is_accessible(&tab, "login").await?;
    }

    let tab = site.logged_in("#/").await?;
    tab.evaluate(&axe).await?;
    tab.until_text("main", "Insufficient pod IPs").await;
    let first = "document.querySelector('td a')?.hash ?? ''";
    tab.open(&site.view("#/pods")?).await?;
    tab.until(&format!("({first}).startsWith('#/pod/')")).await;
    let pod = tab.evaluate(first).await?;
    let pod = pod.as_str().context("a link to a pod")?;
    let views = [
        ("#/", ".legend"),
        ("#/map?prefix=10.244.0.0/24", ".legend"),
        ("#/nodes", "td a"),
        ("#/node/node-0", "td .state"),
        ("#/pods", "td a"),
        (pod, "td"),
        ("#/waiting", ".columns a"),
        ("#/findings", "td"),
        ("#/nothing", "main a"),
    ];
    for (view, sign) in views {
        tab.open(&site.view(view)?).await?;
        tab.until(&format!(
            "document.querySelector('main {sign}, {sign}') !== null"
        ))
        .await;
        // Sections that are closed on small screens are read, too.
        tab.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
            .await?;
        for screen in SCREENS {
            tab.set_screen(screen).await?;
            follows_system(&tab).await;
            is_accessible(&tab, view).await?;
            is_readable(&tab, view).await?;
        }
    }
    assert_content(&tab, &["/trace"])?;
    site.finish().await
}

/// The pages that commands write, with every kind of chart.
#[tokio::test(flavor = "multi_thread")]
async fn axe_finds_nothing_serious_in_reports() -> Result<()> {
    let (Some(axe), Some(chromium)) = (peers::node_module("axe-core"), peers::chromium()) else {
        return Ok(());
    };
    let axe = fs::read_to_string(axe.join("axe.min.js"))?;
    let dir = tempfile::tempdir()?;
    let file = |name: &str| {
        dir.path()
            .join(format!("{name}.html"))
            .display()
            .to_string()
    };
    let audited = "../crates/audit/tests/data/networks/calico-faults.yaml";
    for (name, args) in [
        (
            "plan",
            &["plan", "--nodes", "100", "--growth", "20%/year"][..],
        ),
        ("audit", &["audit", audited]),
    ] {
        let mut command = podplane(args);
        let written = finish(command.args(["--html", &file(name)]));
        ensure!(fs::exists(file(name))?, "{written:?}");
    }
    let benchmark = include_str!("../../../xtask/bench-page/tests/benchmark.json");
    let benchmark: Benchmark = serde_json::from_str(benchmark)?;
    fs::write(file("bench"), benchmark.report().html())?;

    let browser = Browser::start(&chromium).await?;
    let tab = browser.tab().await?;
    for name in ["plan", "audit", "bench"] {
        tab.open(&format!("file://{}", file(name))).await?;
        tab.until(
            "document.readyState === 'complete' && document.querySelector('figure') !== null",
        )
        .await;
        tab.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
            .await?;
        tab.evaluate(&axe).await?;
        for screen in SCREENS {
            tab.set_screen(screen).await?;
            is_accessible(&tab, name).await?;
        }
    }
    browser.close().await
}

/// Waits until the page has the colours of the system, which it follows a moment later.
pub(crate) async fn follows_system(tab: &Tab) {
    let follows = "document.documentElement.dataset.theme ===
        (matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light')";
    tab.until(follows).await;
}

/// Checks the present view, and that it is no wider than the screen.
pub(crate) async fn is_accessible(tab: &Tab, view: &str) -> Result<()> {
    // Of violations, as of those that axe cannot decide, only the former are certain.
    let run = "axe.run(document, {resultTypes: ['violations']}).then(({violations}) => violations
        .filter(({impact}) => impact === 'serious' || impact === 'critical')
        .map(({id, help, nodes}) => ({id, help, nodes: nodes.map(({html, failureSummary}) =>
            [html, failureSummary])})))";
    let violations = tab.evaluate(run).await?;
    ensure!(
        violations == Value::Array(Vec::new()),
        "{view}: {violations:#}"
    );
    let wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth";
    let wide = tab.evaluate(wide).await?;
    ensure!(
        wide == 0,
        "{view}: {wide} pixels do not fit into the width of the screen"
    );
    Ok(())
}

/// Checks that each text of the present view can be read: what is wider than its frame is in one
/// that scrolls, takes the focus, and says so, or has it in its title.
async fn is_readable(tab: &Tab, view: &str) -> Result<()> {
    let cut = "(() => {
        const scrolls = (frame) => ['auto', 'scroll'].includes(getComputedStyle(frame).overflowX);
        const cuts = (frame) => ['hidden', 'clip'].includes(getComputedStyle(frame).overflowX);
        const isNamed = (frame) => frame.tabIndex === 0 && (frame.ariaLabel ?? '') !== '';
        const found = [];
        const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
        while (texts.nextNode()) {
            const text = texts.currentNode;
            const range = document.createRange();
            range.selectNodeContents(text);
            const { right, width } = range.getBoundingClientRect();
            let frame = text.parentElement;
            const isMeant = text.data.trim() !== '' && width > 0;
            if (!isMeant || frame.closest('.for-readers, .skip, option')) continue;
            for (; frame !== null; frame = frame.parentElement) {
                const isCut = right > frame.getBoundingClientRect().right + 1;
                if (isCut && scrolls(frame) && isNamed(frame)) break;
                // The title of a name that is cut has all of it.
                if (isCut && cuts(frame) && frame.title.includes(text.data)) break;
                if (isCut && (cuts(frame) || frame === document.documentElement)) {
                    found.push(text.data);
                }
            }
        }
        for (const frame of document.querySelectorAll('.scroll')) {
            const isWider = frame.scrollWidth > frame.clientWidth + 1;
            const isSaid = frame.previousElementSibling.checkVisibility();
            if (isWider !== isSaid) found.push(`the hint of ${frame.ariaLabel}`);
        }
        return found;
    })()";
    // The hint follows a change of the width a moment later.
    tab.until(&format!(
        "!{cut}.some((text) => text.startsWith('the hint of'))"
    ))
    .await;
    let cut = tab.evaluate(cut).await?;
    ensure!(
        cut == Value::Array(Vec::new()),
        "{view}: texts that cannot be read: {cut:#}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_theme_follows_the_system_until_it_is_chosen() -> Result<()> {
    let Some(site) = Site::start(ledger().nodes(1)).await? else {
        return Ok(());
    };
    let tab = site.browser.tab().await?;
    let [light, dark, _] = SCREENS;
    tab.set_screen(dark).await?;
    tab.open(&site.view("")?).await?;
    tab.until_text("h1", "Log in").await;
    let background = "getComputedStyle(document.body).backgroundColor";
    let (black, white) = ("rgb(20, 23, 26)", "rgb(255, 255, 255)");
    tab.until(&format!("{background} === '{black}'")).await;
    tab.set_screen(light).await?;
    tab.until(&format!("{background} === '{white}'")).await;

    let switch = "document.querySelector('#settings button')";
    for _ in 0..2 {
        tab.evaluate(&format!("{switch}.click()")).await?;
    }
    tab.until_text("#settings", "Dark").await;
    tab.until(&format!("{background} === '{black}'")).await;
    // The choice outlives the page.
    tab.evaluate("location.reload()").await?;
    tab.until(&format!(
        "{switch}?.innerText === '◐ Dark' && {background} === '{black}'"
    ))
    .await;
    assert_content(&tab, &[])?;
    site.finish().await
}
