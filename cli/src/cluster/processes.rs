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

/// A service that says in a file where it listens, and what it is told.
fn published(dir: &DataDir, service: &str, listen: &str, args: Vec<OsString>) -> Spec {
    Spec {
        name: service.into(),
        args,
        log: dir.log(service),
        listens: Listens::AsPublished {
            listen: listen.into(),
            file: dir.address_file(service),
        },
    }
}

/// Any free port of this machine.
const LOCAL: &str = "127.0.0.1:0";

/// The services that every cluster has, the API server first.
pub(super) fn control_plane(dir: &DataDir, settings: &Settings, server: &str) -> Vec<Spec> {
    vec![
        apiserver(dir, settings),
        ipam_controller(dir, settings, server),
        controller_manager(dir, server),
        scheduler(dir, settings, server),
    ]
}

pub(super) fn apiserver(dir: &DataDir, settings: &Settings) -> Spec {
    let flags = [
        ("--data-dir", some(dir.path())),
        ("--cluster-cidr", some(&settings.cluster_cidr)),
        (
            "--service-cluster-ip-range",
            some(&settings.service_cluster_ip_range),
        ),
        ("--compat", some(settings.compat.name())),
    ];
    published(dir, "apiserver", &settings.listen, args("apiserver", flags))
}

fn ipam_controller(dir: &DataDir, settings: &Settings, server: &str) -> Spec {
    let mask = |mask: Option<u8>| mask.map(|mask| mask.to_string().into());
    let flags = [
        ("--server", some(server)),
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
    published(dir, "ipam-controller", LOCAL, args)
}

fn controller_manager(dir: &DataDir, server: &str) -> Spec {
    let flags = [("--server", some(server))];
    let args = args("controller-manager", flags);
    published(dir, "controller-manager", LOCAL, args)
}

fn scheduler(dir: &DataDir, settings: &Settings, server: &str) -> Spec {
    let flags = [
        ("--server", some(server)),
        ("--ip-policy", some(name_of(&settings.ip_policy))),
    ];
    published(dir, "scheduler", LOCAL, args("scheduler", flags))
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

pub(super) fn cri(dir: &DataDir, settings: &Settings, plugins: &Path, place: &Place<'_>) -> Spec {
    let name = format!("cri-{}", place.name);
    let netns = place
        .kernel
        .as_ref()
        .map(|(netns, _)| netns.as_os_str().to_owned());
    let flags = [
        ("--nodes-dir", some(dir.nodes())),
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
    Spec {
        args: args("cri", place.node_flags().chain(flags)),
        log: dir.log(&name),
        listens: Listens::At(socket),
        name,
    }
}

pub(super) fn kubelet(dir: &DataDir, settings: &Settings, server: &str, place: &Place<'_>) -> Spec {
    let name = format!("kubelet-{}", place.name);
    let mut flags = vec![
        ("--nodes-dir", some(dir.nodes())),
        ("--server", some(server)),
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
    published(
        dir,
        &name,
        LOCAL,
        args("kubelet", place.node_flags().chain(flags)),
    )
}

/// Where a node's CRI server listens.
pub(crate) fn cri_socket(dir: &DataDir, node: &str) -> String {
    format!("unix:{}", dir.nodes().join(node).join("cri.sock").display())
}
