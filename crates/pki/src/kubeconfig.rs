//! The kubeconfig by which kubectl and other clients of Kubernetes find an API server.

use std::path::{Path, PathBuf};

use base64::prelude::{BASE64_STANDARD, Engine as _};
use podplane_host::fs;
use serde_json::{Value, json};

use crate::{
    PkiError,
    dir::io,
    owner::{APISERVER_NAME, CertificateOwner},
};

/// The files by which a client and its server know each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessFiles {
    /// The authorities of the server, in PEM.
    pub certificate_authority: Option<PathBuf>,
    /// The client's certificate, in PEM.
    pub client_certificate: Option<PathBuf>,
    /// Its key, in PEM; it may be in the same file.
    pub client_key: Option<PathBuf>,
    /// The name in the server's certificate, if it is not the host of the address.
    pub tls_server_name: Option<String>,
    /// A bearer token.
    pub token_file: Option<PathBuf>,
}

impl AccessFiles {
    /// The files of the administrator in a directory of certificates, and the name by which
    /// clients of this machine know the API server.
    pub fn of_administrator(pki: &Path) -> Self {
        let pair = pki.join(format!("{}.pem", CertificateOwner::Admin));
        Self {
            certificate_authority: Some(pki.join("ca.crt")),
            client_certificate: Some(pair.clone()),
            client_key: Some(pair),
            tls_server_name: Some(APISERVER_NAME.to_owned()),
            token_file: None,
        }
    }
}

/// The name of the context of a data directory: `podplane`, or with the name of another directory.
pub fn context(data_dir: &Path) -> String {
    let name = data_dir.file_name().map(|name| name.to_string_lossy());
    match name.as_deref() {
        None | Some("podplane") => "podplane".to_owned(),
        Some(other) => format!("podplane-{other}"),
    }
}

/// A kubeconfig with one cluster at the URL `server`, and a user with these files. It holds their
/// content, so that it can be copied elsewhere; the token is the exception, since it is reread. The
/// certificates are left out of one for a server without TLS.
///
/// # Errors
///
/// [`PkiError`] if a file cannot be read, or has no certificate or key.
pub fn document(name: &str, server: &str, files: &AccessFiles) -> Result<Value, PkiError> {
    let AccessFiles {
        certificate_authority,
        client_certificate,
        client_key,
        tls_server_name,
        token_file,
    } = files;
    let mut cluster = json!({"server": server});
    let mut user = json!({});
    if server.starts_with("https://") {
        let data = |file: &Option<PathBuf>, label| content(file.as_deref(), label);
        cluster["certificate-authority-data"] = data(certificate_authority, "CERTIFICATE")?;
        user["client-certificate-data"] = data(client_certificate, "CERTIFICATE")?;
        user["client-key-data"] = data(client_key, "PRIVATE KEY")?;
        cluster["tls-server-name"] = tls_server_name.clone().into();
    }
    user["tokenFile"] = match token_file {
        Some(file) => {
            let path = std::path::absolute(file).map_err(io("find", file))?;
            path.to_string_lossy().into()
        }
        None => Value::Null,
    };
    for part in [&mut cluster, &mut user] {
        let part = part.as_object_mut().expect("they are objects");
        part.retain(|_, value| !value.is_null());
    }
    Ok(json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": cluster}],
        "contexts": [{"name": name, "context": {"cluster": name, "namespace": "default", "user": name}}],
        "current-context": name,
        "preferences": {},
        "users": [{"name": name, "user": user}],
    }))
}

/// The sections of a PEM file whose label ends with `label`, in base64 as a kubeconfig has them. A
/// file of ours has a key and its certificate, and each belongs to one field.
fn content(file: Option<&Path>, label: &str) -> Result<Value, PkiError> {
    let Some(file) = file else {
        return Ok(Value::Null);
    };
    let text = fs::read_to_string(file).map_err(io("read", file))?;
    let mut sections = String::new();
    let mut is_inside = false;
    for line in text.lines() {
        is_inside |= line.starts_with("-----BEGIN ") && line.ends_with(&format!("{label}-----"));
        if is_inside {
            sections.push_str(line);
            sections.push('\n');
        }
        is_inside &= !line.starts_with("-----END ");
    }
    match sections.is_empty() {
        true => Err(PkiError::Invalid {
            what: file.display().to_string(),
            why: format!("it has no {label} in PEM"),
        }),
        false => Ok(BASE64_STANDARD.encode(sections).into()),
    }
}

/// YAML that a YAML 1.1 parser, such as kubectl's, reads back as the same value.
///
/// # Errors
///
/// The value has no form in YAML, such as a map as a key.
pub fn yaml_text(value: &Value) -> Result<String, PkiError> {
    let options = serde_saphyr::ser_options! { prefer_block_scalars: false };
    let written = serde_saphyr::to_string_with_options(value, options);
    let mut text = written.map_err(|error| PkiError::Invalid {
        what: "value for YAML".to_owned(),
        why: error.to_string(),
    })?;
    if !text.ends_with('\n') {
        text.push('\n');
    }
    Ok(text)
}

/// Writes a kubeconfig that only its owner may read, in one step.
///
/// # Errors
///
/// [`PkiError`] if the file cannot be written.
pub fn write(path: &Path, document: &Value) -> Result<(), PkiError> {
    crate::dir::replace(path, &yaml_text(document)?, 0o600)
}

/// Removes a kubeconfig, if there is one.
///
/// # Errors
///
/// [`PkiError`] if the file cannot be removed.
pub fn remove(path: &Path) -> Result<(), PkiError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(io("remove", path)(error))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn context_is_named_after_the_data_directory() {
        for (dir, want) in [
            ("/var/lib/podplane", "podplane"),
            ("/home/a/.local/state/podplane", "podplane"),
            ("/tmp/b", "podplane-b"),
            ("/", "podplane"),
        ] {
            assert_eq!(context(Path::new(dir)), want, "{dir}");
        }
    }

    #[test]
    fn is_private_and_has_certificates_only_with_tls() {
        let temporary = tempfile::tempdir().unwrap();
        let file = temporary.path().join("admin.pem");
        let pem = "-----BEGIN PRIVATE KEY-----\nAA==\n-----END PRIVATE KEY-----\n-----BEGIN CERTIFICATE-----\nBB==\n-----END CERTIFICATE-----\n";
        fs::write(&file, pem).unwrap();
        let files = AccessFiles {
            client_certificate: Some(file.clone()),
            client_key: Some(file.clone()),
            ..AccessFiles::default()
        };
        let plain = document("a", "http://127.0.0.1:1", &files).unwrap();
        assert_eq!(plain["users"][0]["user"], json!({}));
        let secure = document("a", "https://127.0.0.1:1", &files).unwrap();
        let key = BASE64_STANDARD.encode(&pem[..pem.find("-----BEGIN C").unwrap()]);
        assert_eq!(secure["users"][0]["user"]["client-key-data"], key);
        let path = temporary.path().join("kubeconfig");
        write(&path, &secure).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        fs::write(&file, "nothing").unwrap();
        let error = document("a", "https://127.0.0.1:1", &files).unwrap_err();
        assert!(error.to_string().contains("has no CERTIFICATE"), "{error}");
    }
}
