//! The publisher of the root certificate: each namespace has it in a ConfigMap, so that pods can
//! verify the API server (source: Kubernetes'
//! `pkg/controller/certificates/rootcacertpublisher`).

use std::{collections::BTreeMap, io, path::PathBuf, time::Duration};

use podplane_api::{
    Object as _, ObjectKey,
    core::{ConfigMap, Namespace},
    kinds::pod::ROOT_CA_CONFIG_MAP,
};
use podplane_client::{ApiError, Cache, CacheChange, Client, WorkQueue, answered};
use podplane_host::fs;

use crate::work::Latch;

const KEY: &str = "ca.crt";
const DESCRIPTION_ANNOTATION: &str = "kubernetes.io/description";
const DESCRIPTION: &str = "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the internal service IP or kubernetes.default.svc. No other usage is guaranteed across distributions of Kubernetes clusters.";

/// The flag of the root certificate.
#[derive(Clone, Debug, clap::Args)]
pub struct RootCaFlags {
    /// Publish the certificates in FILE (PEM), which verify the API server, as the ConfigMap
    /// kube-root-ca.crt of each namespace [default: none]
    #[arg(long, env = "PODPLANE_ROOT_CA_FILE", value_name = "FILE")]
    pub root_ca_file: Option<PathBuf>,
}

/// The file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RootCaFlagsError {
    /// It cannot be read.
    #[error("failed to read --root-ca-file {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The operating system's reason.
        #[source]
        source: io::Error,
    },
    /// It has no certificate.
    #[error("--root-ca-file {} has no certificate in PEM: give the file of the authority of the API server", .0.display())]
    Empty(PathBuf),
}

impl RootCaFlags {
    /// The certificates; `None` without the flag.
    ///
    /// # Errors
    ///
    /// [`RootCaFlagsError`].
    pub(crate) fn certificates(&self) -> Result<Option<String>, RootCaFlagsError> {
        let Some(path) = &self.root_ca_file else {
            return Ok(None);
        };
        let read = fs::read_to_string(path).map_err(|source| RootCaFlagsError::Read {
            path: path.clone(),
            source,
        })?;
        match read.contains("-----BEGIN CERTIFICATE-----") {
            true => Ok(Some(read)),
            false => Err(RootCaFlagsError::Empty(path.clone())),
        }
    }
}

/// The controller. It reconciles namespaces by name, with the client of a leader; a standby only
/// observes.
#[derive(Debug)]
pub(crate) struct RootCaPublisher {
    namespaces: Cache<Namespace>,
    maps: Cache<ConfigMap>,
    certificates: Option<String>,
    pub(crate) queue: WorkQueue<String>,
}

impl RootCaPublisher {
    /// A controller whose queue is closed. Without certificates, it does nothing.
    pub(crate) fn new(
        namespaces: Cache<Namespace>,
        maps: Cache<ConfigMap>,
        certificates: Option<String>,
    ) -> Self {
        Self {
            namespaces,
            maps,
            certificates,
            queue: WorkQueue::closed(),
        }
    }

    /// Opens the queue, and queues all namespaces.
    pub(crate) fn open(&self) {
        self.queue.open();
        for namespace in self.namespaces.list() {
            self.queue.add(namespace.name().to_owned());
        }
    }

    /// Observes changes, for ever; `ready` is notified when the first lists have been observed.
    pub(crate) async fn follow(&self, ready: &Latch) {
        tokio::join!(self.namespaces.synced(), self.maps.synced());
        let (mut namespaces, mut maps) = (self.namespaces.subscribe(), self.maps.subscribe());
        ready.arrive();
        loop {
            tokio::select! {
                change = namespaces.next() => {
                    if let CacheChange::Applied { old: None, new } = change {
                        self.queue.add(new.name().to_owned());
                    }
                }
                change = maps.next() => {
                    let (CacheChange::Deleted(map) | CacheChange::Applied { new: map, .. }) = change;
                    if map.name() == ROOT_CA_CONFIG_MAP {
                        self.queue.add(map.namespace().to_owned());
                    }
                }
            }
        }
    }

    /// Creates or repairs the ConfigMap of a namespace.
    pub(crate) async fn reconcile(
        &self,
        client: &Client,
        name: &str,
    ) -> Result<Option<Duration>, ApiError> {
        let Some(certificates) = &self.certificates else {
            return Ok(None);
        };
        let namespace = self.namespaces.get(&ObjectKey::new("", name));
        if namespace.is_none_or(|namespace| namespace.is_deleting()) {
            return Ok(None);
        }
        let found = self.maps.get(&ObjectKey::new(name, ROOT_CA_CONFIG_MAP));
        let mut map = found.as_deref().cloned().unwrap_or_default();
        complete(&mut map, name, certificates);
        let maps = client.namespaced(name);
        match found {
            Some(found) if *found == map => {}
            Some(_) => {
                answered(maps.update(&map)).await?;
                tracing::info!(
                    namespace = name,
                    "repaired the ConfigMap {ROOT_CA_CONFIG_MAP}"
                );
            }
            None => match answered(maps.create(&map)).await {
                Err(error) if !error.is_already_exists() => return Err(error),
                _ => {}
            },
        }
        Ok(None)
    }
}

/// Sets what the publisher maintains.
fn complete(map: &mut ConfigMap, namespace: &str, certificates: &str) {
    map.metadata.name = Some(ROOT_CA_CONFIG_MAP.to_owned());
    map.metadata.namespace = Some(namespace.to_owned());
    let annotations = map.metadata.annotations.get_or_insert_default();
    let description = annotations
        .entry(DESCRIPTION_ANNOTATION.to_owned())
        .or_default();
    if description.is_empty() {
        DESCRIPTION.clone_into(description);
    }
    let data = (KEY.to_owned(), certificates.to_owned());
    map.data = Some(BTreeMap::from([data]));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repairs_what_it_maintains_and_nothing_else() {
        let mut map = ConfigMap::default();
        complete(&mut map, "prod", "pem");
        let whole = map.clone();
        complete(&mut map, "prod", "pem");
        assert_eq!(map, whole);
        map.data = None;
        let labels = BTreeMap::from([("a".to_owned(), "b".to_owned())]);
        map.metadata.labels = Some(labels.clone());
        complete(&mut map, "prod", "pem");
        assert_eq!(map.data, whole.data);
        assert_eq!(map.metadata.labels, Some(labels));
        let annotations = map.metadata.annotations.unwrap();
        assert_eq!(annotations[DESCRIPTION_ANNOTATION], DESCRIPTION);
    }

    #[test]
    fn the_file_must_have_a_certificate() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("ca.crt");
        let flags = RootCaFlags {
            root_ca_file: Some(file.clone()),
        };
        assert!(matches!(
            flags.certificates(),
            Err(RootCaFlagsError::Read { .. })
        ));
        podplane_host::fs::write(&file, "nothing").unwrap();
        assert!(matches!(
            flags.certificates(),
            Err(RootCaFlagsError::Empty(_))
        ));
        let pem = "-----BEGIN CERTIFICATE-----\n";
        podplane_host::fs::write(&file, pem).unwrap();
        assert_eq!(flags.certificates().unwrap().as_deref(), Some(pem));
        assert_eq!(
            RootCaFlags { root_ca_file: None }.certificates().unwrap(),
            None
        );
    }
}
