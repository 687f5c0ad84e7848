//! Nobody sees data without rights.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use podplane_http_client::HttpClient;
use podplane_tests::{eventually, listener::PageListener};

use crate::site::{Site, assert_content, ledger, log_in};

#[tokio::test(flavor = "multi_thread")]
async fn a_stranger_gets_the_form_and_no_data() -> Result<()> {
    let Some(site) = Site::start(ledger().nodes(1)).await? else {
        return Ok(());
    };
    let tab = site.browser.tab().await?;
    tab.open(&site.view("#/nodes")?).await?;
    tab.until_text("h1", "Log in").await;
    tab.until_text("main", "podplane ui").await;
    assert_eq!(tab.text("#navigation").await?, "");

    // The assets are for everybody, data is not.
    for path in ["/ui/session", "/summary/v1alpha1/cluster", "/api/v1/pods"] {
        let fetch = format!("fetch('{path}').then((answer) => answer.status)");
        let code = tab.evaluate(&fetch).await?;
        assert!(code == 401 || code == 403, "{path}: {code}");
    }

    log_in(&tab, "not-a-token").await?;
    tab.until("document.querySelector('.error')?.innerText.length > 0")
        .await;
    assert_eq!(tab.text("h1").await?, "Log in");

    // A user without rights learns what is missing.
    let token = site.token("stranger", None).await?;
    tab.evaluate("document.querySelector('#token').value = ''")
        .await?;
    log_in(&tab, &token).await?;
    tab.until_text("#problem", "list").await;
    tab.until_text("#connection", "refused").await;
    assert!(
        tab.evaluate("document.querySelector('td')")
            .await?
            .is_null()
    );

    let paths = [
        "/ui/session",
        "/summary/v1alpha1/cluster",
        "/api/v1/pods",
        "watch=true",
    ];
    assert_content(&tab, &paths)?;
    site.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_token_is_in_memory_only_and_forgotten_at_the_end() -> Result<()> {
    let Some(site) = Site::start(ledger().nodes(1)).await? else {
        return Ok(());
    };
    let tab = site.logged_in("#/nodes").await?;
    tab.until_text("main", "node-0").await;
    let stored = "document.cookie + JSON.stringify(localStorage) + JSON.stringify(sessionStorage)";
    assert_eq!(tab.evaluate(stored).await?, "{}{}");
    assert_eq!(tab.evaluate("location.hash").await?, "#/nodes");

    let leave =
        "[...document.querySelectorAll('button')].find((one) => one.innerText === 'Log out')";
    tab.evaluate(&format!("{leave}.click()")).await?;
    tab.until_text("h1", "Log in").await;
    assert!(
        tab.evaluate("document.querySelector('td')")
            .await?
            .is_null()
    );

    assert_content(&tab, &[])?;
    let address = site.address()?;
    site.finish().await?;
    // The address belongs to nobody now: the page came from the cluster.
    assert!(HttpClient::new(address).get("/ui/").await.is_err());
    Ok(())
}

/// The command line of a browser is for everybody, so the token is in a file.
#[tokio::test(flavor = "multi_thread")]
async fn a_browser_is_opened_with_a_file_that_logs_in() -> Result<()> {
    let Some(site) = Site::start(ledger().nodes(1)).await? else {
        return Ok(());
    };
    let dir = tempfile::tempdir()?;
    symlink("/bin/true", dir.path().join("xdg-open"))?;
    let path = std::env::var("PATH")?;
    let mut command = site.cluster.command("podplane", ["ui"]);
    command
        .env("PATH", format!("{}:{path}", dir.path().display()))
        .env("XDG_RUNTIME_DIR", dir.path())
        .env("DISPLAY", ":0");
    let listener = PageListener::start(command)?;
    let written = || async { page_in(dir.path()) };
    let page = eventually("a page for the browser", written, Option::is_some).await;

    let tab = site.browser.tab().await?;
    let page = page.context("a page")?;
    tab.open(&format!("file://{}", page.display())).await?;
    tab.until_text("#connection", "live").await;
    drop(listener);
    site.finish().await
}

/// The page in a directory, once it is written.
fn page_in(dir: &Path) -> Option<PathBuf> {
    let mut files = fs::read_dir(dir).ok()?.flatten().map(|entry| entry.path());
    let page = files.find(|file| file.extension().is_some_and(|it| it == "html"))?;
    let text = fs::read_to_string(&page).ok()?;
    text.ends_with('\n').then_some(page)
}
