//! The restart of services of a running cluster, with the same flags or with changed ones.

use futures::future::try_join_all;
use tonic::Status;

use super::{ClusterInstance, NodeGroup, internal};
use crate::{
    flags::UpFlags,
    service::{ListenAddress, Service, ServiceSpec, without_scheme},
    settings::{Settings, UsageError, service_not_found},
};

/// The position of a service in a [`ClusterInstance`].
#[derive(Clone, Copy, Debug)]
enum ServiceSlot {
    Control(usize),
    Cri(usize),
    Kubelet(usize),
}

impl ClusterInstance {
    /// Restarts services: those with that name or kind, and those whose flags changed. Returns
    /// their names, once all are ready.
    pub(crate) async fn restart(
        &mut self,
        names: &[String],
        mut flags: UpFlags,
    ) -> Result<Vec<String>, Status> {
        let known = |name: &&String| self.services().any(|service| service.spec().is(name));
        if let Some(name) = names.iter().find(|name| !known(name)) {
            return Err(Status::not_found(service_not_found(name)));
        }
        let backend = flags.changeable.node_network_backend;
        let of_nodes = match backend {
            Some(_) => self.nodes_of_kubelets(names),
            None => Vec::new(),
        };
        let has_devices = |name: &str| {
            let node = self.node(name).ok();
            node.and_then(|node| self.fabric_of(node)).is_some()
        };
        if let Some(name) = of_nodes.iter().find(|name| !has_devices(name)) {
            return Err(Status::failed_precondition(format!(
                "node {name} has no devices: it has no node network, and no backend of one"
            )));
        }
        if !of_nodes.is_empty() {
            // The backend applies to these nodes, and not to the cluster.
            flags.changeable.node_network_backend = None;
        }
        let settings = flags.over(&self.record.settings).map_err(internal)?;
        let invalid = |error: UsageError| Status::invalid_argument(error.to_string());
        if !self
            .node_network
            .is_beside(&settings.ranges().map_err(invalid)?)
        {
            return Err(Status::failed_precondition(
                "the ranges overlap the nodes' own addresses; take others, or `podplane down` first",
            ));
        }
        settings.standbys().map_err(invalid)?;
        if settings.has_certificates() != self.record.settings.has_certificates() {
            return Err(Status::failed_precondition(
                "--authentication changes only while the cluster is down: `podplane down`, and then `podplane up` with the flag",
            ));
        }
        let before = self.record.nodes.clone();
        for node in &mut self.record.nodes {
            if of_nodes.contains(&node.name) {
                node.node_network_backend = backend;
            }
        }
        let restarted = self.restart_with(names, settings).await;
        if restarted.is_err() {
            self.record.nodes = before;
        }
        let restarted = restarted.map_err(internal)?;
        self.await_readiness(&restarted).await.map_err(internal)?;
        Ok(restarted)
    }

    /// Waits until services serve: until they have the first lists of what they work on.
    async fn await_readiness(&self, names: &[String]) -> anyhow::Result<()> {
        let services = self.services();
        let named = services.filter(|service| names.contains(&service.spec().name));
        let ready = named.map(|service| async {
            let socket = self.dir.socket(&service.spec().name);
            service.ready(&socket).await
        });
        try_join_all(ready).await.map(drop)
    }

    /// The nodes of these kubelets; empty unless each kubelet serves one node.
    fn nodes_of_kubelets(&self, names: &[String]) -> Vec<String> {
        let node = |name: &String| {
            let is_its = |group: &&NodeGroup| {
                let kubelet = group.kubelet.as_ref();
                kubelet.is_some_and(|kubelet| kubelet.spec().name == *name)
            };
            let group = self.groups.iter().find(is_its)?;
            match &*group.nodes {
                [node] => Some(node.name.clone()),
                _ => None,
            }
        };
        let nodes: Option<Vec<_>> = names.iter().map(node).collect();
        nodes.unwrap_or_default()
    }

    async fn restart_with(
        &mut self,
        names: &[String],
        settings: Settings,
    ) -> anyhow::Result<Vec<String>> {
        let mut restarted = Vec::new();
        for slot in self.slots() {
            let mut spec = self.spec(slot, &settings);
            let Some(running) = self.service(slot) else {
                continue;
            };
            if running.spec().args == spec.args && !names.iter().any(|name| spec.is(name)) {
                continue;
            }
            // At the address that its clients know.
            if let (ListenAddress::AsPublished { listen, .. }, Some(address)) =
                (&mut spec.listens, running.state().address)
            {
                *listen = without_scheme(&address).to_owned();
            }
            let before = running.spec().clone();
            running.stop();
            running.stopped().await;
            restarted.push(spec.name.clone());
            let service = self.run(spec);
            let started = service.listening().await;
            if let Err(error) = started {
                // It runs again with its earlier flags.
                service.stop();
                service.stopped().await;
                let again = self.run(before);
                let listening = again.listening().await;
                self.put(slot, again);
                listening?;
                return Err(error);
            }
            self.put(slot, service);
        }
        self.record.settings = settings;
        self.dir.write_record(&self.record)?;
        Ok(restarted)
    }

    fn slots(&self) -> Vec<ServiceSlot> {
        let control = (0..self.control_plane.len()).map(ServiceSlot::Control);
        let groups = 0..self.groups.len();
        let groups =
            groups.flat_map(|index| [ServiceSlot::Cri(index), ServiceSlot::Kubelet(index)]);
        control.chain(groups).collect()
    }

    fn service(&self, slot: ServiceSlot) -> Option<&Service> {
        match slot {
            ServiceSlot::Control(index) => self.control_plane.get(index),
            ServiceSlot::Cri(index) => self.groups[index].cri.as_ref(),
            ServiceSlot::Kubelet(index) => self.groups[index].kubelet.as_ref(),
        }
    }

    fn put(&mut self, slot: ServiceSlot, service: Service) {
        match slot {
            ServiceSlot::Control(index) => self.control_plane[index] = service,
            ServiceSlot::Cri(index) => self.groups[index].cri = Some(service),
            ServiceSlot::Kubelet(index) => self.groups[index].kubelet = Some(service),
        }
        self.publish();
    }

    fn spec(&self, slot: ServiceSlot, settings: &Settings) -> ServiceSpec {
        let lines = self.lines(settings);
        match slot {
            ServiceSlot::Control(index) => lines.control_plane().swap_remove(index),
            ServiceSlot::Cri(index) => self.cri_spec(&lines, &self.groups[index]),
            ServiceSlot::Kubelet(index) => self.kubelet_spec(&lines, &self.groups[index]),
        }
    }
}
