//! Results of CNI plugins as containerd shows them in `crictl inspectp`, under `info.cniResult`.

use podplane_cni::CniResult;
use serde_json::{Map, Value, json};

/// The results of a sandbox's networks, joined: interfaces by name, with their addresses.
///
/// Addresses without an interface, such as those of an IPAM plugin, belong to `ifname`.
pub(super) fn joined(results: &[CniResult], ifname: &str) -> Value {
    let mut interfaces = Map::from_iter([(ifname.to_owned(), interface("", ""))]);
    let (mut dns, mut routes) = (Vec::new(), Vec::new());
    for result in results {
        for found in &result.interfaces {
            interfaces.insert(found.name.clone(), interface(&found.mac, &found.sandbox));
        }
        for ip in &result.ips {
            let index = ip.interface.and_then(|index| usize::try_from(index).ok());
            let owner = index.and_then(|index| result.interfaces.get(index));
            let name = owner.map_or(ifname, |owner| &owner.name);
            let config = json!({
                "IP": ip.address.addr(),
                "Gateway": ip.gateway.map(|ip| ip.to_string()).unwrap_or_default(),
            });
            if let Some(Value::Array(configs)) = interfaces
                .get_mut(name)
                .map(|found| &mut found["IPConfigs"])
            {
                configs.push(config);
            }
        }
        dns.push(json!(result.dns));
        routes.extend(result.routes.iter().map(|route| json!(route)));
    }
    json!({"Interfaces": interfaces, "DNS": dns, "Routes": routes})
}

fn interface(mac: &str, sandbox: &str) -> Value {
    json!({"IPConfigs": [], "Mac": mac, "Sandbox": sandbox})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(value: &Value) -> CniResult {
        CniResult::from_value(value, "1.0.0").unwrap()
    }

    #[test]
    fn joins_the_networks_of_a_sandbox() {
        let loopback = result(&json!({
            "cniVersion": "1.0.0",
            "interfaces": [{"name": "lo", "mac": "00:00:00:00:00:00", "sandbox": "/n"}],
            "ips": [{"address": "127.0.0.1/8", "interface": 0}],
        }));
        let network = result(&json!({
            "cniVersion": "1.0.0",
            "interfaces": [{"name": "cni0", "mac": "02:00:00:00:00:01"},
                {"name": "eth0", "mac": "02:00:00:00:00:02", "sandbox": "/n"}],
            "ips": [{"address": "10.1.0.2/24", "gateway": "10.1.0.1", "interface": 1}],
            "routes": [{"dst": "0.0.0.0/0"}],
        }));
        let want = json!({
            "Interfaces": {
                "cni0": {"IPConfigs": [], "Mac": "02:00:00:00:00:01", "Sandbox": ""},
                "eth0": {"IPConfigs": [{"IP": "10.1.0.2", "Gateway": "10.1.0.1"}],
                    "Mac": "02:00:00:00:00:02", "Sandbox": "/n"},
                "lo": {"IPConfigs": [{"IP": "127.0.0.1", "Gateway": ""}],
                    "Mac": "00:00:00:00:00:00", "Sandbox": "/n"},
            },
            "DNS": [{}, {}],
            "Routes": [{"dst": "0.0.0.0/0"}],
        });
        assert_eq!(joined(&[loopback, network], "eth0"), want);
    }

    #[test]
    fn addresses_without_an_interface_belong_to_that_of_the_pod() {
        let ipam = result(&json!({"cniVersion": "1.0.0", "ips": [{"address": "10.1.0.2/24"}]}));
        let joined = joined(&[ipam], "eth0");
        assert_eq!(
            joined["Interfaces"]["eth0"]["IPConfigs"],
            json!([{"IP": "10.1.0.2", "Gateway": ""}])
        );
    }
}
