//! The certificate authority of a cluster, and the certificates of its processes and nodes.
//!
//! An [`Authority`] issues P-256 certificates for a [`Subject`]: as in Kubernetes the common name
//! is the user, and each organization a group. A certificate is for clients or for servers and
//! never for both, so that no process can pose as the API server with its own client certificate.
//! [`PkiDir`] keeps authority and certificates in a directory, and renews what expires soon;
//! [`RequestedCertificate`] is that of a client whose authority is elsewhere.
//! [`verify::Trust`] tells whose certificate a peer has shown. [`ReloadedFiles`] reads files again
//! when they change, and [`tls`] has what both sides of a TLS connection need.
//!
//! Nothing here opens a connection.

#![forbid(unsafe_code)]

mod authority;
mod delivery;
mod dir;
mod inventory;
mod issued;
pub mod kubeconfig;
pub mod owner;
mod reload;
mod request;
mod requested;
mod subject;
pub mod tls;
pub mod verify;

pub use self::{
    authority::{Authority, CertificateTerms, Credentials},
    delivery::Recipient,
    dir::{PkiDir, Renewal, write_key_file},
    inventory::{CertificateFile, CertificateInfo},
    owner::CertificateOwner,
    reload::ReloadedFiles,
    request::{CertificateRequest, RequestedName, RequestedUsage, certificate_end},
    requested::{KeyRequest, RequestedCertificate, RequestedState},
    subject::{ServerName, Subject, Usage},
};

/// A failure of the authority or its files. It never contains a key.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    /// A file or a text is not what it should be.
    #[error("invalid {what}: {why}")]
    Invalid {
        /// The file or field.
        what: String,
        /// The reason, and what to do.
        why: String,
    },
    /// A file could not be read or written.
    #[error("failed to {action} {path}")]
    Io {
        /// The action: read, write.
        action: &'static str,
        /// The path.
        path: String,
        /// The operating system's error.
        #[source]
        source: std::io::Error,
    },
    /// The library refused to make a key or a certificate.
    #[error("failed to make {0}")]
    Generate(&'static str, #[source] rcgen::Error),
    /// A subject cannot be put into a certificate.
    #[error("failed to encode a certificate")]
    Encode(#[from] der::Error),
}
