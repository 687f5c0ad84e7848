//! `cargo xtask up`: a cluster to look at.

use std::{ffi::OsString, process::Command};

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::{
    build::{self, Profile, release_dir, run},
    parts::Parts,
};

/// Builds and starts a cluster, and shows nodes, pods, and one ping between nodes. `flags` are
/// those of `podplane up`.
pub(crate) fn up(flags: &[OsString]) -> Result<()> {
    let mut parts = Parts::of("up", build::PARTS + 1);
    build::programs(Profile::Release, &mut parts)?;
    let cluster = ClusterLauncher::new(flags);
    parts.time("start", || {
        run(cluster.podplane().arg("up").args(&cluster.flags))
    })?;
    run(cluster.podplane().args(["get", "nodes", "-o", "wide"]))?;
    run(cluster.podplane().args(["get", "pods", "-o", "wide"]))?;
    cluster.ping(&parts)?;
    parts.summary();
    Ok(())
}

/// The cluster to start.
#[derive(Debug)]
struct ClusterLauncher {
    /// The flags of `up`, with defaults.
    flags: Vec<OsString>,
    data_dir: Option<OsString>,
}

impl ClusterLauncher {
    fn new(given: &[OsString]) -> Self {
        let mut flags = given.to_vec();
        if value_of(given, &["--nodes"]).is_none() {
            flags.extend(["--nodes".into(), "3".into()]);
        }
        if value_of(given, &["--filename", "-f"]).is_none() {
            let sample = build::root().join("deploy/sample.yaml");
            flags.extend(["--filename".into(), sample.into()]);
        }
        if !given.iter().any(|flag| flag == "--wait") {
            flags.push("--wait".into());
        }
        Self {
            flags,
            data_dir: value_of(given, &["--data-dir"]),
        }
    }

    /// The `podplane` program, for this cluster and not for another one that the environment names.
    fn podplane(&self) -> Command {
        let mut podplane = Command::new(release_dir().join("podplane"));
        podplane.env_remove("PODPLANE_SERVER");
        if let Some(dir) = &self.data_dir {
            podplane.env("PODPLANE_DATA_DIR", dir);
        }
        podplane
    }

    /// Pings once between pods on different nodes, if such pods exist and have interfaces.
    fn ping(&self, parts: &Parts) -> Result<()> {
        let status = self.json_output(&["status", "-o", "json"])?;
        let pods = self.json_output(&["get", "pods", "-o", "json"])?;
        match pair(&status, &pods) {
            Ok([from, to]) => run(self
                .podplane()
                .args(["ping", from, to, "--count", "1", "--verify"])),
            Err(why) => {
                parts.note(&format!("no ping: {why}"));
                Ok(())
            }
        }
    }

    fn json_output(&self, args: &[&str]) -> Result<Value> {
        let output = self.podplane().args(args).output();
        let output =
            output.with_context(|| format!("failed to run podplane {}", args.join(" ")))?;
        serde_json::from_slice(&output.stdout)
            .with_context(|| format!("failed to read the output of podplane {}", args.join(" ")))
    }
}

/// Two pods on different nodes that can reach each other, or the reason why there are none.
fn pair<'a>(status: &Value, pods: &'a Value) -> Result<[&'a str; 2], &'static str> {
    const NONE: &str = "no two pods with addresses are on different nodes";
    if status["network"]["mode"] == "ledger" {
        return Err("pods of a cluster in ledger mode have addresses, but no interfaces");
    }
    let pods = pods["items"].as_array().ok_or(NONE)?;
    let mut placed = pods.iter().filter_map(|pod| {
        let own_address = pod["spec"]["hostNetwork"] != Value::Bool(true);
        own_address.then_some((
            pod["metadata"]["name"].as_str()?,
            pod["spec"]["nodeName"].as_str()?,
        ))
    });
    let (from, node) = placed.next().ok_or(NONE)?;
    let (to, _) = placed.find(|(_, other)| *other != node).ok_or(NONE)?;
    Ok([from, to])
}

/// The last value of a flag with one of these names, in any form that clap accepts: `--name VALUE`,
/// `--name=VALUE`, `-n VALUE`, `-nVALUE`.
fn value_of(flags: &[OsString], names: &[&str]) -> Option<OsString> {
    let mut found = None;
    for (index, flag) in flags.iter().enumerate() {
        for name in names {
            if flag == name {
                found = flags.get(index + 1).cloned();
            } else if let Some(rest) = flag.to_str().and_then(|flag| flag.strip_prefix(name)) {
                match rest.strip_prefix('=') {
                    Some(value) => found = Some(value.into()),
                    None if !name.starts_with("--") => found = Some(rest.into()),
                    None => {}
                }
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn cluster(flags: &str) -> ClusterLauncher {
        let flags: Vec<OsString> = flags.split_whitespace().map(Into::into).collect();
        ClusterLauncher::new(&flags)
    }

    fn shown(cluster: &ClusterLauncher) -> String {
        let flags: Vec<_> = cluster
            .flags
            .iter()
            .map(|flag| flag.to_string_lossy())
            .collect();
        flags.join(" ")
    }

    #[test]
    fn given_flags_replace_defaults() {
        let root = build::root();
        let sample = format!("--filename {}", root.join("deploy/sample.yaml").display());
        assert_eq!(
            shown(&cluster("")),
            format!("--nodes 3 {sample} --wait"),
            "all defaults"
        );
        for given in ["--nodes 5 --network ledger", "--nodes=5"] {
            assert_eq!(shown(&cluster(given)), format!("{given} {sample} --wait"));
        }
        for given in ["-f a.yaml", "-fa.yaml", "--filename=a.yaml"] {
            assert_eq!(
                shown(&cluster(&format!("{given} --wait"))),
                format!("{given} --wait --nodes 3")
            );
        }
    }

    #[test]
    fn pings_between_nodes_where_pods_have_interfaces() {
        let pod = |name: &str, node: &str, own: bool| json!({"metadata": {"name": name}, "spec": {"nodeName": node, "hostNetwork": !own}});
        let mode = |mode: &str| json!({"network": {"mode": mode}});
        let pods = json!({"items": [pod("h", "x", false), pod("a", "x", true), pod("b", "x", true), pod("c", "y", true)]});
        assert_eq!(pair(&mode("kernel"), &pods), Ok(["a", "c"]));
        assert!(pair(&mode("ledger"), &pods).is_err());
        assert!(pair(&mode("kernel"), &json!({"items": [pod("a", "x", true)]})).is_err());
    }

    #[test]
    fn finds_the_data_directory_in_both_forms() {
        for given in ["--data-dir /tmp/a", "--nodes 1 --data-dir=/tmp/a --wait"] {
            assert_eq!(cluster(given).data_dir, Some("/tmp/a".into()), "{given}");
        }
        assert_eq!(cluster("--nodes 1").data_dir, None);
    }
}
