//! Where the nodes and pods come from.

use std::{fs::File, io, path::Path};

use anyhow::Context as _;
use kube::{
    Config,
    api::{ListParams, Request},
    config::{KubeConfigOptions, Kubeconfig},
};
use podplane_api::{
    Object as _,
    core::{Node, Pod},
};
use podplane_audit::{Collector, Dump, Flags, Keep};
use podplane_ipam::{audit::DrainingBlock, parse_cidr};
use podplane_proto::ipam::{Block, BlockState};
use serde::Deserialize;

use super::Args;
use crate::global::{Global, block_on};

/// How many objects a cluster is asked for at once; kubectl's number.
const PAGE: u32 = 500;

/// Everything that the arguments name.
pub(super) fn read(
    args: &Args,
    flags: &Flags,
    global: &Global,
    keep: Keep,
) -> anyhow::Result<Dump> {
    let mut collector = Collector::new(keep);
    match &args.kubeconfig {
        _ if !args.files.is_empty() => {
            for file in &args.files {
                from_file(file, &mut collector)?;
            }
            let dump = collector.finish(flags);
            complete(&dump)?;
            return Ok(dump);
        }
        Some(file) => collector = block_on(from_cluster(file.as_deref(), keep))?,
        None => {
            block_on(from_server(global, &mut collector)).map_err(|error| global.locate(error))?
        }
    }
    Ok(collector.finish(flags))
}

/// Refuses files without nodes or without pods: half of the rules would be met by nothing. A live
/// cluster may have none.
fn complete(dump: &Dump) -> anyhow::Result<()> {
    let missing = match dump.counts() {
        (0, 0) => "nodes and no pods",
        (0, _) => "nodes",
        (_, 0) => "pods",
        _ => return Ok(()),
    };
    anyhow::bail!(
        "there are no {missing} in the input: an audit compares both, so pass what `kubectl get nodes,pods -A -o json` prints, or one file with each"
    )
}

fn from_file(file: &Path, collector: &mut Collector) -> anyhow::Result<()> {
    if file == Path::new("-") {
        return collector
            .read(io::stdin().lock())
            .context("read standard input");
    }
    let name_it = || format!("read {}", file.display());
    let opened = File::open(file).with_context(name_it)?;
    collector.read(opened).with_context(name_it)
}

/// podplane's own server. It also knows which blocks drain: what is outside of its node's block may be in one of those.
async fn from_server(global: &Global, collector: &mut Collector) -> anyhow::Result<()> {
    let client = global.client()?;
    let all = podplane_client::ListParams::default();
    for node in client.all::<Node>().list(&all).await?.items {
        collector.add(&node.to_json()?);
    }
    for pod in client.all::<Pod>().list(&all).await?.items {
        collector.add(&pod.to_json()?);
    }
    for Block {
        cidr,
        state,
        node_name,
        ..
    } in client.blocks().list().await?.blocks
    {
        let was_a_nodes = matches!(
            BlockState::try_from(state),
            Ok(BlockState::Draining | BlockState::Quarantined)
        );
        if was_a_nodes && let Ok(block) = parse_cidr(&cidr) {
            let node = node_name;
            collector.drain(DrainingBlock { node, block });
        }
    }
    Ok(())
}

/// A cluster that kubectl would reach, with GET requests alone. Without a `file`, it is kubectl's own choice.
async fn from_cluster(file: Option<&Path>, keep: Keep) -> anyhow::Result<Collector> {
    let options = KubeConfigOptions::default();
    let config = match file {
        None => Config::from_kubeconfig(&options)
            .await
            .context("read the kubeconfig that KUBECONFIG names, or ~/.kube/config")?,
        Some(file) => {
            let name_it = || format!("read the kubeconfig {}", file.display());
            let kubeconfig = Kubeconfig::read_from(file).with_context(name_it)?;
            Config::from_custom_kubeconfig(kubeconfig, &options)
                .await
                .with_context(name_it)?
        }
    };
    let server = config.cluster_url.to_string();
    let client = kube::Client::try_from(config).context("make a client of the cluster")?;
    // Of a large cluster the last pages may come when the server does not know the revision of the first any more.
    match from_pages(&client, &server, keep).await {
        Err(error) if is_expired(&error) => from_pages(&client, &server, keep)
            .await
            .map_err(|error| {
                if is_expired(&error) {
                    error.context("the list expired twice while it was read; audit what `kubectl get nodes,pods -A -o json > dump.json` writes")
                } else {
                    error
                }
            }),
        done => done,
    }
}

fn is_expired(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(kube::Error::Api(status)) if status.code == 410)
}

async fn from_pages(client: &kube::Client, server: &str, keep: Keep) -> anyhow::Result<Collector> {
    let mut collector = Collector::new(keep);
    for path in ["/api/v1/nodes", "/api/v1/pods"] {
        let name_it = || format!("list {path} of {server}");
        all_pages(client, path, &mut collector)
            .await
            .with_context(name_it)?;
    }
    for path in OF_NETWORKS {
        match all_pages(client, path, &mut collector).await {
            // The cluster has another network, or the user may not see it.
            Err(error) if is_refused(&error) => {}
            done => done.with_context(|| format!("list {path} of {server}"))?,
        }
    }
    Ok(collector)
}

/// The objects in which networks keep blocks and addresses.
const OF_NETWORKS: [&str; 10] = [
    "/apis/cilium.io/v2/ciliumnodes",
    "/apis/cilium.io/v2alpha1/ciliumpodippools",
    "/apis/cilium.io/v2/ciliumendpoints",
    "/apis/crd.projectcalico.org/v1/ippools",
    "/apis/crd.projectcalico.org/v1/ipamblocks",
    "/apis/crd.projectcalico.org/v1/blockaffinities",
    "/apis/vpcresources.k8s.aws/v1alpha1/cninodes",
    "/apis/acn.azure.com/v1alpha/nodenetworkconfigs",
    "/apis/whereabouts.cni.cncf.io/v1alpha1/ippools",
    "/apis/whereabouts.cni.cncf.io/v1alpha1/overlappingrangeipreservations",
];

fn is_refused(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(kube::Error::Api(status)) if matches!(status.code, 403 | 404))
}

async fn all_pages(
    client: &kube::Client,
    path: &str,
    collector: &mut Collector,
) -> anyhow::Result<()> {
    let mut params = ListParams::default().limit(PAGE);
    loop {
        let request = Request::new(path).list(&params)?;
        // Read as the text that it is: no field is lost that no type knows.
        let text = client.request_text(request).await?;
        collector.read(text.as_bytes())?;
        let List { metadata } = serde_json::from_str(&text)?;
        if metadata.next.is_empty() {
            return Ok(());
        }
        params.continue_token = Some(metadata.next);
    }
}

/// What a page says of the one after it.
#[derive(Deserialize)]
struct List {
    #[serde(default)]
    metadata: ListMeta,
}

#[derive(Default, Deserialize)]
struct ListMeta {
    #[serde(default, rename = "continue")]
    next: String,
}
