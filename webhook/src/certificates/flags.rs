//! The flags of the webhooks' own certificate.

use std::path::PathBuf;

use podplane_pki::ServerName;

use crate::object_name::ObjectName;

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
    pub certificate_secret: Option<ObjectName>,

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
