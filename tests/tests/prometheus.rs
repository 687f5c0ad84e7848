//! Prometheus itself reads the metrics of every process, by its certificate, and nothing without;
//! and the files of the compose profile `observe` are what it takes.

use std::{collections::BTreeSet, fs, path::Path};

use anyhow::{Context as _, Result};
use podplane_tests::{
    Cluster, Network, builder, eventually, peers,
    programs::{finish, podplane},
    prometheus::{Prometheus, ScrapeTarget, check},
};
use serde_json::json;

const DEPLOY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy");

#[tokio::test(flavor = "multi_thread")]
async fn prometheus_reads_every_process_by_its_certificate_alone() -> Result<()> {
    let Some(programs) = peers::prometheus() else {
        return Ok(());
    };
    let Some(cluster) = Cluster::up(builder(Network::Ledger).nodes(2)).await? else {
        return Ok(());
    };
    let status = cluster.status().await?;
    let services = status.services.iter().map(|service| &service.http_address);
    let wanted: BTreeSet<String> = services
        .chain([&status.http_address])
        .map(|address| format!("{address}/metrics"))
        .collect();
    assert_eq!(wanted.len(), 7, "{wanted:?}");

    let pki = cluster.pki_dir();
    let addresses: Vec<_> = wanted
        .iter()
        .map(|url| {
            let address = url.strip_prefix("https://").context("TLS")?;
            address.strip_suffix("/metrics").context("the path")
        })
        .collect::<Result<_>>()?;
    let job = |name: &str, tls: serde_json::Value| {
        json!({
            "job_name": name,
            "scheme": "https",
            "tls_config": tls,
            "static_configs": [{"targets": addresses}],
        })
    };
    let (authority, pair) = (pki.join("ca.crt"), pki.join("monitoring.pem"));
    let config = json!({
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [Path::new(DEPLOY).canonicalize()?.join("alerts.yaml")],
        "scrape_configs": [
            job("known", json!({"ca_file": authority, "cert_file": pair, "key_file": pair})),
            job("unknown", json!({"ca_file": authority})),
        ],
    });
    let dir = tempfile::tempdir()?;
    let prometheus = Prometheus::start(&programs, dir.path(), &config).await?;
    let api = prometheus.api();

    let tried = |targets: &Result<Vec<ScrapeTarget>>| {
        targets.as_ref().is_ok_and(|targets| {
            targets.len() == 14 && targets.iter().all(|target| target.health != "unknown")
        })
    };
    let all = eventually("all were read once", || api.targets(), tried).await?;
    for (job, health, error) in [
        ("known", "up", ""),
        (
            "unknown",
            "down",
            "server returned HTTP status 403 Forbidden",
        ),
    ] {
        let of_job: Vec<_> = all.iter().filter(|target| target.job == job).collect();
        let urls: BTreeSet<_> = of_job.iter().map(|target| target.url.clone()).collect();
        assert_eq!(urls, wanted, "{job}");
        for target in of_job {
            assert_eq!(
                (&*target.health, &*target.error),
                (health, error),
                "{target:?}"
            );
        }
    }
    let complete = |series: &Result<Vec<_>>| series.as_ref().is_ok_and(|up| up.len() == 14);
    for (labels, up) in eventually("all count", || api.query("up"), complete).await? {
        let is_known = labels["job"] == "known";
        assert_eq!(up, f64::from(u8::from(is_known)), "{labels}");
    }

    // The rules find the metrics that they are about.
    let nodes = || api.query("count(podplane_node_pod_ips_capacity)by(node)");
    let both = |series: &Result<Vec<_>>| series.as_ref().is_ok_and(|series| series.len() == 2);
    eventually("both nodes have their gauges", nodes, both).await?;
    let ok = |name: &str| (name.to_owned(), "ok".to_owned());
    let rules = [
        ok("AddressAuditFindings"),
        ok("AddressAuditStale"),
        ok("PodIPsOrphaned"),
        ok("NodeOutOfPodIPs"),
    ];
    let evaluated =
        |seen: &Result<Vec<_>>| seen.as_ref().is_ok_and(|seen| seen.as_slice() == rules);
    eventually("the rules are evaluated", || api.alert_rules(), evaluated).await?;
    drop(prometheus);
    cluster.finish().await
}

#[test]
fn promtool_takes_the_configuration_and_the_rules() -> Result<()> {
    let Some(programs) = peers::prometheus() else {
        return Ok(());
    };
    // Where compose mounts them, with the files that `certs` delivers: the configuration names no
    // other.
    let place = tempfile::tempdir()?;
    let (config, rules) = (
        place.path().join("prometheus.yaml"),
        place.path().join("alerts.yaml"),
    );
    fs::copy(Path::new(DEPLOY).join("prometheus.yaml"), &config)?;
    fs::copy(Path::new(DEPLOY).join("alerts.yaml"), &rules)?;
    let authority = tempfile::tempdir()?;
    let delivery = format!("monitoring={}", place.path().join("pki").display());
    let mut certs = podplane(["certs", "init", "--deliver", &delivery, "--dir"]);
    finish(certs.arg(authority.path().join("pki"))).ok();
    let said = check(&programs, "config", &config);
    assert!(said.contains("1 rule files found"), "{said}");
    let said = check(&programs, "rules", &rules);
    assert!(said.contains("4 rules found"), "{said}");
    Ok(())
}
