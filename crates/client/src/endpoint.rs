//! The address of a server with the credentials for it, and the one place where a channel to it
//! is built.

use std::{fmt, path::PathBuf, str::FromStr, sync::Arc};

use podplane_pki::PkiError;
use tonic::transport::Uri;

use crate::{
    channel::Channel,
    credentials::{CredentialFlags, Credentials},
};

/// The address of a gRPC server: `HOST:PORT`, `http://HOST:PORT`, `https://HOST:PORT`, `unix:PATH`,
/// the absolute path of a unix socket, or `file:PATH`. The file holds an address of another form
/// once there is a server. Of several servers of one cluster, `HOST:PORT,HOST:PORT`, or the same
/// with schemes, the next is used when one cannot be reached.
#[derive(Clone)]
pub struct Endpoint {
    pub(crate) target: EndpointTarget,
    pub(crate) credentials: Option<Arc<Credentials>>,
}

/// Endpoints are equal if the address is, and the credentials were read at once.
impl PartialEq for Endpoint {
    fn eq(&self, other: &Self) -> bool {
        let credentials = |endpoint: &Self| endpoint.credentials.as_ref().map(Arc::as_ptr);
        self.target == other.target && credentials(self) == credentials(other)
    }
}

impl Eq for Endpoint {}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum EndpointTarget {
    Uris(Uris),
    Unix(PathBuf),
    File(PathBuf),
}

/// The addresses of one or more servers of a cluster, all with TLS or all without.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Uris {
    pub(crate) first: Uri,
    pub(crate) others: Vec<Uri>,
}

impl Uris {
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Uri> + Clone {
        std::iter::once(&self.first).chain(&self.others)
    }

    fn parse(text: &str) -> Option<Self> {
        let mut uris = text.split(',').map(uri);
        let first = uris.next()??;
        let others: Vec<Uri> = uris.collect::<Option<_>>()?;
        let alike = others.iter().all(|uri| uri.scheme() == first.scheme());
        alike.then_some(Self { first, others })
    }
}

fn uri(text: &str) -> Option<Uri> {
    let uri = if text.contains("://") {
        text.to_owned()
    } else {
        format!("http://{text}")
    };
    let uri: Uri = uri.parse().ok()?;
    let scheme_known = matches!(uri.scheme_str(), Some("http" | "https"));
    (scheme_known && uri.port().is_some() && matches!(uri.path(), "" | "/")).then_some(uri)
}

/// An invalid address or invalid credentials.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// The text is not an address.
    #[error(
        "invalid server address {0:?}: want HOST:PORT, http://HOST:PORT, https://HOST:PORT or unix:/path; of several servers HOST:PORT,HOST:PORT, all with TLS or all without"
    )]
    Address(String),
    /// A file of the credentials cannot be used.
    #[error("failed to use the credentials for the server")]
    Credentials(#[source] PkiError),
    /// A certificate without its key, or a key without its certificate.
    #[error("--client-certificate and --client-key need each other")]
    IncompleteKeyPair,
    /// Nothing tells whether the server is the right one. The field is the address or flag.
    #[error("{0} needs --certificate-authority, to know the server by its certificate")]
    MissingAuthority(String),
    /// Others on the network could read the token.
    #[error(
        "--token-file needs TLS, an address of this machine or a unix socket, and the server is {0}"
    )]
    TokenWithoutTls(String),
}

impl Endpoint {
    /// The same server, reached with these credentials. The certificate is used for `https://`
    /// alone.
    ///
    /// # Errors
    ///
    /// [`EndpointError`] with the path of a file that cannot be used.
    pub fn with_credentials(self, flags: &CredentialFlags) -> Result<Self, EndpointError> {
        Ok(Self {
            credentials: flags.read()?.map(Arc::new),
            ..self
        })
    }

    /// Returns true if the server is reached with TLS. Not known of the address in a file.
    pub fn has_tls(&self) -> bool {
        matches!(&self.target, EndpointTarget::Uris(uris) if uris.first.scheme_str() == Some("https"))
    }
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        let refused = || EndpointError::Address(text.into());
        let target = match text
            .strip_prefix("unix://")
            .or_else(|| text.strip_prefix("unix:"))
        {
            Some("") => return Err(refused()),
            Some(path) => EndpointTarget::Unix(path.into()),
            None if text.starts_with('/') => EndpointTarget::Unix(text.into()),
            None if let Some(path) = text.strip_prefix("file:") => match path {
                "" => return Err(refused()),
                path => EndpointTarget::File(path.into()),
            },
            None => EndpointTarget::Uris(Uris::parse(text).ok_or_else(refused)?),
        };
        Ok(Self {
            target,
            credentials: None,
        })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.target {
            EndpointTarget::Uris(uris) => {
                let shown = uris.iter().map(Uri::to_string);
                let shown: Vec<_> = shown
                    .map(|uri| uri.trim_end_matches('/').to_owned())
                    .collect();
                f.write_str(&shown.join(","))
            }
            EndpointTarget::Unix(path) => write!(f, "unix:{}", path.display()),
            EndpointTarget::File(path) => write!(f, "file:{}", path.display()),
        }
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Endpoint({self})")
    }
}

/// Builds a channel to the server. It connects at its first use and again whenever the connection
/// is lost. Cheap to clone.
///
/// # Errors
///
/// [`EndpointError`] if the credentials do not suffice for the address, or must not be sent to it.
/// An unreachable server is an error of each call, not of this function.
pub fn channel(endpoint: &Endpoint) -> Result<Channel, EndpointError> {
    Channel::of(endpoint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_parse_and_print() {
        for (text, want) in [
            ("127.0.0.1:7080", "http://127.0.0.1:7080"),
            ("http://localhost:1", "http://localhost:1"),
            ("https://[::1]:7080/", "https://[::1]:7080"),
            ("https://a:1,https://b:2", "https://a:1,https://b:2"),
            ("a:1,b:2", "http://a:1,http://b:2"),
            ("unix:/run/cri.sock", "unix:/run/cri.sock"),
            ("unix:///run/cri.sock", "unix:/run/cri.sock"),
            ("/run/cri.sock", "unix:/run/cri.sock"),
            ("file:/run/apiserver.address", "file:/run/apiserver.address"),
        ] {
            assert_eq!(text.parse::<Endpoint>().unwrap().to_string(), want);
        }
    }

    #[test]
    fn rejects_invalid_addresses() {
        for text in [
            "",
            "localhost",
            "ftp://a:1",
            "http://a:1/path",
            "unix:",
            "file:",
            "a b:1",
            "a:1,",
            "a:1,https://b:2",
            "a:1,unix:/b",
        ] {
            assert!(text.parse::<Endpoint>().is_err(), "{text}");
        }
    }

    #[test]
    fn credentials_suffice_for_the_address_and_stay_on_this_machine_without_tls() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("token");
        podplane_host::fs::write(&file, "s3cret\n").unwrap();
        let flags = CredentialFlags {
            token_file: Some(file.clone()),
            ..CredentialFlags::default()
        };
        let connect = |address: &str, flags: &CredentialFlags| {
            let endpoint = address.parse::<Endpoint>().unwrap();
            let endpoint = endpoint.with_credentials(flags)?;
            assert!(!format!("{endpoint:?}").contains("s3cret"));
            channel(&endpoint)
        };
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let _inside = runtime.enter();
        for near in [
            "127.0.0.1:1",
            "localhost:1",
            "[::1]:1",
            "unix:/a",
            "file:/a",
        ] {
            connect(near, &flags).unwrap();
        }
        let far = connect("10.0.0.1:1", &flags).unwrap_err();
        assert!(matches!(far, EndpointError::TokenWithoutTls(_)), "{far}");
        let unknown = connect("https://10.0.0.1:1", &flags).unwrap_err();
        assert!(
            matches!(unknown, EndpointError::MissingAuthority(_)),
            "{unknown}"
        );
        podplane_host::fs::write(&file, "s3cret s3cret").unwrap();
        let invalid = connect("127.0.0.1:1", &flags).unwrap_err();
        let EndpointError::Credentials(invalid) = invalid else {
            panic!("{invalid}");
        };
        let path = file.display();
        assert_eq!(
            invalid.to_string(),
            format!(
                "invalid {path}: it must have one bearer token, without spaces and of ASCII characters"
            )
        );
    }
}
