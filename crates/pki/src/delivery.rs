//! What each process is given of a directory of certificates, where processes do not share one.

use std::{path::Path, str::FromStr, time::Duration};

use jiff::Timestamp;
use podplane_host::random;

use crate::{
    CertificateOwner, PkiDir, PkiError, ServerName,
    dir::{
        CA_CERTIFICATE, CA_KEY, KEY_MODE, PUBLIC_MODE, make_private_dir, read, read_key, replace,
    },
};

/// The token by which nodes join, in the directory of the authority and where nodes find it.
const BOOTSTRAP_TOKEN: &str = "bootstrap-token";
/// The same as the API server reads it (`--token-auth-file`).
const TOKEN_FILE: &str = "tokens.csv";
/// The user and the group of the token. The group may request certificates of nodes, which are
/// approved.
const BOOTSTRAP_USER: &str = "system:bootstrap:podplane";
const BOOTSTRAPPERS: &str = "system:bootstrappers";

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
}

impl FromStr for Recipient {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "nodes" {
            return Ok(Self::Nodes);
        }
        match text.parse::<CertificateOwner>() {
            Ok(CertificateOwner::Node(_) | CertificateOwner::Serving(_)) | Err(_) => {
                Err("want apiserver, scheduler, controller-manager, ipam-controller, kubelets, route-agent, admin, monitoring or nodes".to_owned())
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
        let mut keys = Vec::new();
        if let Recipient::Owner(owner) = recipient {
            if *owner == CertificateOwner::Monitoring {
                self.ensure(&owner.to_string(), &owner.terms(&[], lifetime), now)?;
            }
            keys.push(format!("{owner}.pem"));
        }
        if let Some(port) = recipient.port() {
            let owner = CertificateOwner::Serving(port.clone());
            let names: Vec<ServerName> = port.parse().into_iter().collect();
            self.ensure(&owner.to_string(), &owner.terms(&names, lifetime), now)?;
            keys.push(format!("{owner}.pem"));
        }
        match recipient {
            Recipient::Nodes => {
                self.bootstrap_token()?;
                keys.push(BOOTSTRAP_TOKEN.to_owned());
            }
            Recipient::Owner(CertificateOwner::Apiserver) => {
                let token = self.bootstrap_token()?;
                let line = format!("{token},{BOOTSTRAP_USER},,{BOOTSTRAPPERS}\n");
                put(&self.path().join(TOKEN_FILE), &line, KEY_MODE)?;
                keys.push(TOKEN_FILE.to_owned());
            }
            Recipient::Owner(CertificateOwner::Process("controller-manager", _)) => {
                keys.push(CA_KEY.to_owned());
            }
            Recipient::Owner(_) => {}
        }
        make_private_dir(to)?;
        let public = (CA_CERTIFICATE.to_owned(), PUBLIC_MODE);
        let files = keys.into_iter().map(|name| (name, KEY_MODE));
        let mut written = Vec::new();
        for (name, mode) in std::iter::once(public).chain(files) {
            let from = self.path().join(&name);
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
