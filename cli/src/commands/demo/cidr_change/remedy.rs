//! The same changes with podplane's allocator: no node gets another's block, and the operator
//! learns why.

use anyhow::Context as _;
use podplane_api::{Object as _, pod_ips};

use super::{
    ALL_NODES, NODES, WAITING, fault,
    objects::{node, node_that_reports, number},
    stage::{ClusterSnapshot, DemoCluster},
};

pub(super) async fn play(stage: &mut DemoCluster) -> anyhow::Result<()> {
    fault::calico(stage).await?;
    audit(stage).await?;
    fault::flannel(stage).await?;
    audit(stage).await?;
    fault::wide_blocks(stage).await?;
    warned(stage).await?;
    audit(stage).await?;
    replaced(stage).await?;
    narrow(stage).await?;
    refused(stage).await?;
    more(stage).await
}

/// Claims that no two nodes' blocks overlap.
async fn audit(stage: &mut DemoCluster) -> anyhow::Result<()> {
    let shared = stage.audit().await?;
    stage.claim(shared == 0, "no two nodes share an address of their blocks")
}

/// Deletes a node's pod and waits until no address of its block is in use.
async fn drain(stage: &mut DemoCluster, node: &str) -> anyhow::Result<()> {
    let pod = format!("agent-{}", number(node));
    stage
        .must(&["delete", "pod", &pod, "--ignore-not-found"])
        .await?;
    let is_empty = |seen: &ClusterSnapshot| {
        let mut nodes = seen.nodes.iter();
        let node = nodes.find(|other| other.name() == node);
        node.is_none_or(|node| pod_ips::allocated(node).is_none_or(|held| held == 0))
    };
    let text = format!("{node} holds no address any more");
    stage.wait_until(&text, is_empty).await?;
    Ok(())
}

fn is_sound(seen: &ClusterSnapshot) -> bool {
    seen.blocks().overlaps().is_empty()
}

/// A node that had its block before the blocks became wide.
async fn an_old_node(stage: &DemoCluster) -> anyhow::Result<String> {
    let blocks = stage.snapshot().await?.blocks();
    let block = stage.ranges.old_block();
    let old = blocks.holder(block);
    old.map(str::to_owned)
        .with_context(|| format!("no node has {block}"))
}

/// The old blocks do not fit the new flags, and an event says so.
async fn warned(stage: &mut DemoCluster) -> anyhow::Result<()> {
    let old = an_old_node(stage).await?;
    stage.expect_event(&old, "ForeignPodCIDR").await?;
    Ok(())
}

/// Replaces an old node while the blocks are wide.
async fn replaced(stage: &mut DemoCluster) -> anyhow::Result<()> {
    let old = an_old_node(stage).await?;
    stage.scene(&format!("one of the old nodes, {old}, is replaced"))?;
    drain(stage, &old).await?;
    stage.must(&["delete", "node", &old]).await?;
    stage.must_apply("node.yaml", &[node(&old)]).await?;
    stage.expect_event(&old, "CIDRNotAvailable").await?;
    let blocks = stage.snapshot().await?.blocks();
    let wide = stage.ranges.cluster();
    stage.claim(
        blocks.holder(wide).is_none(),
        &format!("nobody is given {wide} while 255 nodes have blocks in it"),
    )?;
    audit(stage).await
}

/// Restores the mask and replaces nodes with wide blocks.
async fn narrow(stage: &mut DemoCluster) -> anyhow::Result<()> {
    stage.scene("the mask is put back to 24")?;
    stage
        .must(&["restart", "--node-cidr-mask-size", "24"])
        .await?;
    stage
        .wait_until(
            "at most one block is free, that of the node that went",
            |seen| {
                let waiting = seen.blocks().waiting().len();
                (WAITING..=WAITING + 1).contains(&waiting) && is_sound(seen)
            },
        )
        .await?;
    let blocks = stage.snapshot().await?.blocks();
    let wide: Vec<_> = blocks
        .of_length(16)
        .iter()
        .map(|(name, _)| (*name).to_owned())
        .collect();
    let Some(first) = wide.first() else {
        anyhow::bail!("no node has a wide block")
    };
    stage.scene(&format!("{first}, which has a wide block, is replaced"))?;
    drain(stage, first).await?;
    stage.must(&["delete", "node", first]).await?;
    let mut reports = vec![node(first), node("node-299")];
    let waiting = blocks.waiting();
    reports.extend(waiting.iter().map(|name| node_that_reports(name, "1")));
    stage.must_apply("nodes.yaml", &reports).await?;
    stage
        .wait_until("every node has a block of its own", |seen| {
            seen.blocks().count() == NODES && is_sound(seen)
        })
        .await?;
    stage
        .wait_until("every node is Ready", |seen| seen.ready() == NODES)
        .await?;
    audit(stage).await
}

/// Applies a node with a block that another node has.
async fn refused(stage: &mut DemoCluster) -> anyhow::Result<()> {
    stage.scene("a node with the block of another is applied by hand")?;
    let mut twin = node("twin");
    twin["spec"]["podCIDR"] = stage.ranges.first_block().to_string().into();
    let output = stage.apply("twin.yaml", &[twin]).await?;
    stage.show(&String::from_utf8_lossy(&output.stderr))?;
    stage.claim(
        !output.status.success(),
        "the API server refuses it, and names a free block",
    )
}

/// Adds nodes up to 500.
async fn more(stage: &mut DemoCluster) -> anyhow::Result<()> {
    stage.scene("200 more nodes")?;
    let names: Vec<_> = (NODES..ALL_NODES)
        .map(|number| format!("node-{number}"))
        .collect();
    let mut add = vec!["node", "add", "--network", "ledger"];
    add.extend(names.iter().map(String::as_str));
    stage.must(&add).await?;
    stage
        .wait_until(
            "500 nodes, each with a block of its own, and Ready",
            |seen| {
                seen.blocks().count() == ALL_NODES && seen.ready() == ALL_NODES && is_sound(seen)
            },
        )
        .await?;
    Ok(())
}
