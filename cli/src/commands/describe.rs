//! `describe`: all about a node or a pod on one sheet.

mod network;
mod node;
mod pod;

use std::{collections::BTreeMap, process::ExitCode};

use jiff::Timestamp;
use podplane_api::{
    Object, ObjectKey,
    core::Event,
    kinds::event::{event_age, event_source},
    meta::Time,
    table::{self, TableRow as _},
};
use podplane_client::{Client, ListParams};

use super::{BatchOutcome, NamespaceArgs, api, completion::candidates};
use crate::{
    global::{GlobalOptions, block_on},
    kind::{KindOperand, ResourceKind, Targets},
    output::{self, sheet::Sheet},
    report::UsageError,
};

/// Show details and events of nodes or pods
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  podplane describe node node-0\n  podplane describe pod web-0\n  podplane describe pods"
)]
pub(crate) struct DescribeArgs {
    /// Describe objects of this kind, pods or nodes, or one object, such as pod/web-0
    #[arg(value_name = "KIND[/NAME]", add = candidates::kind_and_name())]
    what: KindOperand,

    /// Names of the objects [default: all]
    #[arg(value_name = "NAME", add = candidates::of_the_kind_before())]
    names: Vec<String>,

    #[command(flatten)]
    namespace: NamespaceArgs,
}

pub(crate) fn run(args: DescribeArgs, global: &GlobalOptions) -> anyhow::Result<ExitCode> {
    let targets = Targets::new(args.what, &args.names)?;
    let namespace = args.namespace.namespace;
    block_on(async {
        let client = global.client()?;
        let mut outcome = BatchOutcome::default();
        let mut gap = "";
        for (kind, name) in names(&client, &namespace, targets).await? {
            let sheet = match kind {
                ResourceKind::Node => node::sheet(&client, &name).await,
                ResourceKind::Pod => pod::sheet(&client, Some(global), &namespace, &name).await,
                _ => Err(not_described(kind).into()),
            };
            if let Some(sheet) = outcome.note(sheet)? {
                output::line(format_args!("{gap}{sheet}"))?;
                gap = "\n";
            }
        }
        Ok(outcome.exit_code())
    })
}

/// The sheet of a node.
pub(super) async fn of_node(client: &Client, name: &str) -> anyhow::Result<Sheet> {
    node::sheet(client, name).await
}

/// The sheet of a pod. `global` has the schedulers that explain why it waits; `None` for another
/// cluster than that of the data directory.
pub(super) async fn of_pod(
    client: &Client,
    global: Option<&GlobalOptions>,
    key: &ObjectKey,
) -> anyhow::Result<Sheet> {
    pod::sheet(client, global, &key.namespace, &key.name).await
}

async fn names(
    client: &Client,
    namespace: &str,
    targets: Targets,
) -> anyhow::Result<Vec<(ResourceKind, String)>> {
    let kind = match targets {
        Targets::Named(named) => match named
            .iter()
            .find(|(kind, _)| !matches!(kind, ResourceKind::Node | ResourceKind::Pod))
        {
            Some((kind, _)) => return Err(not_described(*kind).into()),
            None => return Ok(named),
        },
        Targets::All(kind) => kind,
    };
    let all = ListParams::default();
    let names: Vec<_> = match kind {
        ResourceKind::Node => api::<podplane_api::core::Node>(client, None)
            .list(&all)
            .await?
            .items
            .iter()
            .map(|node| node.name().into())
            .collect(),
        ResourceKind::Pod => api::<podplane_api::core::Pod>(client, Some(namespace))
            .list(&all)
            .await?
            .items
            .iter()
            .map(|pod| pod.name().into())
            .collect(),
        _ => return Err(not_described(kind).into()),
    };
    Ok(names.into_iter().map(|name| (kind, name)).collect())
}

fn not_described(kind: ResourceKind) -> UsageError {
    UsageError(format!(
        "describe shows nodes and pods: `podplane get {kind} NAME -o yaml` prints an object of another kind"
    ))
}

/// The events about an object, oldest first. Some reporters, such as the kubelet of Kubernetes, use
/// a node's name as its UID.
async fn events<K: Object>(client: &Client, object: &K) -> anyhow::Result<Vec<Event>> {
    let params = ListParams {
        field_selector: format!(
            "involvedObject.kind={},involvedObject.name={}",
            K::KIND,
            object.name()
        ),
        ..ListParams::default()
    };
    let namespace = Some(object.namespace()).filter(|namespace| !namespace.is_empty());
    let mut events = api::<Event>(client, namespace).list(&params).await?.items;
    events.retain(|event| match event.involved_object.uid.as_deref() {
        None | Some("") => true,
        Some(uid) => uid == object.uid() || uid == object.name(),
    });
    Event::sort(&mut events);
    Ok(events)
}

fn events_table(sheet: &mut Sheet, events: &[Event], now: Timestamp) {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let rows = events.iter().map(|event| {
        vec![
            text(&event.type_),
            text(&event.reason),
            event_age(event, now),
            event_source(event),
            text(&event.message).trim().into(),
        ]
    });
    sheet.table(
        "Events",
        &["Type", "Reason", "Age", "From", "Message"],
        rows.collect(),
    );
}

/// `key=value` pairs, in order.
fn pairs(map: Option<&BTreeMap<String, String>>, separator: &str) -> Vec<String> {
    let pairs = map.into_iter().flatten();
    pairs
        .map(|(key, value)| format!("{key}{separator}{value}"))
        .collect()
}

/// The annotations, except the one in which `apply` repeats the manifest.
fn annotations<K: Object>(object: &K) -> Vec<String> {
    let told = object.metadata().annotations.iter().flatten();
    told.filter(|(key, _)| *key != super::apply::LAST_APPLIED)
        .map(|(key, value)| format!("{key}: {value}"))
        .collect()
}

fn time(time: Option<&Time>) -> String {
    time.map_or_else(|| table::NONE.into(), |Time(time)| time.to_string())
}
