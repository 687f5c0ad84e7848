//! The page follows a live cluster.

use anyhow::Result;

use crate::site::{Site, assert_content, ledger};

/// The number of pods of the overview.
const PODS: &str = ".figures li:first-child";

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_is_shown_without_a_reload_and_after_a_restart_of_the_api_server() -> Result<()> {
    let Some(site) = Site::start(ledger().nodes(1)).await? else {
        return Ok(());
    };
    let tab = site.logged_in("#/").await?;
    tab.until_text(".hint", "podplane run").await;
    // A reload would take this with it.
    tab.evaluate("window.isFirstDocument = true").await?;

    site.podplane("run web --replicas 2 --wait").await?;
    tab.until_text(PODS, "2 running").await;
    tab.until_text(".legend", "of a pod").await;
    tab.until("document.querySelector('.hint') === null").await;

    let apiserver = site.cluster.process("apiserver").await?;
    apiserver.kill().await?;
    tab.until_text("#connection", "connection lost").await;
    tab.until_text("#connection", "live").await;
    site.podplane("run more --replicas 1 --wait").await?;
    tab.until_text(PODS, "3 running").await;
    tab.until("window.isFirstDocument === true").await;

    // Chromium writes a line for each attempt while there is no server.
    assert_content(&tab, &["/summary/v1alpha1/"])?;
    site.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_cluster_says_what_to_do() -> Result<()> {
    let Some(site) = Site::start(ledger().nodes(0)).await? else {
        return Ok(());
    };
    let tab = site.logged_in("#/").await?;
    tab.until_text(".hint", "podplane node add").await;
    tab.open(&site.view("#/nodes")?).await?;
    tab.until_text("main", "There are no nodes yet").await;
    tab.open(&site.view("#/pods")?).await?;
    tab.until_text("main", "podplane run web").await;
    tab.open(&site.view("#/waiting")?).await?;
    tab.until_text("main", "No pod waits").await;
    tab.open(&site.view("#/findings")?).await?;
    tab.until_text("main", "Nothing is wrong").await;

    // The first node appears where the hint was.
    tab.open(&site.view("#/nodes")?).await?;
    site.cluster.add_nodes(["first"]).await?;
    tab.until_text("main td a", "first").await;
    assert_content(&tab, &[])?;
    site.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn deep_links_open_their_views_and_follow_them() -> Result<()> {
    let Some(site) = Site::start(ledger().nodes(1)).await? else {
        return Ok(());
    };
    site.podplane("run web --replicas 1 --wait").await?;
    let pods = site.cluster.pods().await?;
    let name = pods[0].metadata.name.clone().unwrap_or_default();
    let ip = podplane_tests::pods::ip(&pods[0]).to_string();

    let tab = site.logged_in(&format!("#/pod/default/{name}")).await?;
    tab.until_text("h1", &name).await;
    tab.until_text(".facts", &ip).await;
    tab.until_text(".waterfall", "RunPodSandbox").await;
    tab.until_text("main", "Scheduled").await;

    let node = pods[0]
        .spec
        .as_ref()
        .and_then(|spec| spec.node_name.clone());
    let node = node.unwrap_or_default();
    tab.open(&site.view(&format!("#/node/{node}"))?).await?;
    tab.until_text("h1", &node).await;
    tab.until_text("main", &ip).await;
    tab.open(&site.view("#/map?prefix=10.244.0.0/24")?).await?;
    tab.until_text(".crumbs [aria-current]", "10.244.0.0/24")
        .await;

    // What the server says is shown as it is.
    tab.open(&site.view("#/map?prefix=10.99.0.0/24")?).await?;
    tab.until_text(".error", "10.99.0.0/24").await;
    tab.open(&site.view("#/pod/default/nobody")?).await?;
    tab.until_text(".error", "\"nobody\" not found").await;
    tab.open(&site.view("#/nothing")?).await?;
    tab.until_text("h1", "No such view").await;
    let refused = [
        "prefix=10.99.0.0%2F24&watch=true",
        "pods/nobody",
        "nobody/trace",
    ];
    assert_content(&tab, &[&[LOGIN], &refused[..]].concat())?;
    site.finish().await
}
