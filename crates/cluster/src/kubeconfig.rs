//! The line by which a shell's kubectl finds the cluster's API server.

use podplane_host::fs;

use crate::data_dir::DataDir;

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
    use std::fs;

    use super::*;

    #[test]
    fn export_quotes_the_path_of_an_existing_file() {
        let temporary = tempfile::tempdir().unwrap();
        let dir = DataDir::new(&temporary.path().join("it's here")).unwrap();
        dir.prepare().unwrap();
        assert_eq!(export(&dir), None);
        fs::write(dir.kubeconfig(), "").unwrap();
        let line = export(&dir).unwrap();
        assert!(line.ends_with(r"/it'\''s here/kubeconfig'"), "{line}");
    }
}
