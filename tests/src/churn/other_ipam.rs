//! An IPAM plugin that is unknown to podplane.

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Result;
use podplane_test_cluster::world::node_dirs;
use tokio::time::sleep;

use crate::programs::bin_dir;

/// The directory of its leases in a node's directory.
pub(super) const LEASES: &str = "file-ipam";
const CONFIGURATION: &str = "05-file.conflist";

/// A directory of plugins, with this plugin among them.
#[derive(Debug)]
pub(super) struct OtherIpam(tempfile::TempDir);

impl OtherIpam {
    pub(super) fn new() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        for plugin in ["bridge", "loopback", "host-local"] {
            let real = bin_dir().canonicalize()?.join(plugin);
            symlink(real, dir.path().join(plugin))?;
        }
        let program = dir.path().join("file-ipam");
        fs::write(&program, include_str!("file-ipam.sh"))?;
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
        Ok(Self(dir))
    }

    pub(super) fn bin_dir(&self) -> &Path {
        self.0.path()
    }
}

/// Writes the configuration of each new node, as a network's DaemonSet does. Its ranges are not the
/// blocks of nodes, and stay a node's for ever. It has a bridge of its own: pods from before the
/// configuration are on the bridge of the default network, whose address differs.
pub(super) async fn install(data_dir: PathBuf) {
    loop {
        for (node, dir) in node_dirs(&data_dir).unwrap_or_default() {
            let file = dir.join("net.d").join(CONFIGURATION);
            if !file.exists() && file.parent().is_some_and(Path::exists) {
                // A node that is just being removed gets it later, or never.
                _ = write(&file, &configuration(&node, &dir));
            }
        }
        sleep(Duration::from_millis(100)).await;
    }
}

fn write(file: &Path, text: &str) -> std::io::Result<()> {
    let new = file.with_extension("new");
    fs::write(&new, text)?;
    fs::rename(new, file)
}

fn configuration(node: &str, dir: &Path) -> String {
    // node-0, node-1, …, and nodes of other names.
    let place = node
        .rsplit_once('-')
        .and_then(|(_, number)| number.parse().ok());
    let place: u8 = place.unwrap_or(200);
    let leases = dir.join(LEASES).join("file-net");
    serde_json::json!({
        "cniVersion": "1.0.0",
        "name": "file-net",
        "plugins": [{
            "type": "bridge",
            "bridge": "file0",
            "isGateway": true,
            "ipam": {
                "type": "file-ipam",
                "first": format!("10.77.{place}"),
                "leases": leases,
            },
        }],
    })
    .to_string()
}
