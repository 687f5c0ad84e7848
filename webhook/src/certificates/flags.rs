//! The flags of the webhooks' own certificate.

use std::{path::PathBuf, str::FromStr};

use podplane_api::{ObjectKey, names};
use podplane_pki::ServerName;

/// The flags of the webhooks' own certificate.
#[derive(Clone, Debug, clap::Args)]
pub struct CertificateFlags {
    /// Make a certificate, keep it in this Secret, renew it, and write its authority into caBundle
    /// of the configurations [default: the certificate is that of --tls-cert-file]
    #[arg(
        long,
        env = "PODPLANE_CERTIFICATE_SECRET",
        value_name = "NAMESPACE/NAME",
        requires = "certificate_dir",
        requires = "certificate_hosts",
        conflicts_with = "tls_cert_file"
    )]
    pub certificate_secret: Option<SecretName>,

    /// Write the certificate of --certificate-secret and its key into this directory, which must
    /// exist
    #[arg(
        long,
        env = "PODPLANE_CERTIFICATE_DIR",
        value_name = "DIR",
        requires = "certificate_secret"
    )]
    pub certificate_dir: Option<PathBuf>,

    /// Make the certificate of --certificate-secret for these names and addresses, separated by
    /// commas: NAME.NAMESPACE.svc of the Service
    #[arg(
        long,
        env = "PODPLANE_CERTIFICATE_HOSTS",
        value_name = "HOST[,HOST]",
        value_delimiter = ',',
        requires = "certificate_secret"
    )]
    pub certificate_hosts: Vec<ServerName>,

    /// Write the authority into the MutatingWebhookConfiguration and the
    /// ValidatingWebhookConfiguration with this name
    #[arg(
        long,
        env = "PODPLANE_WEBHOOK_CONFIGURATION",
        value_name = "NAME",
        default_value = "podplane-webhook"
    )]
    pub webhook_configuration: String,
}

/// The namespace and name of a Secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretName(pub(super) ObjectKey);

/// The text is not the namespace and name of a Secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid name of a Secret {0:?}: want NAMESPACE/NAME")]
pub struct SecretNameError(String);

impl FromStr for SecretName {
    type Err = SecretNameError;

    fn from_str(text: &str) -> Result<Self, SecretNameError> {
        let refused = || SecretNameError(text.to_owned());
        let (namespace, name) = text.split_once('/').ok_or_else(refused)?;
        let is_valid =
            names::dns1123_label(namespace).is_empty() && names::dns1123_subdomain(name).is_empty();
        match is_valid {
            true => Ok(Self(ObjectKey::new(namespace, name))),
            false => Err(refused()),
        }
    }
}
