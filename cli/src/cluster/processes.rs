//! The command lines of the cluster's services.

use std::{ffi::OsString, net::IpAddr, path::Path};

use podplane_ipam_controller::AllocatorType;

use super::{
    data_dir::DataDir,
    service::{Listens, Spec},
    settings::{Settings, name_of},
};

/// Flags in the order they are given, without those that have no value.
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

/// Any free port of this machine.
const LOCAL: &str = "127.0.0.1:0";

/// What command lines are made of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lines<'a> {
    pub(super) dir: &'a DataDir,
    pub(super) settings: &'a Settings,
    /// The API server's address.
    pub(super) server: &'a str,
    /// Where others serve the sockets by which services reach each other, if they do.
    pub(super) links: Option<&'a Path>,
}

impl Lines<'_> {
    /// The services that every cluster has, the API server first.
    pub(super) fn control_plane(&self) -> Vec<Spec> {
        vec![
            self.apiserver(),
            self.ipam_controller(),
            self.controller_manager(),
            self.scheduler(),
        ]
    }

    /// A process of `service` that says in a file where it listens, and what it is told.
    fn published(&self, service: &str, name: &str, listen: &str, args: Vec<OsString>) -> Spec {
        Spec {
            name: name.into(),
            args: self.extended(service, args),
            log: self.dir.log(name),
            listens: Listens::AsPublished {
                listen: listen.into(),
                file: self.dir.address_file(name),
            },
            http_file: None,
        }
    }

    /// With what every service is told.
    fn extended(&self, service: &str, mut args: Vec<OsString>) -> Vec<OsString> {
        let Settings {
            otlp_endpoint,
            extra_config,
            ..
        } = self.settings;
        if let Some(endpoint) = otlp_endpoint {
            args.extend(["--otlp-endpoint".into(), endpoint.into()]);
        }
        extra_config.extend(service, args)
    }

    /// Where a process finds the API server that is started before the API server has said where it serves. Once it has, too: whoever compares command
    /// lines must see no difference.
    fn server_by_file(&self) -> String {
        format!("file:{}", self.dir.address_file("apiserver").display())
    }

    /// Where a process finds the API server.
    fn server(&self, name: &str) -> String {
        match self.links {
            Some(links) => format!("unix:{}", links.join(format!("{name}.sock")).display()),
            None => self.server.into(),
        }
    }

    pub(super) fn apiserver(&self) -> Spec {
        let Self { dir, settings, .. } = self;
        let flags = [
            ("--data-dir", some(dir.path())),
            ("--cluster-cidr", some(&settings.cluster_cidr)),
            (
                "--service-cluster-ip-range",
                some(&settings.service_cluster_ip_range),
            ),
            ("--compat", some(settings.compat.name())),
            (
                "--release-after",
                settings.release_after.clone().map(Into::into),
            ),
        ];
        let args = args("apiserver", flags);
        self.published("apiserver", "apiserver", &settings.listen, args)
    }

    fn ipam_controller(&self) -> Spec {
        let settings = self.settings;
        let mask = |mask: Option<u8>| mask.map(|mask| mask.to_string().into());
        let flags = [
            ("--server", some(self.server("ipam-controller"))),
            ("--cluster-cidr", some(&settings.cluster_cidr)),
            (
                "--cidr-allocator-type",
                some(settings.cidr_allocator_type.to_string()),
            ),
            (
                "--cloud-endpoint",
                settings.cloud_endpoint.clone().map(Into::into),
            ),
            (
                "--release-delay",
                settings.release_delay.clone().map(Into::into),
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
        // The same after a restart, which leads at once then.
        args.push("--leader-elect-identity=up".into());
        self.published("ipam-controller", "ipam-controller", LOCAL, args)
    }

    fn controller_manager(&self) -> Spec {
        let name = "controller-manager";
        let args = args(name, [("--server", some(self.server(name)))]);
        self.published(name, name, LOCAL, args)
    }

    fn scheduler(&self) -> Spec {
        let name = "scheduler";
        let flags = [
            ("--server", some(self.server(name))),
            ("--ip-policy", some(name_of(&self.settings.ip_policy))),
        ];
        self.published(name, name, LOCAL, args(name, flags))
    }

    pub(super) fn cri(&self, plugins: &Path, place: &Place<'_>) -> Spec {
        let Self { dir, settings, .. } = self;
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
            ("--cni-template", some(name_of(&settings.cni_template))),
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
        let args = args("cri", place.node_flags().chain(flags).chain(http));
        Spec {
            args: self.extended("cri", args),
            log: dir.log(&name),
            listens: Listens::At(socket),
            http_file: Some(http_file),
            name,
        }
    }

    pub(super) fn kubelet(&self, place: &Place<'_>) -> Spec {
        let Self { dir, settings, .. } = self;
        let name = format!("kubelet-{}", place.name);
        let runtime = match self.links {
            Some(links) => Some(format!("unix:{}", links.join("cri-{node}.sock").display())),
            None => settings.cri_endpoint.clone(),
        };
        // Commands of IPAM reports are beside the plugins. The CRI server tells if these are missing.
        let plugins = settings.plugins().ok().flatten();
        let mut flags = vec![
            ("--nodes-dir", some(dir.nodes())),
            ("--server", some(self.server(&name))),
            ("--cri-endpoint", runtime.map(Into::into)),
            ("--cni-bin-dir", plugins.map(Into::into)),
            ("--ip-policy", some(name_of(&settings.ip_policy))),
        ];
        if settings.cidr_allocator_type == AllocatorType::CloudAllocator {
            flags.push(("--provider-id", some("podplane://{node}")));
        }
        if let Some((netns, addresses)) = &place.kernel {
            flags.push(("--node-netns", some(netns)));
            flags.extend(
                addresses
                    .iter()
                    .map(|address| ("--node-ip", some(address.to_string()))),
            );
        }
        let args = args("kubelet", place.node_flags().chain(flags));
        self.published("kubelet", &name, LOCAL, args)
    }
}

/// The nodes that one CRI process and one kubelet serve.
#[derive(Clone, Debug)]
pub(super) struct Place<'a> {
    /// What the processes are called after.
    pub(super) name: &'a str,
    pub(super) nodes: Vec<&'a str>,
    /// The node's namespace and addresses; absent in ledger mode.
    pub(super) kernel: Option<(&'a Path, Vec<IpAddr>)>,
}

impl Place<'_> {
    fn network(&self) -> &'static str {
        if self.kernel.is_some() {
            "kernel"
        } else {
            "ledger"
        }
    }

    fn node_flags(&self) -> impl Iterator<Item = (&'static str, Option<OsString>)> {
        self.nodes.iter().map(|node| ("--node", some(*node)))
    }
}

/// Where a node's CRI runtime is: its own, or the one that `--cri-endpoint` says.
pub(crate) fn cri_endpoint(dir: &DataDir, of_others: Option<&str>, node: &str) -> String {
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
    fn a_runtime_is_started_the_same_way_once_the_api_server_is_known() {
        let dir = DataDir::new(Path::new("/d")).unwrap();
        let settings = Settings::default();
        let place = Place {
            name: "node-0",
            nodes: vec!["node-0"],
            kernel: None,
        };
        let args = |server| {
            let lines = Lines {
                dir: &dir,
                settings: &settings,
                server,
                links: None,
            };
            lines.cri(Path::new("/plugins"), &place).args
        };
        assert_eq!(args(""), args("127.0.0.1:6443"));
    }
}
