//! The scheduler with an API server on sled: its rate of binds, and its start with many pods.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use bytes::Bytes;
use podplane_api::{
    Object,
    core::{Node, Pod},
};
use podplane_proto::{
    codec,
    wire::{ListRequest, ObjectList, WriteRequest},
};
use prost::Message as _;
use serde_json::{Value, json};

use crate::{
    BenchParameters, TableLine, call::framed, load::LoadTarget, pods, server::ServerProcess,
};

const NODES: u32 = 5_000;
const WRITERS: usize = 256;
/// The time in which all pods must be bound.
const PATIENCE: Duration = Duration::from_secs(300);
/// The interval at which the unbound pods are counted.
const POLL: Duration = Duration::from_millis(20);

/// Measures pods per second from the moment at which a scheduler that knows the nodes may begin,
/// and its CPU time for each pod in microseconds.
pub(crate) async fn bind(bench: &BenchParameters) -> Result<Vec<TableLine>> {
    let count = bench.many(20_000);
    let (mut rates, mut times) = (Vec::new(), Vec::new());
    for round in 0..bench.rounds(3) {
        let dir = bench.row_dir(&format!("bind-{round}"))?;
        let server = ServerProcess::podplane(bench, &dir).await?;
        create::<Node>(&server, bench.many(NODES), node).await?;
        let scheduler = ServerProcess::scheduler(bench, &dir, server.address).await?;
        // Stopped while the pods are created, so that their creation is not measured.
        scheduler.pause()?;
        create::<Pod>(&server, count, |n| pod(n, None)).await?;
        let cpu = scheduler.cpu_seconds()?;
        let begun = Instant::now();
        scheduler.go_on()?;
        until_bound(&server).await?;
        let pods = f64::from(count);
        rates.push(pods / begun.elapsed().as_secs_f64());
        times.push((scheduler.cpu_seconds()? - cpu) * 1e6 / pods);
        scheduler.end()?;
        server.end()?;
        std::fs::remove_dir_all(dir)?;
    }
    Ok(vec![
        TableLine::new("bind", rates, Vec::new()),
        TableLine::new("bind-cpu", times, Vec::new()),
    ])
}

/// Measures the seconds from the start of a scheduler to its first bind, among 5,000 nodes and
/// 150,000 pods, and its memory in MiB then.
pub(crate) async fn warm(bench: &BenchParameters) -> Result<Vec<TableLine>> {
    let dir = bench.row_dir("warm")?;
    let server = ServerProcess::podplane(bench, &dir).await?;
    let (nodes, bound) = (bench.many(NODES), bench.many(150_000));
    create::<Node>(&server, nodes, node).await?;
    create::<Pod>(&server, bound, move |n| pod(n, Some(n % nodes))).await?;
    let (mut starts, mut memory) = (Vec::new(), Vec::new());
    let mut connection = server.connect().await?;
    for waiting in (bound..).take(bench.rounds(3)) {
        let request = request::<Pod>(pod(waiting, None))?;
        let path = pods::create_path::<Pod>();
        connection.unary(&path, request).await?;
        let begun = Instant::now();
        let scheduler = ServerProcess::scheduler(bench, &dir, server.address).await?;
        until_bound(&server).await?;
        starts.push(begun.elapsed().as_secs_f64());
        memory.push(scheduler.memory()? / 1024.0);
        scheduler.end()?;
    }
    Ok(vec![
        TableLine::new("warm", starts, Vec::new()),
        TableLine::new("warm-memory", memory, Vec::new()),
    ])
}

/// A node with a /24.
fn node(n: u32) -> Value {
    let block = format!("10.{}.{}.0/24", n / 256, n % 256);
    let name = format!("node-{n}");
    let amounts =
        json!({"cpu": "32", "memory": "256Gi", "pods": "110", "podplane.io/pod-ips": "253"});
    json!({
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "spec": {"podCIDR": block, "podCIDRs": [block]},
        "status": {"capacity": amounts, "allocatable": amounts},
    })
}

fn pod(n: u32, node: Option<u32>) -> Value {
    let requests = json!({"cpu": "100m", "memory": "500Mi"});
    let container = json!({
        "name": "web", "image": "registry.k8s.io/pause:3.10", "resources": {"requests": requests},
    });
    json!({
        "metadata": {"name": format!("pod-{n}"), "namespace": "default", "labels": {"app": "web"}},
        "spec": {"containers": [container], "nodeName": node.map(|node| format!("node-{node}"))},
    })
}

fn request<K: Object>(object: Value) -> Result<Bytes> {
    let object = codec::encode(&K::from_json(object)?)?;
    framed(&WriteRequest {
        object: Some(object),
    })
}

async fn create<K: Object>(
    server: &ServerProcess,
    count: u32,
    object: impl Fn(u32) -> Value,
) -> Result<()> {
    let requests = (0..count).map(|n| request::<K>(object(n)));
    let requests = requests.collect::<Result<Vec<_>>>()?;
    let open = server.connections(WRITERS).await?;
    let next = move |n: u32| {
        let at = usize::try_from(n).unwrap_or(usize::MAX);
        requests.get(at).cloned().unwrap_or_default()
    };
    let load = LoadTarget::new(open, pods::create_path::<K>(), next);
    load.exactly(WRITERS, count).await
}

/// Waits until no pod is without a node.
async fn until_bound(server: &ServerProcess) -> Result<()> {
    let mut connection = server.connect().await?;
    let unbound = framed(&ListRequest {
        field_selector: "spec.nodeName=".to_owned(),
        limit: 1,
        ..ListRequest::default()
    })?;
    let begun = Instant::now();
    loop {
        let answer = connection
            .answer(&pods::list_path(), unbound.clone())
            .await?;
        if ObjectList::decode(answer)?.items.is_empty() {
            return Ok(());
        }
        if begun.elapsed() > PATIENCE {
            bail!("some pods are not bound after {PATIENCE:?}");
        }
        tokio::time::sleep(POLL).await;
    }
}
