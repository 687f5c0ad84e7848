//! The report as metrics for Prometheus: in a file, or sent to a Pushgateway.

use std::{
    fs::Permissions, io::Write as _, os::unix::fs::PermissionsExt as _, path::Path, str::FromStr,
    time::Duration,
};

use anyhow::Context as _;
use http::{Request, Uri, header::CONTENT_TYPE, uri::Scheme};
use jiff::Timestamp;
use podplane_audit::{AuditReport, Code, Severity};
use prometheus_client::{
    encoding::text::encode_registry,
    metrics::{family::Family, gauge::Gauge},
    registry::{Registry, Unit},
};
use tempfile::NamedTempFile;

use crate::output::page;

/// The path of the group of a Pushgateway, for a URL without one.
const GROUP: &str = "/metrics/job/podplane-audit";
/// The media type of Prometheus' text format.
const TEXT: &str = "text/plain; version=0.0.4";
/// The time in which a Pushgateway answers.
const PUSH_TIMEOUT: Duration = Duration::from_secs(10);
/// The permission bits of the file: its reader is another user.
const MODE: u32 = 0o644;

/// The metrics as text.
pub(super) fn text(report: &AuditReport, now: Timestamp) -> anyhow::Result<String> {
    let mut registry = Registry::with_prefix("podplane_audit");
    let summary = &report.summary;
    let findings = Family::<[(&str, &str); 2], Gauge>::default();
    for code in Code::ALL {
        for severity in Severity::ALL {
            let of_both = report.findings.iter();
            let of_both = of_both.filter(|one| one.code == code && one.severity == severity);
            let labels = [("code", code.as_str()), ("severity", severity.as_str())];
            findings
                .get_or_create(&labels)
                .set(integer(of_both.count()));
        }
    }
    registry.register("findings", "Findings of the last audit", findings);
    let incomplete = summary.checks.values();
    let incomplete = incomplete.filter(|check| check.starts_with("incomplete"));
    let addresses = &summary.addresses;
    for (name, help, value) in [
        ("nodes", "Nodes that were audited", integer(summary.nodes)),
        (
            "pods",
            "Pods that were audited",
            integer(summary.pods.total),
        ),
        (
            "incomplete_checks",
            "Checks that lack objects which could not be read",
            integer(incomplete.count()),
        ),
        (
            "pod_ips_capacity",
            "Addresses in the blocks of all nodes",
            integer(addresses.capacity),
        ),
        ("pod_ips_used", "Addresses of pods", integer(addresses.used)),
    ] {
        let gauge = Gauge::<i64>::default();
        gauge.set(value);
        registry.register(name, help, gauge);
    }
    let completed = Gauge::<i64>::default();
    completed.set(now.as_second());
    registry.register_with_unit(
        "completion_timestamp",
        "Time at which the last audit ended, since the epoch",
        Unit::Seconds,
        completed,
    );
    let mut text = String::new();
    encode_registry(&mut text, &registry)?;
    Ok(text)
}

/// The number as a gauge has it; the addresses of IPv6 can be more.
fn integer(number: impl TryInto<i64>) -> i64 {
    number.try_into().unwrap_or(i64::MAX)
}

/// Replaces the file in one step, so that its reader never sees a half of it.
pub(super) fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    let write = || {
        let mut file = NamedTempFile::new_in(page::directory(path))?;
        file.write_all(text.as_bytes())?;
        // Whatever the umask is.
        file.as_file()
            .set_permissions(Permissions::from_mode(MODE))?;
        file.persist(path)?;
        Ok::<_, std::io::Error>(())
    };
    write().with_context(|| format!("failed to write the metrics to {}", path.display()))?;
    page::wrote(path.display());
    Ok(())
}

/// The URL of a group of a Pushgateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PushUrl {
    server: Uri,
    path: String,
}

/// The URL cannot be pushed to.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "want http://HOST[:PORT] or https://HOST[:PORT], with /metrics/job/… for another group; without user, password and query"
)]
pub(super) struct InvalidPushUrl;

impl FromStr for PushUrl {
    type Err = InvalidPushUrl;

    fn from_str(text: &str) -> Result<Self, InvalidPushUrl> {
        let url: Uri = text.parse().map_err(|_| InvalidPushUrl)?;
        let authority = url.authority().ok_or(InvalidPushUrl)?;
        let is_http = matches!(url.scheme_str(), Some("http" | "https"));
        if !is_http || authority.as_str().contains('@') || url.query().is_some() {
            return Err(InvalidPushUrl);
        }
        let path = match url.path() {
            "" | "/" => GROUP,
            path if path.contains("/metrics/job/") => path,
            _ => return Err(InvalidPushUrl),
        };
        let path = path.to_owned();
        let scheme = url.scheme_str().unwrap_or_default();
        let server = format!("{scheme}://{authority}").parse();
        Ok(Self {
            server: server.map_err(|_| InvalidPushUrl)?,
            path,
        })
    }
}

/// Replaces the metrics of the group.
pub(super) async fn push(url: &PushUrl, text: String) -> anyhow::Result<()> {
    let PushUrl { server, path } = url;
    let pushed = async {
        let request = Request::put(path.as_str()).header(CONTENT_TYPE, TEXT);
        let request = request.body(kube::client::Body::from(text.into_bytes()))?;
        // kube-rs' client is one of HTTP and TLS, with the authorities of the system. An image
        // without any can push by HTTP.
        let mut config = kube::Config::new(server.clone());
        if server.scheme() == Some(&Scheme::HTTP) {
            config.root_cert = Some(Vec::new());
        }
        let client = kube::Client::try_from(config)?;
        let response = client.send(request).await?;
        let status = response.status();
        let body = response.into_body().collect_bytes().await?;
        let body = String::from_utf8_lossy(&body);
        anyhow::ensure!(
            status.is_success(),
            "it answers {status}: {}",
            body.lines().next().unwrap_or_default()
        );
        Ok(())
    };
    let pushed = tokio::time::timeout(PUSH_TIMEOUT, pushed).await;
    let pushed = pushed.unwrap_or_else(|_| anyhow::bail!("no answer within {PUSH_TIMEOUT:?}"));
    pushed.with_context(|| format!("failed to push the metrics to {server}{path}"))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use podplane_audit::{ControllerFlags, DumpCollector, DumpScope, ExpectedBlocks, audit};
    use serde_json::json;

    use super::*;

    #[test]
    fn findings_are_counted_by_code_and_severity() {
        let block = "10.0.0.0/24";
        let node = |name: &str| {
            json!({"kind": "Node", "metadata": {"name": name},
                "spec": {"podCIDR": block, "podCIDRs": [block]}})
        };
        let list = json!({"kind": "List", "items": [node("a"), node("b")]});
        let mut collector = DumpCollector::new(DumpScope::Fields);
        collector.read(list.to_string().as_bytes()).unwrap();
        let flags = ControllerFlags::default();
        let dump = collector.finish(&flags);
        let report = audit(&dump, &ExpectedBlocks::new(&flags, &dump).unwrap());
        let text = text(&report, Timestamp::from_second(1_800_000_000).unwrap()).unwrap();
        for line in [
            "# TYPE podplane_audit_findings gauge",
            r#"podplane_audit_findings{code="duplicate-pod-cidr",severity="error"} 1"#,
            r#"podplane_audit_findings{code="missing-pod-cidr",severity="error"} 0"#,
            "podplane_audit_nodes 2",
            "podplane_audit_pods 0",
            "podplane_audit_completion_timestamp_seconds 1800000000",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}: {text}");
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.prom");
        fs::write(&path, "old").unwrap();
        write(&path, &text).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn urls_of_a_pushgateway() {
        let parsed = |text: &str| {
            let url: PushUrl = text.parse()?;
            Ok(format!("{}{}", url.server, url.path))
        };
        for (text, want) in [
            (
                "http://gateway:9091",
                "http://gateway:9091/metrics/job/podplane-audit",
            ),
            (
                "http://gateway:9091/",
                "http://gateway:9091/metrics/job/podplane-audit",
            ),
            (
                "https://monitoring.example/push/metrics/job/audit/cluster/prod",
                "https://monitoring.example/push/metrics/job/audit/cluster/prod",
            ),
        ] {
            // The server of a URI has the path /.
            let want = want.to_owned();
            assert_eq!(
                parsed(text).map(|url| url
                    .replace(":9091//", ":9091/")
                    .replace("example//", "example/")),
                Ok(want)
            );
        }
        for text in [
            "gateway:9091",
            "ftp://gateway",
            "http://u:p@gateway",
            "http://g/other",
            "http://g/?q",
        ] {
            assert_eq!(parsed(text), Err(InvalidPushUrl), "{text}");
        }
    }
}
