//! Validation of containers and init containers.

use std::collections::BTreeSet;

use super::{one_of, unique_label};
use crate::{
    core::{Container, ContainerPort, PodSpec},
    names,
    validation::{ErrorList, FieldPath, resources},
};

const PORTS: &str = "must be between 1 and 65535, inclusive";

pub(super) fn validate(
    path: &FieldPath,
    spec: &PodSpec,
    volumes: &BTreeSet<&str>,
    errors: &mut ErrorList,
) {
    if spec.containers.is_empty() {
        errors.required(&path.child("containers"), "");
    }
    let network = HostNetwork::of(spec);
    // Names are unique among containers and init containers together.
    let mut names = BTreeSet::new();
    let lists = [
        ("containers", &spec.containers[..]),
        (
            "initContainers",
            spec.init_containers.as_deref().unwrap_or_default(),
        ),
    ];
    for (field, containers) in lists {
        let mut host_ports = BTreeSet::new();
        for (index, container) in containers.iter().enumerate() {
            let path = path.child(field).index(index);
            unique_label(&path.child("name"), &container.name, &mut names, errors);
            validate_container(&path, container, volumes, errors);
            ports(
                &path.child("ports"),
                container,
                network,
                &mut host_ports,
                errors,
            );
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum HostNetwork {
    Own,
    Hosts,
}

impl HostNetwork {
    fn of(spec: &PodSpec) -> Self {
        if spec.host_network == Some(true) {
            Self::Hosts
        } else {
            Self::Own
        }
    }
}

fn validate_container(
    path: &FieldPath,
    container: &Container,
    volumes: &BTreeSet<&str>,
    errors: &mut ErrorList,
) {
    match container.image.as_deref().unwrap_or_default() {
        "" => errors.required(&path.child("image"), ""),
        image if image.trim() != image => {
            errors.invalid(
                &path.child("image"),
                image,
                "must not have leading or trailing whitespace",
            );
        }
        _ => {}
    }
    one_of(
        &path.child("terminationMessagePolicy"),
        container.termination_message_policy.as_deref(),
        &["FallbackToLogsOnError", "File"],
        errors,
    );
    one_of(
        &path.child("imagePullPolicy"),
        container.image_pull_policy.as_deref(),
        &["Always", "IfNotPresent", "Never"],
        errors,
    );
    for (index, variable) in container.env.iter().flatten().enumerate() {
        if variable.name.is_empty() {
            errors.required(&path.child("env").index(index).child("name"), "");
        }
    }
    for (index, mount) in container.volume_mounts.iter().flatten().enumerate() {
        let path = path.child("volumeMounts").index(index);
        match mount.name.as_str() {
            "" => errors.required(&path.child("name"), ""),
            name if volumes.contains(name) => {}
            name => errors.not_found(&path.child("name"), name),
        }
        if mount.mount_path.is_empty() {
            errors.required(&path.child("mountPath"), "");
        }
    }
    if let Some(requirements) = &container.resources {
        resources::requirements(&path.child("resources"), requirements, errors);
    }
}

fn ports<'a>(
    path: &FieldPath,
    container: &'a Container,
    network: HostNetwork,
    host_ports: &mut BTreeSet<(&'a str, &'a str, i32)>,
    errors: &mut ErrorList,
) {
    let mut seen = BTreeSet::new();
    for (index, port) in container.ports.iter().flatten().enumerate() {
        let path = path.index(index);
        if let Some(name) = port.name.as_deref().filter(|name| !name.is_empty()) {
            errors.invalid_each(&path.child("name"), name, names::port_name(name));
            if !seen.insert(name) {
                errors.duplicate(&path.child("name"), name);
            }
        }
        match port.container_port {
            0 => errors.required(&path.child("containerPort"), ""),
            number => in_range(&path.child("containerPort"), number, errors),
        }
        one_of(
            &path.child("protocol"),
            port.protocol.as_deref(),
            &["SCTP", "TCP", "UDP"],
            errors,
        );
        host_port(&path, port, network, host_ports, errors);
    }
}

fn host_port<'a>(
    path: &FieldPath,
    port: &'a ContainerPort,
    network: HostNetwork,
    taken: &mut BTreeSet<(&'a str, &'a str, i32)>,
    errors: &mut ErrorList,
) {
    let number = port.host_port.unwrap_or_default();
    if network == HostNetwork::Hosts && number != port.container_port {
        let detail = "must match `hostPort` when `hostNetwork` is true";
        errors.invalid(&path.child("containerPort"), port.container_port, detail);
    }
    if number == 0 {
        return;
    }
    in_range(&path.child("hostPort"), number, errors);
    let protocol = port.protocol.as_deref().unwrap_or_default();
    let address = port.host_ip.as_deref().unwrap_or_default();
    if !taken.insert((protocol, address, number)) {
        errors.duplicate(
            &path.child("hostPort"),
            format!("{protocol}/{address}/{number}"),
        );
    }
}

pub(crate) fn in_range(path: &FieldPath, port: i32, errors: &mut ErrorList) {
    if !(1..=65535).contains(&port) {
        errors.invalid(path, port, PORTS);
    }
}
