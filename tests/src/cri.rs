//! One CRI server alone, without a cluster around it.

use std::{
    fs,
    path::Path,
    process::{Child, Stdio},
};

use anyhow::Result;

use crate::programs::{bin_dir, podplane};

/// A CRI server, which is no client; killed when it is dropped.
#[derive(Debug)]
pub struct Cri(Child);

impl Cri {
    /// Starts `podplane cri` in ledger mode for a node whose directory is `dir/nodes/NODE`.
    ///
    /// # Errors
    ///
    /// If it cannot be started.
    pub fn start(node: &str, dir: &Path, flags: &[&str]) -> Result<Self> {
        let nodes_dir = dir.join("nodes");
        fs::create_dir_all(nodes_dir.join(node))?;
        let mut cri = podplane(["cri", "--node", node, "--network", "ledger"]);
        cri.arg("--nodes-dir").arg(&nodes_dir).args(flags);
        cri.arg("--cni-bin-dir").arg(bin_dir().canonicalize()?);
        cri.arg("--netns-dir").arg(dir.join("netns"));
        let log = fs::File::create(dir.join(format!("cri-{node}.log")))?;
        Ok(Self(cri.stdout(Stdio::null()).stderr(log).spawn()?))
    }
}

impl Drop for Cri {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
