//! A pod's sandbox in CRI's terms, as Kubernetes' kubelet fills it in.

use std::{
    collections::{BTreeSet, HashMap},
    path::Path,
};

use podplane_api::{
    Object as _,
    core::{Container, Pod, PodDNSConfig, PodSpec},
    pod_ips::is_host_network,
};
use podplane_proto::cri::{self, NamespaceMode};

/// The label by which a pod's sandboxes are found; the other labels are for people. All are
/// Kubernetes'.
pub(super) const UID_LABEL: &str = "io.kubernetes.pod.uid";
pub(super) const NAME_LABEL: &str = "io.kubernetes.pod.name";
pub(super) const NAMESPACE_LABEL: &str = "io.kubernetes.pod.namespace";
/// The label of a container with its name in the pod.
pub(super) const CONTAINER_NAME_LABEL: &str = "io.kubernetes.container.name";
/// The annotation of a container with the number of its restarts.
pub(super) const RESTART_COUNT_ANNOTATION: &str = "io.kubernetes.container.restartCount";

/// The node's resolver configuration. There is no DNS of the cluster, so pods with the policy
/// ClusterFirst have it, too.
pub(super) const NODE_RESOLV_CONF: &str = "/etc/resolv.conf";

/// Bytes of a host name that Kubernetes makes of a pod's name.
const MAX_HOSTNAME: usize = 63;
/// The domain under which the names of pods with a subdomain are.
const CLUSTER_DOMAIN: &str = "cluster.local";
/// The limits of the C library's resolver.
const MAX_SERVERS: usize = 3;
const MAX_SEARCHES: usize = 32;

/// The request for a sandbox of the pod. `resolv_conf` is the text of the node's file; `logs` is
/// the directory of its containers' logs, if it is to have containers.
pub(super) fn request(
    pod: &Pod,
    resolv_conf: &str,
    logs: Option<&Path>,
) -> cri::RunPodSandboxRequest {
    let spec = pod.spec.clone().unwrap_or_default();
    cri::RunPodSandboxRequest {
        // There are no RuntimeClass objects: a class is named after its handler.
        runtime_handler: spec.runtime_class_name.clone().unwrap_or_default(),
        config: Some(config(pod, &spec, resolv_conf, logs)),
    }
}

fn config(
    pod: &Pod,
    spec: &PodSpec,
    resolv_conf: &str,
    logs: Option<&Path>,
) -> cri::PodSandboxConfig {
    let own_labels = [
        (NAME_LABEL, pod.name()),
        (NAMESPACE_LABEL, pod.namespace()),
        (UID_LABEL, pod.uid()),
    ];
    let own_labels = own_labels.map(|(key, value)| (key.to_owned(), value.to_owned()));
    let labels = pod.metadata.labels.clone().unwrap_or_default();
    let annotations = pod.metadata.annotations.clone().unwrap_or_default();
    let hostname = match is_host_network(pod) {
        true => String::new(),
        false => hostname(pod, spec),
    };
    cri::PodSandboxConfig {
        metadata: Some(cri::PodSandboxMetadata {
            name: pod.name().into(),
            uid: pod.uid().into(),
            namespace: pod.namespace().into(),
            // Earlier sandboxes of the pod are removed before it gets another, so the number is
            // free.
            attempt: 0,
        }),
        hostname,
        log_directory: logs.map_or_else(String::new, |logs| logs.display().to_string()),
        labels: labels.into_iter().chain(own_labels).collect(),
        annotations: annotations.into_iter().collect(),
        dns_config: Some(dns(spec, resolv_conf)),
        port_mappings: port_mappings(spec),
        linux: Some(cri::LinuxPodSandboxConfig {
            security_context: Some(cri::LinuxSandboxSecurityContext {
                namespace_options: Some(namespaces(pod, spec)),
                // A runtime refuses privileged containers in other sandboxes.
                privileged: logs.is_some() && has_privileged(spec),
                ..cri::LinuxSandboxSecurityContext::default()
            }),
            sysctls: sysctls(spec),
            ..cri::LinuxPodSandboxConfig::default()
        }),
        ..cri::PodSandboxConfig::default()
    }
}

fn has_privileged(spec: &PodSpec) -> bool {
    let inits = spec.init_containers.iter().flatten();
    inits.chain(&spec.containers).any(|container| {
        let context = container.security_context.as_ref();
        context.and_then(|context| context.privileged) == Some(true)
    })
}

/// The namespaces of the pod's containers.
pub(super) fn namespaces(pod: &Pod, spec: &PodSpec) -> cri::NamespaceOption {
    let mode = |of_host: bool, own| match of_host {
        true => NamespaceMode::Node,
        false => own,
    };
    let own_pid = match spec.share_process_namespace {
        Some(true) => NamespaceMode::Pod,
        _ => NamespaceMode::Container,
    };
    let userns = cri::UserNamespace {
        mode: NamespaceMode::Pod.into(),
        ..cri::UserNamespace::default()
    };
    cri::NamespaceOption {
        network: mode(is_host_network(pod), NamespaceMode::Pod).into(),
        pid: mode(spec.host_pid == Some(true), own_pid).into(),
        ipc: mode(spec.host_ipc == Some(true), NamespaceMode::Pod).into(),
        userns_options: (spec.host_users == Some(false)).then_some(userns),
        ..cri::NamespaceOption::default()
    }
}

/// The host name of the pod; that of its node is not known here.
pub(super) fn pod_hostname(pod: &Pod) -> String {
    let spec = pod.spec.clone().unwrap_or_default();
    hostname(pod, &spec)
}

fn hostname(pod: &Pod, spec: &PodSpec) -> String {
    let own = spec.hostname.clone().filter(|name| !name.is_empty());
    let name = own.unwrap_or_else(|| {
        let name = pod.name();
        let cut = &name[..name.floor_char_boundary(MAX_HOSTNAME)];
        cut.trim_end_matches(['-', '.']).to_owned()
    });
    let subdomain = spec
        .subdomain
        .as_deref()
        .filter(|domain| !domain.is_empty());
    match (spec.set_hostname_as_fqdn, subdomain) {
        (Some(true), Some(subdomain)) => {
            let namespace = pod.namespace();
            format!("{name}.{subdomain}.{namespace}.svc.{CLUSTER_DOMAIN}")
        }
        _ => name,
    }
}

/// The ports of all containers that run as long as the pod does.
fn port_mappings(spec: &PodSpec) -> Vec<cri::PortMapping> {
    let is_sidecar = |container: &&Container| container.restart_policy.as_deref() == Some("Always");
    let sidecars = spec.init_containers.iter().flatten().filter(is_sidecar);
    let containers = sidecars.chain(&spec.containers);
    let ports = containers.flat_map(|container| container.ports.iter().flatten());
    let mappings = ports.map(|port| {
        let protocol = match port.protocol.as_deref() {
            Some("UDP") => cri::Protocol::Udp,
            Some("SCTP") => cri::Protocol::Sctp,
            _ => cri::Protocol::Tcp,
        };
        cri::PortMapping {
            protocol: protocol.into(),
            container_port: port.container_port,
            host_port: port.host_port.unwrap_or_default(),
            host_ip: port.host_ip.clone().unwrap_or_default(),
        }
    });
    mappings.collect()
}

fn sysctls(spec: &PodSpec) -> HashMap<String, String> {
    let context = spec.security_context.as_ref();
    let sysctls = context.into_iter().flat_map(|c| c.sysctls.iter().flatten());
    sysctls
        .map(|sysctl| (sysctl.name.clone(), sysctl.value.clone()))
        .collect()
}

/// The node's configuration, unless the policy is None, and the pod's own after it.
fn dns(spec: &PodSpec, resolv_conf: &str) -> cri::DnsConfig {
    let mut dns = match spec.dns_policy.as_deref() {
        Some("None") => cri::DnsConfig::default(),
        _ => parse(resolv_conf),
    };
    let PodDNSConfig {
        nameservers,
        searches,
        options,
    } = spec.dns_config.clone().unwrap_or_default();
    dns.servers.extend(nameservers.into_iter().flatten());
    dns.searches.extend(searches.into_iter().flatten());
    for option in options.into_iter().flatten() {
        let Some(name) = option.name else { continue };
        dns.options.retain(|other| option_name(other) != name);
        dns.options.push(match option.value {
            Some(value) => format!("{name}:{value}"),
            None => name,
        });
    }
    for (list, most) in [
        (&mut dns.servers, MAX_SERVERS),
        (&mut dns.searches, MAX_SEARCHES),
    ] {
        let mut seen = BTreeSet::new();
        list.retain(|entry| seen.insert(entry.clone()));
        list.truncate(most);
    }
    dns
}

fn option_name(option: &str) -> &str {
    option.split_once(':').map_or(option, |(name, _)| name)
}

fn parse(resolv_conf: &str) -> cri::DnsConfig {
    let mut dns = cri::DnsConfig::default();
    for line in resolv_conf.lines() {
        let mut words = line.split_whitespace().map(str::to_owned);
        match words.next().as_deref() {
            Some("nameserver") => dns.servers.extend(words.next()),
            // The last of several counts.
            Some("search") => dns.searches = words.collect(),
            Some("options") => dns.options = words.collect(),
            _ => {}
        }
    }
    dns
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const RESOLV_CONF: &str = "# a comment\nnameserver 10.0.0.53\nnameserver 10.0.0.54\nsearch old\nsearch corp lan\noptions ndots:2 edns0\n";

    fn of(spec: &Value) -> cri::RunPodSandboxRequest {
        let pod = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "web-0", "namespace": "shop", "uid": "u"}, "spec": spec});
        request(&serde_json::from_value(pod).unwrap(), RESOLV_CONF, None)
    }

    fn config_of(spec: &Value) -> cri::PodSandboxConfig {
        of(spec).config.unwrap()
    }

    #[test]
    fn maps_ports_of_all_containers_but_ordinary_init_containers() {
        let config = config_of(&json!({
            "initContainers": [
                {"name": "proxy", "restartPolicy": "Always", "ports": [{"containerPort": 15001, "hostPort": 15001}]},
                {"name": "setup", "ports": [{"containerPort": 1, "hostPort": 1}]},
            ],
            "containers": [
                {"name": "web", "ports": [
                    {"containerPort": 80, "hostPort": 8080, "hostIP": "10.0.0.1"},
                    {"containerPort": 53, "hostPort": 53, "protocol": "UDP"},
                ]},
            ],
        }));
        let mappings: Vec<_> = config
            .port_mappings
            .iter()
            .map(|m| {
                (
                    m.host_port,
                    m.container_port,
                    m.protocol(),
                    m.host_ip.as_str(),
                )
            })
            .collect();
        let want = [
            (15001, 15001, cri::Protocol::Tcp, ""),
            (8080, 80, cri::Protocol::Tcp, "10.0.0.1"),
            (53, 53, cri::Protocol::Udp, ""),
        ];
        assert_eq!(mappings, want);
    }

    #[test]
    fn dns_of_the_pod_follows_that_of_the_node() {
        let own = json!({"nameservers": ["1.1.1.1", "10.0.0.53", "2.2.2.2"], "searches": ["x"],
            "options": [{"name": "ndots", "value": "5"}, {"name": "debug"}]});
        let dns = |spec: Value| config_of(&spec).dns_config.unwrap();
        let joined = dns(json!({"containers": [], "dnsConfig": own}));
        assert_eq!(joined.servers, ["10.0.0.53", "10.0.0.54", "1.1.1.1"]);
        assert_eq!(joined.searches, ["corp", "lan", "x"]);
        assert_eq!(joined.options, ["edns0", "ndots:5", "debug"]);
        let alone = dns(json!({"containers": [], "dnsPolicy": "None", "dnsConfig": own}));
        assert_eq!(alone.servers, ["1.1.1.1", "10.0.0.53", "2.2.2.2"]);
        assert_eq!(alone.searches, ["x"]);
    }

    #[test]
    fn hostname_follows_from_the_pod_spec() {
        let hostname = |spec| config_of(&spec).hostname;
        assert_eq!(hostname(json!({"containers": []})), "web-0");
        let named = json!({"containers": [], "hostname": "db", "subdomain": "data"});
        assert_eq!(hostname(named.clone()), "db");
        let mut full = named;
        full["setHostnameAsFQDN"] = true.into();
        assert_eq!(hostname(full), "db.data.shop.svc.cluster.local");
        assert_eq!(
            hostname(json!({"containers": [], "hostNetwork": true})),
            "",
            "the node's"
        );
    }

    #[test]
    fn settings_of_the_security_context_are_passed_on() {
        let request = of(&json!({
            "containers": [], "runtimeClassName": "gvisor", "hostPID": true, "hostUsers": false,
            "securityContext": {"sysctls": [{"name": "net.core.somaxconn", "value": "1024"}]},
        }));
        assert_eq!(request.runtime_handler, "gvisor");
        let linux = request.config.unwrap().linux.unwrap();
        assert_eq!(linux.sysctls["net.core.somaxconn"], "1024");
        let options = linux.security_context.unwrap().namespace_options.unwrap();
        assert_eq!(options.network(), NamespaceMode::Pod);
        assert_eq!(options.pid(), NamespaceMode::Node);
        assert_eq!(options.ipc(), NamespaceMode::Pod);
        assert_eq!(options.userns_options.unwrap().mode(), NamespaceMode::Pod);
    }
}
