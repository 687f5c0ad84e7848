//! The command lines of the cluster's services.

use std::{
    ffi::OsString,
    net::IpAddr,
    path::{Path, PathBuf},
};

use podplane_api::node::NetworkBackend;
use podplane_ipam::AllocatorType;
use podplane_pki::CertificateOwner;
use podplane_service_runtime::trace::SamplingRatio;

use crate::{
    certificates::ClusterCertificates,
    data_dir::DataDir,
    service::{ListenAddress, ServiceSpec},
    services,
    settings::{Settings, name_of},
};

/// Flags in the given order, without those that have no value.
fn args(
    service: &str,
    flags: impl IntoIterator<Item = (&'static str, Option<OsString>)>,
) -> Vec<OsString> {
    let mut args = vec![
        service.into(),
        format!("--die-with-parent={}", std::process::id()).into(),
    ];
    for (flag, value) in flags {
        if let Some(value) = value {
            args.push(flag.into());
            args.push(value);
        }
    }
    args
}

fn some(value: impl Into<OsString>) -> Option<OsString> {
    Some(value.into())
}

/// Any free port of the loopback interface.
const LOCAL: &str = "127.0.0.1:0";

/// A process among those of one service, which elect a leader.
#[derive(Clone, Copy, Debug)]
enum Replica {
    /// The one of every cluster.
    First,
    /// The one that `--standby` adds.
    Standby,
}

impl Replica {
    /// The name of the process.
    fn of(self, service: &str) -> String {
        match self {
            Self::First => service.to_owned(),
            Self::Standby => services::standby(service),
        }
    }

    /// The identity in the election: the same after a restart, so that a leader leads again at
    /// once.
    fn identity(self) -> &'static str {
        match self {
            Self::First => "up",
            Self::Standby => "up-standby",
        }
    }
}

/// The inputs of the command lines.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CommandLines<'a> {
    pub(crate) dir: &'a DataDir,
    pub(crate) settings: &'a Settings,
    /// The API server's address.
    pub(crate) server: &'a str,
    /// The certificates of the processes; `None` if they have none.
    pub(crate) certificates: Option<&'a ClusterCertificates>,
    /// The directory of the sockets that others serve between the services, if they do.
    pub(crate) links: Option<&'a Path>,
}

impl CommandLines<'_> {
    /// The services of every cluster, the API server first, and after them the standbys if there
    /// are any.
    pub(crate) fn control_plane(&self) -> Vec<ServiceSpec> {
        let clients = |replica| {
            [
                self.ipam_controller(replica),
                self.controller_manager(replica),
                self.scheduler(replica),
            ]
        };
        let mut services = vec![self.apiserver()];
        services.extend(clients(Replica::First));
        if self.settings.standby {
            services.extend(clients(Replica::Standby));
        }
        services
    }

    /// A process of `service` that publishes its address in a file.
    fn published(
        &self,
        service: &str,
        name: &str,
        listen: &str,
        mut args: Vec<OsString>,
    ) -> ServiceSpec {
        // The API server makes its own certificate, and knows its socket by the data directory.
        if service != "apiserver" {
            args.extend(self.serving(name));
            args.push("--local-socket".into());
            args.push(self.dir.socket(name).into());
        }
        ServiceSpec {
            name: name.into(),
            args: self.extended(service, args),
            log: self.dir.log(name),
            listens: ListenAddress::AsPublished {
                listen: listen.into(),
                file: self.dir.address_file(name),
            },
            http_file: None,
        }
    }

    /// The flags of the port of a process.
    fn serving(&self, process: &str) -> Vec<OsString> {
        match self.certificates {
            Some(certificates) => certificates.serving(process).arguments(),
            // Over a unix socket, the API server knows its clients without certificates.
            None if self.settings.is_authenticated() => Vec::new(),
            None => vec!["--authentication=none".into()],
        }
    }

    /// Adds the flags of every service, and the extra ones.
    fn extended(&self, service: &str, mut args: Vec<OsString>) -> Vec<OsString> {
        let Settings {
            otlp_endpoint,
            trace_sampling_ratio,
            extra_config,
            ..
        } = self.settings;
        if let Some(endpoint) = otlp_endpoint {
            args.extend(["--otlp-endpoint".into(), endpoint.into()]);
        }
        if *trace_sampling_ratio != SamplingRatio::ALL {
            let ratio = trace_sampling_ratio.to_string();
            args.extend(["--trace-sampling-ratio".into(), ratio.into()]);
        }
        extra_config.extend(service, args)
    }

    /// The API server's address for a process that starts before the API server has published it.
    /// It stays the same afterwards: a comparison of command lines must show no difference.
    fn server_by_file(&self) -> String {
        format!("file:{}", self.dir.address_file("apiserver").display())
    }

    /// The API server's address for a process.
    fn server(&self, name: &str) -> String {
        match self.links {
            Some(links) => format!("unix:{}", links.join(format!("{name}.sock")).display()),
            None => self.server.into(),
        }
    }

    /// The flags by which a client of the API server shows its certificate. Links are unix sockets,
    /// where it has none.
    fn credentials(&self, owner: &CertificateOwner) -> Vec<OsString> {
        let certificates = self.certificates.filter(|_| self.links.is_none());
        certificates.map_or_else(Vec::new, |all| all.credentials(owner).arguments())
    }

    /// The same for the process of that name.
    fn own_credentials(&self, process: &str) -> Vec<OsString> {
        let own = |owner: &CertificateOwner| owner.to_string() == process;
        let owner = CertificateOwner::PROCESSES.into_iter().find(own);
        owner.map_or_else(Vec::new, |owner| self.credentials(&owner))
    }

    pub(crate) fn apiserver(&self) -> ServiceSpec {
        let Self { dir, settings, .. } = self;
        let flags = [
            ("--data-dir", some(dir.path())),
            ("--cluster-cidr", some(&settings.cluster_cidr)),
            (
                "--service-cluster-ip-range",
                some(&settings.service_cluster_ip_range),
            ),
            ("--compat", some(settings.compat.name())),
            ("--ip-policy", some(name_of(&settings.ip_policy))),
            ("--pod-ip-resource", some(settings.pod_ip_resource.as_str())),
        ];
        let args = args("apiserver", flags);
        self.published("apiserver", "apiserver", &settings.listen, args)
    }

    fn ipam_controller(&self, replica: Replica) -> ServiceSpec {
        let name = replica.of("ipam-controller");
        let settings = self.settings;
        let mask = |mask: Option<u8>| mask.map(|mask| mask.to_string().into());
        let flags = [
            ("--server", some(self.server(&name))),
            ("--leader-elect-identity", some(replica.identity())),
            ("--cluster-cidr", some(&settings.cluster_cidr)),
            (
                "--cidr-allocator-type",
                some(settings.cidr_allocator_type.to_string()),
            ),
            ("--node-cidr-mask-size", mask(settings.node_cidr_mask_size)),
            (
                "--node-cidr-mask-size-ipv4",
                mask(settings.node_cidr_mask_size_ipv4),
            ),
            (
                "--node-cidr-mask-size-ipv6",
                mask(settings.node_cidr_mask_size_ipv6),
            ),
            (
                "--service-cluster-ip-range",
                some(&settings.service_cluster_ip_range),
            ),
            ("--compat", some(settings.compat.name())),
        ];
        let mut args = args("ipam-controller", flags);
        args.push("--allocate-node-cidrs=true".into());
        args.extend(self.own_credentials("ipam-controller"));
        // The cloud is not behind a link.
        let cloud = self.certificates.filter(|_| {
            self.links.is_some() && settings.cidr_allocator_type == AllocatorType::CloudAllocator
        });
        if let Some(certificates) = cloud {
            let pair = certificates.file(&CertificateOwner::IPAM_CONTROLLER);
            args.extend([
                "--cloud-certificate-authority".into(),
                certificates.authority().into(),
                "--cloud-client-certificate".into(),
                pair.clone().into(),
                "--cloud-client-key".into(),
                pair.into(),
            ]);
        }
        self.published("ipam-controller", &name, LOCAL, args)
    }

    fn controller_manager(&self, replica: Replica) -> ServiceSpec {
        let service = "controller-manager";
        let name = replica.of(service);
        // It answers nodes that join from elsewhere.
        let signing = |file: fn(&ClusterCertificates) -> PathBuf| {
            self.certificates.map(|all| file(all).into_os_string())
        };
        let flags = [
            ("--server", some(self.server(&name))),
            ("--leader-elect-identity", some(replica.identity())),
            (
                "--cluster-signing-cert-file",
                signing(ClusterCertificates::authority),
            ),
            (
                "--cluster-signing-key-file",
                signing(ClusterCertificates::authority_key),
            ),
            ("--root-ca-file", signing(ClusterCertificates::authority)),
        ];
        let mut args = args(service, flags);
        args.extend(self.own_credentials(service));
        self.published(service, &name, LOCAL, args)
    }

    fn scheduler(&self, replica: Replica) -> ServiceSpec {
        let service = "scheduler";
        let name = replica.of(service);
        let flags = [
            ("--server", some(self.server(&name))),
            ("--leader-elect-identity", some(replica.identity())),
            ("--ip-policy", some(name_of(&self.settings.ip_policy))),
            (
                "--pod-ip-resource",
                some(self.settings.pod_ip_resource.as_str()),
            ),
        ];
        let mut args = args(service, flags);
        args.extend(self.own_credentials(service));
        self.published(service, &name, LOCAL, args)
    }

    pub(crate) fn cri(&self, plugins: &Path, place: &ServedNodes<'_>) -> ServiceSpec {
        let Self { dir, .. } = self;
        let name = format!("cri-{}", place.name);
        let netns = place
            .kernel
            .as_ref()
            .map(|(netns, _)| netns.as_os_str().to_owned());
        let flags = [
            ("--nodes-dir", some(dir.nodes())),
            ("--server", some(self.server_by_file())),
            ("--network", some(place.network())),
            ("--node-netns", netns),
            ("--netns-dir", some(dir.run().join("netns"))),
            ("--cni-bin-dir", some(plugins)),
        ];
        let socket = place
            .nodes
            .first()
            .map(|node| cri_socket(dir, node))
            .unwrap_or_default();
        let http_file = dir.address_file(&format!("{name}-http"));
        let http = [
            ("--http-listen", some(LOCAL)),
            ("--http-address-file", some(&http_file)),
        ];
        let mut args = args("cri", place.node_flags().chain(flags).chain(http));
        args.extend(self.serving(&name));
        // Its server is not behind a link.
        if let Some(certificates) = self.certificates {
            args.extend(certificates.credentials(&place.owner()).arguments());
        }
        ServiceSpec {
            args: self.extended("cri", args),
            log: dir.log(&name),
            listens: ListenAddress::At(socket),
            http_file: Some(http_file),
            name,
        }
    }

    /// Returns true if the cluster's own CRI servers refuse containers, as they do by default.
    fn is_without_containers(&self) -> bool {
        let mode = self.settings.extra_config.get("cri", "containers");
        self.settings.cri_endpoint.is_none() && mode.is_none_or(|mode| mode == "none")
    }

    pub(crate) fn kubelet(&self, place: &ServedNodes<'_>) -> ServiceSpec {
        let Self { dir, settings, .. } = self;
        let name = format!("kubelet-{}", place.name);
        let runtime = match self.links {
            Some(links) => Some(format!("unix:{}", links.join("cri-{node}.sock").display())),
            None => settings.cri_endpoint.clone(),
        };
        // Commands of IPAM reports are beside the plugins. The CRI server reports missing plugins.
        let plugins = settings.plugins().ok().flatten();
        let mut flags = vec![
            ("--nodes-dir", some(dir.nodes())),
            ("--server", some(self.server(&name))),
            ("--cri-endpoint", runtime.map(Into::into)),
            ("--cni-bin-dir", plugins.map(Into::into)),
            ("--ip-policy", some(name_of(&settings.ip_policy))),
            ("--pod-ip-resource", some(settings.pod_ip_resource.as_str())),
        ];
        if settings.cidr_allocator_type == AllocatorType::CloudAllocator {
            flags.push(("--provider-id", some("podplane://{node}")));
        }
        if let Some((netns, addresses)) = &place.kernel {
            flags.push(("--node-netns", some(netns)));
            let backend = place.backend.unwrap_or(settings.node_network_backend);
            flags.push(("--node-network-backend", some(backend.name())));
            flags.extend(
                addresses
                    .iter()
                    .map(|address| ("--node-ip", some(address.to_string()))),
            );
        }
        let mut args = args("kubelet", place.node_flags().chain(flags));
        if self.is_without_containers() {
            args.push("--sandboxes-only".into());
        }
        args.extend(self.credentials(&place.owner()));
        let agent = self.certificates.filter(|_| self.links.is_none());
        if let Some(certificates) = agent.filter(|_| place.kernel.is_some()) {
            let owner = CertificateOwner::ROUTE_AGENT;
            let file = certificates.file(&owner).into_os_string();
            for flag in [
                "--route-agent-client-certificate",
                "--route-agent-client-key",
            ] {
                args.extend([flag.into(), file.clone()]);
            }
        }
        self.published("kubelet", &name, LOCAL, args)
    }
}

/// The nodes that one CRI process and one kubelet serve.
#[derive(Clone, Debug)]
pub(crate) struct ServedNodes<'a> {
    /// The name of the processes, after their service.
    pub(crate) name: &'a str,
    pub(crate) nodes: Vec<&'a str>,
    /// The node's namespace and addresses; `None` in ledger mode.
    pub(crate) kernel: Option<(&'a Path, Vec<IpAddr>)>,
    /// The backend of the node network, if it is not the cluster's.
    pub(crate) backend: Option<NetworkBackend>,
}

impl ServedNodes<'_> {
    fn network(&self) -> &'static str {
        if self.kernel.is_some() {
            "kernel"
        } else {
            "ledger"
        }
    }

    /// The owner of their certificate: the node, or if there are several those who serve many.
    fn owner(&self) -> CertificateOwner {
        match &*self.nodes {
            [node] => CertificateOwner::Node((*node).to_owned()),
            _ => CertificateOwner::KUBELETS,
        }
    }

    fn node_flags(&self) -> impl Iterator<Item = (&'static str, Option<OsString>)> {
        self.nodes.iter().map(|node| ("--node", some(*node)))
    }
}

/// The user of a process that reaches the API server over a link, where it shows no certificate.
/// The server of the link, who may do everything, impersonates this user. `None` if everyone may do
/// everything, or the process has no user. Kubelets have one user: their parts that read all nodes
/// share the link.
pub fn linked_user(settings: &Settings, process: &str) -> Option<&'static str> {
    let mode = settings.extra_config.get("apiserver", "authorization-mode");
    if !settings.is_authenticated() || mode == Some("AlwaysAllow") {
        return None;
    }
    let is_it = |owner: &CertificateOwner| match process.starts_with("kubelet-") {
        true => *owner == CertificateOwner::KUBELETS,
        false => {
            [owner.to_string(), services::standby(&owner.to_string())].contains(&process.to_owned())
        }
    };
    let owner = CertificateOwner::PROCESSES.into_iter().find(is_it);
    owner.and_then(|owner| match owner {
        CertificateOwner::Process(_, user) => Some(user),
        _ => None,
    })
}

/// The name of a group of nodes that share their processes.
pub fn shared_name(number: usize) -> String {
    format!("nodes-{number}")
}

/// The endpoint of a node's CRI runtime: its own, or the one of `--cri-endpoint`.
pub fn cri_endpoint(dir: &DataDir, of_others: Option<&str>, node: &str) -> String {
    match of_others {
        Some(pattern) => pattern.replace("{node}", node),
        None => cri_socket(dir, node),
    }
}

fn cri_socket(dir: &DataDir, node: &str) -> String {
    format!("unix:{}", dir.nodes().join(node).join("cri.sock").display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_client_of_the_api_server_has_a_standby() {
        let dir = DataDir::new(Path::new("/d")).unwrap();
        let processes = |standby| {
            let settings = Settings {
                standby,
                ..Settings::default()
            };
            let lines = CommandLines {
                dir: &dir,
                settings: &settings,
                server: "127.0.0.1:6443",
                certificates: None,
                links: None,
            };
            let specs = lines.control_plane().into_iter();
            let each = specs.map(|spec| {
                let mut args = spec.args.iter();
                let identity = args.find(|arg| *arg == "--leader-elect-identity");
                let identity = identity.and_then(|_| args.next());
                let identity = identity.map(|identity| identity.to_string_lossy().into_owned());
                (spec.name, identity.unwrap_or_default())
            });
            each.collect::<Vec<_>>()
        };
        let own = |name: &str, identity: &str| (name.to_owned(), identity.to_owned());
        assert_eq!(
            processes(false),
            [
                own("apiserver", ""),
                own("ipam-controller", "up"),
                own("controller-manager", "up"),
                own("scheduler", "up"),
            ]
        );
        assert_eq!(
            processes(true),
            [
                own("apiserver", ""),
                own("ipam-controller", "up"),
                own("controller-manager", "up"),
                own("scheduler", "up"),
                own("ipam-controller-standby", "up-standby"),
                own("controller-manager-standby", "up-standby"),
                own("scheduler-standby", "up-standby"),
            ]
        );
    }

    #[test]
    fn processes_behind_links_have_the_users_of_their_certificates() {
        let settings = Settings::default();
        for (process, user) in [
            ("scheduler", Some("system:kube-scheduler")),
            ("scheduler-standby", Some("system:kube-scheduler")),
            ("ipam-controller", Some("system:podplane:ipam-controller")),
            ("kubelet-node-0", Some("system:podplane:kubelets")),
            ("kubelet-nodes-1", Some("system:podplane:kubelets")),
            ("apiserver", None),
        ] {
            assert_eq!(linked_user(&settings, process), user, "{process}");
        }
        let mut open = Settings::default();
        let flags = &mut open.extra_config;
        flags.set("apiserver", "authorization-mode", "AlwaysAllow".to_owned());
        assert_eq!(linked_user(&open, "scheduler"), None);
    }

    #[test]
    fn runtime_arguments_do_not_depend_on_the_api_server() {
        let dir = DataDir::new(Path::new("/d")).unwrap();
        let settings = Settings::default();
        let place = ServedNodes {
            name: "node-0",
            nodes: vec!["node-0"],
            kernel: None,
            backend: None,
        };
        let args = |server| {
            let lines = CommandLines {
                dir: &dir,
                settings: &settings,
                server,
                certificates: None,
                links: None,
            };
            lines.cri(Path::new("/plugins"), &place).args
        };
        assert_eq!(args(""), args("127.0.0.1:6443"));
    }
}
