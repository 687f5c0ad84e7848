//! The sockets of the server: its address, and a unix socket in its data directory.

use std::{path::PathBuf, sync::Arc};

use podplane_host::fs;
use podplane_service_runtime::{
    authentication::Authenticator,
    boundary::AllowedHosts,
    limits::ServerLimits,
    server::{Listen, Listener},
};

use crate::{
    ApiserverRunError, AuthenticationFlags, OwnCertificateFlags, StoreKind, TlsFlags,
    authentication::{Kubeconfig, OwnCertificates, secure},
};

/// The flags that shape the sockets.
#[derive(Clone, Debug)]
pub(crate) struct SocketFlags {
    pub(crate) listen: Listen,
    pub(crate) allowed_hosts: AllowedHosts,
    pub(crate) tls: TlsFlags,
    pub(crate) own_certificates: OwnCertificateFlags,
    pub(crate) address_file: Option<PathBuf>,
    pub(crate) data_dir: Option<PathBuf>,
    pub(crate) limits: ServerLimits,
}

/// The bound sockets, and how clients find them.
#[derive(Debug)]
pub(crate) struct Sockets {
    /// The first is the server's address. The other is `apiserver.sock` in the data directory, if
    /// there is one: for clients of this machine, which need no certificate there.
    pub(crate) listeners: Vec<Listener>,
    pub(crate) own_certificates: Option<OwnCertificates>,
    pub(crate) announcement: Announcement,
}

/// The files by which clients find the server.
#[derive(Debug)]
pub(crate) struct Announcement {
    address_file: Option<PathBuf>,
    data_dir: Option<PathBuf>,
    kubeconfig: Kubeconfig,
}

impl SocketFlags {
    /// Binds the sockets, and makes the certificates that nobody has given.
    ///
    /// # Errors
    ///
    /// Flags that contradict each other, certificates that cannot be used or made, and sockets that
    /// cannot be bound.
    pub(crate) async fn bind(
        self,
        authentication: &AuthenticationFlags,
        authenticator: Arc<dyn Authenticator>,
        store: StoreKind,
    ) -> Result<Sockets, ApiserverRunError> {
        let Self {
            listen,
            allowed_hosts,
            tls,
            own_certificates,
            address_file,
            data_dir,
            limits,
        } = self;
        let given = tls.files(authentication.is_on())?;
        let is_known = authentication.is_on();
        let makes_own = given.is_none() && is_known && matches!(listen, Listen::Tcp(_));
        let own_certificates = match (makes_own, &data_dir) {
            (false, _) => None,
            (true, Some(dir)) => Some(OwnCertificates::make(
                dir,
                &listen,
                &allowed_hosts,
                own_certificates,
            )?),
            (true, None) => return Err(ApiserverRunError::NoCertificates),
        };
        let files = own_certificates.as_ref().map(OwnCertificates::tls_files);
        // Bound first, so that a port in use is found before a large store is read.
        let main = Listener::bind(&listen).await?.allowing(allowed_hosts);
        let main = match given.or(files) {
            Some(files) => secure(main, &files)?,
            None => main,
        };
        let mut listeners = vec![main];
        let local = data_dir.as_ref().map(|dir| dir.join("apiserver.sock"));
        if let Some(dir) = &data_dir {
            // The store makes it too, but is opened later.
            fs::create_private_dir_all(dir).map_err(|source| ApiserverRunError::DataDir {
                dir: dir.clone(),
                source,
            })?;
        }
        if let Some(local) = local.map(Listen::Unix).filter(|local| *local != listen) {
            listeners.push(Listener::bind(&local).await?);
        }
        let listeners = listeners.into_iter();
        let listeners = listeners.map(|listener| {
            let listener = listener.limited(limits);
            listener.authenticating(Arc::clone(&authenticator))
        });
        let kubeconfig = match (&own_certificates, is_known, &listen) {
            (_, _, Listen::Unix(_)) | (None, true, _) => Kubeconfig::Nobodys,
            (None, false, _) => Kubeconfig::Anyones,
            (Some(own), ..) => Kubeconfig::Administrators(own.clone()),
        };
        // Clients of a data directory look here for its server.
        let default_file = match store {
            StoreKind::Sled | StoreKind::Etcd => {
                data_dir.as_ref().map(|dir| dir.join("apiserver.address"))
            }
            StoreKind::Memory => None,
        };
        Ok(Sockets {
            listeners: listeners.collect(),
            own_certificates,
            announcement: Announcement {
                address_file: address_file.or(default_file),
                data_dir,
                kubeconfig,
            },
        })
    }
}

impl Announcement {
    /// Writes the files, once requests will be answered.
    ///
    /// # Errors
    ///
    /// A file that cannot be written.
    pub(crate) fn publish(&self, server: &Listener) -> Result<(), ApiserverRunError> {
        if let Some(dir) = &self.data_dir {
            self.kubeconfig.write(dir, &server.client_address())?;
        }
        if let Some(file) = &self.address_file {
            server.publish(file)?;
        }
        Ok(())
    }
}
