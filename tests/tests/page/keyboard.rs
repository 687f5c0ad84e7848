//! Everything can be done without a mouse.

use anyhow::Result;

use crate::site::{Site, assert_content, ledger};

#[tokio::test(flavor = "multi_thread")]
async fn the_map_is_walked_by_the_keyboard() -> Result<()> {
    let Some(site) = Site::start(ledger().nodes(1)).await? else {
        return Ok(());
    };
    site.podplane("run web --replicas 1 --wait").await?;
    let tab = site.logged_in("#/map").await?;
    tab.until_text(".crumbs", "10.244.0.0/16").await;
    tab.evaluate("document.querySelector('canvas').focus()")
        .await?;

    // The first block is where the curve begins; the cell beside it is still in it.
    tab.press("ArrowRight").await?;
    tab.until_text(".cell-details", "10.244.0.").await;
    tab.until_text(".cell-details", "node-0").await;
    tab.press("Enter").await?;
    tab.until_text(".crumbs [aria-current]", "10.244.0.0/24")
        .await;

    // The map that is zoomed has the focus, so that the keys go on.
    tab.until("document.activeElement?.tagName === 'CANVAS'")
        .await;
    tab.press("Home").await?;
    tab.until_text(".cell-details", "10.244.0.0").await;

    // Escape undoes the step, and is at the cell again: Enter leads back.
    tab.press("Escape").await?;
    tab.until_text(".crumbs [aria-current]", "10.244.0.0/16")
        .await;
    tab.until_text(".cell-details", "node-0").await;
    tab.press("Enter").await?;
    tab.until_text(".crumbs [aria-current]", "10.244.0.0/24")
        .await;

    // Where no step led, it goes to the next larger prefix.
    tab.open(&site.view("#/map?prefix=10.244.16.0/24")?).await?;
    tab.until_text(".crumbs [aria-current]", "10.244.16.0/24")
        .await;
    tab.evaluate("document.querySelector('canvas').focus()")
        .await?;
    tab.press("Escape").await?;
    tab.until_text(".crumbs [aria-current]", "10.244.16.0/20")
        .await;
    tab.press("Backspace").await?;
    tab.until_text(".crumbs [aria-current]", "10.244.0.0/16")
        .await;
    assert_content(&tab, &[])?;
    site.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn tab_reaches_the_content_and_the_field_reaches_everything() -> Result<()> {
    let Some(site) = Site::start(ledger().nodes(2)).await? else {
        return Ok(());
    };
    let tab = site.logged_in("#/nodes").await?;
    tab.until_text("main", "node-1").await;

    // The first stop of a fresh page is the link over the navigation.
    tab.evaluate("document.activeElement?.blur()").await?;
    tab.evaluate("document.querySelector('#skip').focus()")
        .await?;
    tab.press("Enter").await?;
    tab.until("document.activeElement?.id === 'main'").await;
    tab.press("Tab").await?;
    tab.until("document.activeElement?.closest('main') !== null")
        .await;
    let outline = "getComputedStyle(document.activeElement).outlineStyle !== 'none'";
    tab.until(outline).await;

    // In a field it is only a character.
    tab.evaluate("document.querySelector('h1').focus()").await?;
    tab.press("/").await?;
    tab.until("document.activeElement?.name === 'to'").await;
    tab.type_text("node-1").await?;
    tab.press("Enter").await?;
    tab.until_text("h1", "Node node-1").await;
    tab.press("/").await?;
    tab.type_text("10.244.0.7").await?;
    tab.press("Enter").await?;
    tab.until_text(".crumbs [aria-current]", "10.244.0.0/24")
        .await;
    // The address is where the keys go on.
    tab.until_text(".cell-prefix", "10.244.0.7").await;
    tab.until("document.activeElement?.tagName === 'CANVAS'")
        .await;
    tab.press("ArrowRight").await?;
    tab.until("document.querySelector('.cell-prefix').innerText !== '10.244.0.7'")
        .await;

    // A name that nothing has leads nowhere, and the field says so.
    let before = tab.evaluate("location.hash").await?;
    tab.press("/").await?;
    tab.type_text("nope").await?;
    tab.press("Enter").await?;
    tab.until(
        "document.querySelector('[name=to]').validationMessage
            === 'No node and no pod is called nope.'",
    )
    .await;
    assert_eq!(tab.evaluate("location.hash").await?, before);

    // Columns are buttons.
    tab.open(&site.view("#/nodes")?).await?;
    tab.until_text("tbody tr:first-child", "node-0").await;
    tab.evaluate("document.querySelector('th button').focus()")
        .await?;
    tab.press("Enter").await?;
    tab.until_text("tbody tr:first-child", "node-1").await;
    tab.until("document.querySelector('th').ariaSort === 'descending'")
        .await;

    // A view begins at its heading, after the plain overview too.
    tab.open(&site.view("#/")?).await?;
    tab.until_text("h1", "Overview").await;
    tab.evaluate("document.querySelector('#navigation a[href=\"#/nodes\"]').focus()")
        .await?;
    tab.press("Enter").await?;
    tab.until("document.activeElement?.tagName === 'H1'").await;
    tab.until_text("h1", "Nodes").await;
    assert_content(&tab, &[])?;
    site.finish().await
}
