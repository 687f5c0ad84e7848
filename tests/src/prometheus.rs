//! Prometheus itself, as Debian packages it, and its HTTP API.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs,
    path::Path,
    process::{Child, Command, Stdio},
};

use anyhow::{Context as _, Result};
use podplane_http_client::HttpClient;
use serde_json::{Value, json};

use crate::{eventually, programs::finish};

/// A running program of Prometheus that serves HTTP; killed when it is dropped.
#[derive(Debug)]
struct ListeningProgram {
    child: Child,
    /// `HOST:PORT`.
    address: String,
}

impl ListeningProgram {
    /// Starts it at a port that is free, and waits until it listens.
    async fn start(program: &Path, args: &[&OsStr], log: &Path) -> Result<Self> {
        let mut command = Command::new(program);
        command.args(args).arg("--web.listen-address=127.0.0.1:0");
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(log)?)
            .spawn()
            .with_context(|| format!("start {}", program.display()))?;
        let mut started = Self {
            child,
            address: String::new(),
        };
        let read = || async { fs::read_to_string(log).unwrap_or_default() };
        let listens = |text: &String| address(text).is_some();
        let what = format!("{} listens", program.display());
        let text = eventually(&what, read, listens).await;
        address(&text)
            .context("its address")?
            .clone_into(&mut started.address);
        Ok(started)
    }
}

impl Drop for ListeningProgram {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

/// A running Prometheus; killed when it is dropped.
#[derive(Debug)]
pub struct Prometheus {
    _program: ListeningProgram,
    api: PrometheusApi,
}

/// The HTTP API of a Prometheus.
#[derive(Clone, Debug)]
pub struct PrometheusApi(HttpClient);

/// The scrape configuration of a job: processes with TLS at `HOST:PORT`, and what Prometheus shows
/// them of itself.
pub fn scrape_job(name: &str, targets: &[&str], tls: &Value) -> Value {
    json!({
        "job_name": name,
        "scheme": "https",
        "tls_config": tls,
        "static_configs": [{"targets": targets}],
    })
}

/// The `tls_config` of a Prometheus with the certificate of monitoring systems in this directory.
pub fn monitoring_tls(pki: &Path) -> Value {
    let pair = pki.join("monitoring.pem");
    json!({"ca_file": pki.join("ca.crt"), "cert_file": pair, "key_file": pair})
}

/// A target of Prometheus, with the result of its last scrape.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ScrapeTarget {
    /// The job of its configuration.
    pub job: String,
    /// The address with the path.
    pub url: String,
    /// `up`, `down` or, before the first time, `unknown`.
    pub health: String,
    /// The reason, if it is down.
    pub error: String,
}

impl Prometheus {
    /// Starts the program in the directory `programs` at a port that is free, with this
    /// configuration, and waits until it listens. `dir` takes the configuration, log and data.
    ///
    /// # Errors
    ///
    /// If it cannot be started.
    pub async fn start(programs: &Path, dir: &Path, config: &Value) -> Result<Self> {
        let file = dir.join("prometheus.json");
        fs::write(&file, serde_json::to_vec_pretty(config)?)?;
        let data = dir.join("data");
        let args: [&OsStr; 4] = [
            "--config.file".as_ref(),
            file.as_os_str(),
            "--storage.tsdb.path".as_ref(),
            data.as_os_str(),
        ];
        let program = programs.join("prometheus");
        let log = dir.join("prometheus.log");
        let program = ListeningProgram::start(&program, &args, &log).await?;
        Ok(Self {
            api: PrometheusApi::at(&program.address),
            _program: program,
        })
    }

    /// Its HTTP API.
    pub fn api(&self) -> &PrometheusApi {
        &self.api
    }
}

/// A running Pushgateway; killed when it is dropped.
#[derive(Debug)]
pub struct Pushgateway(ListeningProgram);

impl Pushgateway {
    /// Starts the program in the directory `programs` at a port that is free, and waits until it
    /// listens. `dir` takes the log and the data.
    ///
    /// # Errors
    ///
    /// If it cannot be started.
    pub async fn start(programs: &Path, dir: &Path) -> Result<Self> {
        let data = dir.join("pushgateway.data");
        let args: [&OsStr; 2] = ["--persistence.file".as_ref(), data.as_os_str()];
        let program = programs.join("prometheus-pushgateway");
        let log = dir.join("pushgateway.log");
        Ok(Self(ListeningProgram::start(&program, &args, &log).await?))
    }

    /// `HOST:PORT`.
    pub fn address(&self) -> &str {
        &self.0.address
    }

    /// The metrics that it has.
    ///
    /// # Errors
    ///
    /// If it does not answer.
    pub async fn metrics(&self) -> Result<String> {
        let answer = HttpClient::new(self.address()).get("/metrics").await?;
        Ok(String::from_utf8_lossy(&answer.bytes).into_owned())
    }
}

/// The address in the log of a Prometheus that listens.
fn address(log: &str) -> Option<&str> {
    let line = log.lines().find(|line| line.contains("Listening on"))?;
    line.split_whitespace()
        .find_map(|field| field.strip_prefix("address="))
}

impl PrometheusApi {
    /// That of the Prometheus at `HOST:PORT`.
    pub fn at(address: &str) -> Self {
        Self(HttpClient::new(address))
    }

    async fn get(&self, path: &str) -> Result<Value> {
        let answer = self.0.get(&format!("/api/v1/{path}")).await?;
        Ok(answer.document()?["data"].take())
    }

    /// All that it reads, by job and address.
    ///
    /// # Errors
    ///
    /// If it does not answer.
    pub async fn targets(&self) -> Result<Vec<ScrapeTarget>> {
        let data = self.get("targets?state=active").await?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let target = |target: &Value| ScrapeTarget {
            job: text(&target["labels"]["job"]),
            url: text(&target["scrapeUrl"]),
            health: text(&target["health"]),
            error: text(&target["lastError"]),
        };
        let targets = data["activeTargets"].as_array().context("targets")?;
        let mut targets: Vec<_> = targets.iter().map(target).collect();
        targets.sort();
        Ok(targets)
    }

    /// The labels and the value of each series that an expression has now.
    ///
    /// # Errors
    ///
    /// If it does not answer, or if the expression is not valid.
    pub async fn query(&self, expression: &str) -> Result<Vec<(Value, f64)>> {
        let escaped: String = form_urlencoded::byte_serialize(expression.as_bytes()).collect();
        let mut data = self.get(&format!("query?query={escaped}")).await?;
        let series = data["result"].as_array_mut().context("series")?;
        let one = |series: &mut Value| {
            let value = series["value"][1].as_str().context("a value")?.parse()?;
            Ok((series["metric"].take(), value))
        };
        series.iter_mut().map(one).collect()
    }

    /// All rules that it has read, as its API has them. `health` is `ok` once a rule was evaluated.
    ///
    /// # Errors
    ///
    /// If it does not answer.
    pub async fn rules(&self) -> Result<Vec<Value>> {
        let mut data = self.get("rules").await?;
        let groups = data["groups"].as_array_mut().context("groups")?;
        let rules = groups.iter_mut().map(|group| match group["rules"].take() {
            Value::Array(rules) => rules,
            _ => Vec::new(),
        });
        Ok(rules.flatten().collect())
    }

    /// The type of each family of metrics that it has read, by name, with or without series.
    ///
    /// # Errors
    ///
    /// If it does not answer.
    pub async fn families(&self) -> Result<BTreeMap<String, String>> {
        let data = self.get("metadata").await?;
        let families = data.as_object().context("families")?.iter();
        let families = families.map(|(name, found)| {
            let kind = found[0]["type"].as_str().context("a type")?;
            Ok((name.clone(), kind.to_owned()))
        });
        families.collect()
    }
}

/// Runs `promtool check KIND FILE`, whose output says what is wrong.
///
/// # Panics
///
/// If the file is not valid.
pub fn check(programs: &Path, kind: &str, file: &Path) -> String {
    let mut promtool = Command::new(programs.join("promtool"));
    finish(promtool.args(["check", kind]).arg(file)).ok()
}

/// Runs `promtool test rules FILE`, whose output says what differs.
///
/// # Panics
///
/// If a test in the file fails.
pub fn test_rules(programs: &Path, file: &Path) {
    let mut promtool = Command::new(programs.join("promtool"));
    finish(promtool.args(["test", "rules"]).arg(file)).ok();
}
