//! `node forget`: ends the holds of a node's blocks on the word of an operator.

use std::{
    io::{self, IsTerminal as _},
    process::ExitCode,
};

use jiff::{SignedDuration, Timestamp};
use podplane_api::coordination::Lease;
use podplane_client::{ApiError, Client};
use podplane_cluster::settings::not_found;
use podplane_kubelet::{NodeName, kubelet::lease};
use podplane_proto::ipam::{Block, BlockUpdate, HoldChange, block_update, hold_change::Action};

use super::blocks::{Holders, holder};
use crate::{
    global::{GlobalOptions, block_on},
    output,
    report::UsageError,
};

/// Free the pod CIDRs of a node that never comes back, so that other nodes can be assigned them
///
/// WARNING: first make sure that no sandbox of the node runs any more, else addresses may be used
/// twice. Asks for confirmation.
///
/// A pod CIDR (block) is held while sandboxes of its node may use its addresses, even after the
/// Node object is deleted. Normally the node itself or `podplane node remove` ends the hold; use
/// `forget` only if neither can. `podplane get blocks` shows the holds.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  podplane node forget node-3\n  podplane node forget node-3 --yes"
)]
pub(super) struct ForgetArgs {
    /// Name of the node
    name: NodeName,

    /// Do not ask for confirmation
    #[arg(short, long)]
    yes: bool,
}

pub(super) fn run(args: &ForgetArgs, global: &GlobalOptions) -> anyhow::Result<ExitCode> {
    block_on(async { forget(args, &global.client()?).await })
}

async fn forget(args: &ForgetArgs, client: &Client) -> anyhow::Result<ExitCode> {
    let name = args.name.as_str();
    let listed = client.blocks().list().await?;
    let is_held = |block: &Block| block.node_name == name && block.hold.is_some();
    let held: Vec<_> = listed.blocks.into_iter().filter(is_held).collect();
    anyhow::ensure!(
        !held.is_empty(),
        not_found(
            "held block of node",
            name,
            "`podplane get blocks` shows the blocks that are held"
        )
    );
    let heartbeat = Heartbeat::read(client, name).await?;
    if let Some(age) = heartbeat
        .as_ref()
        .and_then(|seen| seen.of_live_holder(&held))
    {
        anyhow::bail!(
            "node {name} is alive, and holds its block itself: it was heard of {} s ago; to end it, `podplane node remove {name}`",
            age.as_secs()
        );
    }
    let holders = Holders::read(client).await?;
    for line in risks(name, &held, &holders, heartbeat.as_ref(), Timestamp::now()) {
        output::line(line)?;
    }
    if !args.yes && !confirmed(name)? {
        anstream::eprintln!("nothing is changed");
        return Ok(ExitCode::FAILURE);
    }
    let updates = held.iter().map(|block| BlockUpdate {
        cidr: block.cidr.clone(),
        node_name: block.node_name.clone(),
        node_uid: block.node_uid.clone(),
        change: Some(block_update::Change::Hold(HoldChange {
            action: Action::Forget.into(),
            ..HoldChange::default()
        })),
        ..BlockUpdate::default()
    });
    let answers = client.blocks().update(updates.collect()).await?;
    for (block, answer) in held.iter().zip(answers) {
        match answer {
            Err(error) if !error.is_not_found() => return Err(error.into()),
            _ => output::line(format_args!("node/{name} hold of {} ended", block.cidr))?,
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The last renewal of a node's lease.
#[derive(Debug)]
struct Heartbeat {
    instance: String,
    age: SignedDuration,
    is_fresh: bool,
}

impl Heartbeat {
    async fn read(client: &Client, node: &str) -> Result<Option<Self>, ApiError> {
        let found = match client.namespaced::<Lease>(lease::NAMESPACE).get(node).await {
            Ok(found) => found,
            Err(error) if error.is_not_found() => return Ok(None),
            Err(error) => return Err(error),
        };
        let annotations = found.metadata.annotations.unwrap_or_default();
        let spec = found.spec.unwrap_or_default();
        let lasts =
            SignedDuration::from_secs(spec.lease_duration_seconds.unwrap_or_default().into());
        let age = |renewed: Timestamp| Timestamp::now().duration_since(renewed);
        Ok(spec.renew_time.map(|renewed| Self {
            instance: annotations
                .get(lease::INSTANCE)
                .cloned()
                .unwrap_or_default(),
            age: age(renewed.0),
            is_fresh: age(renewed.0) < lasts,
        }))
    }

    /// The age of the heartbeat if the instance that holds a block is alive.
    fn of_live_holder(&self, held: &[Block]) -> Option<SignedDuration> {
        let mut instances = held.iter().flat_map(|block| &block.hold);
        let is_holder = instances.any(|hold| hold.instance == self.instance);
        (self.is_fresh && is_holder).then_some(self.age)
    }
}

/// The risks, one in each line.
fn risks(
    name: &str,
    held: &[Block],
    holders: &Holders,
    heartbeat: Option<&Heartbeat>,
    now: Timestamp,
) -> Vec<String> {
    let mut lines = Vec::new();
    for block in held {
        let Some(hold) = &block.hold else { continue };
        let heard = hold.heard.parse::<Timestamp>().ok();
        let age = heard
            .map(|heard| now.duration_since(heard))
            .or_else(|| heartbeat.map(|seen| seen.age));
        let heard = match age {
            Some(age) => format!("the node was last heard of {} s ago", age.as_secs()),
            None => "the time when the node was last heard of is unknown".to_owned(),
        };
        lines.push(format!(
            "{} of node {name} is held by {} since {}; {heard}",
            block.cidr,
            holder(hold, true),
            hold.since
        ));
        match hold.addresses.as_slice() {
            [] => lines.push("  the sandboxes that have addresses of it are unknown".to_owned()),
            known => {
                lines.push("  addresses that sandboxes had, as last known:".to_owned());
                lines.extend(known.iter().map(|held| {
                    format!("    {}   {}/{}", held.address, held.namespace, held.name)
                }));
            }
        }
        let stored = holders.within(&block.cidr);
        if !stored.is_empty() {
            lines.push("  pods that have addresses of it, and keep it from others:".to_owned());
            lines.extend(stored.iter().map(|(ip, pod)| format!("    {ip}   {pod}")));
        }
    }
    lines.push(format!(
        "If a sandbox of node {name} still runs, its address can be given to another pod. Switch the node off first."
    ));
    lines
}

/// Asks for confirmation.
///
/// # Errors
///
/// [`UsageError`] if standard input is not a terminal.
fn confirmed(name: &str) -> anyhow::Result<bool> {
    if !io::stdin().is_terminal() {
        Err(UsageError(
            "cannot ask for confirmation: standard input is not a terminal; pass --yes".into(),
        ))?;
    }
    anstream::eprint!("Forget node {name}? [y/N] ");
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}

#[cfg(test)]
mod tests {
    use podplane_proto::ipam::{Hold, PodAddress};

    use super::*;

    fn held_blocks() -> Vec<Block> {
        vec![Block {
            cidr: "10.244.3.0/24".into(),
            node_name: "node-3".into(),
            hold: Some(Hold {
                instance: "one".into(),
                since: "2026-11-22T03:00:00Z".into(),
                heard: "2026-11-22T03:10:00Z".into(),
                addresses: vec![PodAddress {
                    address: "10.244.3.2".into(),
                    namespace: "default".into(),
                    name: "a".into(),
                    ..PodAddress::default()
                }],
            }),
            ..Block::default()
        }]
    }

    #[test]
    fn names_the_addresses_at_risk() {
        let now = "2026-11-22T03:12:00Z".parse().unwrap();
        let lines = risks("node-3", &held_blocks(), &Holders::default(), None, now);
        assert_eq!(
            lines[0],
            "10.244.3.0/24 of node node-3 is held by instance one since 2026-11-22T03:00:00Z; the node was last heard of 120 s ago"
        );
        assert_eq!(lines[2], "    10.244.3.2   default/a");
    }

    #[test]
    fn refuses_to_forget_a_live_node() {
        let heartbeat = |instance: &str, is_fresh| Heartbeat {
            instance: instance.into(),
            age: SignedDuration::from_secs(3),
            is_fresh,
        };
        assert!(
            heartbeat("one", true)
                .of_live_holder(&held_blocks())
                .is_some()
        );
        assert!(
            heartbeat("one", false)
                .of_live_holder(&held_blocks())
                .is_none()
        );
        assert!(
            heartbeat("two", true)
                .of_live_holder(&held_blocks())
                .is_none()
        );
    }
}
