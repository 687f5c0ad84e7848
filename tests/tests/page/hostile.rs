//! Texts of others are texts.

use anyhow::Result;
use http::Method;
use serde_json::{Value, json};

use crate::site::{Site, assert_content, ledger};

const MARKUP: &str = "<img src=x onerror=\"document.title='taken'\"><script>1</script>";

#[tokio::test(flavor = "multi_thread")]
async fn texts_of_the_api_do_not_become_markup() -> Result<()> {
    let Some(site) = Site::start(ledger().nodes(1)).await? else {
        return Ok(());
    };
    let pod = json!({
        "metadata": {"name": "odd", "annotations": {"text": MARKUP}},
        "spec": {
            "schedulerName": "nobody",
            "containers": [{"name": "c", "image": "i"}],
        },
    });
    site.create("/api/v1/namespaces/default/pods", &pod).await?;
    let condition = json!({
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": MARKUP,
    });
    let status =
        json!({"status": {"message": MARKUP, "reason": MARKUP, "conditions": [condition]}});
    let path = "/api/v1/namespaces/default/pods/odd/status";
    patch(&site, path, &status).await?;
    let event = json!({
        "metadata": {"name": "odd.1"},
        "involvedObject": {"kind": "Pod", "namespace": "default", "name": "odd"},
        "reason": "Odd",
        "message": MARKUP,
        "type": "Warning",
    });
    site.create("/api/v1/namespaces/default/events", &event)
        .await?;

    let tab = site.logged_in("#/pod/default/odd").await?;
    tab.until_text("[aria-label=Events]", MARKUP).await;
    tab.until_text(".facts", MARKUP).await;
    tab.evaluate("[...document.querySelectorAll('summary')].at(-1).click()")
        .await?;
    tab.until_text("details pre", "onerror").await;
    for view in ["#/waiting", "#/pods"] {
        tab.open(&site.view(view)?).await?;
        tab.until_text("main", "<img").await;
    }
    // Names in the address are of others, too.
    tab.open(&site.view("#/node/%3Cimg%20src=x%3E")?).await?;
    tab.until_text("h1", "<img src=x>").await;
    let made = "document.querySelectorAll('img, main script').length";
    assert_eq!(tab.evaluate(made).await?, 0);
    assert_ne!(tab.evaluate("document.title").await?, "taken");
    assert_content(
        &tab,
        &[
            "odd/trace",
            "/summary/v1alpha1/nodes/",
            "events?fieldSelector",
        ],
    )?;
    site.finish().await
}

async fn patch(site: &Site, path: &str, patch: &Value) -> Result<()> {
    let patch = Some(("application/merge-patch+json", patch));
    site.admin()
        .send(Method::PATCH, path, patch)
        .await?
        .document()?;
    Ok(())
}
