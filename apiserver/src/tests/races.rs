use podplane_client::{Binding, Reason};
use podplane_store::{
    Commit, CommitResult, Item, Key, ListQuery, Prefix, Revision, Snapshot, StoreError,
    StoreStatus, Txn, Watch,
};
use tokio::sync::watch;

use super::*;

const WRITERS: usize = 16;

/// Runs the writers concurrently and counts the successes; the others must have failed for
/// `reason`.
async fn winners<T: Send + 'static>(
    writers: Vec<impl Future<Output = Result<T, ApiError>> + Send + 'static>,
    reason: Reason,
) -> usize {
    let mut running: JoinSet<_> = writers.into_iter().collect();
    let mut won = 0;
    while let Some(done) = within(running.join_next()).await {
        match done.unwrap() {
            Ok(_) => won += 1,
            Err(error) => assert_eq!(error.reason, reason, "{error}"),
        }
    }
    won
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_many_creates_wins() {
    let server = TestServer::start().await;
    let create = |_| {
        let pods = server.pods();
        async move { pods.create(&pod("a")).await }
    };
    assert_eq!(
        winners((0..WRITERS).map(create).collect(), Reason::AlreadyExists).await,
        1
    );
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_many_binds_wins() {
    let server = TestServer::start().await;
    let created = server.pods().create(&pod("a")).await.unwrap();
    let bind = |index| {
        let pods = server.pods();
        let binding = Binding {
            name: "a".into(),
            uid: created.uid().into(),
            resource_version: None,
            node_name: format!("n{index}"),
        };
        async move { pods.bind(&binding).await }
    };
    assert_eq!(
        winners((0..WRITERS).map(bind).collect(), Reason::Conflict).await,
        1
    );
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_many_updates_from_the_same_revision_wins() {
    let server = TestServer::start().await;
    let created = server.nodes().create(&node("n")).await.unwrap();
    let update = |index: usize| {
        let nodes = server.nodes();
        let mut node = created.clone();
        node.metadata.labels = Some([("writer".to_owned(), index.to_string())].into());
        async move { nodes.update(&node).await }
    };
    assert_eq!(
        winners((0..WRITERS).map(update).collect(), Reason::Conflict).await,
        1
    );
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_updates_without_a_revision_all_win() {
    let server = TestServer::start().await;
    server.nodes().create(&node("n")).await.unwrap();
    let update = |index: usize| {
        let nodes = server.nodes();
        let node: Node =
            object(json!({"metadata": {"name": "n", "labels": {"writer": index.to_string()}}}));
        async move { nodes.update(&node).await }
    };
    assert_eq!(
        winners((0..WRITERS).map(update).collect(), Reason::Conflict).await,
        WRITERS
    );
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_object_is_created_in_a_terminating_namespace() {
    let server = TestServer::start().await;
    let namespace: Namespace = object(json!({"metadata": {"name": "x"}}));
    server.namespaces().create(&namespace).await.unwrap();
    let mut creating = JoinSet::new();
    for index in 0..WRITERS {
        let pods = server.client.namespaced::<Pod>("x");
        creating.spawn(async move {
            let pod =
                pod_with(json!({"metadata": {"name": format!("p{index}"), "namespace": "x"}}));
            pods.create(&pod).await
        });
    }
    let mut changes = Box::pin(
        server
            .namespaces()
            .watch(&Default::default(), "")
            .await
            .unwrap(),
    );
    server
        .namespaces()
        .delete("x", &DeleteParams::default())
        .await
        .unwrap();
    while let Some(created) = within(creating.join_next()).await {
        if let Err(error) = created.unwrap() {
            assert!(
                matches!(error.reason, Reason::Forbidden | Reason::NotFound),
                "{error}"
            );
        }
    }
    while event_text(&next(&mut changes).await) != "deleted x" {}
    let left = server
        .client
        .namespaced::<Pod>("x")
        .list(&Default::default())
        .await
        .unwrap();
    assert!(left.items.is_empty(), "{left:?}");
    server.stop().await;
}

/// A store that, while its gate is closed, reports no commit to its writer or to watches; reads and
/// refusals still show it.
#[derive(Debug)]
struct GatedStore {
    store: MemStore,
    gate: watch::Receiver<bool>,
}

#[derive(Debug)]
struct HeldWatch {
    watch: <MemStore as Store>::Watch,
    gate: watch::Receiver<bool>,
}

async fn gate_opened(gate: &watch::Receiver<bool>) {
    gate.clone().wait_for(|open| *open).await.unwrap();
}

impl Store for GatedStore {
    type Watch = HeldWatch;

    async fn commit(&self, txn: Txn) -> Result<CommitResult, StoreError> {
        let committed = self.store.commit(txn).await?;
        gate_opened(&self.gate).await;
        Ok(committed)
    }

    async fn get(&self, key: &Key, at: Option<Revision>) -> Result<Option<Arc<Item>>, StoreError> {
        self.store.get(key, at).await
    }

    async fn list(&self, query: ListQuery) -> Result<Snapshot, StoreError> {
        self.store.list(query).await
    }

    async fn watch(&self, prefix: Prefix, after: Revision) -> Result<HeldWatch, StoreError> {
        Ok(HeldWatch {
            watch: self.store.watch(prefix, after).await?,
            gate: self.gate.clone(),
        })
    }

    async fn compact(&self, revision: Revision) -> Result<(), StoreError> {
        self.store.compact(revision).await
    }

    async fn oldest_within(&self, history_bytes: u64) -> Result<Revision, StoreError> {
        self.store.oldest_within(history_bytes).await
    }

    async fn maintain(&self) -> Result<(), StoreError> {
        self.store.maintain().await
    }

    async fn current(&self) -> Result<Revision, StoreError> {
        self.store.current().await
    }

    async fn status(&self) -> Result<StoreStatus, StoreError> {
        self.store.status().await
    }
}

impl Watch for HeldWatch {
    async fn next(&mut self) -> Result<Commit, StoreError> {
        let commit = self.watch.next().await?;
        gate_opened(&self.gate).await;
        Ok(commit)
    }

    fn position(&self) -> Revision {
        self.watch.position()
    }
}

#[tokio::test]
async fn a_refused_client_reads_the_conflicting_write() {
    let gate = watch::Sender::new(true);
    let store = GatedStore {
        store: MemStore::new(),
        gate: gate.subscribe(),
    };
    let server = TestServer::with(store).await;
    let nodes = server.nodes();
    nodes.create(&node("deleted")).await.unwrap();
    gate.send_replace(false);
    // Neither of these is answered yet.
    let mut writing = JoinSet::new();
    let of_writer = nodes.clone();
    writing.spawn(async move { of_writer.create(&node("created")).await });
    let of_writer = nodes.clone();
    let remove = DeleteParams::default();
    writing.spawn(async move { of_writer.delete("deleted", &remove).await });
    // An unchanged status is written without a commit, and so is answered.
    within(async { while nodes.update_status(&node("created")).await.is_err() {} }).await;
    within(async { while nodes.update_status(&node("deleted")).await.is_ok() {} }).await;

    let mut reading = JoinSet::new();
    for name in ["created", "deleted"] {
        let of_reader = nodes.clone();
        reading.spawn(async move { (name, of_reader.get(name).await.is_ok()) });
    }
    // A read that is answered before the gate opens has not waited for the commit that it knows of.
    let early = time::timeout(Duration::from_millis(100), reading.join_next()).await;
    assert!(early.is_err(), "{early:?}");
    gate.send_replace(true);
    while let Some(read) = within(reading.join_next()).await {
        let (name, found) = read.unwrap();
        assert_eq!(found, name == "created", "{name}");
    }
    while let Some(written) = within(writing.join_next()).await {
        written.unwrap().unwrap();
    }
    server.stop().await;
}
