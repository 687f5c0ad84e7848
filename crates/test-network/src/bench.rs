//! A runtime with plugins that are shell scripts, which record their calls.

use std::{fs, os::unix::fs::PermissionsExt as _, time::Duration};

use podplane_cni::{Attachment, Runtime};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::list;

/// A directory of plugins and a runtime for them.
#[derive(Debug)]
pub struct Bench {
    /// The directory.
    pub dir: TempDir,
    /// The runtime.
    pub runtime: Runtime,
}

impl Default for Bench {
    fn default() -> Self {
        Self::new()
    }
}

impl Bench {
    /// A directory without plugins.
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let runtime = Runtime {
            bin_dirs: vec!["/no/such/dir".into(), dir.path().join("bin")],
            cache_dir: dir.path().join("cache"),
            spare: None,
            node_netns: None,
            timeout: Duration::from_secs(20),
        };
        fs::create_dir(dir.path().join("bin")).unwrap();
        Self { dir, runtime }
    }

    /// Adds a plugin that records `<name> <command>`, keeps its input, and then runs `body`.
    pub fn plugin(&self, name: &str, body: &str) {
        let dir = self.dir.path().display();
        let script = format!(
            "#!/bin/sh\necho \"{name} $CNI_COMMAND\" >> {dir}/calls\ncat > {dir}/{name}.$CNI_COMMAND.json\nenv > {dir}/{name}.env\n{body}\n"
        );
        let path = self.dir.path().join("bin").join(name);
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// The notes since the last call.
    pub fn calls(&self) -> Vec<String> {
        let text = fs::read_to_string(self.dir.path().join("calls")).unwrap_or_default();
        _ = fs::remove_file(self.dir.path().join("calls"));
        text.lines().map(str::to_owned).collect()
    }

    /// The last input of a plugin and a command.
    pub fn input(&self, name: &str, command: &str) -> Value {
        let path = self.dir.path().join(format!("{name}.{command}.json"));
        serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
    }

    /// The number of cached results.
    pub fn cached(&self) -> usize {
        fs::read_dir(self.dir.path().join("cache/results")).map_or(0, Iterator::count)
    }
}

/// The body of a plugin that has an address for ADD.
pub const RESULT: &str = r#"if [ $CNI_COMMAND = ADD ]; then echo '{"cniVersion": "1.0.0", "ips": [{"address": "10.0.0.2/24"}]}'; fi"#;

/// A network of these plugins.
pub fn network(version: &str, types: &[&str]) -> podplane_cni::NetworkConfigList {
    let plugins: Vec<_> = types
        .iter()
        .map(|name| json!({"type": name, "capabilities": {"ips": true}}))
        .collect();
    list(&json!({"cniVersion": version, "name": "net", "plugins": plugins}))
}

/// The attachment `eth0` of the container `pod`.
pub fn pod() -> Attachment {
    Attachment::new("pod", Some("/netns/pod".into()), "eth0")
}
