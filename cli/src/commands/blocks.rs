//! `get blocks`: the records of node blocks, their holds, and the pods with addresses in them.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    process::ExitCode,
};

use ipnet::IpNet;
use podplane_api::{Object as _, core::Pod, pod_ips};
use podplane_client::{Client, ListParams};
use podplane_cluster::settings::not_found;
use podplane_proto::ipam::{Block, BlockState, Hold};
use serde_json::{Value, json};

use crate::output::{self, OutputFormat, table::TextTable};

/// The stored pods that hold addresses, by address.
#[derive(Debug, Default)]
pub(super) struct Holders(BTreeMap<IpAddr, BTreeSet<String>>);

impl Holders {
    /// Reads the pods of the store.
    pub(super) async fn read(client: &Client) -> anyhow::Result<Self> {
        let pods = client.all::<Pod>().list(&ListParams::default()).await?;
        Ok(Self::of(&pods.items))
    }

    fn of(pods: &[Pod]) -> Self {
        let mut holders = Self::default();
        for pod in pods.iter().filter(|pod| pod_ips::holds_address(pod)) {
            let status = pod.status.as_ref();
            let ips = status.and_then(|status| status.pod_ips.as_deref());
            for ip in ips.unwrap_or_default() {
                if let Ok(ip) = ip.ip.parse() {
                    let name = pod.key().to_string();
                    holders.0.entry(ip).or_default().insert(name);
                }
            }
        }
        holders
    }

    /// The pods that hold an address of the block, each with the address.
    pub(super) fn within(&self, cidr: &str) -> Vec<(IpAddr, &str)> {
        let Ok(net) = cidr.parse::<IpNet>() else {
            return Vec::new();
        };
        let within = self.0.range(net.network()..=net.broadcast());
        let each = within.flat_map(|(ip, pods)| pods.iter().map(|pod| (*ip, pod.as_str())));
        each.collect()
    }
}

/// Returns true if the block is held although its node is gone.
pub(super) fn is_held(block: &Block) -> bool {
    block.state() == BlockState::Draining && block.hold.is_some()
}

/// Prints the records, or those of the named nodes and CIDRs.
pub(super) async fn get(
    client: &Client,
    names: &[String],
    format: Option<OutputFormat>,
) -> anyhow::Result<ExitCode> {
    let mut blocks = client.blocks().list().await?.blocks;
    let holders = Holders::read(client).await?;
    let mut missing = Vec::new();
    if !names.is_empty() {
        let is_named =
            |block: &Block, name: &String| block.cidr == *name || block.node_name == *name;
        missing = names
            .iter()
            .filter(|name| !blocks.iter().any(|block| is_named(block, name)))
            .collect();
        blocks.retain(|block| names.iter().any(|name| is_named(block, name)));
    }
    match format {
        None if blocks.is_empty() && missing.is_empty() => anstream::eprintln!("No blocks found"),
        None | Some(OutputFormat::Wide) if blocks.is_empty() => {}
        None | Some(OutputFormat::Wide) => {
            let is_wide = format == Some(OutputFormat::Wide);
            output::line(table(&blocks, &holders, is_wide))?;
        }
        Some(OutputFormat::Name) => blocks
            .iter()
            .try_for_each(|block| output::line(format_args!("block/{}", block.cidr)))?,
        Some(OutputFormat::Json) => output::json(&list(&blocks, &holders))?,
        Some(OutputFormat::Yaml) => output::yaml(&list(&blocks, &holders))?,
    }
    for name in &missing {
        anstream::eprintln!(
            "error: {}",
            not_found(
                "block",
                name,
                "`podplane get blocks` shows all, with their nodes"
            )
        );
    }
    Ok(match missing.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// Prints a note below a table of nodes if blocks of deleted nodes are held. An unreachable server
/// is left to the next command.
pub(super) async fn footer(client: &Client) -> anyhow::Result<()> {
    let Ok(listed) = client.blocks().list().await else {
        return Ok(());
    };
    match footer_text(&listed.blocks) {
        Some(text) => output::line(format_args!("\n{text}")),
        None => Ok(()),
    }
}

fn footer_text(blocks: &[Block]) -> Option<String> {
    const NAMED: usize = 3;
    let held: Vec<_> = blocks.iter().filter(|block| is_held(block)).collect();
    let named = held.iter().take(NAMED);
    let mut named: Vec<_> = named
        .map(|block| format!("{} of {}", block.cidr, block.node_name))
        .collect();
    if held.len() > NAMED {
        named.push(format!("{} more", held.len() - NAMED));
    }
    let named = named.join(", ");
    match held.len() {
        0 => None,
        1 => Some(format!(
            "1 block of a deleted node is held: {named}. See `podplane get blocks`."
        )),
        count => Some(format!(
            "{count} blocks of deleted nodes are held: {named}. See `podplane get blocks`."
        )),
    }
}

fn table(blocks: &[Block], holders: &Holders, is_wide: bool) -> String {
    let mut columns = vec!["BLOCK", "NODE", "STATE", "HELD SINCE", "HELD BY", "PODS"];
    if is_wide {
        columns.extend(["LAST HEARD OF", "UNTIL", "NODE UID"]);
    }
    let row = |block: &Block| {
        let hold = block.hold.as_ref();
        let or_none = |text: &str| match text {
            "" => "<none>".to_owned(),
            text => text.to_owned(),
        };
        let mut row = vec![
            block.cidr.clone(),
            or_none(&block.node_name),
            state(block).to_owned(),
            or_none(hold.map_or("", |hold| hold.since.as_str())),
            hold.map_or_else(|| "<none>".into(), |hold| holder(hold, is_wide)),
            pods(block, holders),
        ];
        if is_wide {
            row.extend([
                or_none(hold.map_or("", |hold| hold.heard.as_str())),
                or_none(&block.until),
                or_none(&block.node_uid),
            ]);
        }
        row
    };
    TextTable::new(columns).rows(blocks.iter().map(row))
}

/// `instance 0f2c9d1e`, or the complete id.
pub(super) fn holder(hold: &Hold, is_whole: bool) -> String {
    match hold.instance.as_str() {
        "" => "unknown instance".to_owned(),
        id if is_whole => format!("instance {id}"),
        id => format!("instance {}", id.get(..8).unwrap_or(id)),
    }
}

fn state(block: &Block) -> &'static str {
    match block.state() {
        BlockState::Reserved => "Reserved",
        BlockState::Assigned => "Assigned",
        BlockState::Foreign => "Foreign",
        BlockState::Draining if is_held(block) => "Held",
        BlockState::Draining => "Draining",
        BlockState::Quarantined => "Quarantined",
        BlockState::Unspecified => "Unknown",
    }
}

/// The number of stored pods with addresses in the block; for a held block of a deleted node also
/// the last known number of its addresses.
fn pods(block: &Block, holders: &Holders) -> String {
    let pods: BTreeSet<_> = holders
        .within(&block.cidr)
        .into_iter()
        .map(|(_, pod)| pod)
        .collect();
    let known = block.hold.as_ref().map_or(0, |hold| hold.addresses.len());
    match (is_held(block), known) {
        (true, known) if known > 0 => format!("{} ({known} addresses last known)", pods.len()),
        _ => pods.len().to_string(),
    }
}

fn list(blocks: &[Block], holders: &Holders) -> Value {
    let items: Vec<_> = blocks
        .iter()
        .map(|block| document(block, holders))
        .collect();
    json!({"apiVersion": "v1", "kind": "List", "items": items})
}

fn document(block: &Block, holders: &Holders) -> Value {
    let pods = holders.within(&block.cidr).into_iter();
    let pods: Vec<_> = pods
        .map(|(address, pod)| json!({"address": address, "pod": pod}))
        .collect();
    let mut document = json!({
        "apiVersion": "podplane.ipam.v1", "kind": "Block",
        "cidr": block.cidr, "state": state(block), "pods": pods,
    });
    let mut add = |field: &str, value: &str| {
        if !value.is_empty() {
            document[field] = value.into();
        }
    };
    add("nodeName", &block.node_name);
    add("nodeUID", &block.node_uid);
    add("until", &block.until);
    if let Some(hold) = &block.hold {
        let addresses = hold.addresses.iter();
        let addresses: Vec<_> = addresses
            .map(|held| {
                let pod = format!("{}/{}", held.namespace, held.name);
                json!({"address": held.address, "pod": pod})
            })
            .collect();
        let mut told = json!({
            "instance": hold.instance, "since": hold.since, "addresses": addresses,
        });
        if !hold.heard.is_empty() {
            told["heard"] = hold.heard.clone().into();
        }
        document["hold"] = told;
    }
    document
}

#[cfg(test)]
mod tests {
    use podplane_api::strict;
    use podplane_proto::ipam::PodAddress;

    use super::*;

    fn blocks() -> Vec<Block> {
        let block = |cidr: &str, node: &str, state: BlockState, hold: Option<Hold>| Block {
            cidr: cidr.into(),
            node_name: node.into(),
            state: state.into(),
            hold,
            ..Block::default()
        };
        let hold = |addresses: &[&str]| Hold {
            instance: "0f2c9d1e-aaaa-bbbb-cccc-ddddeeeeffff".into(),
            since: "2026-11-22T03:00:00Z".into(),
            heard: String::new(),
            addresses: addresses
                .iter()
                .map(|address| PodAddress {
                    address: (*address).into(),
                    namespace: "default".into(),
                    name: "gone".into(),
                    ..PodAddress::default()
                })
                .collect(),
        };
        vec![
            block("10.0.0.0/24", "a", BlockState::Assigned, None),
            block("10.0.1.0/24", "b", BlockState::Assigned, Some(hold(&[]))),
            block(
                "10.0.2.0/24",
                "c",
                BlockState::Draining,
                Some(hold(&["10.0.2.2"])),
            ),
            block("10.0.3.0/24", "d", BlockState::Draining, None),
            block("10.96.0.0/16", "", BlockState::Reserved, None),
        ]
    }

    fn holders() -> Holders {
        let pod = |name: &str, phase: &str, ip: &str| -> Pod {
            let pod = json!({"metadata": {"namespace": "default", "name": name},
                "spec": {"nodeName": "b", "containers": [{"name": "c"}]},
                "status": {"phase": phase, "podIPs": [{"ip": ip}]}});
            strict::decode(pod).unwrap()
        };
        Holders::of(&[
            pod("w", "Running", "10.0.1.2"),
            pod("x", "Running", "10.0.1.3"),
        ])
    }

    #[test]
    fn shows_blocks_as_a_table() {
        assert_eq!(
            table(&blocks(), &holders(), false),
            "BLOCK          NODE     STATE      HELD SINCE             HELD BY             PODS\n\
             10.0.0.0/24    a        Assigned   <none>                 <none>              0\n\
             10.0.1.0/24    b        Assigned   2026-11-22T03:00:00Z   instance 0f2c9d1e   2\n\
             10.0.2.0/24    c        Held       2026-11-22T03:00:00Z   instance 0f2c9d1e   0 (1 addresses last known)\n\
             10.0.3.0/24    d        Draining   <none>                 <none>              0\n\
             10.96.0.0/16   <none>   Reserved   <none>                 <none>              0"
        );
    }

    #[test]
    fn shows_a_block_as_a_document() {
        let document = document(&blocks()[2], &holders());
        assert_eq!(document["state"], "Held");
        let held = json!([{"address": "10.0.2.2", "pod": "default/gone"}]);
        assert_eq!(document["hold"]["addresses"], held);
        assert_eq!(document["nodeName"], "c");
        assert!(document.get("until").is_none());
    }

    #[test]
    fn footer_names_only_held_blocks_of_deleted_nodes() {
        let text = footer_text(&blocks()).unwrap();
        assert!(
            text.contains("1 block of a deleted node is held: 10.0.2.0/24 of c."),
            "{text}"
        );
        assert_eq!(footer_text(&blocks()[..2]), None);
    }
}
