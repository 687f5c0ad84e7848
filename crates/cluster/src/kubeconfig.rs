//! The kubeconfig by which kubectl and other clients of Kubernetes find the API server.

use std::{
    io::Write as _,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use base64::prelude::{BASE64_STANDARD, Engine as _};
use podplane_client::{CredentialFlags, Endpoint};
use podplane_host::fs;
use serde_json::{Value, json};

use crate::data_dir::DataDir;

/// The name of its context: `podplane`, or with the name of another data directory.
pub fn context(data_dir: &Path) -> String {
    let name = data_dir.file_name().map(|name| name.to_string_lossy());
    match name.as_deref() {
        None | Some("podplane") => "podplane".to_owned(),
        Some(other) => format!("podplane-{other}"),
    }
}

/// A kubeconfig with one cluster, and a user with these credentials. It holds the content of their
/// files, so that it can be copied elsewhere; the token is the exception, since it is reread.
pub fn document(
    name: &str,
    server: &Endpoint,
    credentials: &CredentialFlags,
) -> anyhow::Result<Value> {
    let has_tls = server.has_tls();
    let server = server.to_string();
    anyhow::ensure!(
        !server.starts_with("unix:"),
        "the API server listens on {server}, and kubectl cannot use a unix socket: start it with --listen HOST:PORT"
    );
    let CredentialFlags {
        certificate_authority,
        client_certificate,
        client_key,
        tls_server_name,
        token_file,
    } = credentials;
    let mut cluster = json!({"server": server});
    let mut user = json!({});
    if has_tls {
        let data = |file: &Option<PathBuf>, label| content(file.as_deref(), label);
        cluster["certificate-authority-data"] = data(certificate_authority, "CERTIFICATE")?;
        user["client-certificate-data"] = data(client_certificate, "CERTIFICATE")?;
        user["client-key-data"] = data(client_key, "PRIVATE KEY")?;
        cluster["tls-server-name"] = tls_server_name.as_ref().map(|name| name.to_str()).into();
    }
    user["tokenFile"] = match token_file {
        Some(file) => std::path::absolute(file)?.to_string_lossy().into(),
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
fn content(file: Option<&Path>, label: &str) -> anyhow::Result<Value> {
    let Some(file) = file else {
        return Ok(Value::Null);
    };
    let text =
        fs::read_to_string(file).with_context(|| format!("failed to read {}", file.display()))?;
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
    anyhow::ensure!(
        !sections.is_empty(),
        "{} has no {label} in PEM",
        file.display()
    );
    Ok(BASE64_STANDARD.encode(sections).into())
}

/// YAML that a YAML 1.1 parser, such as kubectl's, reads back as the same value.
pub fn yaml_text(value: &Value) -> anyhow::Result<String> {
    let options = serde_saphyr::ser_options! { prefer_block_scalars: false };
    let mut text =
        serde_saphyr::to_string_with_options(value, options).context("failed to write YAML")?;
    if !text.ends_with('\n') {
        text.push('\n');
    }
    Ok(text)
}

/// Writes it into the data directory, readable only by its owner. There is none for a server on a
/// unix socket.
pub(crate) fn write(dir: &DataDir, server: &str) -> anyhow::Result<()> {
    let path = dir.kubeconfig();
    let name_it = || format!("write {}", path.display());
    let Ok(document) = document(
        &context(dir.path()),
        &server.parse()?,
        &CredentialFlags::default(),
    ) else {
        return dir.remove_kubeconfig();
    };
    // A temporary file is private from the start.
    let mut file = tempfile::NamedTempFile::new_in(dir.path()).with_context(name_it)?;
    file.write_all(yaml_text(&document)?.as_bytes())
        .with_context(name_it)?;
    file.persist(&path).with_context(name_it)?;
    Ok(())
}

/// The line by which a shell's kubectl uses it; `None` if there is no kubeconfig.
pub fn export(dir: &DataDir) -> Option<String> {
    let path = dir.kubeconfig();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+".contains(c);
    let text = path.to_string_lossy();
    let quoted = if text.chars().all(plain) {
        text.into_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    };
    fs::exists(&path).then(|| format!("export KUBECONFIG={quoted}"))
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _};

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
    fn kubeconfig_is_private_and_removed_without_a_tcp_server() {
        let temporary = tempfile::tempdir().unwrap();
        let dir = DataDir::new(&temporary.path().join("it's here")).unwrap();
        dir.prepare().unwrap();
        write(&dir, "127.0.0.1:7080").unwrap();
        let mode = fs::metadata(dir.kubeconfig()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let text = fs::read_to_string(dir.kubeconfig()).unwrap();
        assert!(text.contains("server: http://127.0.0.1:7080\n"), "{text}");
        let line = export(&dir).unwrap();
        assert!(line.ends_with(r"/it'\''s here/kubeconfig'"), "{line}");

        write(&dir, "unix:/run/a.sock").unwrap();
        assert_eq!(export(&dir), None);
    }
}
