//! The rules, alerts and the dashboard of deploy/observability, by promtool and Prometheus: on
//! series that were written down, and on a cluster.

mod dashboard;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};
use podplane_tests::{
    Cluster, Network, builder, eventually, peers,
    programs::finish,
    prometheus::{Prometheus, PrometheusApi, check, monitoring_tls, scrape_job, test_rules},
};
use serde_json::{Value, json};

use dashboard::Dashboard;

const RUNBOOK: &str = "docs/observability.md";
/// The metrics of which a healthy cluster of a minute has no series, so that its processes do not
/// name them: queries that have one of them may be without an answer there.
const RARE: [&str; 14] = [
    // After a fault.
    "apiserver_flowcontrol_rejected_requests_total",
    "containerd_cri_network_plugin_operations_errors_total",
    "kubelet_admission_rejections_total",
    "kubelet_runtime_operations_errors_total",
    "operation:kubelet_runtime_operations_errors:rate5m",
    "plugin:podplane_cni_plugin_errors:rate5m",
    "podplane_cni_plugin_errors_total",
    "podplane_trace_spans_dropped_total",
    // With webhooks, and with an audit that publishes metrics.
    "apiserver_admission_webhook_admission_duration_seconds_bucket",
    "podplane_audit_completion_timestamp_seconds",
    "podplane_audit_findings",
    "podplane_audit_incomplete_checks",
    // While use grows.
    "cluster:podplane_node_pod_ips_hours_left:deriv1h",
    "pool:podplane_pool_exhaustion_hours:min",
];

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn observability() -> PathBuf {
    repository().join("deploy/observability")
}

/// The files with rules.
fn rule_files() -> Result<[PathBuf; 2]> {
    let dir = observability().canonicalize()?;
    Ok(["recording.yaml", "alerts.yaml"].map(|name| dir.join(name)))
}

/// The files with tests for promtool.
fn rule_tests() -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(observability().join("tests"))?;
    let files = entries.map(|entry| Ok(entry?.path()));
    let files = files.filter(|file: &Result<PathBuf>| {
        let extension = file.as_ref().ok().and_then(|file| file.extension());
        extension.is_none_or(|extension| extension == "yaml")
    });
    files.collect()
}

#[test]
fn promtool_makes_each_alert_fire_and_not_fire() -> Result<()> {
    let Some(programs) = peers::prometheus() else {
        return Ok(());
    };
    for file in rule_files()? {
        let said = check(&programs, "rules", &file);
        assert!(said.contains("SUCCESS"), "{said}");
    }
    let tests = rule_tests()?;
    assert!(tests.len() >= 5, "{tests:?}");
    for file in tests {
        test_rules(&programs, &file);
    }
    Ok(())
}

#[test]
fn each_query_of_the_dashboard_has_an_answer_on_recorded_series() -> Result<()> {
    let Some(programs) = peers::prometheus() else {
        return Ok(());
    };
    let recorded = fs::read_to_string(observability().join("tests/recorded.json"))?;
    let recorded: Value = serde_json::from_str(&recorded)?;
    let dashboard = Dashboard::read(&observability())?;
    dashboard.check_layout();
    let queries = dashboard.queries("5m");
    assert!(queries.len() > 80, "{}", queries.len());
    let has_answer = |query: &String| {
        let any = json!([{"labels": "{}", "value": 1}]);
        let expression = format!("count({query}) > bool 0");
        json!({"expr": expression, "eval_time": recorded["at"], "exp_samples": any})
    };
    let test = json!({
        "rule_files": rule_files()?,
        "tests": [{
            "interval": recorded["interval"],
            "input_series": recorded["series"],
            "promql_expr_test": queries.iter().map(has_answer).collect::<Vec<_>>(),
        }],
    });
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("dashboard.json");
    fs::write(&file, serde_json::to_vec_pretty(&test)?)?;
    test_rules(&programs, &file);
    Ok(())
}

/// A member that Grafana does not know by that name is one that it leaves out.
#[test]
fn the_model_of_grafana_has_all_of_the_dashboard() -> Result<()> {
    let Some(packages) = peers::python_grafana() else {
        return Ok(());
    };
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/dashboard.py");
    let mut model = Command::new("python3");
    model
        .arg(script)
        .arg(observability().join("dashboard.json"))
        .env("PYTHONPATH", packages);
    let model = serde_json::from_str(&finish(&mut model).ok())?;
    let lost = Dashboard::read(&observability())?.without(&model);
    // Of the data source, which has its own model.
    let own = ["step", "titleFormat"].map(|name| format!("/annotations/list/0/{name}"));
    assert_eq!(lost, own);
    Ok(())
}

/// The rules as Prometheus reads them, without any target.
async fn rules(programs: &Path) -> Result<Vec<Value>> {
    let dir = tempfile::tempdir()?;
    let config = json!({"rule_files": rule_files()?});
    let prometheus = Prometheus::start(programs, dir.path(), &config).await?;
    let read = |rules: &Result<Vec<Value>>| rules.as_ref().is_ok_and(|rules| !rules.is_empty());
    let api = prometheus.api();
    eventually("the rules are read", || api.rules(), read).await
}

fn text<'a>(value: &'a Value, what: &str) -> &'a str {
    value.as_str().unwrap_or_else(|| panic!("{what}: {value}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn each_alert_says_what_to_do() -> Result<()> {
    let Some(programs) = peers::prometheus() else {
        return Ok(());
    };
    let page = fs::read_to_string(repository().join(RUNBOOK))?;
    let headings = page.lines().filter_map(|line| line.strip_prefix("### "));
    let headings: BTreeSet<&str> = headings.collect();
    let tests = rule_tests()?.into_iter().map(fs::read_to_string);
    let tests = tests.collect::<Result<String, _>>()?;
    let rules = rules(&programs).await?;
    let alerts = rules.iter().filter(|rule| rule["type"] == "alerting");
    let mut names = BTreeSet::new();
    for alert in alerts {
        let name = text(&alert["name"], "name");
        names.insert(name);
        let severity = text(&alert["labels"]["severity"], name);
        assert!(
            ["critical", "warning", "info"].contains(&severity),
            "{name}"
        );
        let annotations = &alert["annotations"];
        for annotation in ["summary", "description"] {
            assert_ne!(text(&annotations[annotation], name), "", "{name}");
        }
        let section = format!("{RUNBOOK}#{}", name.to_lowercase());
        assert_eq!(annotations["runbook"], section, "{name}");
        // In a query, in its answer, and in a query without an answer.
        let selector = format!("alertname=\"{name}\"");
        assert!(tests.matches(&selector).count() >= 3, "{name} has no test");
    }
    assert_eq!(names, headings, "the sections of {RUNBOOK}");
    Ok(())
}

/// The names of metrics and of recorded series in an expression.
fn metric_names(expression: &str) -> BTreeSet<&str> {
    const BEGINNINGS: [&str; 9] = [
        "apiserver_",
        "containerd_",
        "kubelet_",
        "leader_election_",
        "node_ipam_controller_",
        "podplane_",
        "process_",
        "scheduler_",
        "workqueue_",
    ];
    let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && !matches!(c, '_' | ':'));
    let names = words.filter(|word| {
        let begins = BEGINNINGS
            .iter()
            .any(|beginning| word.starts_with(beginning));
        begins || word.contains(':') || *word == "up"
    });
    let names: BTreeSet<&str> = names.collect();
    assert!(!names.is_empty(), "no metric in {expression}");
    names
}

/// The names of the series of a family.
fn series_of(family: &str, kind: &str) -> Vec<String> {
    let endings: &[&str] = match kind {
        "counter" => &["_total"],
        "histogram" => &["_bucket", "_sum", "_count"],
        "info" => &["_info"],
        _ => &[""],
    };
    let names = endings.iter().map(|ending| match family.ends_with(ending) {
        true => family.to_owned(),
        false => format!("{family}{ending}"),
    });
    names.collect()
}

/// The sources of the processes that have metrics which a healthy cluster has not.
fn sources() -> Result<String> {
    fn read(dir: &Path, all: &mut String) -> Result<()> {
        for entry in fs::read_dir(dir)? {
            let path = entry?.path();
            match path.extension() {
                None if path.is_dir() => read(&path, all)?,
                Some(extension) if extension == "rs" => all.push_str(&fs::read_to_string(path)?),
                _ => {}
            }
        }
        Ok(())
    }
    let mut all = String::new();
    for dir in [
        "apiserver/src",
        "crates/service-runtime/src",
        "kubelet-sim/src",
    ] {
        read(&repository().join(dir), &mut all)?;
    }
    Ok(all)
}

/// Returns true if the sources register the family of a series.
fn is_registered(sources: &str, series: &str) -> bool {
    let endings = ["_total", "_bucket"];
    let family = endings
        .iter()
        .find_map(|ending| series.strip_suffix(ending));
    sources.contains(&format!("\"{}\"", family.unwrap_or(series)))
}

/// The families in a file of metrics, which `podplane audit --metrics-file` writes.
fn families_in(metrics: &str) -> BTreeMap<String, String> {
    let types = metrics.lines().filter_map(|line| {
        let (name, kind) = line.strip_prefix("# TYPE ")?.split_once(' ')?;
        Some((name.to_owned(), kind.to_owned()))
    });
    types.collect()
}

/// The job of a process, as in deploy/observability/prometheus.yaml.
fn job(service: &str) -> &str {
    match service.split_once('-') {
        Some(("kubelet", _)) => "node",
        Some(("cri", _)) => "cri",
        _ => service,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_has_every_metric_and_answers_every_query() -> Result<()> {
    let Some(programs) = peers::prometheus() else {
        return Ok(());
    };
    // Two nodes with five addresses each, so that two of twelve pods wait.
    let builder = builder(Network::Ledger).nodes(2).node_cidr_mask_size(29);
    let Some(cluster) = Cluster::up(builder).await? else {
        return Ok(());
    };
    let status = cluster.status().await?;
    let tls = monitoring_tls(&cluster.pki_dir());
    let services = status.services.iter().map(|service| {
        let address = service.http_address.strip_prefix("https://");
        let address = address.context("a port with TLS")?;
        Ok(scrape_job(job(&service.name), &[address], &tls))
    });
    let config = json!({
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": rule_files()?,
        "scrape_configs": services.collect::<Result<Vec<_>>>()?,
    });
    let dir = tempfile::tempdir()?;
    let prometheus = Prometheus::start(&programs, dir.path(), &config).await?;
    let api = prometheus.api();
    cluster.podplane("run web --replicas 12").ok();
    an_alert_names_the_pods_that_wait(api).await?;

    let audit = dir.path().join("audit.prom");
    let publish = format!("audit --metrics-file {}", audit.display());
    // Its exit status says whether there are findings.
    cluster.podplane(&publish);
    let mut families = families_in(&fs::read_to_string(audit)?);
    families.extend(api.families().await?);
    let exported = families
        .iter()
        .flat_map(|(name, kind)| series_of(name, kind));
    let mut known: BTreeSet<String> = exported.collect();
    known.insert("up".to_owned());
    let rules = api.rules().await?;
    let recorded = rules.iter().filter(|rule| rule["type"] == "recording");
    known.extend(recorded.map(|rule| text(&rule["name"], "name").to_owned()));
    let sources = sources()?;
    let rare = RARE.iter().filter(|name| is_registered(&sources, name));
    known.extend(rare.map(|name| (*name).to_owned()));
    let queries = Dashboard::read(&observability())?.queries("1m");
    let of_rules = rules.iter().map(|rule| text(&rule["query"], "query"));
    for expression in of_rules.chain(queries.iter().map(String::as_str)) {
        for name in metric_names(expression) {
            assert!(known.contains(name), "{name} in {expression}");
        }
    }
    for query in &queries {
        let is_rare = metric_names(query).iter().any(|name| RARE.contains(name));
        let answered = |answer: &Result<Vec<_>>| {
            let series = answer.as_ref().map(Vec::len);
            series.is_ok_and(|series| series > 0 || is_rare)
        };
        eventually(query, || api.query(query), answered).await?;
    }
    let all_ok = |rules: &Result<Vec<Value>>| {
        let mut rules = rules.iter().flatten();
        rules.all(|rule| rule["health"] == "ok")
    };
    eventually("all rules are evaluated", || api.rules(), all_ok).await?;
    drop(prometheus);
    cluster.finish().await
}

/// Waits until the alert on waiting pods is pending, with their number.
async fn an_alert_names_the_pods_that_wait(api: &PrometheusApi) -> Result<()> {
    let summary = "2 pods of default-scheduler wait for an address";
    let pending = |rules: &Result<Vec<Value>>| {
        let mut rules = rules.iter().flatten();
        let alert = rules.find(|rule| rule["name"] == "PodsWaitForAddresses");
        let active = alert.and_then(|alert| alert["alerts"].as_array());
        let mut active = active.into_iter().flatten();
        active.any(|alert| alert["annotations"]["summary"] == summary)
    };
    eventually(summary, || api.rules(), pending).await?;
    Ok(())
}
