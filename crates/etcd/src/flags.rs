//! The members of a cluster and the credentials for them, as flags.

use std::{fmt, net::IpAddr, path::PathBuf, str::FromStr, sync::Arc};

use http::Uri;
use jiff::Timestamp;
use podplane_host::fs;
use podplane_pki::{PkiError, ReloadedFiles, certificate_end, tls};
use rustls::ClientConfig;

/// The members of etcd, and the credentials for them, by the names of kube-apiserver's flags.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub struct EtcdFlags {
    /// Use the etcd cluster with these members, each https://HOST:PORT, or http://HOST:PORT on this
    /// machine alone; needed with --store etcd
    #[arg(
        long,
        env = "PODPLANE_ETCD_ENDPOINTS",
        value_name = "URL[,URL…]",
        value_delimiter = ','
    )]
    pub etcd_endpoints: Vec<EtcdEndpoint>,

    /// Trust the certificate authorities in this file (PEM) for the certificates of etcd's members
    #[arg(long, env = "PODPLANE_ETCD_CAFILE", value_name = "FILE")]
    pub etcd_cafile: Option<PathBuf>,

    /// Show etcd the client certificate in this file (PEM)
    #[arg(
        long,
        env = "PODPLANE_ETCD_CERTFILE",
        value_name = "FILE",
        requires = "etcd_keyfile"
    )]
    pub etcd_certfile: Option<PathBuf>,

    /// Use the private key in this file (PEM) with --etcd-certfile
    #[arg(
        long,
        env = "PODPLANE_ETCD_KEYFILE",
        value_name = "FILE",
        requires = "etcd_certfile"
    )]
    pub etcd_keyfile: Option<PathBuf>,

    /// Keep all keys under this one, so that several clusters can share an etcd
    #[arg(
        long,
        env = "PODPLANE_ETCD_PREFIX",
        value_name = "KEY",
        default_value = "/podplane",
        value_parser = prefix
    )]
    pub etcd_prefix: String,
}

/// The address of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdEndpoint(Uri);

/// An error in the flags.
#[derive(Debug, thiserror::Error)]
pub enum EtcdConfigError {
    /// `--etcd-endpoints` is missing.
    #[error("--store etcd needs --etcd-endpoints")]
    NoEndpoints,
    /// A file for TLS cannot be used.
    #[error(transparent)]
    Credentials(#[from] PkiError),
    /// TLS without an authority.
    #[error("{0} needs --etcd-cafile: no certificate is trusted without it")]
    NoAuthority(EtcdEndpoint),
}

/// What connections with TLS are made with, read again when its files change.
pub(crate) type EtcdTls = ReloadedFiles<EtcdCredentials>;

/// The configuration of TLS, and the own certificate in it.
pub(crate) struct EtcdCredentials {
    pub(crate) config: Arc<ClientConfig>,
    pub(crate) certificate: Option<OwnCertificate>,
}

/// The certificate that etcd is shown.
pub(crate) struct OwnCertificate {
    pub(crate) file: PathBuf,
    /// `None` if it cannot be told.
    pub(crate) not_after: Option<Timestamp>,
}

impl EtcdFlags {
    /// Reads the files for TLS. `None` if all members are on this machine without TLS.
    pub(crate) fn tls(&self) -> Result<Option<EtcdTls>, EtcdConfigError> {
        if self.etcd_endpoints.is_empty() {
            return Err(EtcdConfigError::NoEndpoints);
        }
        let Some(authority) = self.etcd_cafile.clone() else {
            let secure = self.etcd_endpoints.iter().find(|member| member.is_secure());
            return match secure {
                None => Ok(None),
                Some(member) => Err(EtcdConfigError::NoAuthority(member.clone())),
            };
        };
        let pair = self.etcd_certfile.clone().zip(self.etcd_keyfile.clone());
        let of_pair = pair
            .iter()
            .flat_map(|(certificate, key)| [certificate, key]);
        let files = std::iter::once(&authority)
            .chain(of_pair)
            .cloned()
            .collect();
        let read = move || {
            // Reports files that cannot be read.
            let config = tls::http2_client(&authority, pair.as_ref())?;
            let certificate = pair.as_ref().map(|(file, _key)| OwnCertificate {
                file: file.clone(),
                not_after: fs::read(file).ok().and_then(|pem| certificate_end(&pem)),
            });
            Ok(EtcdCredentials {
                config,
                certificate,
            })
        };
        Ok(Some(ReloadedFiles::open(files, read)?))
    }
}

fn prefix(text: &str) -> Result<String, String> {
    let prefix = text.trim_end_matches('/');
    match prefix.starts_with('/') {
        true => Ok(prefix.to_owned()),
        false => Err("want a key that begins with / and has more than that".to_owned()),
    }
}

impl EtcdEndpoint {
    pub(crate) fn uri(&self) -> &Uri {
        &self.0
    }

    pub(crate) fn is_secure(&self) -> bool {
        self.0.scheme_str() == Some("https")
    }

    /// The host, an IPv6 address without brackets.
    pub(crate) fn host(&self) -> &str {
        let host = self.0.host().unwrap_or_default();
        host.trim_start_matches('[').trim_end_matches(']')
    }

    pub(crate) fn port(&self) -> u16 {
        self.0.port_u16().unwrap_or(2379)
    }
}

impl fmt::Display for EtcdEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.to_string().trim_end_matches('/'))
    }
}

impl FromStr for EtcdEndpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let uri: Uri = text
            .parse()
            .map_err(|error| format!("is not a URL: {error}"))?;
        let has_path = uri
            .path_and_query()
            .is_some_and(|path| path.as_str() != "/");
        let has_user = uri.authority().is_some_and(|it| it.as_str().contains('@'));
        let endpoint = Self(uri);
        if endpoint.host().is_empty() || has_path || has_user {
            return Err("want https://HOST:PORT".to_owned());
        }
        match endpoint.0.scheme_str() {
            Some("https") => Ok(endpoint),
            Some("http") if is_this_machine(endpoint.host()) => Ok(endpoint),
            Some("http") => Err(
                "is on another machine: secrets would cross the network in the clear; use https://"
                    .to_owned(),
            ),
            _ => Err("want https://HOST:PORT".to_owned()),
        }
    }
}

fn is_this_machine(host: &str) -> bool {
    let address = host.parse::<IpAddr>();
    address.map_or(host.eq_ignore_ascii_case("localhost"), |address| {
        address.is_loopback()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plaintext_is_for_this_machine_alone() {
        for good in [
            "http://127.0.0.1:2379",
            "http://[::1]:2379",
            "http://localhost:2379",
            "https://10.0.0.1:2379",
            "https://etcd-0.etcd:2379/",
        ] {
            let parsed: EtcdEndpoint = good
                .parse()
                .unwrap_or_else(|error| panic!("{good}: {error}"));
            assert_eq!(parsed.to_string(), good.trim_end_matches('/'));
        }
        let refused: Result<EtcdEndpoint, _> = "http://10.0.0.1:2379".parse();
        let error = refused.expect_err("another machine");
        assert!(error.contains("in the clear"), "{error}");
        for bad in [
            "",
            "10.0.0.1:2379",
            "https://",
            "ftp://a",
            "https://a/b",
            "https://u:p@a",
        ] {
            bad.parse::<EtcdEndpoint>().expect_err(bad);
        }
    }

    #[test]
    fn a_prefix_is_a_path() {
        assert_eq!(prefix("/a/b/"), Ok("/a/b".to_owned()));
        for bad in ["", "/", "a"] {
            prefix(bad).expect_err(bad);
        }
    }
}
