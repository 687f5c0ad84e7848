//! All certificates of a cluster are renewed again and again while it works, and nobody notices.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use futures::{Stream, StreamExt as _};
use podplane_api::{Object as _, core::Pod};
use podplane_client::{
    ApiError, Client, CredentialFlags, DeleteParams, Endpoint, ListParams, ObjectEvent, Reason,
};
use podplane_tests::{
    Cluster, Network, builder, eventually, peers,
    pods::{phase, pod},
    programs::finish,
};
use serde_json::Value;
use tokio::{task::JoinSet, time::sleep};

/// The life of every certificate. Each is renewed after 16 s, and of no use after 24 s.
const LIFETIME: &str = "24s";
/// The renewals of each certificate that the test waits for.
const RENEWALS: usize = 2;
/// The pods of a worker that exist at once.
const PODS: usize = 4;

/// The contents of the files with certificates, by name.
type Certificates = BTreeMap<String, String>;

fn certificates(pki: &Path) -> Result<Certificates> {
    let mut found = Certificates::new();
    for file in fs::read_dir(pki)? {
        let path = file?.path();
        let name = path.file_name().context("a name")?.to_string_lossy();
        if path.extension().is_some_and(|kind| kind == "pem") {
            found.insert(name.into_owned(), fs::read_to_string(&path)?);
        }
    }
    Ok(found)
}

/// The addresses of ports with TLS, by process.
fn ports(cluster: &Cluster) -> Result<BTreeMap<String, String>> {
    let mut found = BTreeMap::new();
    for file in fs::read_dir(cluster.data_dir())? {
        let path = file?.path();
        let name = path.file_name().context("a name")?.to_string_lossy();
        if let Some(process) = name.strip_suffix(".address") {
            let address = fs::read_to_string(&path)?.trim().to_owned();
            ensure!(address.starts_with("https://"), "{process}: {address}");
            found.insert(process.to_owned(), address);
        }
    }
    Ok(found)
}

/// The certificate that a new connection is shown.
fn served(address: &str) -> Result<String> {
    let host = address.trim_start_matches("https://");
    let mut openssl = Command::new("openssl");
    openssl.args(["s_client", "-connect", host]);
    let said = finish(openssl.stdin(Stdio::null())).stdout;
    let begin = said.find("-----BEGIN CERTIFICATE-----");
    let begin = begin.with_context(|| format!("{address}: {said}"))?;
    const END: &str = "-----END CERTIFICATE-----";
    let end = said[begin..].find(END).context("its end")?;
    Ok(said[begin..begin + end + END.len()].to_owned())
}

/// The events of pods, with the reason why the watch ended, if it did.
#[derive(Debug, Default)]
struct WatchedPods {
    added: BTreeSet<String>,
    deleted: BTreeSet<String>,
}

impl WatchedPods {
    fn present(&self) -> BTreeSet<&String> {
        self.added.difference(&self.deleted).collect()
    }
}

/// Follows a watch until a pod of the name `last` is deleted.
async fn follow(
    events: impl Stream<Item = Result<ObjectEvent<Pod>, ApiError>>,
    last: &str,
) -> Result<WatchedPods> {
    let mut events = std::pin::pin!(events);
    let mut watched = WatchedPods::default();
    while let Some(event) = events.next().await {
        match event? {
            ObjectEvent::Added(pod) => _ = watched.added.insert(pod.uid().to_owned()),
            ObjectEvent::Deleted(pod) => {
                watched.deleted.insert(pod.uid().to_owned());
                if pod.name() == last {
                    return Ok(watched);
                }
            }
            ObjectEvent::Modified(_) | ObjectEvent::Bookmark(_) => {}
        }
    }
    bail!("the watch has ended")
}

/// A watch of stock kubectl, which writes into a file; killed when it is dropped.
struct KubectlWatch(Child);

impl KubectlWatch {
    fn start(cluster: &Cluster, file: &Path) -> Result<Self> {
        let mut kubectl = kubectl(cluster, "get pods --watch --output-watch-events -o json");
        let errors = fs::File::create(file.with_extension("errors"))?;
        let kubectl = kubectl.stdout(fs::File::create(file)?).stderr(errors);
        Ok(Self(kubectl.spawn()?))
    }
}

impl Drop for KubectlWatch {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

/// The events that kubectl has written so far.
fn written(file: &Path) -> Result<WatchedPods> {
    let text = fs::read(file)?;
    let mut watched = WatchedPods::default();
    for event in serde_json::Deserializer::from_slice(&text).into_iter::<Value>() {
        // The last one may not be complete yet.
        let Ok(event) = event else { break };
        let uid = event["object"]["metadata"]["uid"].as_str();
        let uid = uid.context("a uid")?.to_owned();
        match event["type"].as_str() {
            Some("ADDED") => _ = watched.added.insert(uid),
            Some("DELETED") => _ = watched.deleted.insert(uid),
            Some("MODIFIED") => {}
            other => bail!("{other:?}: {event}"),
        }
    }
    Ok(watched)
}

fn kubectl(cluster: &Cluster, args: &str) -> Command {
    let mut kubectl = Command::new("kubectl");
    kubectl
        .args(args.split_whitespace())
        .env("KUBECONFIG", cluster.kubeconfig())
        .env("HOME", cluster.data_dir())
        .stdin(Stdio::null());
    kubectl
}

/// Creates pods, waits until they run and deletes them, until it is told to stop. Returns the UIDs.
async fn work(client: Client, stop: Arc<AtomicBool>) -> Result<BTreeSet<String>> {
    let pods = client.namespaced::<Pod>("default");
    let mut uids = BTreeSet::new();
    let mut round = 0;
    while !stop.load(Ordering::Relaxed) {
        let names: Vec<_> = (0..PODS).map(|n| format!("w-{round}-{n}")).collect();
        for name in &names {
            uids.insert(pods.create(&pod(name)).await?.uid().to_owned());
        }
        for name in &names {
            while phase(&pods.get(name).await?) != "Running" {
                sleep(Duration::from_millis(20)).await;
            }
            pods.delete(name, &DeleteParams::default()).await?;
        }
        for name in &names {
            loop {
                match pods.get(name).await {
                    Ok(_) => sleep(Duration::from_millis(20)).await,
                    Err(error) if error.reason == Reason::NotFound => break,
                    Err(error) => return Err(error.into()),
                }
            }
        }
        round += 1;
    }
    Ok(uids)
}

/// Reads with a new connection each time, as kubectl and as Prometheus would. Returns the number of
/// rounds.
async fn read(
    cluster: Arc<Cluster>,
    ports: BTreeMap<String, String>,
    stop: Arc<AtomicBool>,
) -> Result<usize> {
    let pki = cluster.pki_dir();
    let pair = cluster.data_dir().join("scraper");
    let mut rounds = 0;
    while !stop.load(Ordering::Relaxed) {
        let cluster = Arc::clone(&cluster);
        let (pki, pair, ports) = (pki.clone(), pair.clone(), ports.clone());
        let round = tokio::task::spawn_blocking(move || -> Result<()> {
            let shown = finish(&mut kubectl(&cluster, "get nodes -o name"));
            ensure!(shown.code == Some(0), "kubectl: {shown:?}");
            // curl reads the file twice, and would need both halves to be of one renewal.
            fs::copy(pki.join("monitoring.pem"), &pair)?;
            for (process, address) in &ports {
                let mut curl = Command::new("curl");
                curl.args(["--silent", "--show-error", "--fail", "--cacert"]);
                curl.arg(pki.join("ca.crt")).arg("--cert").arg(&pair);
                let said = finish(curl.arg(format!("{address}/metrics")));
                ensure!(said.code == Some(0), "{process}: {said:?}");
            }
            Ok(())
        });
        round.await??;
        rounds += 1;
    }
    Ok(rounds)
}

/// The lines of all logs that say that something went wrong.
fn complaints(cluster: &Cluster) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for file in fs::read_dir(cluster.data_dir().join("logs"))? {
        let path = file?.path();
        let text = fs::read_to_string(&path)?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let is_one = |line: &&str| {
            let words = [
                "x509",
                "nauthorized",
                "NAUTHENTICATED",
                "forbidden",
                " ERROR ",
            ];
            words.iter().any(|word| line.contains(word))
        };
        found.extend(
            text.lines()
                .filter(is_one)
                .map(|line| format!("{name}: {line}")),
        );
    }
    Ok(found)
}

#[tokio::test(flavor = "multi_thread")]
async fn work_goes_on_while_all_certificates_are_renewed() -> Result<()> {
    if !peers::program("kubectl") || !peers::program("curl") || !peers::program("openssl") {
        return Ok(());
    }
    let up = builder(Network::Kernel)
        .nodes(2)
        .flag("--certificate-lifetime", LIFETIME);
    let Some(cluster) = Cluster::up(up).await? else {
        return Ok(());
    };
    let cluster = Arc::new(cluster);
    let (pki, processes) = (cluster.pki_dir(), cluster.left());
    let mut ports = ports(&cluster)?;
    // The supervisor has no file for its address.
    ports.insert(
        "supervisor".to_owned(),
        cluster.status().await?.http_address,
    );
    let mut last = certificates(&pki)?;
    let first = last.clone();
    let mut renewals: BTreeMap<_, _> = first.keys().map(|name| (name.clone(), 0)).collect();
    for owner in [
        "admin",
        "apiserver",
        "scheduler",
        "node-node-0",
        "route-agent",
        "monitoring",
    ] {
        assert!(
            first.contains_key(&format!("{owner}.pem")),
            "{owner}: {renewals:?}"
        );
    }
    let shown: BTreeMap<_, _> = ports
        .iter()
        .map(|(process, address)| Ok((process.clone(), served(address)?)))
        .collect::<Result<_>>()?;
    let are_served = |shown: &String| first.values().any(|pair| pair.contains(shown));
    assert!(shown.values().all(are_served), "{shown:?}");

    let flags = CredentialFlags {
        certificate_authority: Some(pki.join("ca.crt")),
        client_certificate: Some(pki.join("admin.pem")),
        client_key: Some(pki.join("admin.pem")),
        ..CredentialFlags::default()
    };
    let address: Endpoint = ports["apiserver"].parse()?;
    let client = Client::connect(&address.with_credentials(&flags)?)?;
    let events = client.namespaced::<Pod>("default");
    let events = events.watch(&ListParams::default(), "").await?;
    let mut followed = JoinSet::new();
    followed.spawn(async move { follow(events, "last").await });
    let file = cluster.data_dir().join("kubectl-watch");
    let mut kubectl_watch = KubectlWatch::start(&cluster, &file)?;
    // kubectl lists before it watches, so it never sees a pod that has come and gone by then.
    cluster.podplane("run first --wait").ok();
    let first_pod = cluster.get("pod first")["metadata"]["uid"].clone();
    let first_pod = first_pod.as_str().context("a uid")?;
    let listed = || std::future::ready(written(&file));
    let listed = eventually("kubectl has listed the first pod", listed, |watched| {
        let watched = watched.as_ref();
        watched.is_ok_and(|watched| watched.added.contains(first_pod))
    });
    listed.await?;
    let stop = Arc::new(AtomicBool::new(false));
    let mut workers = JoinSet::new();
    workers.spawn(work(client.clone(), stop.clone()));
    let mut readers = JoinSet::new();
    readers.spawn(read(cluster.clone(), ports.clone(), stop.clone()));

    let renewed = || {
        let now = certificates(&pki);
        if let Ok(now) = &now {
            for (name, content) in now {
                if last.get(name) != Some(content) {
                    *renewals.entry(name.clone()).or_default() += 1;
                }
            }
            last.clone_from(now);
        }
        std::future::ready(renewals.clone())
    };
    let often =
        |renewals: &BTreeMap<String, usize>| renewals.values().all(|count| *count >= RENEWALS);
    eventually("everyone has had two new certificates", renewed, often).await;
    stop.store(true, Ordering::Relaxed);
    let mut created = BTreeSet::from([first_pod.to_owned()]);
    while let Some(uids) = workers.join_next().await {
        created.extend(uids??);
    }
    let rounds = readers.join_next().await.context("a reader")???;
    assert!(
        created.len() > 2 * PODS && rounds > 2,
        "{created:?} {rounds}"
    );

    // The certificates of the beginning have expired, so whoever works now has later ones.
    cluster.podplane("run last --wait").ok();
    let uid = cluster.get("pod last")["metadata"]["uid"].clone();
    created.insert(uid.as_str().context("a uid")?.to_owned());
    cluster.podplane("delete pod first").ok();
    cluster.podplane("delete pod last").ok();
    let watched = followed.join_next().await.context("a watch")???;
    assert_eq!(
        watched.added, created,
        "the watch over gRPC has had all pods"
    );
    assert_eq!(watched.present(), BTreeSet::new());
    let written = || std::future::ready(written(&file));
    let written = eventually("kubectl has seen the last deletion", written, |watched| {
        watched
            .as_ref()
            .is_ok_and(|watched| watched.deleted.len() == created.len())
    });
    assert_eq!(written.await?.added, created);
    assert!(kubectl_watch.0.try_wait()?.is_none(), "its watch goes on");
    drop(kubectl_watch);
    assert_eq!(fs::read_to_string(file.with_extension("errors"))?, "");

    let now = certificates(&pki)?;
    for (name, content) in &first {
        assert!(now.get(name).is_some_and(|now| now != content), "{name}");
    }
    for (process, address) in &ports {
        assert_ne!(served(address)?, shown[process], "{process}");
    }
    assert_eq!(cluster.left(), processes, "the same processes run");
    assert_eq!(complaints(&cluster)?, [""; 0]);
    let cluster = Arc::into_inner(cluster).context("a task still has the cluster")?;
    cluster.finish().await
}
