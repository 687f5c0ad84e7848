//! The network of a node on this machine, as the kernel and the records of its CRI server have it.

use std::collections::BTreeMap;

use anyhow::Context as _;
use podplane_cluster::{data_dir::DataDir, fabric, settings::not_found};
use podplane_kubelet::cri::record::{PluginMode, SandboxRecord};
use podplane_map::{NodeLink, NodeRoute, NodeTopology, PodAttachment, PodInterface};
use podplane_netlink::{Link, Netlink, NetlinkError, Route};

use crate::pods;

/// Reads the network of a node. The process must have one thread.
///
/// # Errors
///
/// If no cluster runs, the cluster or the node is in ledger mode, or the node is not on this
/// machine.
pub(crate) fn enter_and_read(dir: &DataDir, name: &str) -> anyhow::Result<NodeTopology> {
    let process = pods::enter_cluster(dir)?;
    let sandboxes = pods::ready_sandboxes(dir, name)?.with_context(|| {
        not_found(
            "node",
            name,
            "`podplane status` shows the nodes of this machine; run the command where the node runs",
        )
    })?;
    let mut topology = read(dir, name, sandboxes.iter())?;
    // Only the mount namespace of the cluster has the path; a shell elsewhere gets there by the
    // process.
    topology.namespace = format!("/proc/{process}/root{}", topology.namespace);
    Ok(topology)
}

/// Reads the network of a node on this machine, and of its ready sandboxes. The process must have
/// entered the cluster.
///
/// # Errors
///
/// If the node is in ledger mode, or the kernel does not answer.
pub(crate) fn read<'a>(
    dir: &DataDir,
    name: &str,
    sandboxes: impl Iterator<Item = &'a SandboxRecord>,
) -> anyhow::Result<NodeTopology> {
    let netns = fabric::node_netns(&dir.run(), name);
    anyhow::ensure!(
        netns.exists(),
        "node {name} is in ledger mode: it has addresses but no network"
    );
    let mut netlink = Netlink::open_in(&netns)?;
    let links = netlink.links()?;
    let names: BTreeMap<u32, &str> = links
        .iter()
        .map(|link| (link.index, link.name.as_str()))
        .collect();
    let pods: Vec<PodAttachment> = sandboxes
        .filter_map(|sandbox| attachment(sandbox, &names))
        .collect();
    let topology = NodeTopology {
        node: name.to_owned(),
        namespace: netns.display().to_string(),
        links: node_links(&mut netlink, &links, &names, &pods)?,
        routes: routes(netlink.routes()?, &names),
        pods,
    };
    Ok(topology.sorted())
}

fn node_links(
    netlink: &mut Netlink,
    links: &[Link],
    names: &BTreeMap<u32, &str>,
    pods: &[PodAttachment],
) -> Result<Vec<NodeLink>, NetlinkError> {
    let each = links.iter().map(|link| {
        let master = link.controller.and_then(|index| names.get(&index));
        let is_at = |pod: &&PodAttachment| {
            let mut interfaces = pod.interfaces.iter();
            interfaces.any(|interface| interface.link.as_deref() == Some(&link.name))
        };
        let addresses = netlink.addresses(link.index)?;
        Ok(NodeLink {
            name: link.name.clone(),
            kind: link.kind.clone(),
            is_up: link.is_up,
            master: master.map(|name| (*name).to_owned()),
            peer: pods
                .iter()
                .find(|pod| link.kind == "veth" && is_at(pod))
                .map(|pod| pod.pod.clone()),
            addresses: addresses.into_iter().map(|address| address.net).collect(),
        })
    });
    each.collect()
}

/// The pod of a sandbox; `None` if it has no namespace of its own.
fn attachment(sandbox: &SandboxRecord, names: &BTreeMap<u32, &str>) -> Option<PodAttachment> {
    let network = sandbox.network.as_ref()?;
    if network.plugins == PluginMode::Ipam {
        return None;
    }
    // A pod that ends meanwhile has no interfaces.
    let interfaces = Netlink::open_in(&network.netns).and_then(|mut netlink| {
        let links = netlink.links()?;
        let own = links.into_iter().filter(|link| link.name != "lo");
        let each = own.map(|link| {
            let addresses = netlink.addresses(link.index)?;
            let peer = link.peer.and_then(|index| names.get(&index));
            Ok(PodInterface {
                name: link.name,
                link: peer.map(|name| (*name).to_owned()),
                addresses: addresses.into_iter().map(|address| address.net).collect(),
            })
        });
        each.collect::<Result<Vec<_>, NetlinkError>>()
    });
    let metadata = &sandbox.metadata;
    Some(PodAttachment {
        pod: format!("{}/{}", metadata.namespace, metadata.name),
        sandbox: sandbox.id.as_str().to_owned(),
        interfaces: interfaces.unwrap_or_default(),
    })
}

/// The routes of the main table, without those of IPv6's link-local and multicast addresses, which
/// each link has.
fn routes(routes: Vec<Route>, names: &BTreeMap<u32, &str>) -> Vec<NodeRoute> {
    let is_shown = |route: &Route| {
        let is_of_each_link = match route.destination {
            ipnet::IpNet::V6(net) => {
                net.addr().is_unicast_link_local() || net.addr().is_multicast()
            }
            ipnet::IpNet::V4(_) => false,
        };
        route.table == Route::MAIN && !is_of_each_link
    };
    let shown = routes.into_iter().filter(is_shown);
    let shown = shown.map(|route| NodeRoute {
        destination: route.destination,
        via: route.gateway,
        dev: route
            .index
            .and_then(|index| names.get(&index))
            .map(|name| (*name).to_owned()),
    });
    shown.collect()
}
