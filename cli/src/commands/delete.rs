//! `delete`: deletes objects, and waits until they are gone.

use std::{collections::BTreeMap, process::ExitCode, time::Duration};

use futures::{StreamExt as _, stream};
use podplane_api::{Object, ObjectKey};
use podplane_client::{Client, DeleteParams, ListParams};
use podplane_progress::{PlainLines, Progress};

use super::{BatchOutcome, IN_FLIGHT, NamespaceArgs, api, completion::candidates, duration, wait};
use crate::{
    global::{GlobalOptions, block_on},
    kind::{KindOperand, ResourceKind, Targets, with_kind},
    manifest::{self, Manifest},
    output,
    report::UsageError,
};

/// Delete objects by name, by label selector, or from manifest files
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  podplane delete pod web-0 web-1\n  podplane delete pods -l app=web\n  podplane delete pods --all\n  podplane delete -f deploy/sample.yaml\n  podplane delete pod web-0 --grace-period 0 --force"
)]
pub(crate) struct DeleteArgs {
    /// Delete objects of this KIND, such as pods, or one object, such as pod/web-0
    #[arg(
        value_name = "KIND[/NAME]",
        required_unless_present = "filename",
        add = candidates::kind_and_name(),
    )]
    what: Option<KindOperand>,

    /// Names of the objects of KIND
    #[arg(value_name = "NAME", add = candidates::of_the_kind_before())]
    names: Vec<String>,

    /// Read manifests from a file, a directory (.yaml, .yml, .json), or - for standard input; may
    /// be repeated
    #[arg(short, long, value_name = "FILE", conflicts_with_all = ["what", "names", "selector", "all"])]
    filename: Vec<std::path::PathBuf>,

    #[command(flatten)]
    namespace: NamespaceArgs,

    /// Delete objects that match this label selector
    #[arg(short = 'l', long, value_name = "SELECTOR", conflicts_with = "names")]
    selector: Option<String>,

    /// Delete all objects of KIND in the namespace
    #[arg(long, conflicts_with_all = ["names", "selector"])]
    all: bool,

    /// Give pods SECONDS, an integer without a unit, to terminate [default:
    /// spec.terminationGracePeriodSeconds]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(i64).range(0..))]
    grace_period: Option<i64>,

    /// Delete at once, as with --grace-period 0, without waiting for the kubelet
    ///
    /// WARNING: the sandbox may still run and use its address for a while.
    #[arg(long)]
    force: bool,

    /// Succeed if an object does not exist
    #[arg(long)]
    ignore_not_found: bool,

    /// Wait until the objects are gone; --wait=false returns at once
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    wait: bool,

    /// With --wait: fail if the objects are not gone after this time, such as 30s [default: no
    /// limit]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    timeout: Option<Duration>,
}

/// An object to be deleted.
#[derive(Clone, Debug)]
struct DeletionTarget {
    kind: ResourceKind,
    key: ObjectKey,
}

pub(crate) fn run(args: DeleteArgs, global: &GlobalOptions) -> anyhow::Result<ExitCode> {
    let manifests = match args.what {
        Some(_) => Vec::new(),
        None => manifest::read(&args.filename)?,
    };
    block_on(async {
        let client = global.client()?;
        global
            .while_running(delete(&client, args, &manifests))
            .await
    })
}

async fn delete(
    client: &Client,
    args: DeleteArgs,
    manifests: &[Manifest],
) -> anyhow::Result<ExitCode> {
    let params = DeleteParams {
        grace_period_seconds: if args.force {
            Some(0)
        } else {
            args.grace_period
        },
        ..DeleteParams::default()
    };
    let victims = victims(client, &args, manifests).await?;
    if victims.is_empty() {
        anstream::eprintln!("No resources found");
    }
    let mut outcome = BatchOutcome::default();
    let mut going: Vec<(DeletionTarget, String)> = Vec::new();
    let mut deletions = stream::iter(victims)
        .map(|victim| async {
            let deleted = delete_one(client, &victim, &params).await;
            (victim, deleted)
        })
        .buffered(IN_FLIGHT);
    while let Some((victim, deleted)) = deletions.next().await {
        match deleted {
            Err(error) if error.is_not_found() && args.ignore_not_found => {}
            deleted => {
                if let Some(uid) = outcome.note(deleted.map_err(Into::into))? {
                    let how = if args.force {
                        "force deleted"
                    } else {
                        "deleted"
                    };
                    output::line(format_args!(
                        "{} \"{}\" {how}",
                        victim.kind, victim.key.name
                    ))?;
                    going.push((victim, uid));
                }
            }
        }
    }
    if args.wait && !args.force {
        wait_until_gone(client, going, args.timeout).await?;
    }
    Ok(outcome.exit_code())
}

async fn victims(
    client: &Client,
    args: &DeleteArgs,
    manifests: &[Manifest],
) -> anyhow::Result<Vec<DeletionTarget>> {
    let namespace = args.namespace.namespace.as_str();
    let victim = |kind: ResourceKind, namespace: &str, name: &str| DeletionTarget {
        kind,
        key: ObjectKey::new(if kind.is_namespaced() { namespace } else { "" }, name),
    };
    let Some(what) = args.what.clone() else {
        let each = manifests.iter().map(|manifest| {
            victim(
                manifest.kind,
                manifest.namespace(namespace),
                manifest.name(),
            )
        });
        return Ok(each.collect());
    };
    match Targets::new(what, &args.names)? {
        Targets::Named(named) => Ok(named
            .iter()
            .map(|(kind, name)| victim(*kind, namespace, name))
            .collect()),
        Targets::All(_) if args.selector.is_none() && !args.all => {
            Err(UsageError("missing objects: pass names, -l SELECTOR or --all".into()).into())
        }
        Targets::All(kind) => with_kind!(kind, K => {
            let params = ListParams {
                label_selector: args.selector.clone().unwrap_or_default(),
                ..ListParams::default()
            };
            let list = api::<K>(client, Some(namespace)).list(&params).await?;
            Ok(list.items.iter().map(|object| victim(kind, namespace, object.name())).collect())
        }),
    }
}

/// Deletes an object and returns its UID, which distinguishes it from a new object of the same
/// name.
async fn delete_one(
    client: &Client,
    victim: &DeletionTarget,
    params: &DeleteParams,
) -> Result<String, podplane_client::ApiError> {
    let ObjectKey { namespace, name } = &victim.key;
    with_kind!(victim.kind, K => {
        let last = api::<K>(client, Some(namespace)).delete(name, params).await?;
        Ok(last.uid().to_owned())
    })
}

async fn wait_until_gone(
    client: &Client,
    going: Vec<(DeletionTarget, String)>,
    timeout: Option<Duration>,
) -> anyhow::Result<()> {
    let mut groups: Vec<(ResourceKind, String, BTreeMap<ObjectKey, String>)> = Vec::new();
    for (DeletionTarget { kind, key }, uid) in going {
        let group = groups
            .iter()
            .position(|(of, namespace, _)| *of == kind && *namespace == key.namespace);
        match group {
            Some(group) => groups[group].2.extend([(key, uid)]),
            None => groups.push((kind, key.namespace.clone(), BTreeMap::from([(key, uid)]))),
        }
    }
    let deadline = timeout.map(|timeout| tokio::time::Instant::now() + timeout);
    for (kind, namespace, uids) in groups {
        let left = deadline.map(|deadline| deadline.duration_since(tokio::time::Instant::now()));
        with_kind!(kind, K => until_gone::<K>(client, &namespace, uids, left).await?);
    }
    Ok(())
}

async fn until_gone<K: Object>(
    client: &Client,
    namespace: &str,
    uids: BTreeMap<ObjectKey, String>,
    timeout: Option<Duration>,
) -> anyhow::Result<()> {
    let field_selector = match uids.first_key_value() {
        Some((key, _)) if uids.len() == 1 => format!("metadata.name={}", key.name),
        _ => String::new(),
    };
    let params = ListParams {
        field_selector,
        ..ListParams::default()
    };
    let total = u64::try_from(uids.len()).unwrap_or(u64::MAX);
    let progress = Progress::with_lines("", PlainLines::IfSlow);
    progress.count(&format!("waiting for {} to end", K::PLURAL), total);
    let mut left = uids;
    let gone = wait::until(
        api::<K>(client, Some(namespace)),
        params,
        timeout,
        |cache| {
            left.retain(|key, uid| cache.get(key).is_some_and(|object| object.uid() == uid));
            let waiting = u64::try_from(left.len()).unwrap_or(u64::MAX);
            progress.position(total.saturating_sub(waiting));
            left.is_empty().then_some(())
        },
    );
    let gone = gone.await;
    drop(progress);
    let names: Vec<_> = left.keys().map(|key| key.name.as_str()).collect();
    anyhow::ensure!(
        gone.is_some(),
        "timed out waiting for the end of {} {}",
        K::PLURAL,
        names.join(", ")
    );
    Ok(())
}
