//! Story B with Kubernetes' own allocator, and its repair.

use std::process::Stdio;

use ipnet::IpNet;
use podplane_api::{Object as _, core::Node};
use serde_json::{Value, json};
use tokio::process::Command;

use super::{
    BLOCKS, NODES, WAITING, WIDE,
    blocks::ObservedBlocks,
    objects::{agent, node, node_that_reports, number, pod},
    stage::DemoCluster,
};

/// A node with one of the first blocks, another such node, and one without a block.
const FIRST: &str = "node-0";
const OTHER: &str = "node-1";
const LATE: &str = "node-299";
/// The minimum number of nodes in story B that have exactly the block of another.
const DUPLICATES: usize = 20;

pub(super) async fn play(stage: &mut DemoCluster) -> anyhow::Result<()> {
    calico(stage).await?;
    flannel(stage).await?;
    wide_blocks(stage).await?;
    narrow_blocks(stage).await?;
    duplicates(stage).await?;
    repair(stage).await
}

/// Applies the agents, one pod for each node, to create missing ones.
async fn agents(stage: &DemoCluster) -> anyhow::Result<()> {
    let seen = stage.snapshot().await?;
    let agents: Vec<_> = seen.nodes.iter().map(|node| agent(node.name())).collect();
    stage.must_apply("agents.yaml", &agents).await?;
    Ok(())
}

/// Adds nodes, and waits until they have blocks, or no block is left.
async fn add_nodes(
    stage: &mut DemoCluster,
    network: &str,
    numbers: std::ops::Range<usize>,
) -> anyhow::Result<()> {
    let names: Vec<_> = numbers.map(|number| format!("node-{number}")).collect();
    let mut add = vec!["node", "add", "--network", network];
    add.extend(names.iter().map(String::as_str));
    stage.must(&add).await?;
    stage.nodes += names.len();
    let (nodes, given) = (stage.nodes, stage.nodes.min(BLOCKS));
    let text = if nodes > BLOCKS {
        format!("{given} of {nodes} nodes have a block: the range has no more")
    } else if names.len() == 1 {
        "it gets one of the next".to_owned()
    } else {
        format!("{nodes} nodes have a block")
    };
    stage
        .wait_until(&text, |seen| {
            seen.nodes.len() == nodes && seen.blocks().count() == given
        })
        .await?;
    Ok(())
}

/// Phase 0: a network with its own IPAM.
pub(super) async fn calico(stage: &mut DemoCluster) -> anyhow::Result<()> {
    stage.scene("300 nodes, whose network does not use podCIDR")?;
    stage.install_pool(0..NODES)?;
    stage.up().await?;
    // Blocks are assigned in turn, so the block of the last node will be near those of the two
    // nodes with devices.
    let early = 2..WAITING + 2;
    let devices = if stage.has_devices() {
        "kernel"
    } else {
        "ledger"
    };
    add_nodes(stage, "ledger", early.clone()).await?;
    add_nodes(stage, devices, 0..1).await?;
    add_nodes(stage, devices, 1..2).await?;
    add_nodes(stage, "ledger", early.end..NODES - 1).await?;
    stage
        .must(&["node", "add", "--network", devices, LATE])
        .await?;
    stage
        .wait_until("300 nodes are Ready all the same", |seen| {
            seen.nodes.len() == NODES && seen.ready() == NODES
        })
        .await?;
    agents(stage).await?;
    let seen = stage
        .wait_until("and a pod runs on each: nobody notices", |seen| {
            seen.running() == NODES
        })
        .await?;
    stage.claim(
        seen.blocks().waiting().len() == NODES - BLOCKS,
        "44 nodes have no podCIDR",
    )?;
    if stage.has_devices() {
        let answered = stage.pings("agent-0", "agent-299", true).await?;
        stage.claim(answered, "node-0 reaches pods on node-299")?;
    }
    Ok(())
}

/// Phase 1: the network is replaced by one that uses podCIDR.
pub(super) async fn flannel(stage: &mut DemoCluster) -> anyhow::Result<()> {
    stage.scene("the network is replaced by one that uses podCIDR")?;
    stage.remove_pool(0..NODES)?;
    stage.must(&["delete", "pods", "--all"]).await?;
    stage
        .wait_until("44 nodes are no longer Ready", |seen| {
            seen.ready() == BLOCKS
        })
        .await?;
    agents(stage).await?;
    let seen = stage
        .wait_until("256 pods get an address, and 44 do not", |seen| {
            seen.running() == BLOCKS && seen.pods.len() == NODES
        })
        .await?;
    let waiting = seen.blocks().waiting();
    let Some(first) = waiting.first() else {
        anyhow::bail!("no node waits for a block")
    };
    stage.expect_event(first, "CIDRNotAvailable").await?;
    let agent = format!("agent-{}", number(first));
    stage.expect_event(&agent, "NetworkNotReady").await?;
    Ok(())
}

/// Phase 2: a larger range, and larger blocks.
pub(super) async fn wide_blocks(stage: &mut DemoCluster) -> anyhow::Result<()> {
    let larger = stage.ranges.larger();
    stage.scene(&format!(
        "the cluster CIDR becomes {larger}, in blocks of /16"
    ))?;
    stage.show("node-299 is switched off for the time being")?;
    // With its pod, which would otherwise wait for the node and get an address of the first block
    // that is tried below.
    let own = format!("agent-{}", number(LATE));
    stage.must(&["delete", "pod", &own]).await?;
    stage.must(&["delete", "node", LATE]).await?;
    let plan = [
        "plan",
        "--cluster-cidr",
        &larger,
        "--node-cidr-mask-size",
        "16",
        "--nodes",
        "300",
    ];
    let planned = stage.run(&plan).await?;
    stage.show(&warnings(&String::from_utf8_lossy(&planned.stdout)))?;
    stage.claim(
        planned.status.code() == Some(1),
        "podplane plan would have told before: 16 blocks for 300 nodes",
    )?;
    stage
        .must(&[
            "restart",
            "--cluster-cidr",
            &larger,
            "--node-cidr-mask-size",
            "16",
        ])
        .await?;
    let seen = stage
        .wait_until(
            "15 nodes get a block of /16, and 28 are left without any",
            |seen| {
                let blocks = seen.blocks();
                blocks.of_length(16).len() == WIDE && blocks.waiting().len() == WAITING
            },
        )
        .await?;
    let wide = stage.ranges.cluster();
    stage.claim(
        seen.blocks().holder(wide).is_none(),
        &format!("the sixteenth, {wide}, has all the old blocks in it"),
    )
}

/// The warnings of a plan.
fn warnings(plan: &str) -> String {
    plan.lines()
        .skip_while(|line| !line.starts_with("Warnings"))
        .collect::<Vec<_>>()
        .join("\n")
}

/// Phase 3: one old node is replaced, and then the mask becomes 24 again.
async fn narrow_blocks(stage: &mut DemoCluster) -> anyhow::Result<()> {
    let seen = stage.snapshot().await?;
    let wide = stage.ranges.cluster();
    // Not one of the first blocks, which are needed below.
    let blocks = seen.blocks();
    let old_block = stage.ranges.old_block();
    let Some(old) = blocks.holder(old_block) else {
        anyhow::bail!("no node has {old_block}")
    };
    stage.scene(&format!("one of the old nodes, {old}, is replaced"))?;
    stage.must(&["delete", "node", old]).await?;
    stage.must_apply("node.yaml", &[node(old)]).await?;
    let seen = stage
        .wait_until(
            &format!("{wide} is given to a node, though 255 others have a block of /24 in it"),
            |seen| {
                let blocks = seen.blocks();
                blocks.holder(wide).is_some_and(|holder| {
                    blocks
                        .overlaps()
                        .iter()
                        .filter(|(outer, _)| *outer == holder)
                        .count()
                        == BLOCKS - 1
                })
            },
        )
        .await?;
    let blocks = seen.blocks();
    stage.show(&format!(
        "{}\t{wide}",
        blocks.holder(wide).unwrap_or_default()
    ))?;
    stage.scene("the mask is put back to 24")?;
    stage
        .must(&["restart", "--node-cidr-mask-size", "24"])
        .await?;
    // The controller must have listed the node that is deleted next: one that starts after the
    // deletion never counts the wide block as used, and assigns its only free block to one node.
    stage
        .until_all_blocks_are_used("no block is free: each wide one takes up 256")
        .await
}

/// Phase 4: the node whose wide block contains the old ones is replaced.
async fn duplicates(stage: &mut DemoCluster) -> anyhow::Result<()> {
    let wide = stage.ranges.cluster();
    let seen = stage.snapshot().await?;
    let blocks = seen.blocks();
    let Some(holder) = blocks.holder(wide).map(str::to_owned) else {
        anyhow::bail!("no node has {wide}")
    };
    stage.scene(&format!("{holder}, which has {wide}, is replaced"))?;
    stage.must(&["delete", "node", &holder]).await?;
    // A node that reports something is requeued at once; the controller's back-off alone would take
    // up to 1,000 s.
    let waiting = stage.snapshot().await?.blocks().waiting();
    let reports: Vec<_> = waiting
        .iter()
        .map(|name| node_that_reports(name, "1"))
        .collect();
    stage.must_apply("nodes.yaml", &reports).await?;
    stage
        .wait_until("the 28 that waited get a block each", |seen| {
            seen.nodes.len() == NODES - 2 && seen.blocks().waiting().is_empty()
        })
        .await?;
    stage.show("node-299 is switched on again")?;
    stage.must_apply("node-299.yaml", &[node(LATE)]).await?;
    let rival = meet_rival(stage).await?;
    stage.must_apply("node.yaml", &[node(&holder)]).await?;
    let seen = stage
        .wait_until("every node has a block", |seen| {
            seen.blocks().count() == NODES
        })
        .await?;
    let blocks = seen.blocks();
    let twice = blocks.duplicates();
    stage.claim(
        twice.len() >= DUPLICATES,
        &format!("{} nodes have exactly the block of another", twice.len()),
    )?;
    let found = stage.audit().await?;
    stage.claim(
        found >= twice.len(),
        "podplane audit finds them, as it would in the dump of a cluster of Kubernetes",
    )?;
    listing(stage, &blocks).await?;
    let witness = if rival == OTHER { FIRST } else { OTHER };
    agents(stage).await?;
    let seen = stage
        .wait_until("all 300 pods run", |seen| seen.running() == NODES)
        .await?;
    let (own, theirs) = (
        format!("agent-{}", number(LATE)),
        format!("agent-{}", number(rival)),
    );
    let address = seen.address(&own);
    stage.claim(
        address.is_some() && address == seen.address(&theirs),
        &format!(
            "{own} and {theirs} have one address: {}",
            address.as_deref().unwrap_or("none")
        ),
    )?;
    if stage.has_devices() {
        let from = format!("agent-{}", number(witness));
        let lost = stage.pings(&from, &own, false).await?;
        stage.claim(
            lost,
            &format!("{witness} does not reach pods on {LATE} any more"),
        )?;
        let wrong = stage.pings(&from, &theirs, true).await?;
        stage.claim(wrong, &format!("what answers there is {theirs}"))?;
        let lost = stage.pings(&theirs, &own, false).await?;
        stage.claim(
            lost,
            &format!("nor does {rival}, which has the block itself"),
        )?;
    }
    Ok(())
}

/// Registers the last node again and again until it has the block of one of the first nodes: each
/// time it gets the next block, and all of them are in use.
async fn meet_rival(stage: &mut DemoCluster) -> anyhow::Result<&'static str> {
    for _ in 0..BLOCKS {
        let seen = stage
            .wait_until("it gets the block of another", |seen| {
                seen.blocks().of_node(LATE).is_some()
            })
            .await?;
        let blocks = seen.blocks();
        let Some(block) = blocks.of_node(LATE) else {
            continue;
        };
        if let Some(rival) = [FIRST, OTHER]
            .into_iter()
            .find(|name| blocks.of_node(name) == Some(block))
        {
            stage.claim(true, &format!("{LATE} has {block}, as {rival} has"))?;
            return Ok(rival);
        }
        stage.show(&format!(
            "{block}; and once more, until it is that of {FIRST} or {OTHER}"
        ))?;
        stage.must(&["delete", "node", LATE]).await?;
        stage.must_apply("node-299.yaml", &[node(LATE)]).await?;
    }
    anyhow::bail!("{LATE} never has the block of {FIRST} or {OTHER}")
}

/// The listing of the story: the lines with duplicate blocks.
async fn listing(stage: &DemoCluster, blocks: &ObservedBlocks) -> anyhow::Result<()> {
    let path = "jsonpath={range .items[*]}{.metadata.name}{'\\t'}{.spec.podCIDR}{'\\n'}{end}";
    let kubectl = Command::new("kubectl")
        .args(["get", "nodes", "-o", path])
        .env("KUBECONFIG", stage.kubeconfig())
        .stdin(Stdio::null())
        .output()
        .await;
    let listed = match kubectl {
        Ok(output) if output.status.success() => {
            stage.show(&format!("(kubectl get nodes -o{path})"))?;
            String::from_utf8_lossy(&output.stdout).into_owned()
        }
        // Without kubectl, the same from the state just read.
        _ => {
            stage.show("(podplane get nodes -o wide, NAME and POD-CIDR)")?;
            let lines = blocks.assigned();
            lines
                .map(|(name, block)| format!("{name}\t{block}\n"))
                .collect()
        }
    };
    let twice = blocks.duplicates();
    for (block, nodes) in twice.iter().take(3) {
        let of_block = listed.lines().filter(|line| {
            nodes
                .iter()
                .any(|name| **line == format!("{name}\t{block}"))
        });
        stage.show(&of_block.collect::<Vec<_>>().join("\n"))?;
    }
    stage.show(&format!(
        "… and {} more pairs",
        twice.len().saturating_sub(3)
    ))
}

/// The nodes that have to give up their common block: all but a node with devices, or else all but
/// the one that had it first.
fn younger<'a>(nodes: &'a [Node], names: &[String]) -> Vec<&'a Node> {
    let mut named: Vec<_> = nodes
        .iter()
        .filter(|node| names.iter().any(|name| name == node.name()))
        .collect();
    // The nodes that waited for a block have the label `seen`; the other one had the block first.
    named.sort_by_key(|node| {
        let created = node.metadata.creation_timestamp.as_ref().map(|time| time.0);
        let is_kept = matches!(node.name(), FIRST | OTHER);
        let had_pool = node
            .metadata
            .labels
            .iter()
            .any(|labels| labels.contains_key("seen"));
        (!is_kept, had_pool, created)
    });
    named.split_off(1)
}

/// The node to be created again: with another block, and without the fields that the server set.
fn renumbered(node: &Node, block: IpNet) -> anyhow::Result<Value> {
    let mut value = serde_json::to_value(node)?;
    value["spec"]["podCIDR"] = json!(block);
    value["spec"]["podCIDRs"] = json!([block]);
    if let Some(metadata) = value["metadata"].as_object_mut() {
        for own in [
            "uid",
            "resourceVersion",
            "creationTimestamp",
            "managedFields",
            "generation",
        ] {
            metadata.remove(own);
        }
    }
    Ok(value)
}

/// Phase 5: dump, delete, edit, apply; the old bridge; and the pods of the node.
async fn repair(stage: &mut DemoCluster) -> anyhow::Result<()> {
    stage.scene("the repair: nodes are dumped, deleted, edited and applied")?;
    let seen = stage.snapshot().await?;
    let blocks = seen.blocks();
    let moved: Vec<&Node> = blocks
        .duplicates()
        .iter()
        .flat_map(|(_, names)| younger(&seen.nodes, names))
        .collect();
    // The controller counts the blocks below the first range as free, so no new node may come
    // before the repair is over. A wide block has room; its node gets a small one with the others.
    let Some((roomy, room)) = blocks.of_length(16).into_iter().next() else {
        anyhow::bail!("no node has a wide block")
    };
    let mut moved: Vec<&Node> = moved
        .into_iter()
        .filter(|node| node.name() != roomy)
        .collect();
    moved.extend(seen.nodes.iter().filter(|node| node.name() == roomy));
    let mut free: ObservedBlocks = blocks.clone();
    free.0.remove(roomy);
    let unused = free.unused(room);
    stage.claim(
        unused.len() >= moved.len(),
        &format!(
            "{} nodes need another block; {room} has {} unused ones",
            moved.len(),
            unused.len()
        ),
    )?;
    let (late, others): (Vec<_>, Vec<_>) = moved
        .iter()
        .zip(&unused)
        .partition(|(node, _)| node.name() == LATE);
    let objects = |nodes: &[(&&Node, &IpNet)]| -> anyhow::Result<Vec<Value>> {
        nodes
            .iter()
            .map(|(node, block)| renumbered(node, **block))
            .collect()
    };
    let names: Vec<_> = others.iter().map(|(node, _)| node.name()).collect();
    // The stored node is deleted before anything is applied, so that no node takes a block that is
    // meant for another.
    let [(_, block)] = late[..] else {
        anyhow::bail!("{LATE} shares its block with nobody")
    };
    let old = blocks.of_node(LATE);
    stage.must(&["get", "node", LATE, "-o", "yaml"]).await?;
    stage.must(&["delete", "node", LATE]).await?;
    stage.must_apply("node-299.yaml", &objects(&late)?).await?;
    let mut delete = vec!["delete", "nodes"];
    delete.extend(names);
    stage.must(&delete).await?;
    stage.must_apply("nodes.yaml", &objects(&others)?).await?;
    stage
        .wait_until("no two nodes share an address of their blocks", |seen| {
            seen.nodes.len() == NODES
                && seen.blocks().count() == NODES
                && seen.blocks().overlaps().is_empty()
        })
        .await?;
    let found = stage.audit().await?;
    stage.claim(found == 0, "podplane audit finds none either")?;
    if stage.has_devices() {
        stale_bridge(stage, old, *block).await?;
    }
    Ok(())
}

/// The bridge of the node still has an address of the old block.
async fn stale_bridge(
    stage: &mut DemoCluster,
    old: Option<IpNet>,
    new: IpNet,
) -> anyhow::Result<()> {
    stage.scene("the old bridge of the node")?;
    let old = old.map_or_else(|| "none".into(), |block| block.to_string());
    stage.show(&format!(
        "{LATE} had {old} and has {new}; its bridge does not know"
    ))?;
    stage
        .must_apply("probe.yaml", &[pod("probe", LATE)])
        .await?;
    let refused = stage
        .expect_event("probe", "FailedCreatePodSandBox")
        .await?;
    stage.claim(
        refused.contains("already has an IP address different from"),
        "the bridge plugin refuses the old bridge",
    )?;
    let kept = stage.run(&["node", "reset-bridge", LATE]).await?;
    stage.show(&String::from_utf8_lossy(&kept.stderr))?;
    stage.claim(
        !kept.status.success(),
        "it is not taken away from a pod that uses it",
    )?;
    stage
        .must(&["delete", "pod", "agent-299", "--ignore-not-found"])
        .await?;
    let reset = stage.must(&["node", "reset-bridge", LATE]).await?;
    stage.show(if reset.is_empty() {
        "it has gone by itself, since no pod used it any more"
    } else {
        &reset
    })?;
    agents(stage).await?;
    stage
        .wait_until("its pods run, in the new block", |seen| {
            ["agent-299", "probe"].iter().all(|name| {
                seen.address(name)
                    .and_then(|address| address.parse().ok())
                    .is_some_and(|address: std::net::IpAddr| new.contains(&address))
            })
        })
        .await?;
    let answered = stage.pings("agent-1", "agent-299", true).await?;
    stage.claim(answered, "node-1 reaches pods on node-299 again")?;
    let answered = stage.pings("agent-0", "agent-299", true).await?;
    stage.claim(answered, "and so does node-0")
}
