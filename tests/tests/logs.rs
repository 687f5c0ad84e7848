//! The logs of a cluster: each change of state is logged once, as docs/logs.md lists it.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::{Context as _, Result};
use podplane_api::{coordination::Lease, core::Pod};
use podplane_client::DeleteParams;
use podplane_tests::{
    Cluster, Network, builder, eventually,
    plugins::Plugins,
    pods::{node, pod, running},
    programs::bin_dir,
};
use serde_json::{Map, Value};

const PAGE: &str = include_str!("../../docs/logs.md");

/// A row of the page's tables.
#[derive(Debug)]
struct LogTableRow {
    level: String,
    /// The last part of the target, which the page may write as `…::part`.
    target: String,
    message: String,
    fields: Vec<String>,
}

/// The rows of the page, one for each message.
fn rows() -> Vec<LogTableRow> {
    let quoted = |cell: &str| -> Vec<String> {
        cell.split('`')
            .skip(1)
            .step_by(2)
            .map(str::to_owned)
            .collect()
    };
    let mut rows = Vec::new();
    let mut target = String::new();
    for line in PAGE.lines() {
        if let Some((_, all)) = line.split_once("All targets are") {
            target = quoted(all).concat();
        }
        let cells: Vec<_> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        let [_, level @ ("ERROR" | "WARN" | "INFO" | "DEBUG"), rest @ ..] = &cells[..] else {
            continue;
        };
        let [of, messages, fields] = match rest {
            [of, messages, fields] => [quoted(of).concat(), (*messages).into(), (*fields).into()],
            [messages, fields] => [target.clone(), (*messages).into(), (*fields).into()],
            other => panic!("{} cells in {line}", other.len()),
        };
        rows.extend(quoted(&messages).into_iter().map(|message| {
            LogTableRow {
                level: (*level).into(),
                target: of.trim_start_matches('…').into(),
                message,
                fields: quoted(&fields)
                    .join(" ")
                    .split_whitespace()
                    .map(str::to_owned)
                    .collect(),
            }
        }));
    }
    rows
}

/// A line of a process's log.
#[derive(Debug)]
struct LogLine {
    process: String,
    level: String,
    target: String,
    message: String,
    fields: Map<String, Value>,
}

/// The lines of all services that are JSON. The supervisor writes its log for people, and a process
/// that fails writes its error as text.
fn lines(dir: &Path) -> Result<Vec<LogLine>> {
    let mut lines = Vec::new();
    for entry in fs::read_dir(dir.join("logs"))? {
        let path = entry?.path();
        let process = path.file_stem().context("a name")?.to_string_lossy();
        if process == "supervisor" {
            continue;
        }
        let text = fs::read_to_string(&path)?;
        for text in text.lines().filter(|text| text.starts_with('{')) {
            let line: Value = serde_json::from_str(text).with_context(|| text.to_owned())?;
            let mut fields = line["fields"].as_object().context("fields")?.clone();
            let text = |value: Option<Value>| Some(value?.as_str()?.to_owned());
            lines.push(LogLine {
                process: process.clone().into_owned(),
                level: text(line.get("level").cloned()).context("a level")?,
                target: text(line.get("target").cloned()).context("a target")?,
                message: text(fields.remove("message")).unwrap_or_default(),
                fields,
            });
        }
    }
    Ok(lines)
}

/// The number of lines with this message and these fields, of processes whose names begin with
/// `processes`.
fn count(lines: &[LogLine], processes: &str, message: &str, fields: &[(&str, &str)]) -> usize {
    let has = |line: &LogLine, (name, value): &(&str, &str)| {
        line.fields.get(*name).and_then(Value::as_str) == Some(*value)
    };
    let of_message = lines
        .iter()
        .filter(|line| line.process.starts_with(processes) && line.message == message);
    of_message
        .filter(|line| fields.iter().all(|field| has(line, field)))
        .count()
}

/// Returns true if the page does not have the line's message with its level, target and fields.
fn undocumented(line: &LogLine, rows: &BTreeMap<&str, Vec<&LogTableRow>>) -> bool {
    let names = |line: &LogLine| -> Vec<String> { line.fields.keys().cloned().collect() };
    let rows = rows.get(line.message.as_str());
    !rows.into_iter().flatten().any(|row| {
        let mut fields = row.fields.clone();
        fields.sort();
        row.level == line.level && line.target.ends_with(&row.target) && fields == names(line)
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn logs_each_change_of_state_once() -> Result<()> {
    let plugins = Plugins::new()?;
    let up = builder(Network::Ledger)
        .flags("--nodes 2")
        .cni_bin_dir(plugins.dir())
        .env("PODPLANE_LOG_FORMAT", "json")
        .extra_config("scheduler", "log", "info,podplane_scheduler=debug")
        .extra_config("kubelet", "log", "info,podplane_kubelet=debug");
    let cluster = Cluster::up(up)
        .await?
        .context("ledger mode needs nothing")?;
    let dir = cluster.data_dir().to_owned();
    let logged = async |process: &str, message: &str, fields: &[(&str, &str)]| {
        let seen = || async { lines(&dir).map(|lines| count(&lines, process, message, fields)) };
        let what = format!("{process} logs {message:?} {fields:?}");
        eventually(&what, seen, |seen| {
            seen.as_ref().is_ok_and(|seen| *seen > 0)
        })
        .await
    };
    let (scheduler, ipam) = ("scheduler", "ipam-controller");
    let (kubelet, cri) = ("kubelet", "cri");
    let pods = cluster.client().namespaced::<Pod>("default");

    let real = bin_dir().canonicalize()?.join("host-local");
    plugins.replace(&format!(
        "[ $CNI_COMMAND != ADD ] || exit 1; exec {}",
        real.display()
    ))?;
    pods.create(&pod("a")).await?;
    let failed = "failed to create the sandbox; trying again";
    logged(kubelet, failed, &[("pod", "default/a")]).await?;
    plugins.repair()?;
    let found = cluster
        .pods_until("it runs", |pods| running(pods) == 1)
        .await;
    let (uid, of_a) = (found[0].metadata.uid.clone(), node(&found[0]).to_owned());
    let uid = uid.context("a UID")?;
    pods.delete("a", &DeleteParams::default()).await?;
    logged(kubelet, "removed the sandbox", &[("uid", &uid)]).await?;
    cluster.pods_until("it is gone", <[Pod]>::is_empty).await;

    // An address whose sandbox no CRI server knows.
    let networks = dir.join("nodes").join(&of_a).join("networks");
    let network = fs::read_dir(networks)?.next().context("a network")??.path();
    let last = fs::read_to_string(network.join("last_reserved_ip.0"))?;
    fs::write(network.join(last.trim()), "lost\r\neth0")?;
    cluster.restart(["cri"], []).await?;
    let reclaimed = "reclaimed addresses that no sandbox had";
    logged(
        cri,
        reclaimed,
        &[("network", &network.display().to_string())],
    )
    .await?;

    cluster.add_nodes(["late"]).await?;
    logged(kubelet, "node is ready", &[("node", "late")]).await?;
    cluster.remove_node("late").await?;
    logged(ipam, "released node block", &[("node", "late")]).await?;

    cluster.process("apiserver").await?.kill().await?;
    logged(scheduler, "watch resumed", &[("kind", "Pod")]).await?;
    logged(ipam, "watch resumed", &[("kind", "Node")]).await?;

    // Another client takes the Lease.
    let leases = cluster.client().namespaced::<Lease>("kube-system");
    let taken = || async {
        let mut lease = leases.get("podplane-ipam-controller").await?;
        let spec = lease.spec.as_mut().context("a spec")?;
        spec.holder_identity = Some("somebody else".into());
        spec.lease_duration_seconds = Some(1);
        anyhow::Ok(leases.update(&lease).await?)
    };
    eventually("the lease is another's", taken, Result::is_ok).await?;
    logged(ipam, "lost the lease", &[]).await?;
    let gained = "successfully acquired lease";
    let twice = || async { lines(&dir).map(|lines| count(&lines, ipam, gained, &[])) };
    eventually("it leads again", twice, |seen| {
        seen.as_ref().is_ok_and(|seen| *seen == 2)
    })
    .await?;

    let lines = lines(&dir)?;
    let mut wrong = Vec::new();
    for (process, message, fields) in [
        (kubelet, "registered node", &[("node", "node-0")][..]),
        (kubelet, "registered node", &[("node", "node-1")]),
        (kubelet, "registered node", &[("node", "late")]),
        (kubelet, "node is ready", &[("node", "node-0")]),
        (kubelet, "node is ready", &[("node", "node-1")]),
        (kubelet, "node is ready", &[("node", "late")]),
        (ipam, "assigned node block", &[("node", "node-0")]),
        (ipam, "assigned node block", &[("node", "node-1")]),
        (ipam, "assigned node block", &[("node", "late")]),
        (
            ipam,
            "draining node block of a deleted node",
            &[("node", "late")],
        ),
        (ipam, "released node block", &[("node", "late")]),
        (
            scheduler,
            "bound pod",
            &[("name", "a"), ("uid", &uid), ("node", &of_a)],
        ),
        (
            kubelet,
            "created the sandbox",
            &[("pod", "default/a"), ("uid", &uid)],
        ),
        (
            kubelet,
            "removed the sandbox",
            &[("node", &of_a), ("uid", &uid)],
        ),
        (cri, reclaimed, &[]),
        (scheduler, "watch resumed", &[("kind", "Pod")]),
        (scheduler, "watch resumed", &[("kind", "Node")]),
        (
            ipam,
            "lost the lease",
            &[("lease", "kube-system/podplane-ipam-controller")],
        ),
    ] {
        let times = count(&lines, process, message, fields);
        if times != 1 {
            wrong.push(format!("{times} times: {process} {message:?} {fields:?}"));
        }
    }
    assert!(wrong.is_empty(), "not logged once:\n{}", wrong.join("\n"));

    let rows = rows();
    let mut by_message = BTreeMap::<_, Vec<_>>::new();
    for row in &rows {
        by_message
            .entry(row.message.as_str())
            .or_default()
            .push(row);
    }
    let unlisted: Vec<_> = lines
        .iter()
        .filter(|line| line.level != "DEBUG" && undocumented(line, &by_message))
        .collect();
    assert!(
        unlisted.is_empty(),
        "not as docs/logs.md says: {unlisted:#?}"
    );
    cluster.finish().await
}
