//! The apiserver alone, killed in the middle of a burst: what it acknowledged is there when it comes back.

use std::{
    path::Path,
    process::{Child, Stdio},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use anyhow::{Context as _, Result};
use podplane_api::{
    Object as _,
    core::{Container, Pod, PodSpec},
    meta::ObjectMeta,
};
use podplane_client::{Client, ListParams};
use podplane_tests::{eventually, programs::podplane};
use tokio::task::JoinSet;

const WRITERS: usize = 16;

/// How many times it is killed.
fn rounds() -> usize {
    if std::env::var_os("PODPLANE_SOAK").is_some() {
        100
    } else {
        5
    }
}

struct Apiserver(Child);

impl Apiserver {
    async fn start(dir: &Path) -> Result<(Self, Client)> {
        let file = dir.join("address");
        let _ = std::fs::remove_file(&file);
        let mut command = podplane(["apiserver", "--listen", "127.0.0.1:0", "--address-file"]);
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(dir.join("log"))?;
        let child = command
            .arg(&file)
            .arg("--data-dir")
            .arg(dir)
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()?;
        let server = Self(child);
        let read = || async { std::fs::read_to_string(&file).ok() };
        let address = eventually("the apiserver tells its address", read, Option::is_some)
            .await
            .context("an address")?;
        Ok((server, Client::connect(&address.trim().parse()?)?))
    }

    fn kill(mut self) -> Result<()> {
        self.0.kill()?;
        self.0.wait()?;
        Ok(())
    }
}

impl Drop for Apiserver {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn pod(name: String) -> Pod {
    let container = Container {
        name: "c".into(),
        image: Some("pause".into()),
        ..Container::default()
    };
    Pod {
        metadata: ObjectMeta {
            name: Some(name),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec {
            containers: vec![container],
            ..PodSpec::default()
        }),
        ..Pod::default()
    }
}

/// Creates pods until the server is gone; returns the names of those that it acknowledged.
async fn burst(client: Client, prefix: String, acknowledged: Arc<AtomicUsize>) -> Vec<String> {
    let pods = client.namespaced::<Pod>("default");
    let mut names = Vec::new();
    loop {
        let name = format!("{prefix}-{}", names.len());
        match pods.create(&pod(name.clone())).await {
            Ok(_) => {
                acknowledged.fetch_add(1, Ordering::Relaxed);
                names.push(name);
            }
            Err(error) => {
                assert!(
                    error.is_unavailable(),
                    "only the kill may end a burst: {error:?}"
                );
                return names;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_acknowledged_write_is_lost() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let mut all = Vec::new();
    for round in 0..rounds() {
        let (server, client) = Apiserver::start(dir.path()).await?;
        let acknowledged = Arc::new(AtomicUsize::new(0));
        let mut writers = JoinSet::new();
        for writer in 0..WRITERS {
            writers.spawn(burst(
                client.clone(),
                format!("r{round}-w{writer}"),
                acknowledged.clone(),
            ));
        }
        // A different point of the burst each round.
        let enough = 50 + 37 * round;
        eventually(
            "a burst is under way",
            || async { acknowledged.load(Ordering::Relaxed) },
            |n| *n >= enough,
        )
        .await;
        server.kill()?;
        all.extend(writers.join_all().await.into_iter().flatten());

        let (server, client) = Apiserver::start(dir.path()).await?;
        let pods = client
            .namespaced::<Pod>("default")
            .list(&ListParams::default())
            .await?;
        let there: std::collections::BTreeSet<_> =
            pods.items.iter().map(|pod| pod.name().to_owned()).collect();
        let lost: Vec<_> = all.iter().filter(|name| !there.contains(*name)).collect();
        assert!(
            lost.is_empty(),
            "round {round}: {} of {} acknowledged writes lost: {lost:?}",
            lost.len(),
            all.len()
        );
        server.kill()?;
    }
    Ok(())
}

/// Revisions never go back over a kill, so a watch that is resumed misses nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_watch_resumes_over_a_kill() -> Result<()> {
    use futures::StreamExt as _;
    use podplane_client::WatchEvent;

    let dir = tempfile::tempdir()?;
    let (server, client) = Apiserver::start(dir.path()).await?;
    let pods = client.namespaced::<Pod>("default");
    let from = pods.create(&pod("first".into())).await?;
    pods.create(&pod("second".into())).await?;
    server.kill()?;
    let (server, client) = Apiserver::start(dir.path()).await?;
    let pods = client.namespaced::<Pod>("default");
    pods.create(&pod("third".into())).await?;
    let events = pods
        .watch(&ListParams::default(), from.resource_version())
        .await?;
    let added = events.filter_map(|event| async {
        match event {
            Ok(WatchEvent::Added(pod)) => Some(pod.name().to_owned()),
            other => panic!("{other:?}"),
        }
    });
    let seen: Vec<_> = added.take(2).collect().await;
    assert_eq!(seen, ["second", "third"]);
    server.kill()
}
