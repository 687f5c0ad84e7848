//! What is written into a node's `net.d` once its podCIDR is known.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::Serialize;

use crate::pod_cidrs::PodCidrs;

/// The plugin for ports of the host.
pub(super) const PORTMAP: &str = "portmap";

/// Which CNI configuration the runtime makes of the node's podCIDR.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Template {
    /// A list like the example in containerd's documentation: bridge `cni0`, one range for each
    /// address family, and portmap, if it is there, for the ports of the host that pods ask for.
    #[default]
    Containerd,
    /// What Kubernetes' kubenet passed to the bridge plugin, member for member.
    Kubenet,
}

impl Template {
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
    /// It names no `dataDir`, in which host-local would keep its files: kubenet's configuration had none, and the
    /// node's own directory is put in when the configuration is used ([`crate::node_dir::NodeDir::network`]).
    ///
    /// # Errors
    ///
    /// None that serde_json can have with these types; the signature is its own.
    pub fn render(self, cidrs: &PodCidrs, host_ports: HostPorts) -> serde_json::Result<String> {
        let mut text = match self {
            Self::Containerd => {
                serde_json::to_string_pretty(&ContainerdList::new(cidrs, host_ports))
            }
            Self::Kubenet => serde_json::to_string_pretty(&Kubenet::new(cidrs)),
        }?;
        text.push('\n');
        Ok(text)
    }
}

/// Whether pods can have ports of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostPorts {
    /// By the plugin portmap.
    Portmap,
    /// There is no such plugin, or no port that could lead anywhere.
    None,
}

#[derive(Serialize)]
struct Route {
    dst: &'static str,
}

impl Route {
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
    ipam: ContainerdIpam,
}

#[derive(Serialize)]
struct ContainerdIpam {
    r#type: &'static str,
    ranges: Vec<[Range; 1]>,
    routes: Vec<Route>,
}

impl ContainerdList {
    fn new(cidrs: &PodCidrs, host_ports: HostPorts) -> Self {
        let bridge = ContainerdPlugin::Bridge(ContainerdBridge {
            r#type: "bridge",
            bridge: "cni0",
            is_gateway: true,
            // Masquerading would rewrite the source of pod traffic to other nodes, which host-gw
            // routes carry as it is.
            ip_masq: false,
            promisc_mode: true,
            ipam: ContainerdIpam {
                r#type: "host-local",
                ranges: cidrs.iter().map(|net| [Range { subnet: *net }]).collect(),
                routes: cidrs.iter().map(Route::default_of).collect(),
            },
        });
        let portmap = ContainerdPlugin::Portmap(Portmap {
            r#type: PORTMAP,
            capabilities: PortMappings {
                port_mappings: true,
            },
        });
        let chained = (host_ports == HostPorts::Portmap).then_some(portmap);
        Self {
            cni_version: "1.0.0",
            name: "containerd-net",
            plugins: [bridge].into_iter().chain(chained).collect(),
        }
    }
}

/// Member names and their order are those that a kubelet with kubenet logs; do not add any.
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
    routes: Vec<Route>,
}

impl Kubenet {
    fn new(cidrs: &PodCidrs) -> Self {
        let first = cidrs.first();
        Self {
            cni_version: "0.1.0",
            name: "kubenet",
            r#type: "bridge",
            bridge: "cbr0",
            mtu: 1500,
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
                routes: cidrs.iter().map(Route::default_of).collect(),
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

    fn render(template: Template, cidrs: &str) -> String {
        let cidrs = cidrs.parse().unwrap();
        template.render(&cidrs, HostPorts::None).unwrap()
    }

    #[test]
    fn kubenet_has_the_members_that_a_kubelet_logs_and_no_other() {
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
        assert_eq!(render(Template::Kubenet, "10.255.0.4/30"), want);
    }

    #[test]
    fn kubenet_keeps_a_second_family_beside_the_first() {
        let text = render(Template::Kubenet, "10.1.2.0/24,fd00:1::/64");
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
            render(Template::Containerd, "10.244.1.0/24,fd00:1::/64"),
            want
        );
    }

    #[test]
    fn containerd_chains_portmap_where_it_is_there() {
        let cidrs = "10.244.1.0/24".parse().unwrap();
        let text = Template::Containerd.render(&cidrs, HostPorts::Portmap);
        let list: serde_json::Value = serde_json::from_str(&text.unwrap()).unwrap();
        assert_eq!(
            list["plugins"][1],
            serde_json::json!({"type": "portmap", "capabilities": {"portMappings": true}})
        );
        assert_eq!(list["plugins"].as_array().unwrap().len(), 2);
    }

    #[test]
    fn the_last_address_has_none_after_it() {
        let text = render(Template::Kubenet, "255.255.255.255/32");
        assert!(text.contains(r#""gateway": "255.255.255.255""#), "{text}");
    }
}
