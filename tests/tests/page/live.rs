//! The page follows a live cluster.

use anyhow::{Context as _, Result};
use podplane_ipam::IpPolicy;
use podplane_tests::{browser::Tab, listener::PageListener, pods};

use crate::{
    accessible::SCREENS,
    site::{Site, assert_content, ledger, log_in},
};

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
    tab.until_text("main", "No pods are waiting").await;
    tab.open(&site.view("#/findings")?).await?;
    tab.until_text("main", "Nothing is wrong").await;
    // A check that needs other objects is off, in the words of the audit, and no warning.
    tab.until_text("[aria-label=Checks]", "off: podplane audit reads")
        .await;
    let warnings = "document.querySelectorAll('[aria-label=Checks] .warning').length";
    assert_eq!(tab.evaluate(warnings).await?, 0);

    // The first node appears where the hint was.
    tab.open(&site.view("#/nodes")?).await?;
    site.cluster.add_nodes(["first"]).await?;
    tab.until_text("main td a", "first").await;
    assert_content(&tab, &[])?;
    site.finish().await
}

/// Waits until the view has no part that is empty beside its error.
pub(crate) async fn has_no_frames(tab: &Tab) {
    tab.until("![...document.querySelectorAll('main h2')].some((one) => one.checkVisibility())")
        .await;
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
    // After an unknown network the known ones are listed.
    tab.open(&site.view("#/map?network=10.99.0.0/16")?).await?;
    tab.until_text(".error", "no network 10.99.0.0/16").await;
    has_no_frames(&tab).await;
    tab.evaluate("document.querySelector('main .plain a').click()")
        .await?;
    tab.until_text(".crumbs", "10.244.0.0/16").await;
    // An address has its cell and its row.
    tab.open(&site.view(&format!("#/pod/default/{name}"))?)
        .await?;
    tab.until(&format!(
        "[...document.querySelectorAll('.facts a')].some((one) => one.innerText === '{ip}')"
    ))
    .await;
    tab.evaluate("document.querySelector('.facts a.code').click()")
        .await?;
    tab.until_text(".cell-prefix", &ip).await;
    tab.until_text(".cell-details .holders", &name).await;
    tab.until_text("tr[aria-current]", &ip).await;

    tab.open(&site.view("#/pod/default/nobody")?).await?;
    tab.until_text(".error", "\"nobody\" not found").await;
    has_no_frames(&tab).await;
    tab.until("document.querySelector('main a').hash === '#/pods'")
        .await;
    // Two characters in the wrong order.
    tab.open(&site.view("#/pod/default/wbe-0")?).await?;
    tab.until("document.querySelector('main li a')?.hash === '#/pod/default/web-0'")
        .await;
    tab.open(&site.view("#/node/nod-0")?).await?;
    tab.until_text(".error", "nod-0").await;
    has_no_frames(&tab).await;
    tab.evaluate("document.querySelector('main li a').click()")
        .await?;
    tab.until_text("h1", "Node node-0").await;
    tab.until_text("main", &ip).await;
    tab.open(&site.view("#/nothing")?).await?;
    tab.until_text("h1", "No such view").await;
    let refused = [
        "prefix=10.99.0.0%2F24&watch=true",
        "network=10.99.0.0%2F16&watch=true",
        "pods/nobody",
        "pods/wbe-0",
        "nodes/nod-0",
    ];
    assert_content(&tab, &refused)?;
    site.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_is_deleted_while_the_page_is_hidden_is_shown_as_deleted() -> Result<()> {
    let Some(site) = Site::start(ledger().nodes(1)).await? else {
        return Ok(());
    };
    site.podplane("run web --wait").await?;
    let tab = site.logged_in("#/pod/default/web").await?;
    tab.until_text(".facts", "Running").await;
    let become_visible = |state: &str| {
        format!(
            "Object.defineProperty(document, 'visibilityState', {{configurable: true, value: '{state}'}});
            document.dispatchEvent(new Event('visibilitychange'))"
        )
    };
    tab.evaluate(&become_visible("hidden")).await?;
    site.podplane("delete pod web").await?;
    site.cluster
        .pods_until("web is gone", <[_]>::is_empty)
        .await?;
    tab.evaluate(&become_visible("visible")).await?;
    tab.until_text("main .hint", "The pod default/web was deleted")
        .await;
    // Another one of that name is followed again.
    site.podplane("run web --wait").await?;
    tab.until_text(".facts", "Running").await;
    assert_content(&tab, &["pods/web"])?;
    site.finish().await
}

/// Keeps the ends of the streams of maps, and lets node-0 have `window.block` instead of its own.
const MAP_STREAMS: &str = "(() => {
    window.streams = [];
    const real = window.fetch;
    window.fetch = async (path, init) => {
        if (path.startsWith('/summary/v1alpha1/map?')) streams.push(init.signal);
        const answer = await real(path, init);
        if (path !== '/summary/v1alpha1/nodes/node-0' || !window.block) return answer;
        const found = await answer.json();
        found.node.blocks = [{ cidr: window.block, state: 'assigned' }];
        return Response.json(found);
    };
})()";

#[tokio::test(flavor = "multi_thread")]
async fn the_map_of_a_former_block_of_a_node_is_followed_no_longer() -> Result<()> {
    let Some(site) = Site::start(ledger().nodes(1)).await? else {
        return Ok(());
    };
    let tab = site.logged_in("#/nodes").await?;
    tab.evaluate(MAP_STREAMS).await?;
    tab.open(&site.view("#/node/node-0")?).await?;
    let follows = async |count: usize| {
        tab.until(&format!(
            "streams.length === {count} && streams.filter(({{ aborted }}) => !aborted).length === 1"
        ))
        .await;
    };
    follows(1).await;
    for (count, block) in [(2, "10.244.7.0/24"), (3, "10.244.8.0/24")] {
        tab.evaluate(&format!("window.block = '{block}'")).await?;
        // The view is read again with each change of the cluster.
        site.podplane(&format!("run web-{count} --wait")).await?;
        tab.until_text("main h2", block).await;
        follows(count).await;
    }
    assert_content(&tab, &[])?;
    site.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_waits_says_for_what_and_what_would_help() -> Result<()> {
    // One node of 5 addresses.
    let few = ledger().nodes(1).node_cidr_mask_size(29);
    let Some(site) = Site::start(few).await? else {
        return Ok(());
    };
    site.podplane("run full --replicas 5 --wait").await?;
    site.podplane("run late").await?;
    let listener = PageListener::start(site.cluster.command("podplane", ["ui", "--no-open"]))?;
    let tab = site.browser.tab().await?;
    tab.open(&listener.login("#/pod/default/late")).await?;
    tab.until_text(".waterfall", "Insufficient pod IPs").await;
    // The trace has not ended, though all of its spans have.
    let began = tab
        .until_text("main .bar .quiet", "without a node for")
        .await;
    assert!(!began.contains("takes"), "{began}");
    // A reason has the room of its bar.
    let is_wide = "(() => {
        const reason = document.querySelector('.waterfall .reason').getBoundingClientRect();
        const [track, takes] = ['.track', '.takes'].map((part) =>
            document.querySelector(`.waterfall ${part}`).getBoundingClientRect());
        return reason.left === track.left && reason.right === takes.right;
    })()";
    tab.until(is_wide).await;
    // What `podplane explain` prints.
    for fact in ["Attempts", "Next Attempt", "To Make It Fit"] {
        tab.until(&format!(
            "[...document.querySelectorAll('main dt')].some((one) => one.innerText === '{fact}')"
        ))
        .await;
    }
    tab.until_text("main", ", or after a change").await;
    tab.until_text("main", "free an address (delete a pod on node-0)")
        .await;

    // In a ledger there is no network to show, and the page says so.
    tab.open(&listener.view("#/node/node-0")).await?;
    tab.until_text("main", "The cluster is in ledger mode")
        .await;
    // A pod that is bound waits as well, until its node has an address for it.
    tab.open(&listener.view("#/waiting")).await?;
    tab.until_text("main", "default/late").await;
    site.podplane("delete pod full-0").await?;
    tab.until_text("main", "No pods are waiting").await;
    site.podplane("delete pod full-1").await?;
    site.cluster
        .pods_until("full-1 is gone", |pods| pods.len() == 4)
        .await?;
    let cri = site.cluster.process("cri-node-0").await?;
    cri.pause().await?;
    site.podplane("run bound").await?;
    tab.until_text("main", "No address on its node yet").await;
    tab.until_text("main", "bound to a node").await;
    tab.until_text("main", "default/bound").await;
    cri.resume()?;
    tab.until_text("main", "No pods are waiting").await;
    assert_content(&tab, &[])?;
    drop(listener);
    site.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn attempts_between_the_first_and_the_last_one_are_folded() -> Result<()> {
    // A scheduler that counts no addresses, and one node of 5.
    let blind = ledger().nodes(1).node_cidr_mask_size(29);
    let Some(site) = Site::start(blind.ip_policy(IpPolicy::Off)).await? else {
        return Ok(());
    };
    site.podplane("run full --replicas 5 --wait").await?;
    site.podplane("run late").await?;
    let tab = site.logged_in("#/pod/default/late").await?;
    let fold = "document.querySelector('.fold')";
    tab.until(&format!(
        "{fold}?.innerText.includes('attempts in between, each failed: ')"
    ))
    .await;
    // A time without a step has a row, with its cause.
    tab.until_text(".waterfall", "without a step: the back-off of kubelet")
        .await;
    let rows = async || {
        tab.evaluate("document.querySelectorAll('.waterfall li').length")
            .await
    };
    let closed = rows().await?.as_u64().context("a number")?;
    tab.evaluate(&format!("{fold}.focus()")).await?;
    tab.press("Enter").await?;
    tab.until(&format!(
        "document.activeElement === {fold} && {fold}.ariaExpanded === 'true'"
    ))
    .await;
    let open = rows().await?.as_u64().context("a number")?;
    assert!(open > closed + 1, "{open} rows, {closed} when folded");
    // It stays open when more attempts come.
    tab.until(&format!(
        "document.querySelectorAll('.waterfall li').length > {open} && {fold}.ariaExpanded === 'true'"
    ))
    .await;
    tab.press("Enter").await?;
    tab.until(&format!("{fold}.ariaExpanded === 'false'")).await;
    // An error is said by the step that failed, and not again by those around it.
    let reasons = "[...document.querySelectorAll('.waterfall .reason')]";
    let failed = "failed to allocate for range 0: no IP addresses";
    tab.until(&format!(
        "{reasons}.length === 2 && {reasons}.every((one) => one.innerText.startsWith('{failed}'))"
    ))
    .await;

    // A small screen has each step without its parts, until a button shows them.
    tab.set_screen(SCREENS[2]).await?;
    tab.evaluate("location.reload()").await?;
    let token = site.token("small", Some("cluster-admin")).await?;
    log_in(&tab, &token).await?;
    let parts = "[...document.querySelectorAll('main .bar button')]
        .find((one) => one.innerText === 'Show more steps')";
    tab.until(&format!("{parts} !== undefined")).await;
    tab.until_text(".waterfall .reason", failed).await;
    let few = rows().await?.as_u64().context("a number")?;
    assert!(few < 12, "{few} rows");
    let height = "document.documentElement.scrollHeight";
    tab.until(&format!("{height} > 740 && {height} < 1700"))
        .await;
    tab.evaluate(&format!("{parts}.click()")).await?;
    tab.until(&format!(
        "document.querySelectorAll('.waterfall li').length > {few} * 2"
    ))
    .await;
    assert_content(&tab, &[])?;
    site.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn blocks_of_ipv6_have_numbers_and_their_addresses_are_found() -> Result<()> {
    let wide = ledger().nodes(1).cluster_cidr("fd00:10:244::/56");
    let Some(site) = Site::start(wide).await? else {
        return Ok(());
    };
    site.podplane("run web --replicas 2 --wait").await?;
    let tab = site.logged_in("#/nodes").await?;
    tab.until_text("main tbody", "2 in use").await;
    let found = site.cluster.pods().await?;
    let ip = pods::ip(&found[0]).to_owned();
    tab.press("/").await?;
    tab.type_text(&ip).await?;
    tab.press("Enter").await?;
    tab.until_text(".cell-prefix", &ip).await;
    tab.until_text("tr[aria-current]", &ip).await;
    // A pod is found by its name alone, too.
    let name = found[0].metadata.name.clone().unwrap_or_default();
    tab.press("/").await?;
    tab.type_text(&name).await?;
    tab.press("Enter").await?;
    tab.until_text("h1", &format!("Pod default/{name}")).await;
    tab.until_text(".facts", &ip).await;
    assert_content(&tab, &[])?;
    site.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn each_family_of_a_node_has_its_map() -> Result<()> {
    let both = ledger()
        .nodes(1)
        .cluster_cidr("10.244.0.0/16,fd00:10:240::/56");
    let Some(site) = Site::start(both).await? else {
        return Ok(());
    };
    site.podplane("run web --wait").await?;
    let tab = site.logged_in("#/node/node-0").await?;
    tab.until("document.querySelectorAll('main canvas').length === 2")
        .await;
    // The address has groups that end in 0, of which no run of zeros is made.
    let found = site.cluster.pods().await?;
    let status = found[0].status.as_ref().context("a status")?;
    let ips = status.pod_ips.iter().flatten();
    let ip = ips.map(|ip| &ip.ip).find(|ip| ip.contains(':'));
    let ip = ip.context("an address of IPv6")?;
    tab.press("/").await?;
    tab.type_text(ip).await?;
    tab.press("Enter").await?;
    tab.until_text(".cell-prefix", ip).await;
    tab.until_text("tr[aria-current]", ip).await;
    assert_content(&tab, &[])?;
    site.finish().await
}
