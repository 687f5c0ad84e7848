//! Faults: deliberate disturbances of a cluster, which are healed again.

use std::fmt;

use podplane_proto::cluster::SetNodeNetworkRequest;

use crate::{
    Cluster, ClusterError, Result, Signal, eventually,
    link::{self, CallFault, Cut, Links},
    recording::Recorder,
};

/// A fault in effect until it is healed or dropped, after a panic, too.
#[must_use = "a fault that is dropped is healed"]
pub struct Fault {
    what: String,
    recorder: Recorder,
    undo: Option<Box<dyn FnOnce() + Send + Sync>>,
}

impl Fault {
    /// Makes a fault that has begun; `undo` heals it.
    pub(crate) fn new(
        what: impl Into<String>,
        recorder: Recorder,
        undo: impl FnOnce() + Send + Sync + 'static,
    ) -> Self {
        let what = what.into();
        recorder.fault(&what, true);
        Self {
            what,
            recorder,
            undo: Some(Box::new(undo)),
        }
    }

    /// A description of the fault.
    #[must_use]
    pub fn what(&self) -> &str {
        &self.what
    }

    /// Heals the fault.
    pub fn heal(self) {}
}

impl fmt::Debug for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Fault").field(&self.what).finish()
    }
}

impl Drop for Fault {
    fn drop(&mut self) {
        if let Some(undo) = self.undo.take() {
            undo();
            self.recorder.fault(&self.what, false);
        }
    }
}

impl Cluster {
    /// The links that carry the calls between its services.
    ///
    /// # Errors
    ///
    /// [`ClusterError::NotWired`] if the cluster was started without links.
    pub fn links(&self) -> Result<&Links> {
        let links = self.facilities.links().map(AsRef::as_ref);
        links.ok_or_else(|| ClusterError::NotWired {
            what: "links".into(),
            how: "links",
        })
    }

    /// The recorder of this cluster; it writes nothing if the cluster was started without
    /// recording.
    #[must_use]
    pub fn recorder(&self) -> &Recorder {
        &self.facilities.recorder
    }

    /// Cuts a process off from the API server: `scheduler`, `kubelet-node-0`; or, as `cri-node-0`,
    /// the kubelet of a node from its runtime.
    ///
    /// # Errors
    ///
    /// As [`Cluster::links`] and [`Links::cut`].
    pub fn cut_off(&self, process: &str, cut: Cut) -> Result<Fault> {
        self.links()?.cut(process, cut)
    }

    /// Disturbs the calls of a process. The calls of a kubelet to the runtimes of its nodes, such
    /// as `RunPodSandbox`, are among them; a number of [times](CallFault::times) is the total for
    /// all its links.
    ///
    /// # Errors
    ///
    /// As [`Cluster::links`], [`Cluster::status`] and [`Links::disturb`].
    pub async fn disturb(&self, process: &str, calls: &CallFault) -> Result<Fault> {
        let clients = self.clients(process, calls.method()).await?;
        self.links()?.disturb_each(process, &clients, calls)
    }

    /// Returns the number of calls of a method that a process has made so far; for a kubelet, also
    /// to the runtimes of its nodes.
    ///
    /// # Errors
    ///
    /// As [`Cluster::disturb`].
    pub async fn calls(&self, process: &str, method: &str) -> Result<u64> {
        let links = self.links()?;
        let clients = self.clients(process, Some(method)).await?;
        let seen = clients.iter().map(|client| links.seen(client, method));
        seen.sum()
    }

    /// Returns the clients of the links that carry a process's calls of a method, or all of its
    /// calls.
    async fn clients(&self, process: &str, method: Option<&str>) -> Result<Vec<String>> {
        let (is_api, is_cri) = match method.map(link::is_of_runtimes) {
            None => (true, true),
            Some(is_cri) => (!is_cri, is_cri),
        };
        let Some(name) = process.strip_prefix("kubelet-").filter(|_| is_cri) else {
            return Ok(vec![process.into()]);
        };
        let services = self.status().await?.services.into_iter();
        let mut of_name = services.filter(|service| service.name == process);
        // No process has this name if the node shares its kubelet: then only this node is meant.
        let nodes = of_name.next().map(|kubelet| kubelet.nodes);
        let nodes = nodes.unwrap_or_else(|| vec![name.into()]);
        let runtimes: Vec<_> = nodes.iter().map(|node| format!("cri-{node}")).collect();
        if nodes.len() > 1 {
            self.linked(&runtimes).await?;
        }
        let api = is_api.then(|| process.to_owned());
        Ok(api.into_iter().chain(runtimes).collect())
    }

    /// Waits until these clients have links, as nodes that have just joined do not yet.
    async fn linked(&self, clients: &[String]) -> Result<()> {
        let links = self.links()?;
        let known = || std::future::ready(links.clients());
        let has_all = |known: &Vec<String>| clients.iter().all(|client| known.contains(client));
        eventually("links of all nodes", known, has_all).await?;
        Ok(())
    }

    /// Cuts a node's uplink to the other nodes, like a pulled cable. Its kubelet still reaches the
    /// API server. Kernel mode only.
    ///
    /// # Errors
    ///
    /// [`ClusterError::Supervisor`] if there is no such node, or it has no uplink.
    pub async fn disconnect_node(&self, name: &str) -> Result<Fault> {
        let request = SetNodeNetworkRequest {
            name: name.into(),
            connected: false,
        };
        self.supervisor()?.set_node_network(request).await?;
        let mut connect = self.command("podplane", ["node", "connect", name]);
        let what = format!("the uplink of {name} is cut");
        Ok(Fault::new(what, self.recorder().clone(), move || {
            // A node that was removed needs no uplink.
            _ = connect.output();
        }))
    }

    /// Stops a process with SIGSTOP. If it is killed meanwhile, its successor runs normally.
    ///
    /// # Errors
    ///
    /// As [`Cluster::process`].
    pub async fn pause(&self, process: &str) -> Result<Fault> {
        let stopped = self.process(process).await?;
        stopped.pause().await?;
        let what = format!("{process} (process {}) is paused", stopped.pid());
        Ok(Fault::new(what, self.recorder().clone(), move || {
            // A process that has ended cannot be resumed.
            _ = stopped.resume();
        }))
    }

    /// Sends a signal to a process.
    ///
    /// # Errors
    ///
    /// As [`Cluster::process`].
    pub async fn signal(&self, process: &str, signal: Signal) -> Result<()> {
        let found = self.process(process).await?;
        found.signal(signal)?;
        let what = format!("{process} (process {}) is sent {signal:?}", found.pid());
        self.recorder().fault(&what, true);
        Ok(())
    }

    /// Fills the disk that [`ClusterBuilder::disk`](crate::ClusterBuilder::disk) has given to a
    /// node, or to `apiserver`.
    ///
    /// # Errors
    ///
    /// [`ClusterError::NotWired`] if it has no disk, and those of
    /// [`Disk::fill`](crate::disk::Disk::fill).
    pub fn fill_disk(&self, of: &str) -> Result<Fault> {
        let disks = self.facilities.disks.as_ref();
        let disk = disks.and_then(|disks| disks.get(of));
        let disk = disk.ok_or_else(|| ClusterError::NotWired {
            what: format!("disk of {of}"),
            how: "disk",
        })?;
        disk.fill()
    }
}
