//! The kind of a node's network, by its CNI configuration.

use podplane_cni::NetworkConfigList;
use serde_json::Value;

use super::IpamKind;

/// The kind of a network, with the reason for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DetectedIpam {
    /// The kind; never [`IpamKind::Auto`].
    pub kind: IpamKind,
    /// The IPAM plugin: the one that the first plugin names, or else that plugin.
    pub plugin: String,
    /// The reason for the choice.
    pub reason: &'static str,
    /// True if no rule knows the plugin.
    pub is_guess: bool,
}

/// The kind of the network of a list, which is the node's first; `None` for a node without a CNI
/// configuration. The first rule that applies decides.
pub fn detect(list: Option<&NetworkConfigList>, has_pod_cidrs: bool) -> DetectedIpam {
    let plugin = list.and_then(|list| list.plugins.first());
    let main = plugin.and_then(|plugin| plugin.get("type")).and_then(text);
    let ipam = plugin.and_then(|plugin| plugin.get("ipam"));
    let ipam_type = ipam.and_then(|ipam| ipam.get("type")).and_then(text);
    let (kind, reason) = match (main, ipam_type) {
        (_, Some("host-local")) if ipam.is_some_and(uses_pod_cidr) => (
            IpamKind::PodCidr,
            "the IPAM plugin is host-local, and its subnet is the podCIDR",
        ),
        (_, Some("host-local")) => (IpamKind::HostLocal, "the IPAM plugin is host-local"),
        (_, Some("calico-ipam")) => (IpamKind::Calico, "the IPAM plugin is calico-ipam"),
        (Some("cilium-cni"), _) => (IpamKind::Cilium, "the plugin is cilium-cni"),
        (Some("aws-cni"), _) => (IpamKind::MaxPods, "the plugin is aws-cni"),
        (Some("azure-vnet"), _) => (IpamKind::MaxPods, "the plugin is azure-vnet"),
        (Some("flannel"), _) => (
            IpamKind::PodCidr,
            "the plugin is flannel, which gives addresses of the podCIDR",
        ),
        _ if has_pod_cidrs => (
            IpamKind::PodCidr,
            "no rule knows the plugin, and the node has a podCIDR",
        ),
        _ => (
            IpamKind::MaxPods,
            "no rule knows the plugin, and the node has no podCIDR",
        ),
    };
    DetectedIpam {
        kind,
        plugin: ipam_type.or(main).unwrap_or_default().to_owned(),
        reason,
        is_guess: reason.starts_with("no rule"),
    }
}

/// The pods with hostNetwork that the kubelet's `--max-pods` includes on every node, by the plugin.
pub fn host_network_pods(plugin: &str) -> u32 {
    match plugin {
        "aws-cni" => 2,
        _ => 0,
    }
}

/// Returns true if the range is the placeholder that some runtimes replace with the podCIDR.
fn uses_pod_cidr(ipam: &Value) -> bool {
    let is_placeholder = |range: &Value| {
        let subnet = range.get("subnet").and_then(text);
        subnet.is_some_and(|subnet| subnet.eq_ignore_ascii_case("usePodCidr"))
    };
    let sets = ipam.get("ranges").and_then(Value::as_array);
    let ranges = sets.into_iter().flatten().filter_map(Value::as_array);
    is_placeholder(ipam) || ranges.flatten().any(is_placeholder)
}

fn text(value: &Value) -> Option<&str> {
    value.as_str()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_plugins_of_the_network_determine_the_kind() {
        for (plugin, has_pod_cidrs, kind, name) in [
            (
                json!({"type": "bridge", "ipam": {"type": "host-local", "subnet": "10.0.0.0/24"}}),
                true,
                IpamKind::HostLocal,
                "host-local",
            ),
            (
                json!({"type": "calico", "ipam": {"type": "host-local", "subnet": "usePodCidr"}}),
                true,
                IpamKind::PodCidr,
                "host-local",
            ),
            (
                json!({"type": "ptp", "ipam": {"type": "host-local", "ranges": [[{"subnet": "usePodCIDR"}]]}}),
                true,
                IpamKind::PodCidr,
                "host-local",
            ),
            (
                json!({"type": "calico", "ipam": {"type": "calico-ipam"}}),
                true,
                IpamKind::Calico,
                "calico-ipam",
            ),
            (
                json!({"type": "cilium-cni"}),
                true,
                IpamKind::Cilium,
                "cilium-cni",
            ),
            (
                json!({"type": "flannel", "delegate": {}}),
                false,
                IpamKind::PodCidr,
                "flannel",
            ),
            (
                json!({"type": "aws-cni"}),
                false,
                IpamKind::MaxPods,
                "aws-cni",
            ),
            (
                json!({"type": "azure-vnet", "ipam": {"type": "azure-cns"}}),
                false,
                IpamKind::MaxPods,
                "azure-cns",
            ),
            (
                json!({"type": "ovn-k8s-cni-overlay"}),
                true,
                IpamKind::PodCidr,
                "ovn-k8s-cni-overlay",
            ),
            (
                json!({"type": "macvlan", "ipam": {"type": "dhcp"}}),
                false,
                IpamKind::MaxPods,
                "dhcp",
            ),
        ] {
            let list = json!({"cniVersion": "1.0.0", "name": "net", "plugins": [plugin]});
            let list = NetworkConfigList::from_list(list.to_string().as_bytes()).unwrap();
            let found = detect(Some(&list), has_pod_cidrs);
            assert_eq!(
                (found.kind, found.plugin.as_str()),
                (kind, name),
                "{plugin}"
            );
            let is_unknown = ["dhcp", "ovn-k8s-cni-overlay"].contains(&name);
            assert_eq!(found.is_guess, is_unknown, "{plugin}");
        }
        assert_eq!(detect(None, true).kind, IpamKind::PodCidr);
        assert_eq!(detect(None, false).kind, IpamKind::MaxPods);
        assert_eq!(host_network_pods("aws-cni"), 2);
        assert_eq!(host_network_pods("azure-cns"), 0);
    }
}
