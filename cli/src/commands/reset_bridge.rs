//! `node reset-bridge`: removes a node's bridge that has the address of an earlier block.

use std::process::ExitCode;

use anyhow::Context as _;
use podplane_cluster::{data_dir::DataDir, fabric, settings::node_not_found};
use podplane_kubelet::{NodeDir, cri::bridges::Bridge};
use podplane_netlink::Netlink;

use crate::{output, pods};

/// Delete a node's bridge that still has the address of an earlier pod CIDR and so blocks new pods
///
/// The next pod creates it again, with the address of the present pod CIDR. A node deletes the
/// bridge itself when no pod is attached to it.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  podplane node reset-bridge node-0\n  podplane node reset-bridge node-0 --force"
)]
pub(crate) struct ResetBridgeArgs {
    /// Name of the node
    name: String,

    /// Delete the bridge even if pods are attached; these pods lose their network
    #[arg(long)]
    force: bool,
}

pub(crate) fn run(args: &ResetBridgeArgs, dir: &DataDir) -> anyhow::Result<ExitCode> {
    let ResetBridgeArgs { name, force } = args;
    pods::enter_cluster(dir)?;
    let sandboxes = pods::sandboxes(dir, name)?;
    let sandboxes = sandboxes.with_context(|| node_not_found(name))?;
    let netns = fabric::node_netns(&dir.run(), name);
    anyhow::ensure!(
        netns.exists(),
        "node {name} is in ledger mode: it has addresses but no network, and so no bridge"
    );
    let network = NodeDir::new(&dir.nodes(), &name.parse()?).network();
    let network = network.with_context(|| format!("node {name} has no network yet"))?;
    let mut netlink = Netlink::open_in(&netns)?;
    let attached = sandboxes
        .iter()
        .filter(|record| record.attached().is_some());
    let pods: Vec<_> = attached
        .map(|record| format!("{}/{}", record.metadata.namespace, record.metadata.name))
        .collect();
    let bridges = Bridge::of(&network, &mut netlink)?;
    if bridges.is_empty() {
        output::line(format_args!(
            "node/{name} has no bridge: nothing to reset; the next pod creates it"
        ))?;
    }
    for bridge in bridges {
        let addresses: Vec<_> = bridge.addresses.iter().map(ToString::to_string).collect();
        let what = format!("bridge {} ({})", bridge.name, addresses.join(", "));
        if !bridge.is_stale(&network) {
            output::line(format_args!(
                "node/{name} {what} has the address of the node's block, and stays"
            ))?;
            continue;
        }
        anyhow::ensure!(
            *force || pods.is_empty(),
            "{what} of node {name} has pods attached to it: {}; delete them first, or cut them off with --force",
            pods.join(", ")
        );
        bridge.remove(&mut netlink)?;
        output::line(format_args!(
            "node/{name} {what} of an earlier block removed"
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}
