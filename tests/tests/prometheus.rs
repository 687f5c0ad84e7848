//! Prometheus itself reads the metrics of every process, by its certificate, and nothing without;
//! and the configuration of the compose profile `observe` is what it takes.

use std::{collections::BTreeSet, fs, path::Path};

use anyhow::{Context as _, Result};
use podplane_tests::{
    Cluster, Network, builder, eventually, peers,
    programs::{finish, podplane},
    prometheus::{Prometheus, ScrapeTarget, check, monitoring_tls, scrape_job},
};
use serde_json::json;

const OBSERVABILITY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/observability");

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
    let nobody = json!({"ca_file": pki.join("ca.crt")});
    let config = json!({
        "global": {"scrape_interval": "1s"},
        "scrape_configs": [
            scrape_job("known", &addresses, &monitoring_tls(&pki)),
            scrape_job("unknown", &addresses, &nobody),
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
    drop(prometheus);
    cluster.finish().await
}

#[test]
fn promtool_takes_the_configuration() -> Result<()> {
    let Some(programs) = peers::prometheus() else {
        return Ok(());
    };
    // As compose mounts them, with the files that `certs` delivers: the configuration names no
    // other.
    let place = tempfile::tempdir()?;
    let beside = place.path().join("observability");
    fs::create_dir(&beside)?;
    for file in ["prometheus.yaml", "recording.yaml", "alerts.yaml"] {
        fs::copy(Path::new(OBSERVABILITY).join(file), beside.join(file))?;
    }
    let authority = tempfile::tempdir()?;
    let delivery = format!("monitoring={}", place.path().join("pki").display());
    let mut certs = podplane(["certs", "init", "--deliver", &delivery, "--dir"]);
    finish(certs.arg(authority.path().join("pki"))).ok();
    let said = check(&programs, "config", &beside.join("prometheus.yaml"));
    assert!(said.contains("2 rule files found"), "{said}");
    Ok(())
}
