//! The certificates of the servers under load and of the load.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
};

use anyhow::{Context as _, Result, ensure};
use podplane_pki::tls;
use rustls::{ClientConfig, sign::SingleCertAndKey};

use crate::BenchParameters;

/// The certificates of a cluster, and those of an etcd with an authority of its own.
#[derive(Debug)]
pub(crate) struct Certificates {
    dir: PathBuf,
}

impl Certificates {
    /// Makes them in the directory `pki` of `dir`.
    pub(crate) fn make(bench: &BenchParameters, dir: &Path) -> Result<Self> {
        let this = Self {
            dir: dir.join("pki"),
        };
        let mut command = Command::new(bench.podplane());
        command.args(["certs", "init", "--dir"]).arg(&this.dir);
        for recipient in ["etcd/127.0.0.1", "etcd-client"] {
            let (name, _) = recipient.split_once('/').unwrap_or((recipient, ""));
            let mut delivery = OsString::from(format!("{recipient}="));
            delivery.push(this.dir.join(name));
            command.arg("--deliver").arg(delivery);
        }
        let made = command.stdout(Stdio::null()).status();
        let made = made.context("failed to run podplane certs")?;
        ensure!(made.success(), "podplane certs init: {made}");
        Ok(this)
    }

    fn flag(&self, name: &str, file: &str) -> OsString {
        let mut flag = OsString::from(format!("--{name}="));
        flag.push(self.dir.join(file));
        flag
    }

    /// The flags of an API server that knows its clients by their certificates.
    pub(crate) fn apiserver_flags(&self) -> Vec<OsString> {
        vec![
            "--authentication=credentials".into(),
            self.flag("tls-cert-file", "apiserver.pem"),
            self.flag("tls-private-key-file", "apiserver.pem"),
            self.flag("client-ca-file", "ca.crt"),
        ]
    }

    /// The flags of an etcd that does.
    pub(crate) fn etcd_flags(&self) -> Vec<OsString> {
        vec![
            "--client-cert-auth".into(),
            self.flag("cert-file", "etcd/member.pem"),
            self.flag("key-file", "etcd/member.pem"),
            self.flag("trusted-ca-file", "etcd/ca.crt"),
        ]
    }

    /// A client of the API server: the controller-manager, which creates and reads pods by the
    /// rules of its roles. An administrator would be allowed everything before any rule is asked.
    pub(crate) fn apiserver_client(&self) -> Result<Arc<ClientConfig>> {
        self.client("controller-manager.pem", "ca.crt")
    }

    /// A client of etcd.
    pub(crate) fn etcd_client(&self) -> Result<Arc<ClientConfig>> {
        self.client("etcd-client/etcd-client.pem", "etcd/ca.crt")
    }

    fn client(&self, own: &str, authority: &str) -> Result<Arc<ClientConfig>> {
        let own = self.dir.join(own);
        let pair = tls::read_key_pair(&own, &own)?;
        let trust = tls::read_trust(&self.dir.join(authority))?;
        let mut config =
            tls::client(&trust).with_client_cert_resolver(Arc::new(SingleCertAndKey::from(pair)));
        config.alpn_protocols = vec![tls::HTTP2.to_vec()];
        // Each connection of the row that counts them is a whole one.
        config.resumption = rustls::client::Resumption::disabled();
        Ok(Arc::new(config))
    }
}
