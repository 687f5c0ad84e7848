//! The kubeconfig by which kubectl and other clients of Kubernetes find the API server.

use std::{io::Write as _, path::Path};

use anyhow::Context as _;
use podplane_client::Endpoint;
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

/// A kubeconfig with one cluster and a user without credentials: the server does not authenticate.
pub fn document(name: &str, server: &Endpoint) -> anyhow::Result<Value> {
    let server = server.to_string();
    anyhow::ensure!(
        !server.starts_with("unix:"),
        "the API server listens on {server}, and kubectl cannot use a unix socket: start it with --listen HOST:PORT"
    );
    Ok(json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": {"server": server}}],
        "contexts": [{"name": name, "context": {"cluster": name, "namespace": "default", "user": name}}],
        "current-context": name,
        "preferences": {},
        "users": [{"name": name, "user": {}}],
    }))
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
    let Ok(document) = document(&context(dir.path()), &server.parse()?) else {
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
