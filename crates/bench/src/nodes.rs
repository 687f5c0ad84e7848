//! Creating nodes and assigning their blocks.

use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use futures::future::try_join_all;
use podplane_api::{Object as _, core::Node};
use podplane_proto::{
    codec,
    ipam::{AssignBlocksRequest, AssignBlocksResponse, Assignment, assignment_result},
    wire::{AssignPodCidrsRequest, ListRequest, ObjectList, Verb, method_path},
};
use prost::Message as _;

use crate::{
    BenchParameters, TableLine,
    call::{Connection, framed},
    load::LoadTarget,
    pods,
    server::ServerProcess,
};

const NODES: u32 = 20_000;
const WRITERS: usize = 256;
/// The number of nodes in a batched request.
const BATCH: usize = 1000;
/// The number of concurrent batched requests.
const BATCHES: usize = 2;

/// Measures how many nodes per second are created, and assigned a /24 each: with a call per node,
/// and with batches.
pub(crate) async fn nodes(bench: &BenchParameters) -> Result<Vec<TableLine>> {
    let count = bench.many(NODES);
    let mut rates = [const { Vec::new() }; 5];
    for round in 0..bench.rounds(5) {
        for (batched, [assigned, both]) in [(false, [1, 2]), (true, [3, 4])] {
            let dir = bench.row_dir(&format!("nodes-{round}-{batched}"))?;
            let server = ServerProcess::podplane(bench, &dir).await?;
            let open = || server.connections(WRITERS);
            let node = pods::create_node()?;
            let path = pods::create_path::<Node>();
            let create = LoadTarget::new(open().await?, path, move |n| node.with(n));
            let creating = create.times(WRITERS, count).await?;
            let nodes = list(&server).await?;
            ensure!(nodes.len() >= usize::try_from(count)?, "created too few");
            let rate = |seconds: f64, nodes: usize| {
                let nodes = u32::try_from(nodes).unwrap_or(u32::MAX);
                f64::from(nodes) / seconds
            };
            let assigning = if batched {
                assign_batches(&server, &nodes).await?
            } else {
                let calls = nodes.iter().zip(0..).map(|(node, n)| one(node, n));
                let calls = calls.collect::<Result<Vec<_>>>()?;
                let path = method_path::<Node>("AssignPodCIDRs");
                each(open().await?, &path, &calls).await?
            };
            rates[0].push(rate(creating, nodes.len()));
            rates[assigned].push(rate(assigning, nodes.len()));
            rates[both].push(rate(creating + assigning, nodes.len()));
            server.end()?;
            std::fs::remove_dir_all(dir)?;
        }
    }
    let names = [
        "nodes-create",
        "nodes-assign",
        "nodes-both",
        "nodes-assign-batched",
        "nodes-both-batched",
    ];
    let lines = names.into_iter().zip(rates);
    let lines = lines.map(|(name, rates)| TableLine::new(name, rates, Vec::new()));
    Ok(lines.collect())
}

async fn list(server: &ServerProcess) -> Result<Vec<Node>> {
    let mut connection = server.connect().await?;
    let path = method_path::<Node>(&Verb::List.method::<Node>());
    let request = framed(&ListRequest::default())?;
    let list = ObjectList::decode(connection.answer(&path, request).await?)?;
    let nodes = list.items.iter().map(|item| Ok(codec::decode(item)?));
    nodes.collect()
}

fn assignment(node: &Node, number: usize) -> Assignment {
    Assignment {
        name: node.name().to_owned(),
        uid: node.uid().to_owned(),
        resource_version: node.resource_version().to_owned(),
        pod_cidrs: vec![format!("10.{}.{}.0/24", number / 256, number % 256)],
    }
}

fn one(node: &Node, number: usize) -> Result<Bytes> {
    let Assignment {
        name,
        uid,
        resource_version,
        pod_cidrs,
    } = assignment(node, number);
    framed(&AssignPodCidrsRequest {
        name,
        uid,
        resource_version,
        pod_cidrs,
    })
}

/// Makes each call once, and returns the seconds that they took.
async fn each(connections: Vec<Connection>, path: &str, calls: &[Bytes]) -> Result<f64> {
    let begun = Instant::now();
    let caller = |caller: usize| {
        let mut connection = connections[caller % connections.len()].clone();
        async move {
            for call in calls.iter().skip(caller).step_by(WRITERS) {
                connection.unary(path, call.clone()).await?;
            }
            anyhow::Ok(())
        }
    };
    try_join_all((0..WRITERS).map(caller)).await?;
    Ok(begun.elapsed().as_secs_f64())
}

async fn assign_batches(server: &ServerProcess, nodes: &[Node]) -> Result<f64> {
    const PATH: &str = "/podplane.ipam.v1.BlockService/AssignBlocks";
    let assignments: Vec<_> = nodes
        .iter()
        .zip(0..)
        .map(|(node, n)| assignment(node, n))
        .collect();
    let requests = assignments.chunks(BATCH).map(|assignments| {
        framed(&AssignBlocksRequest {
            assignments: assignments.to_vec(),
        })
    });
    let requests = requests.collect::<Result<Vec<_>>>()?;
    let connections = server.connections(BATCHES).await?;
    let begun = Instant::now();
    let caller = |(caller, mut connection): (usize, Connection)| {
        let requests = &requests;
        async move {
            let mut answers = Vec::new();
            for request in requests.iter().skip(caller).step_by(BATCHES) {
                answers.push(connection.answer(PATH, request.clone()).await?);
            }
            anyhow::Ok(answers)
        }
    };
    let answers = try_join_all(connections.into_iter().enumerate().map(caller)).await?;
    let seconds = begun.elapsed().as_secs_f64();
    for answer in answers.into_iter().flatten() {
        for result in AssignBlocksResponse::decode(answer)?.results {
            match result.result.context("missing result")? {
                assignment_result::Result::ResourceVersion(_) => {}
                assignment_result::Result::Refusal(refusal) => {
                    anyhow::bail!("refused: {}", refusal.message)
                }
            }
        }
    }
    Ok(seconds)
}
