//! Records objects as they change.

use podplane_api::{
    Object,
    apps::{Deployment, ReplicaSet},
    core::{Event, Node, Pod, Service},
    networking::{ClusterCIDR, ServiceCIDR},
};
use podplane_client::{
    self as client, Cache, Client, ListParams, WatcherEvent, answered, reflector, watcher,
};
use tokio::sync::Notify;

use super::{EntryEvent, ObjectChange, Recorder};

/// Records the ranges of the cluster, nodes, pods, Services, Deployments, ReplicaSets and events as
/// they change, for as long as it is polled. Leases are left out: they change all the time and say
/// little.
pub async fn watch(client: Client, recorder: Recorder) {
    let (service_ranges, service_ranges_driver) =
        reflector(client.all::<ServiceCIDR>(), ListParams::default());
    let (pod_ranges, pod_ranges_driver) =
        reflector(client.all::<ClusterCIDR>(), ListParams::default());
    let (nodes, nodes_driver) = reflector(client.all::<Node>(), ListParams::default());
    let (pods, pods_driver) = reflector(client.all::<Pod>(), ListParams::default());
    let (services, services_driver) = reflector(client.all::<Service>(), ListParams::default());
    let (deployments, deployments_driver) =
        reflector(client.all::<Deployment>(), ListParams::default());
    let (sets, sets_driver) = reflector(client.all::<ReplicaSet>(), ListParams::default());
    let (events, events_driver) = reflector(client.all::<Event>(), ListParams::default());
    tokio::join!(
        service_ranges_driver,
        pod_ranges_driver,
        nodes_driver,
        pods_driver,
        services_driver,
        deployments_driver,
        sets_driver,
        events_driver,
        cluster_cidrs(&client, &recorder),
        objects(&service_ranges, &recorder),
        objects(&pod_ranges, &recorder),
        objects(&nodes, &recorder),
        objects(&pods, &recorder),
        objects(&services, &recorder),
        objects(&deployments, &recorder),
        objects(&sets, &recorder),
        told(&events, &recorder),
    );
}

async fn objects<K: Object>(cache: &Cache<K>, recorder: &Recorder) {
    let mut changes = cache.subscribe();
    loop {
        let (change, object) = match changes.next().await {
            client::CacheChange::Applied { old: None, new } => (ObjectChange::Added, new),
            client::CacheChange::Applied { old: Some(_), new } => (ObjectChange::Modified, new),
            client::CacheChange::Deleted(last) => (ObjectChange::Deleted, last),
        };
        if let Ok(object) = object.to_json() {
            recorder.write(EntryEvent::Object { change, object });
        }
    }
}

/// Records the ranges of the API server's flag, which change when it is restarted.
async fn cluster_cidrs(client: &Client, recorder: &Recorder) {
    let connected = Notify::new();
    let on_event = |event: WatcherEvent<ServiceCIDR>| {
        if matches!(event, WatcherEvent::Listed(_) | WatcherEvent::Watching) {
            connected.notify_one();
        }
    };
    let follow = watcher(client.all(), ListParams::default(), on_event);
    let record = async {
        let mut known = Vec::new();
        loop {
            connected.notified().await;
            // Without an answer, the next connection tells.
            if let Ok(listed) = answered(client.blocks().list()).await
                && listed.cluster_cidrs != known
            {
                recorder.cluster_cidrs(&listed.cluster_cidrs);
                known = listed.cluster_cidrs;
            }
        }
    };
    tokio::join!(follow, record);
}

async fn told(cache: &Cache<Event>, recorder: &Recorder) {
    let mut changes = cache.subscribe();
    loop {
        let client::CacheChange::Applied { new: event, .. } = changes.next().await else {
            continue;
        };
        let of = &event.involved_object;
        let part = |part: &Option<String>| part.clone().unwrap_or_default();
        let parts = [
            part(&of.kind).to_ascii_lowercase(),
            part(&of.namespace),
            part(&of.name),
        ];
        let parts = parts.into_iter().filter(|part| !part.is_empty());
        let about = parts.collect::<Vec<_>>().join("/");
        let (reason, message) = (part(&event.reason), part(&event.message));
        let by = event
            .source
            .as_ref()
            .and_then(|source| source.component.clone())
            .or_else(|| event.reporting_component.clone());
        let decision = match reason.as_str() {
            "FailedScheduling" => Some(("scheduler", format!("waits: {message}"))),
            "TaintManagerEviction" => {
                Some(("controller-manager", format!("is evicted: {message}")))
            }
            _ => None,
        };
        if let Some((by, decision)) = decision {
            recorder.write(EntryEvent::Decision {
                by: by.into(),
                about: about.clone(),
                decision,
            });
        }
        recorder.write(EntryEvent::Event {
            about,
            type_: part(&event.type_),
            reason,
            message,
            by: by.unwrap_or_default(),
            count: event.count.unwrap_or(1).into(),
        });
    }
}
