//! A backup of a running server, restored: what was in it is there, and no revision of before means anything.

use anyhow::{Result, ensure};
use podplane_api::{Object as _, core::Node, meta::ObjectMeta};
use podplane_client::{Api, ListParams};
use podplane_tests::{
    apiserver::Apiserver,
    programs::{finish, podplane},
};

async fn create(server: &Apiserver, name: &str) -> Result<Node> {
    let node = Node {
        metadata: ObjectMeta {
            name: Some(name.into()),
            ..ObjectMeta::default()
        },
        ..Node::default()
    };
    let nodes: Api<Node> = server.client()?.all();
    Ok(nodes.create(&node).await?)
}

#[tokio::test]
async fn a_restored_store_knows_no_revision_of_before() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let (old, new) = (dir.path().join("old"), dir.path().join("new"));
    let backup = dir.path().join("backup");
    for dir in [&old, &new] {
        std::fs::create_dir(dir)?;
    }
    let server = Apiserver::start(&old).await?;
    let older = create(&server, "kept").await?;
    let store = |action: &str| {
        let mut command = podplane(["store", action]);
        command.arg(&backup);
        command
    };
    finish(store("backup").args(["--server", server.address()])).ok();
    let newer = create(&server, "lost").await?;
    server.kill()?;

    finish(store("restore").arg("--data-dir").arg(&new)).ok();
    let server = Apiserver::start(&new).await?;
    let nodes: Api<Node> = server.client()?.all();
    let list = nodes.list(&ListParams::default()).await?;
    let names: Vec<_> = list.items.iter().map(|node| node.name()).collect();
    ensure!(names == ["kept"], "{names:?}");
    ensure!(list.items[0].uid() == older.uid());
    let rest = server.rest();
    for revision in [older.resource_version(), newer.resource_version()] {
        for how in [
            "",
            "&resourceVersionMatch=NotOlderThan",
            "&resourceVersionMatch=Exact",
        ] {
            let path = format!("/api/v1/nodes?resourceVersion={revision}{how}");
            let answer = rest.get(&path).await?;
            ensure!(answer.code == 410, "{path}: {}", answer.body);
        }
        let watched = nodes.watch(&ListParams::default(), revision).await;
        ensure!(watched.is_err_and(|error| error.is_expired()), "{revision}");
    }
    let again = create(&server, "lost").await?;
    let number = |node: &Node| node.resource_version().parse::<u64>();
    ensure!(number(&again)? > number(&newer)?);
    server.kill()?;
    finish(podplane(["store", "check", "--data-dir"]).arg(&new)).ok();
    Ok(())
}
