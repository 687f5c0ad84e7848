//! TLS with certificates of files.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context as _, Result};
use rustls::{ClientConfig, RootCertStore, crypto::ring};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _};
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};

/// The TLS of a client: files in PEM, and the server's name.
#[derive(Clone, Debug, Default)]
pub struct ClientTls {
    /// The authorities of the server's certificate.
    pub authority: PathBuf,
    /// The client's certificate and its key, which may be in the same file; `None` for a client
    /// without a certificate.
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// The name in the server's certificate, if it is not the host of the address.
    pub server_name: Option<String>,
}

impl ClientTls {
    /// The authority `ca.crt` of a directory, and the client's certificate and key in its file
    /// `NAME.pem`.
    pub fn of_dir(dir: &Path, name: &str) -> Self {
        let pair = dir.join(format!("{name}.pem"));
        Self {
            authority: dir.join("ca.crt"),
            certificate: Some((pair.clone(), pair)),
            server_name: None,
        }
    }

    fn config(&self) -> Result<ClientConfig> {
        let mut roots = RootCertStore::empty();
        for authority in certificates(&self.authority)? {
            let added = roots.add(authority);
            added.with_context(|| format!("invalid authority in {}", self.authority.display()))?;
        }
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots);
        let mut config = match &self.certificate {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                // The parser's error could quote the key.
                let private = PrivateKeyDer::from_pem_slice(&read(key)?).ok();
                let private =
                    private.with_context(|| format!("{} has no key in PEM", key.display()))?;
                builder
                    .with_client_auth_cert(certificates(certificate)?, private)
                    .with_context(|| format!("invalid pair of {}", certificate.display()))?
            }
        };
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(config)
    }
}

/// The TLS of the connections to one server.
#[derive(Clone, Debug)]
pub(crate) struct Connector {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl Connector {
    /// Reads the files. `host` is the host of the server's address.
    pub(crate) fn new(tls: &ClientTls, host: &str) -> Result<Self> {
        let name = tls.server_name.as_deref().unwrap_or(host).to_owned();
        let name = ServerName::try_from(name.clone())
            .with_context(|| format!("invalid name of a server: {name:?}"))?;
        Ok(Self {
            config: Arc::new(tls.config()?),
            name,
        })
    }

    pub(crate) async fn connect(&self, address: &str) -> std::io::Result<TlsStream<TcpStream>> {
        let stream = TcpStream::connect(address).await?;
        let connector = TlsConnector::from(Arc::clone(&self.config));
        connector.connect(self.name.clone(), stream).await
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let certificates = CertificateDer::pem_slice_iter(&read(path)?).collect::<Result<Vec<_>, _>>();
    certificates.with_context(|| format!("invalid certificate in {}", path.display()))
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("failed to read {}", path.display()))
}
