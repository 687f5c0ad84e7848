//! An API server with TLS and certificates of `podplane certs`, and its clients.

use std::{path::PathBuf, process::Command};

use anyhow::Result;

use crate::{
    apiserver::Apiserver,
    programs::{ProgramOutput, finish, podplane},
    service::Service,
};

/// An API server that knows its clients by certificates of `podplane certs`.
#[derive(Debug)]
pub struct SecureApiserver {
    dir: tempfile::TempDir,
    apiserver: Apiserver,
}

impl SecureApiserver {
    /// Starts one with these flags besides those of its certificates.
    ///
    /// # Errors
    ///
    /// If it cannot be started.
    pub async fn start(flags: &[&str]) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let path = |name: &str| dir.path().join(name).display().to_string();
        let pki = path("pki");
        finish(&mut podplane(["certs", "init", "--dir", &pki])).ok();
        let (pair, ca) = (path("pki/apiserver.pem"), path("pki/ca.crt"));
        let own = [
            "--authentication=credentials",
            "--tls-cert-file",
            &pair,
            "--tls-private-key-file",
            &pair,
            "--client-ca-file",
            &ca,
        ];
        let flags = [&own, flags].concat();
        let apiserver = Apiserver::start_with(dir.path(), &flags).await?;
        Ok(Self { dir, apiserver })
    }

    /// Issues a certificate of `podplane certs issue`, such as `node/n1`, which is in
    /// `node-n1.pem`.
    pub fn issue(&self, whom: &str) {
        let pki = self.text("pki");
        finish(&mut podplane(["certs", "issue", whom, "--dir", &pki])).ok();
    }

    /// The address, with `https://`.
    pub fn address(&self) -> &str {
        self.apiserver.address()
    }

    /// Tells the server to end, and waits until it has. Returns true if it succeeded. The second
    /// value has the files, until it is dropped.
    ///
    /// # Errors
    ///
    /// If it cannot be told.
    pub async fn terminated(self) -> Result<(bool, tempfile::TempDir)> {
        let Self { dir, apiserver } = self;
        Ok((apiserver.terminated().await?, dir))
    }

    /// A path in its directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The same as text.
    pub fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// The flags of a client with that certificate.
    pub fn flags(&self, name: &str) -> Vec<String> {
        let pair = self.text(&format!("pki/{name}.pem"));
        [
            ("--server", self.address().to_owned()),
            ("--certificate-authority", self.text("pki/ca.crt")),
            ("--client-certificate", pair.clone()),
            ("--client-key", pair),
        ]
        .map(|(flag, value)| format!("{flag}={value}"))
        .to_vec()
    }

    /// Runs `podplane` with that certificate.
    pub fn podplane(&self, name: &str, args: &str) -> ProgramOutput {
        let args = args.split_whitespace().map(str::to_owned);
        finish(&mut podplane(args.chain(self.flags(name))))
    }

    /// Starts a service with that certificate. Its log is in the directory.
    ///
    /// # Errors
    ///
    /// If it cannot be started.
    pub async fn service(&self, service: &str, name: &str, flags: &[&str]) -> Result<Service> {
        let own = self.flags(name);
        let own: Vec<&str> = own.iter().map(String::as_str).collect();
        let flags = [&own, flags].concat();
        Service::start(service, "127.0.0.1:0", self.dir.path(), &flags).await
    }

    /// Writes `kubeconfig` with that certificate, and returns stock kubectl with it.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    pub fn kubectl(&self, name: &str) -> Result<impl Fn(&str) -> ProgramOutput + use<>> {
        let (file, home) = (self.path(&format!("kubeconfig-{name}")), self.path(""));
        std::fs::write(&file, self.podplane(name, "kubeconfig").ok())?;
        Ok(move |args: &str| {
            let mut kubectl = Command::new("kubectl");
            kubectl
                .args(args.split_whitespace())
                .env("KUBECONFIG", &file)
                .env("HOME", &home)
                .stdin(std::process::Stdio::null());
            finish(&mut kubectl)
        })
    }
}
