//! Templates of the CNI configuration that is written into a node's `net.d` once its podCIDR is
//! known.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::Serialize;

use crate::pod_cidrs::PodCidrs;

/// The plugin for ports of the host.
pub(super) const PORTMAP: &str = "portmap";

/// The CNI configuration that the runtime makes of the node's podCIDR.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum NetworkTemplate {
    /// A list like the example in containerd's documentation: bridge `cni0`, one range for each
    /// address family, and portmap, if it is there, for the ports of the host that pods ask for.
    #[default]
    Containerd,
    /// The configuration that Kubernetes' kubenet passed to the bridge plugin, field by field.
    Kubenet,
}

impl NetworkTemplate {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Containerd, Self::Kubenet];

    /// The file in `net.d`.
    pub fn file_name(self) -> &'static str {
        match self {
            Self::Containerd => "10-containerd-net.conflist",
            Self::Kubenet => "10-kubenet.conf",
        }
    }

    /// The configuration for a node that has these blocks.
    ///
    /// It has no `dataDir` for host-local's files, since kubenet's configuration had none. The
    /// node's own directory is put in when the configuration is used
    /// ([`crate::node_dir::NodeDir::network`]).
    ///
    /// # Errors
    ///
    /// serde_json's; none can occur with these types.
    pub fn render(self, cidrs: &PodCidrs, around: TemplateContext) -> serde_json::Result<String> {
        let mut text = match self {
            Self::Containerd => serde_json::to_string_pretty(&ContainerdList::new(cidrs, around)),
            Self::Kubenet => serde_json::to_string_pretty(&Kubenet::new(cidrs, around)),
        }?;
        text.push('\n');
        Ok(text)
    }
}

/// Properties of a node that its configuration depends on, besides its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TemplateContext {
    /// The means by which pods get ports of the host.
    pub host_ports: HostPorts,
    /// The MTU of the network between nodes, less the bytes that it adds to a packet; absent if not
    /// known.
    pub mtu: Option<u32>,
}

/// The kernel's default for a new interface, in bytes.
const DEFAULT_MTU: u32 = 1500;

/// The means by which pods get ports of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostPorts {
    /// The plugin portmap.
    Portmap,
    /// None: there is no such plugin, or pods have no port that could be reached.
    None,
}

#[derive(Serialize)]
struct RangeRoute {
    dst: &'static str,
}

impl RangeRoute {
    fn default_of(net: &IpNet) -> Self {
        Self {
            dst: match net {
                IpNet::V4(_) => "0.0.0.0/0",
                IpNet::V6(_) => "::/0",
            },
        }
    }
}

#[derive(Serialize)]
struct Range {
    subnet: IpNet,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ContainerdList {
    cni_version: &'static str,
    name: &'static str,
    plugins: Vec<ContainerdPlugin>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum ContainerdPlugin {
    Bridge(ContainerdBridge),
    Portmap(Portmap),
}

#[derive(Serialize)]
struct Portmap {
    r#type: &'static str,
    capabilities: PortMappings,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PortMappings {
    port_mappings: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ContainerdBridge {
    r#type: &'static str,
    bridge: &'static str,
    is_gateway: bool,
    ip_masq: bool,
    promisc_mode: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    mtu: Option<u32>,
    ipam: ContainerdIpam,
}

#[derive(Serialize)]
struct ContainerdIpam {
    r#type: &'static str,
    ranges: Vec<[Range; 1]>,
    routes: Vec<RangeRoute>,
}

impl ContainerdList {
    fn new(cidrs: &PodCidrs, around: TemplateContext) -> Self {
        let bridge = ContainerdPlugin::Bridge(ContainerdBridge {
            r#type: "bridge",
            bridge: "cni0",
            is_gateway: true,
            // Masquerading would rewrite the source of pod traffic to other nodes, which the node
            // network carries as it is.
            ip_masq: false,
            promisc_mode: true,
            mtu: around.mtu.filter(|mtu| *mtu != DEFAULT_MTU),
            ipam: ContainerdIpam {
                r#type: "host-local",
                ranges: cidrs.iter().map(|net| [Range { subnet: *net }]).collect(),
                routes: cidrs.iter().map(RangeRoute::default_of).collect(),
            },
        });
        let portmap = ContainerdPlugin::Portmap(Portmap {
            r#type: PORTMAP,
            capabilities: PortMappings {
                port_mappings: true,
            },
        });
        let chained = (around.host_ports == HostPorts::Portmap).then_some(portmap);
        Self {
            cni_version: "1.0.0",
            name: "containerd-net",
            plugins: [bridge].into_iter().chain(chained).collect(),
        }
    }
}

/// Names and order of members are those that a kubelet with kubenet logs; do not add any.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Kubenet {
    cni_version: &'static str,
    name: &'static str,
    r#type: &'static str,
    bridge: &'static str,
    mtu: u32,
    add_if: &'static str,
    is_gateway: bool,
    ip_masq: bool,
    hairpin_mode: bool,
    ipam: KubenetIpam,
}

#[derive(Serialize)]
struct KubenetIpam {
    r#type: &'static str,
    subnet: IpNet,
    gateway: IpAddr,
    /// The block of the second family, if the node has one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ranges: Vec<[Range; 1]>,
    routes: Vec<RangeRoute>,
}

impl Kubenet {
    fn new(cidrs: &PodCidrs, around: TemplateContext) -> Self {
        let first = cidrs.first();
        Self {
            cni_version: "0.1.0",
            name: "kubenet",
            r#type: "bridge",
            bridge: "cbr0",
            mtu: around.mtu.unwrap_or(DEFAULT_MTU),
            add_if: "eth0",
            is_gateway: true,
            ip_masq: false,
            hairpin_mode: false,
            ipam: KubenetIpam {
                r#type: "host-local",
                subnet: first,
                gateway: first_address(first),
                ranges: cidrs
                    .iter()
                    .skip(1)
                    .map(|net| [Range { subnet: *net }])
                    .collect(),
                routes: cidrs.iter().map(RangeRoute::default_of).collect(),
            },
        }
    }
}

/// The address after the network's own; the network's own where there is none after it.
fn first_address(net: IpNet) -> IpAddr {
    match net {
        IpNet::V4(net) => IpAddr::V4(net.network().to_bits().saturating_add(1).into()),
        IpNet::V6(net) => IpAddr::V6(net.network().to_bits().saturating_add(1).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(template: NetworkTemplate, cidrs: &str) -> String {
        let cidrs = cidrs.parse().unwrap();
        template.render(&cidrs, around(HostPorts::None)).unwrap()
    }

    fn around(host_ports: HostPorts) -> TemplateContext {
        TemplateContext {
            host_ports,
            mtu: None,
        }
    }

    #[test]
    fn interfaces_have_the_mtu_of_the_node_network() {
        let mtu = |mtu, template: NetworkTemplate| {
            let cidrs = "10.244.1.0/24".parse().unwrap();
            let around = TemplateContext {
                mtu: Some(mtu),
                ..around(HostPorts::None)
            };
            let text = template.render(&cidrs, around).unwrap();
            let config: serde_json::Value = serde_json::from_str(&text).unwrap();
            [&config, &config["plugins"][0]].map(|plugin| plugin["mtu"].as_u64())
        };
        assert_eq!(mtu(1450, NetworkTemplate::Containerd), [None, Some(1450)]);
        assert_eq!(mtu(1430, NetworkTemplate::Kubenet), [Some(1430), None]);
        // The default MTU is left out.
        assert_eq!(mtu(1500, NetworkTemplate::Containerd), [None, None]);
    }

    #[test]
    fn kubenet_configuration_equals_that_of_a_kubelet() {
        let want = r#"{
  "cniVersion": "0.1.0",
  "name": "kubenet",
  "type": "bridge",
  "bridge": "cbr0",
  "mtu": 1500,
  "addIf": "eth0",
  "isGateway": true,
  "ipMasq": false,
  "hairpinMode": false,
  "ipam": {
    "type": "host-local",
    "subnet": "10.255.0.4/30",
    "gateway": "10.255.0.5",
    "routes": [
      {
        "dst": "0.0.0.0/0"
      }
    ]
  }
}
"#;
        assert_eq!(render(NetworkTemplate::Kubenet, "10.255.0.4/30"), want);
    }

    #[test]
    fn kubenet_keeps_a_second_family_beside_the_first() {
        let text = render(NetworkTemplate::Kubenet, "10.1.2.0/24,fd00:1::/64");
        let config: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(config["ipam"]["subnet"], "10.1.2.0/24");
        assert_eq!(
            config["ipam"]["ranges"],
            serde_json::json!([[{"subnet": "fd00:1::/64"}]])
        );
        assert_eq!(config["ipam"]["routes"][1]["dst"], "::/0");
    }

    #[test]
    fn containerd_has_a_range_and_a_default_route_for_each_family() {
        let want = r#"{
  "cniVersion": "1.0.0",
  "name": "containerd-net",
  "plugins": [
    {
      "type": "bridge",
      "bridge": "cni0",
      "isGateway": true,
      "ipMasq": false,
      "promiscMode": true,
      "ipam": {
        "type": "host-local",
        "ranges": [
          [
            {
              "subnet": "10.244.1.0/24"
            }
          ],
          [
            {
              "subnet": "fd00:1::/64"
            }
          ]
        ],
        "routes": [
          {
            "dst": "0.0.0.0/0"
          },
          {
            "dst": "::/0"
          }
        ]
      }
    }
  ]
}
"#;
        assert_eq!(
            render(NetworkTemplate::Containerd, "10.244.1.0/24,fd00:1::/64"),
            want
        );
    }

    #[test]
    fn containerd_chains_portmap_if_it_is_installed() {
        let cidrs = "10.244.1.0/24".parse().unwrap();
        let text = NetworkTemplate::Containerd.render(&cidrs, around(HostPorts::Portmap));
        let list: serde_json::Value = serde_json::from_str(&text.unwrap()).unwrap();
        assert_eq!(
            list["plugins"][1],
            serde_json::json!({"type": "portmap", "capabilities": {"portMappings": true}})
        );
        assert_eq!(list["plugins"].as_array().unwrap().len(), 2);
    }

    #[test]
    fn gateway_of_the_last_block_does_not_overflow() {
        let text = render(NetworkTemplate::Kubenet, "255.255.255.255/32");
        assert!(text.contains(r#""gateway": "255.255.255.255""#), "{text}");
    }
}
