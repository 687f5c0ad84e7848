//! Where the nodes and pods come from.

use std::{fs::File, io, path::Path};

use anyhow::Context as _;
use podplane_api::{
    Object as _,
    core::{Node, Pod},
};
use podplane_audit::{Dump, Keep};
use podplane_client::ListParams;

use super::Args;
use crate::global::{Global, block_on};

/// Everything that the arguments name.
pub(super) fn read(args: &Args, global: &Global, keep: Keep) -> anyhow::Result<Dump> {
    let mut dump = Dump::new(keep);
    match &args.file {
        Some(file) => from_file(file, &mut dump)?,
        None => block_on(from_server(global, &mut dump)).map_err(|error| global.locate(error))?,
    }
    Ok(dump)
}

fn from_file(file: &Path, dump: &mut Dump) -> anyhow::Result<()> {
    if file == Path::new("-") {
        return dump.read(io::stdin().lock()).context("read standard input");
    }
    let name_it = || format!("read {}", file.display());
    let opened = File::open(file).with_context(name_it)?;
    dump.read(opened).with_context(name_it)
}

/// podplane's own server.
async fn from_server(global: &Global, dump: &mut Dump) -> anyhow::Result<()> {
    let client = global.client()?;
    let all = ListParams::default();
    let nodes = client.all::<Node>().list(&all).await?.items;
    let pods = client.all::<Pod>().list(&all).await?.items;
    let nodes = nodes.iter().map(Node::to_json);
    let pods = pods.iter().map(Pod::to_json);
    dump.extend(nodes.chain(pods).collect::<Result<Vec<_>, _>>()?);
    Ok(())
}
