//! The file that tells kubectl, and every other client of Kubernetes, where the API server is.

use std::{io::Write as _, path::Path};

use anyhow::Context as _;
use podplane_client::Endpoint;
use serde_json::{Value, json};

use super::data_dir::DataDir;
use crate::output::yaml_text;

/// The name of the context in it: `podplane`, unless the data directory is called otherwise.
pub(crate) fn context(data_dir: &Path) -> String {
    let name = data_dir.file_name().map(|name| name.to_string_lossy());
    match name.as_deref() {
        None | Some("podplane") => "podplane".to_owned(),
        Some(other) => format!("podplane-{other}"),
    }
}

/// A kubeconfig with one cluster, and nobody in particular as its user: the server asks nobody who they are.
pub(crate) fn document(name: &str, server: &Endpoint) -> anyhow::Result<Value> {
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

/// Writes it into the data directory, for its owner alone. There is none for a server on a unix socket.
pub(super) fn write(dir: &DataDir, server: &str) -> anyhow::Result<()> {
    let path = dir.kubeconfig();
    let name_it = || format!("write {}", path.display());
    let Ok(document) = document(&context(dir.path()), &server.parse()?) else {
        return dir.remove_kubeconfig();
    };
    // A temporary file is its owner's alone from the start.
    let mut file = tempfile::NamedTempFile::new_in(dir.path()).with_context(name_it)?;
    file.write_all(yaml_text(&document)?.as_bytes())
        .with_context(name_it)?;
    file.persist(&path).with_context(name_it)?;
    Ok(())
}

/// The line that makes a shell's kubectl use it; none if there is none.
pub(crate) fn export(dir: &DataDir) -> Option<String> {
    let path = dir.kubeconfig();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+".contains(c);
    let text = path.to_string_lossy();
    let quoted = if text.chars().all(plain) {
        text.into_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    };
    path.exists().then(|| format!("export KUBECONFIG={quoted}"))
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _};

    use super::*;

    #[test]
    fn contexts_are_called_after_the_data_directory() {
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
    fn it_is_for_its_owner_alone_and_gone_with_its_server() {
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
