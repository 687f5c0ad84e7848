//! The network of a sandbox: a namespace, and what CNI plugins put into it.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr},
    path::{Path, PathBuf},
};

use ipnet::IpNet;
use podplane_cni::{
    Attachment, CniResult, Runtime, RuntimeError, loopback,
    trace::{Trace, Traceparent},
    types::{ConfigError, NetworkConfigList},
};
use podplane_host::fs;
use podplane_netlink::{
    Netlink, NetlinkError,
    netns::{self, NetnsError},
    sysctl::{self, SysctlError},
};

use podplane_service_runtime::trace::{SpanIds, attribute};
use serde_json::Map;

use super::{
    bridges::Bridge,
    claims::Conflict,
    metrics::NetworkMetrics,
    preparation::Preparation,
    record::{PluginMode, PodNetwork, SandboxId, SandboxMetadata},
    template::{HostPorts, PORTMAP},
    trace::{self, JourneyPart},
};
use crate::NodeName;

/// Name of the pod's interface, the same as with every runtime.
pub const IFNAME: &str = "eth0";
const ADD: (JourneyPart, &str) = (JourneyPart::Creation, "CNI ADD");
const DEL: (JourneyPart, &str) = (JourneyPart::Deletion, "CNI DEL");
const LOOPBACK_IFNAME: &str = "lo";
/// The loopback interface is set up in process, as the specification leaves it to the runtime.
/// Earlier versions of the server had a plugin do it, as a network of its own.
const LOOPBACK: &str =
    r#"{"cniVersion": "1.0.0", "name": "cni-loopback", "plugins": [{"type": "loopback"}]}"#;

/// The reason why a sandbox has no network.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// There is no usable configuration, in most cases because the node has no podCIDR yet.
    #[error("cni plugin not initialized")]
    Config(#[source] ConfigError),
    /// The namespace could not be made.
    #[error(transparent)]
    Netns(#[from] NetnsError),
    /// A plugin failed; everything that was done has been undone.
    #[error("{}", .0.message())]
    Plugin(RuntimeError),
    /// The plugins succeeded without giving an address.
    #[error("failed to find network info for sandbox")]
    NoAddress,
    /// The plugins gave an address of another sandbox in each attempt; everything that was done has
    /// been undone.
    #[error(
        "the IPAM plugin gave address {}, which sandbox \"{}\" has, {tries} times: its own state has lost that address; \
         delete the pod of that sandbox or repair the plugin's state",
        .conflict.ip, .conflict.holder
    )]
    Duplicate {
        /// The address and its holder.
        conflict: Conflict,
        /// The number of attempts.
        tries: usize,
    },
    /// An address of another sandbox could not be given back.
    #[error("failed to give back address {}, which sandbox \"{}\" has", .conflict.ip, .conflict.holder)]
    Undo {
        /// The address and its holder.
        conflict: Conflict,
        /// The reason.
        source: DetachError,
    },
    /// A kernel setting of the sandbox could not be written.
    #[error(transparent)]
    Sysctl(#[from] SysctlError),
}

/// The part of a sandbox's network that could not be taken down; everything else was.
#[derive(Debug, thiserror::Error)]
pub enum DetachError {
    /// The recorded configuration is invalid.
    #[error("failed to read the recorded network configuration")]
    Config(#[from] ConfigError),
    /// A plugin failed.
    #[error("{}", .0.message())]
    Plugin(RuntimeError),
    /// The namespace could not be removed.
    #[error(transparent)]
    Netns(#[from] NetnsError),
}

/// Makes and unmakes the networks of a node's sandboxes. It blocks: plugins are programs.
#[derive(Debug)]
pub struct SandboxNetworks {
    runtime: Runtime,
    plugins: PluginMode,
    loopback: NetworkConfigList,
    netns_dir: PathBuf,
    node: NodeName,
    metrics: NetworkMetrics,
    preparation: Preparation,
}

impl SandboxNetworks {
    /// Networks of `node`, with namespaces bound to `<netns_dir>/NODE.ID`.
    ///
    /// # Errors
    ///
    /// [`ConfigError`]; it does not occur, since the loopback network is a constant.
    pub fn new(
        runtime: Runtime,
        plugins: PluginMode,
        netns_dir: PathBuf,
        node: NodeName,
        metrics: NetworkMetrics,
    ) -> Result<Self, ConfigError> {
        let loopback = NetworkConfigList::from_list(LOOPBACK.as_bytes())?;
        Ok(Self {
            runtime,
            plugins,
            loopback,
            netns_dir,
            node,
            metrics,
            preparation: Preparation::default(),
        })
    }

    pub(super) fn node(&self) -> &NodeName {
        &self.node
    }

    pub(super) fn metrics(&self) -> &NetworkMetrics {
        &self.metrics
    }

    /// Executes the plugins of a list, as a step of the pod's journey.
    fn execute_traced<T>(
        &self,
        step: (JourneyPart, &'static str),
        metadata: &SandboxMetadata,
        list: &NetworkConfigList,
        attachment: &Attachment,
        execute: fn(&Runtime, &NetworkConfigList, &Attachment) -> Result<T, RuntimeError>,
    ) -> Result<T, RuntimeError> {
        let mut span = trace::begin(&metadata.uid, step, &self.node);
        let trace = span.ids().map(|ids| {
            let SpanIds {
                trace,
                span: step,
                is_sampled,
            } = ids;
            Trace::new(Traceparent {
                trace,
                step,
                is_sampled,
            })
        });
        let traced = Attachment {
            trace: trace.clone(),
            ..attachment.clone()
        };
        span.set(attribute::NETWORK, || list.name.clone());
        let executed = execute(&self.runtime, list, &traced);
        for step in trace.iter().flat_map(Trace::take) {
            trace::record(&span, step, &self.node);
        }
        if let Err(error) = &executed {
            span.fail(|| error.message());
        }
        span.end();
        executed
    }

    fn make_namespace(&self, metadata: &SandboxMetadata, netns: &Path) -> Result<(), NetnsError> {
        let step = (JourneyPart::Creation, "network namespace");
        let span = trace::begin(&metadata.uid, step, &self.node);
        netns::create_with(netns, || self.preparation.run())?;
        span.end();
        Ok(())
    }

    /// Plans the network of a sandbox, so that it can be recorded before anything is made.
    pub fn plan(&self, id: &SandboxId, list: &NetworkConfigList) -> PodNetwork {
        PodNetwork {
            plugins: self.plugins,
            netns: self.netns_path(id),
            config: serde_json::from_slice(&list.bytes).unwrap_or_default(),
            ips: Vec::new(),
            attached: true,
            runtime_config: Map::new(),
            sysctls: BTreeMap::new(),
        }
    }

    /// The means by which pods get ports of the host.
    pub(super) fn host_ports(&self) -> HostPorts {
        let mut dirs = self.runtime.bin_dirs.iter();
        match self.has_namespaces() && dirs.any(|dir| fs::is_file(dir.join(PORTMAP))) {
            true => HostPorts::Portmap,
            false => HostPorts::None,
        }
    }

    /// Returns true if sandboxes have namespaces of their own, and not addresses alone.
    pub(super) fn has_namespaces(&self) -> bool {
        self.plugins == PluginMode::Chain
    }

    /// The plugins' results for a sandbox, the loopback network's first.
    pub(super) fn results(&self, id: &SandboxId, network: &PodNetwork) -> Vec<CniResult> {
        let text = network.config.to_string();
        let cached = NetworkConfigList::from_list(text.as_bytes()).ok();
        let cached = cached.and_then(|list| {
            let attachment = Attachment::new(id.as_str(), None, IFNAME);
            self.runtime.cached_result(&list, &attachment)
        });
        let loopback = (network.plugins == PluginMode::Chain).then(|| {
            let addresses = [IpNet::new_assert(Ipv4Addr::LOCALHOST.into(), 8)];
            loopback::result(&network.netns.to_string_lossy(), &addresses)
        });
        loopback.into_iter().chain(cached).collect()
    }

    /// Makes the namespace and attaches it; returns its addresses, the primary one first.
    ///
    /// # Errors
    ///
    /// [`AttachError`]. Call [`SandboxNetworks::detach`] then: a rollback may have failed.
    pub fn attach(
        &self,
        id: &SandboxId,
        metadata: &SandboxMetadata,
        network: &PodNetwork,
        list: &NetworkConfigList,
    ) -> Result<Vec<IpAddr>, AttachError> {
        let set_up = || self.set_up(id, metadata, network, list);
        self.metrics.network("set_up_pod", set_up)
    }

    fn set_up(
        &self,
        id: &SandboxId,
        metadata: &SandboxMetadata,
        network: &PodNetwork,
        list: &NetworkConfigList,
    ) -> Result<Vec<IpAddr>, AttachError> {
        let attachment = attachment(id, metadata, network, Some(network.netns.clone()));
        let added = match network.plugins {
            PluginMode::Ipam => {
                self.execute_traced(ADD, metadata, list, &attachment, Runtime::ipam_add)
            }
            PluginMode::Chain => {
                self.make_namespace(metadata, &network.netns)?;
                self.execute_traced(ADD, metadata, list, &attachment, Runtime::add)
            }
        };
        let ips = pod_ips(&added.map_err(AttachError::Plugin)?);
        if ips.is_empty() {
            return Err(AttachError::NoAddress);
        }
        // After the plugins, so that settings of the pod's interface can be written.
        let sysctls: Vec<_> = network
            .sysctls
            .iter()
            .map(|(path, value)| (path.as_str(), value.as_str()))
            .collect();
        if !sysctls.is_empty() {
            sysctl::write_in(&network.netns, &sysctls)?;
        }
        Ok(ips)
    }

    /// Detaches the sandbox and removes its namespace. Tries every step; anything already gone is
    /// fine.
    ///
    /// # Errors
    ///
    /// [`DetachError`], the first one; call again later.
    pub fn detach(
        &self,
        id: &SandboxId,
        metadata: &SandboxMetadata,
        network: &PodNetwork,
    ) -> Result<(), DetachError> {
        let tear_down = || self.tear_down(id, metadata, network);
        self.metrics.network("tear_down_pod", tear_down)
    }

    fn tear_down(
        &self,
        id: &SandboxId,
        metadata: &SandboxMetadata,
        network: &PodNetwork,
    ) -> Result<(), DetachError> {
        let list = NetworkConfigList::from_list(network.config.to_string().as_bytes())?;
        // A plugin fails if the file of the namespace is not a namespace any more; without a
        // namespace it frees the address.
        let netns = Some(network.netns.clone()).filter(|path| netns::is_netns(path));
        let attachment = attachment(id, metadata, network, netns);
        let del = |list, attachment: &Attachment| {
            self.execute_traced(DEL, metadata, list, attachment, Runtime::del)
        };
        let deleted = match network.plugins {
            PluginMode::Chain if self.plugins == PluginMode::Chain => {
                let loopback = Attachment {
                    ifname: LOOPBACK_IFNAME.to_owned(),
                    ..attachment.clone()
                };
                let deleted = del(&list, &attachment);
                match self.runtime.cached_result(&self.loopback, &loopback) {
                    Some(_) => deleted.and(del(&self.loopback, &loopback)),
                    None => deleted,
                }
            }
            // Also for networks made by a server in the other mode: the node has no namespace here
            // in which a chain could run, and the chain's devices are gone with it.
            PluginMode::Chain | PluginMode::Ipam => {
                self.execute_traced(DEL, metadata, &list, &attachment, Runtime::ipam_del)
            }
        };
        let removed = match network.plugins {
            PluginMode::Chain => netns::remove(&network.netns),
            PluginMode::Ipam => Ok(()),
        };
        deleted.map_err(DetachError::Plugin)?;
        Ok(removed?)
    }

    /// Returns true if the network still exists, and was made in the mode of this server.
    pub fn is_live(&self, network: &PodNetwork) -> bool {
        network.plugins == self.plugins
            && match network.plugins {
                PluginMode::Chain => netns::is_netns(&network.netns),
                PluginMode::Ipam => true,
            }
    }

    /// Deletes attachments that the CNI runtime has cached for sandboxes that are not `known`, and
    /// their namespaces.
    ///
    /// Returns the failures; the rest was deleted.
    pub fn collect_garbage(&self, known: impl Fn(&str) -> bool) -> Vec<DetachError> {
        let mut errors = Vec::new();
        match self.runtime.cached() {
            Err(error) => errors.push(DetachError::Plugin(error)),
            Ok(cached) => {
                for entry in cached {
                    let mut attachment = entry.attachment;
                    if known(&attachment.container_id) {
                        continue;
                    }
                    attachment.netns = attachment.netns.filter(|path| netns::is_netns(path));
                    let deleted = NetworkConfigList::from_list(&entry.config)
                        .map_err(DetachError::Config)
                        .and_then(|list| {
                            let deleted = match self.plugins {
                                PluginMode::Chain => self.runtime.del(&list, &attachment),
                                PluginMode::Ipam => self.runtime.ipam_del(&list, &attachment),
                            };
                            deleted.map_err(DetachError::Plugin)
                        });
                    errors.extend(deleted.err());
                }
            }
        }
        if self.plugins == PluginMode::Chain {
            errors.extend(self.remove_namespaces(known));
        }
        errors
    }

    /// Removes the bridges of a network whose address is of an earlier block.
    ///
    /// If plugins run in this process's own namespace, a bridge there may be anybody's. Then only a
    /// bridge without ports is removed that has the addresses of `earlier`, a network of this node.
    ///
    /// # Errors
    ///
    /// [`NetlinkError`] of the first that could not be removed.
    pub fn remove_stale_bridges(
        &self,
        list: &NetworkConfigList,
        earlier: Option<&NetworkConfigList>,
    ) -> Result<(), NetlinkError> {
        if self.plugins != PluginMode::Chain {
            return Ok(());
        }
        let (mut netlink, is_own) = match &self.runtime.node_netns {
            Some(netns) => (Netlink::open_in(netns)?, true),
            None => (Netlink::open()?, false),
        };
        let may_go =
            |bridge: &Bridge| is_own || earlier.is_some_and(|earlier| bridge.is_left_by(earlier));
        for bridge in Bridge::of(list, &mut netlink)? {
            if bridge.is_stale(list) && may_go(&bridge) {
                bridge.remove(&mut netlink)?;
                let Bridge {
                    name, addresses, ..
                } = &bridge;
                tracing::info!(node = %self.node, bridge = name, ?addresses, "removed the idle bridge of an earlier block");
            }
        }
        Ok(())
    }

    fn remove_namespaces(&self, known: impl Fn(&str) -> bool) -> Vec<DetachError> {
        let paths = match netns::list(&self.netns_dir) {
            Ok(paths) => paths,
            Err(error) => return vec![error.into()],
        };
        let orphans = paths
            .iter()
            .filter(|path| self.sandbox_of(path).is_some_and(|id| !known(id)));
        orphans
            .filter_map(|path| netns::remove(path).err().map(Into::into))
            .collect()
    }

    /// The id of the sandbox that a namespace belongs to; `None` if it is another node's, since
    /// nodes may share the directory.
    fn sandbox_of<'a>(&self, netns: &'a Path) -> Option<&'a str> {
        let name = netns.file_name()?.to_str()?;
        let id = name.strip_prefix(self.node.as_str())?.strip_prefix('.')?;
        (id.len() == SandboxId::LEN && !id.contains('.')).then_some(id)
    }

    fn netns_path(&self, id: &SandboxId) -> PathBuf {
        self.netns_dir.join(format!("{}.{id}", self.node))
    }
}

fn attachment(
    id: &SandboxId,
    metadata: &SandboxMetadata,
    network: &PodNetwork,
    netns: Option<PathBuf>,
) -> Attachment {
    let args = [
        ("IgnoreUnknown", "1"),
        ("K8S_POD_NAMESPACE", &metadata.namespace),
        ("K8S_POD_NAME", &metadata.name),
        ("K8S_POD_INFRA_CONTAINER_ID", id.as_str()),
        ("K8S_POD_UID", &metadata.uid),
    ];
    Attachment {
        args: args
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into(),
        capability_args: network.runtime_config.clone(),
        ..Attachment::new(id.as_str(), netns, IFNAME)
    }
}

/// The addresses inside the sandbox: those without an interface, and those of an interface in a
/// namespace.
fn pod_ips(result: &CniResult) -> Vec<IpAddr> {
    let is_inside = |index: Option<u32>| {
        let interface = index
            .and_then(|index| usize::try_from(index).ok())
            .and_then(|index| result.interfaces.get(index));
        interface.is_none_or(|interface| !interface.sandbox.is_empty())
    };
    let inside = result.ips.iter().filter(|ip| is_inside(ip.interface));
    inside.map(|ip| ip.address.addr()).collect()
}
