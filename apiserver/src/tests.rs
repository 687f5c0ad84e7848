//! Tests of the whole server in this process, through the public client.

mod accounts;
mod admission;
mod assign;
mod authorization;
mod blocks;
mod bounds;
mod certificates;
mod cluster_cidrs;
mod contract;
mod custom_kinds;
mod custom_kinds_kubectl;
mod deletes;
mod durability;
mod evictions;
mod faces;
mod fences;
mod holds;
mod hostile;
mod http_face;
mod identity;
mod large;
mod leader;
mod lifecycle;
mod limits;
mod lists;
mod manifests;
mod openapi_v2;
mod patch_faces;
mod patches;
mod placements;
mod pods_and_nodes;
mod priorities;
mod races;
mod reads;
mod rest_details;
mod restore;
mod services;
mod services_kubectl;
mod serving;
mod summary;
mod tls;
mod tokens;
mod transports;
mod watches;
mod webhooks;
mod writes;

use std::{sync::Arc, time::Duration};

use futures::{Stream, StreamExt as _};
use http::Method;
use podplane_api::{
    Object,
    core::{Namespace, Node, Pod},
};
use podplane_client::{ApiError, Client, DeleteParams, Endpoint, ObjectEvent};
use podplane_http_client::{HttpAnswer, HttpClient};
use podplane_ipam::IpPolicy;
use podplane_service_runtime::server::{Listen, Listener};
use podplane_store::{MemStore, Store};
use serde_json::{Value, json};
use tokio::{sync::oneshot, task::JoinSet, time};
use tokio_util::sync::CancellationToken;

use crate::{
    HistoryBounds,
    admission::{BlockPolicy, PodIpRules},
    server::{self, ServerRules},
};

/// The deadline of each step of a test.
const DEADLINE: Duration = Duration::from_secs(20);

struct TestServer {
    client: Client,
    rest: HttpClient,
    address: String,
    stop: CancellationToken,
    running: JoinSet<Result<(), server::ApiserverRunError>>,
}

impl TestServer {
    async fn start() -> Self {
        Self::with(MemStore::new()).await
    }

    /// Sends a document over REST: a merge patch, or an object.
    async fn ask(&self, method: Method, path: &str, document: &Value) -> HttpAnswer {
        let media = match method {
            Method::PATCH => "application/merge-patch+json",
            _ => "application/json",
        };
        let sent = self.rest.send(method, path, Some((media, document)));
        within(sent).await.unwrap()
    }

    async fn with(store: impl Store) -> Self {
        Self::under(BlockPolicy::default(), store).await
    }

    async fn under(policy: BlockPolicy, store: impl Store) -> Self {
        let rules = ServerRules {
            blocks: policy,
            ..uncounted()
        };
        Self::at("127.0.0.1:0", rules, store).await
    }

    async fn at(listen: &str, rules: ServerRules, store: impl Store) -> Self {
        let listen: Listen = listen.parse().unwrap();
        let listener = Listener::bind(&listen).await.unwrap();
        Self::on(listener, rules, store).await
    }

    async fn on(listener: Listener, rules: ServerRules, store: impl Store) -> Self {
        let address = listener.address().to_string();
        let (serving, ready) = oneshot::channel();
        let stop = CancellationToken::new();
        let mut running = JoinSet::new();
        running.spawn(server::serve(
            store,
            rules,
            vec![listener],
            |_| {
                serving.send(()).unwrap();
                Ok(())
            },
            stop.clone(),
        ));
        tokio::select! {
            ready = ready => ready.unwrap(),
            ended = running.join_next() => panic!("ended: {ended:?}"),
        }
        Self {
            client: transports::client(&address),
            rest: HttpClient::new(address.as_str()),
            address,
            stop,
            running,
        }
    }

    /// Stops the server and waits for its end.
    async fn stop(mut self) {
        self.stop.cancel();
        drop(self.client);
        let ended = within(self.running.join_next()).await.unwrap();
        ended.unwrap().unwrap();
    }

    fn pods(&self) -> podplane_client::Api<Pod> {
        self.client.namespaced("default")
    }

    fn nodes(&self) -> podplane_client::Api<Node> {
        self.client.all()
    }

    fn namespaces(&self) -> podplane_client::Api<Namespace> {
        self.client.all()
    }
}

/// Rules under which a pod can be bound to a node that does not exist: most tests are about
/// something else.
fn uncounted() -> ServerRules {
    ServerRules {
        pod_ips: PodIpRules {
            policy: IpPolicy::Off,
            ..PodIpRules::default()
        },
        ..ServerRules::default()
    }
}

async fn within<T>(future: impl Future<Output = T>) -> T {
    time::timeout(DEADLINE, future)
        .await
        .expect("happens before the deadline")
}

fn object<K: Object>(json: Value) -> K {
    serde_json::from_value(json).unwrap()
}

fn pod(name: &str) -> Pod {
    pod_with(json!({"metadata": {"name": name, "namespace": "default"}}))
}

/// A pod with a container, and the fields of `json`.
fn pod_with(mut json: Value) -> Pod {
    json["metadata"]["namespace"] = json["metadata"]["namespace"]
        .as_str()
        .unwrap_or("default")
        .into();
    if json["spec"]["containers"].is_null() {
        json["spec"]["containers"] = json!([{"name": "c", "image": "i"}]);
    }
    object(json)
}

fn node(name: &str) -> Node {
    object(json!({"metadata": {"name": name}}))
}

fn at_once() -> DeleteParams {
    DeleteParams {
        grace_period_seconds: Some(0),
        ..DeleteParams::default()
    }
}

/// The next event that is not a bookmark.
async fn next<K: Object>(
    events: &mut (impl Stream<Item = Result<ObjectEvent<K>, ApiError>> + Unpin),
) -> ObjectEvent<K> {
    loop {
        match within(events.next())
            .await
            .expect("the watch goes on")
            .unwrap()
        {
            ObjectEvent::Bookmark(_) => {}
            event => return event,
        }
    }
}

/// Describes an event: its type and the object's name.
fn event_text<K: Object>(event: &ObjectEvent<K>) -> String {
    match event {
        ObjectEvent::Added(object) => format!("added {}", object.name()),
        ObjectEvent::Modified(object) => format!("modified {}", object.name()),
        ObjectEvent::Deleted(object) => format!("deleted {}", object.name()),
        ObjectEvent::Bookmark(_) => "bookmark".into(),
    }
}
