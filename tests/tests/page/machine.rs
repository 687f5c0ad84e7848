//! `podplane ui` on the machine of the nodes: the network of a node as a picture and as tables.

use std::fs;

use anyhow::Result;
use podplane_api::Object as _;
use podplane_tests::{Network, browser::Screen, builder, listener::PageListener, peers, pods::ip};

use crate::{
    accessible::{SCREENS, follows_system, is_accessible},
    site::{Site, assert_content},
};

#[tokio::test(flavor = "multi_thread")]
async fn the_view_of_a_node_has_a_picture_of_its_network() -> Result<()> {
    let Some(axe) = peers::node_module("axe-core").filter(|_| peers::root()) else {
        return Ok(());
    };
    let axe = fs::read_to_string(axe.join("axe.min.js"))?;
    let Some(site) = Site::start(builder(Network::Kernel).nodes(1)).await? else {
        return Ok(());
    };
    site.podplane("run web --replicas 2 --wait").await?;
    let pods = site.cluster.pods().await?;
    let listener = PageListener::start(site.cluster.command("podplane", ["ui", "--no-open"]))?;
    let tab = site.browser.tab().await?;
    tab.open(&listener.login("#/node/node-0")).await?;

    // The picture is text: a search of the browser finds each name.
    let of_role = |role: &str, text: &str| {
        format!(
            "[...document.querySelectorAll('.topology .{role} text')]
                .some((one) => one.textContent.includes('{text}'))"
        )
    };
    for pod in &pods {
        tab.until(&of_role("pod", &format!("pod default/{}", pod.name())))
            .await;
        tab.until(&of_role("pod", &format!("eth0 {}", ip(pod))))
            .await;
    }
    tab.until(&of_role("link", "bridge, up")).await;
    tab.until(&of_role("link", "veth")).await;
    tab.until(&of_role("routes", "10.244.0.0/24 dev ")).await;
    tab.until(&of_role("namespace", "node-0, network namespace"))
        .await;
    // A wire for each port of the bridge, and one for each pod.
    let wires = "document.querySelectorAll('.topology .wire').length";
    tab.until(&format!("{wires} === {}", 2 * pods.len())).await;
    // The tables behind it are of the same moment.
    tab.until_text("[aria-label=Links]", "bridge").await;
    tab.until_text("[aria-label=Links]", &format!("default/{}", pods[0].name()))
        .await;
    tab.until_text("[aria-label=Routes]", "10.244.0.0/24").await;

    // A pod that is gone leaves the picture.
    site.podplane(&format!("delete pod {}", pods[0].name()))
        .await?;
    tab.until(&format!("{wires} === {}", 2 * pods.len() - 2))
        .await;

    tab.evaluate(&axe).await?;
    for screen in SCREENS {
        tab.set_screen(screen).await?;
        follows_system(&tab).await;
        is_accessible(&tab, "node with a network").await?;
    }
    let [light, dark, _]: [Screen; 3] = SCREENS;
    for (screen, ink) in [(light, "rgb(26, 26, 26)"), (dark, "rgb(236, 236, 236)")] {
        tab.set_screen(screen).await?;
        let fill = "getComputedStyle(document.querySelector('.topology .link text')).fill";
        tab.until(&format!("{fill} === '{ink}'")).await;
    }
    assert_content(&tab, &[])?;
    drop(listener);
    site.finish().await
}
