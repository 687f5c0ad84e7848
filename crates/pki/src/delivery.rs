//! What each process is given of a directory of certificates, where processes do not share one.

use std::{
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};

use jiff::Timestamp;
use podplane_host::random;

use crate::{
    CertificateOwner, CertificateTerms, PkiDir, PkiError, ServerName, Subject, Usage,
    authority::new_signing_key,
    dir::{
        CA_CERTIFICATE, CA_KEY, KEY_MODE, PUBLIC_MODE, make_private_dir, read, read_key, replace,
    },
    owner::LOCAL_NAMES,
};

/// The token by which nodes join, in the directory of the authority and where nodes find it.
const BOOTSTRAP_TOKEN: &str = "bootstrap-token";
/// The same as the API server reads it (`--token-auth-file`).
const TOKEN_FILE: &str = "tokens.csv";
/// The user and the group of the token. The group may request certificates of nodes, which are
/// approved.
const BOOTSTRAP_USER: &str = "system:bootstrap:podplane";
const BOOTSTRAPPERS: &str = "system:bootstrappers";
/// The key that signs the tokens of ServiceAccounts, where API servers share one.
const ACCOUNT_KEY: &str = "service-account.key";
/// The directory of etcd's own authority, in that of the cluster's. Whoever has a certificate of
/// that authority may read and write everything, so the cluster's own must not be trusted by etcd.
const ETCD: &str = "etcd";
/// The name of that authority.
const ETCD_AUTHORITY: &str = "podplane-etcd-ca";
/// The API servers as clients of etcd: the name of their certificate, and the user in it.
const ETCD_CLIENT: &str = "etcd-client";
/// The certificate of that authority, in the directory of an API server.
const ETCD_CA_CERTIFICATE: &str = "etcd-ca.crt";
/// The certificate of a member, in its directory.
const ETCD_MEMBER: &str = "member.pem";

/// Whoever is given files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Recipient {
    /// The owner of a certificate: `ca.crt`, its `NAME.pem` and, for a process with a port,
    /// `serving-NAME.pem`. The API server has the tokens too (`tokens.csv`), and the
    /// controller-manager, which signs for nodes, `ca.key`. The certificate of monitoring is made
    /// by the delivery, since a cluster may have none.
    Owner(CertificateOwner),
    /// Nodes that join: `ca.crt`, `bootstrap-token` and `serving-node.pem`, which is the same for
    /// all of them. They request their client certificates.
    Nodes,
    /// Each API server of several, which accept each other's tokens of ServiceAccounts:
    /// `service-account.key`.
    AccountKey,
    /// An API server on etcd: `etcd-ca.crt`, and `etcd-client.pem` for etcd alone.
    EtcdClient,
    /// The member of etcd at this host: `ca.crt`, of etcd's own authority, and `member.pem`.
    EtcdMember(ServerName),
}

/// A file to copy.
struct DeliveredFile {
    from: PathBuf,
    /// Its name in the recipient's directory.
    name: String,
    mode: u32,
}

impl DeliveredFile {
    /// A file of this directory with a key, under its own name.
    fn key(dir: &Path, name: &str) -> Self {
        Self::key_as(dir, name, name)
    }

    /// The same under another name.
    fn key_as(dir: &Path, file: &str, name: &str) -> Self {
        Self {
            from: dir.join(file),
            name: name.to_owned(),
            mode: KEY_MODE,
        }
    }

    /// The certificate of the authority in this directory.
    fn authority(dir: &Path, name: &str) -> Self {
        Self {
            from: dir.join(CA_CERTIFICATE),
            name: name.to_owned(),
            mode: PUBLIC_MODE,
        }
    }
}

impl FromStr for Recipient {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "nodes" => return Ok(Self::Nodes),
            "service-account-key" => return Ok(Self::AccountKey),
            "etcd-client" => return Ok(Self::EtcdClient),
            _ => {}
        }
        if let Some(("etcd", host)) = text.split_once('/') {
            let host = host.parse().map_err(|error: PkiError| error.to_string())?;
            return Ok(Self::EtcdMember(host));
        }
        match text.parse::<CertificateOwner>() {
            Ok(CertificateOwner::Node(_) | CertificateOwner::Serving(_)) | Err(_) => {
                Err("want apiserver, scheduler, controller-manager, ipam-controller, kubelets, route-agent, admin, monitoring, nodes, service-account-key, etcd-client or etcd/HOST".to_owned())
            }
            Ok(owner) => Ok(Self::Owner(owner)),
        }
    }
}

impl Recipient {
    /// The name by which clients know its port; `None` if it has no port of its own, or a
    /// certificate for it already.
    fn port(&self) -> Option<String> {
        match self {
            Self::Nodes => Some("node".to_owned()),
            Self::AccountKey | Self::EtcdClient | Self::EtcdMember(_) => None,
            Self::Owner(owner) => {
                let has_port = matches!(owner, CertificateOwner::Process(..))
                    && *owner != CertificateOwner::ROUTE_AGENT;
                has_port.then(|| owner.to_string())
            }
        }
    }
}

impl PkiDir {
    /// Copies what the recipient needs, and nothing else, into its directory, which is made if
    /// there is none. Certificates that are missing or expire soon are issued first. A file whose
    /// content is right is not touched, so that nobody reads it again. Returns the names of the
    /// files that were written.
    ///
    /// # Errors
    ///
    /// [`PkiError`].
    pub fn deliver(
        &self,
        recipient: &Recipient,
        to: &Path,
        lifetime: Duration,
        now: Timestamp,
    ) -> Result<Vec<String>, PkiError> {
        let files = self.files_for(recipient, lifetime, now)?;
        make_private_dir(to)?;
        let mut written = Vec::new();
        for DeliveredFile { from, name, mode } in files {
            let content = read(&from)?.ok_or_else(|| PkiError::Invalid {
                what: from.display().to_string(),
                why: "it is missing; make it with `podplane certs init`".to_owned(),
            })?;
            if put(&to.join(&name), &content, mode)? {
                written.push(name);
            }
        }
        Ok(written)
    }

    /// Makes what is missing of the recipient's files, and names all of them.
    fn files_for(
        &self,
        recipient: &Recipient,
        lifetime: Duration,
        now: Timestamp,
    ) -> Result<Vec<DeliveredFile>, PkiError> {
        let dir = self.path();
        let mut files = vec![DeliveredFile::authority(dir, CA_CERTIFICATE)];
        if let Some(port) = recipient.port() {
            let owner = CertificateOwner::Serving(port.clone());
            let names: Vec<ServerName> = port.parse().into_iter().collect();
            self.ensure(&owner.to_string(), &owner.terms(&names, lifetime), now)?;
            files.push(DeliveredFile::key(dir, &format!("{owner}.pem")));
        }
        match recipient {
            Recipient::Owner(owner) => {
                if *owner == CertificateOwner::Monitoring {
                    self.ensure(&owner.to_string(), &owner.terms(&[], lifetime), now)?;
                }
                files.push(DeliveredFile::key(dir, &format!("{owner}.pem")));
                match owner {
                    CertificateOwner::Apiserver => {
                        let token = self.bootstrap_token()?;
                        let line = format!("{token},{BOOTSTRAP_USER},,{BOOTSTRAPPERS}\n");
                        put(&dir.join(TOKEN_FILE), &line, KEY_MODE)?;
                        files.push(DeliveredFile::key(dir, TOKEN_FILE));
                    }
                    CertificateOwner::Process("controller-manager", _) => {
                        files.push(DeliveredFile::key(dir, CA_KEY));
                    }
                    _ => {}
                }
            }
            Recipient::Nodes => {
                self.bootstrap_token()?;
                files.push(DeliveredFile::key(dir, BOOTSTRAP_TOKEN));
            }
            Recipient::AccountKey => {
                let path = dir.join(ACCOUNT_KEY);
                if read_key(&path)?.is_none() {
                    replace(&path, &new_signing_key()?, KEY_MODE)?;
                }
                files = vec![DeliveredFile::key(dir, ACCOUNT_KEY)];
            }
            Recipient::EtcdClient => {
                let etcd = self.etcd(now)?;
                let terms = CertificateTerms {
                    subject: Subject::new(ETCD_CLIENT, ""),
                    usage: Usage::Client,
                    names: Vec::new(),
                    lifetime,
                };
                etcd.ensure(ETCD_CLIENT, &terms, now)?;
                files = vec![
                    DeliveredFile::authority(etcd.path(), ETCD_CA_CERTIFICATE),
                    DeliveredFile::key(etcd.path(), &format!("{ETCD_CLIENT}.pem")),
                ];
            }
            Recipient::EtcdMember(host) => {
                let etcd = self.etcd(now)?;
                let local = LOCAL_NAMES.iter().filter_map(|name| name.parse().ok());
                let mut names: Vec<ServerName> = local.chain([host.clone()]).collect();
                names.sort();
                names.dedup();
                let name = format!("member-{host}");
                let terms = CertificateTerms {
                    subject: Subject::new(host.to_string(), ""),
                    usage: Usage::Both,
                    names,
                    lifetime,
                };
                etcd.ensure(&name, &terms, now)?;
                files = vec![
                    DeliveredFile::authority(etcd.path(), CA_CERTIFICATE),
                    DeliveredFile::key_as(etcd.path(), &format!("{name}.pem"), ETCD_MEMBER),
                ];
            }
        }
        Ok(files)
    }

    /// The authority of etcd's members and their clients; made if there is none.
    fn etcd(&self, now: Timestamp) -> Result<Self, PkiError> {
        Self::open(&self.path().join(ETCD), ETCD_AUTHORITY, now)
    }

    /// The token by which nodes join; made if there is none.
    fn bootstrap_token(&self) -> Result<String, PkiError> {
        let path = self.path().join(BOOTSTRAP_TOKEN);
        if let Some(token) = read_key(&path)? {
            return Ok(token.trim().to_owned());
        }
        let token = format!("{}{}", random::uuid().simple(), random::uuid().simple());
        replace(&path, &format!("{token}\n"), KEY_MODE)?;
        Ok(token)
    }
}

/// Makes sure that the file has this content; returns true if it was written.
fn put(path: &Path, content: &str, mode: u32) -> Result<bool, PkiError> {
    if read(path)?.is_some_and(|known| known == content) {
        return Ok(false);
    }
    replace(path, content, mode)?;
    Ok(true)
}
