//! The backend of a node's network, and the nodes that it does not reach, with the reason.

use podplane_kubelet::kubelet::node_network::{
    annotations::Peer,
    plan::{self, UnreachedBlock},
};

use crate::output::sheet::Sheet;

/// The maximum number of rows; more would hide the rest of the sheet.
const MOST_ROWS: usize = 20;

/// Writes the section; nothing for a node that publishes no backend. `peers` are all nodes.
pub(super) fn write(sheet: &mut Sheet, node: &Peer, peers: &[Peer]) {
    let Some(backend) = &node.backend else {
        return;
    };
    sheet.section("Node Network", |sheet| {
        sheet.field("Backend", backend);
        let each = [node.addresses.v4, node.addresses.v6];
        for address in each.into_iter().flatten() {
            let vtep = node.vteps.of(address).map(|vtep| {
                let (vni, mac) = (vtep.vni, vtep.mac);
                format!(" (VNI {vni}, VtepMAC {mac})")
            });
            let vtep = vtep.unwrap_or_default();
            sheet.field("Reached At", format!("{address}{vtep}"));
        }
    });
    let unreached = |from: &Peer| {
        let backend = from.known_backend();
        let plan = backend.map(|backend| plan::plan(from, backend, peers));
        plan.map(|plan| plan.unreached).unwrap_or_default()
    };
    // A node in ledger mode takes no part, and nobody expects to reach it.
    let takes_part = |name: &str| {
        let mut peers = peers.iter();
        peers.any(|peer| peer.name == name && peer.backend.is_some())
    };
    let out = unreached(node);
    let out = out.iter().filter(|each| takes_part(&each.node));
    let out = out.map(|each| row(&each.node, each)).collect();
    table(sheet, "Does Not Reach", out);
    let others = peers.iter().filter(|peer| peer.name != node.name);
    let back = others.flat_map(|other| {
        let unreached = unreached(other).into_iter();
        let of_this = unreached.filter(|each| each.node == node.name);
        of_this.map(|each| row(&other.name, &each))
    });
    table(sheet, "Not Reached By", back.collect());
}

fn row(other: &str, unreached: &UnreachedBlock) -> Vec<String> {
    vec![
        other.to_owned(),
        unreached.net.to_string(),
        unreached.reason.cause().to_owned(),
        unreached.to_string(),
    ]
}

fn table(sheet: &mut Sheet, title: &str, mut rows: Vec<Vec<String>>) {
    if rows.is_empty() {
        return;
    }
    let more = rows.len().saturating_sub(MOST_ROWS);
    rows.truncate(MOST_ROWS);
    if more > 0 {
        let none = String::new;
        rows.push(vec![format!("and {more} more"), none(), none(), none()]);
    }
    sheet.table(title, &["Node", "Block", "Cause", "Message"], rows);
}

#[cfg(test)]
mod tests {
    use podplane_api::{core::Node, strict};
    use serde_json::json;

    use super::*;

    fn peer(name: &str, backend: &str, number: u8, block: &str) -> Peer {
        let data = match backend {
            "vxlan" => format!(r#"{{"VNI":1,"VtepMAC":"02:00:00:00:00:{number:02x}"}}"#),
            _ => "null".to_owned(),
        };
        let node: Node = strict::decode(json!({
            "metadata": {"name": name, "annotations": {
                "flannel.alpha.coreos.com/kube-subnet-manager": "true",
                "flannel.alpha.coreos.com/backend-type": backend,
                "flannel.alpha.coreos.com/backend-data": data,
                "flannel.alpha.coreos.com/public-ip": format!("172.16.0.{number}"),
            }},
            "spec": {"podCIDR": block, "podCIDRs": [block]},
        }))
        .unwrap();
        Peer::of(&node)
    }

    #[test]
    fn names_the_causes_of_unreachable_peers_in_both_directions() {
        let mut peers = vec![
            peer("worker1", "vxlan", 1, "10.240.1.0/24"),
            peer("worker2", "vxlan", 2, "10.240.2.0/24"),
            peer("worker289", "host-gw", 3, "10.240.31.0/24"),
            peer("worker3", "vxlan", 4, "10.240.2.0/24"),
        ];
        peers.push(Peer {
            name: "of-addresses-alone".into(),
            backend: None,
            ..peers[0].clone()
        });
        let written = |node: usize| {
            let mut sheet = Sheet::default();
            write(&mut sheet, &peers[node], &peers);
            sheet.to_string()
        };
        let want = "\
Node Network:
  Backend:     vxlan
  Reached At:  172.16.0.1 (VNI 1, VtepMAC 02:00:00:00:00:01)
Does Not Reach:
  Node        Block            Cause             Message
  worker289   10.240.31.0/24   mixed backends    ignoring non-vxlan subnet(10.240.31.0/24): type=host-gw
  worker3     10.240.2.0/24    duplicate block   ignoring subnet(10.240.2.0/24): worker2 has it, too, and is reached instead
Not Reached By:
  Node        Block           Cause            Message
  worker289   10.240.1.0/24   mixed backends   ignoring non-host-gw subnet(10.240.1.0/24): type=vxlan";
        assert_eq!(written(0), want);
        let twin = written(3);
        assert!(twin.contains("it is this node's own block, too"), "{twin}");
        assert_eq!(written(4), "");
    }
}
