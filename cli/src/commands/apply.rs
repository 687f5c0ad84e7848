//! `apply -f`: makes objects what files say, as kubectl's client-side apply does.

use std::{process::ExitCode, time::Duration};

use anyhow::Context as _;
use backon::{ExponentialBuilder, Retryable as _};
use podplane_api::Object;
use podplane_client::{ApiError, Client};
use serde_json::{Value, json};

use super::{FileArgs, NamespaceArgs, Outcome, api};
use crate::{
    global::{Global, block_on},
    kind::with_kind,
    manifest::{self, Manifest},
    merge, output,
};

/// Where an object keeps what was last applied to it. kubectl reads and writes the same.
pub(super) const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Make objects what files say
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  podplane apply -f deploy/sample.yaml\n  podplane get node node-0 -o yaml | sed s/10.244.0/10.244.9/ | podplane apply -f -"
)]
pub(crate) struct Args {
    #[command(flatten)]
    files: FileArgs,

    #[command(flatten)]
    namespace: NamespaceArgs,
}

pub(crate) fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    let manifests = manifest::read(&args.files.filename)?;
    block_on(async {
        let client = global.client()?;
        let mut outcome = Outcome::default();
        for manifest in manifests {
            let applied = apply_manifest(&client, &manifest, &args.namespace.namespace).await;
            if let Some((name, what)) = outcome.note(applied)? {
                output::line(format_args!("{name} {what}"))?;
            }
        }
        Ok(outcome.exit_code())
    })
}

/// Applies one manifest. Returns the object's name for people, and what was done: `created`, `configured` or `unchanged`.
pub(crate) async fn apply_manifest(
    client: &Client,
    manifest: &Manifest,
    namespace: &str,
) -> anyhow::Result<(String, &'static str)> {
    let place = || format!("apply {}", manifest.place);
    anyhow::ensure!(
        !manifest.name().is_empty(),
        "apply {}: an object without a name, with generateName only, can be created but not applied",
        manifest.place
    );
    let namespace = manifest.namespace(namespace);
    let done = with_kind!(manifest.kind, K => apply::<K>(client, manifest, namespace).await.with_context(place)?);
    Ok((manifest.display(), done))
}

async fn apply<K: Object>(
    client: &Client,
    manifest: &Manifest,
    namespace: &str,
) -> anyhow::Result<&'static str> {
    let file = annotated(manifest, namespace)?;
    let is_pinned = !file["metadata"]["resourceVersion"].is_null();
    let backoff = ExponentialBuilder::new()
        .with_min_delay(Duration::from_millis(10))
        .with_max_times(5)
        .with_jitter();
    let attempt = || try_apply::<K>(client, &file, namespace, manifest.name());
    // Somebody else wrote between our read and our write: merge with what they wrote. Not where the file says which revision it is for.
    let is_race = |error: &anyhow::Error| {
        !is_pinned
            && error
                .downcast_ref::<ApiError>()
                .is_some_and(|error| error.is_conflict() || error.is_already_exists())
    };
    attempt.retry(backoff).when(is_race).await
}

async fn try_apply<K: Object>(
    client: &Client,
    file: &Value,
    namespace: &str,
    name: &str,
) -> anyhow::Result<&'static str> {
    let api = api::<K>(client, Some(namespace));
    let live = match api.get(name).await {
        Ok(live) => live,
        Err(error) if error.is_not_found() => {
            let mut new = K::from_json(file.clone())?;
            // Of an object that is no more, such as one deleted to be made again.
            new.metadata_mut().resource_version = None;
            api.create(&new).await?;
            return Ok("created");
        }
        Err(error) => return Err(error.into()),
    };
    let last = match live
        .metadata()
        .annotations
        .as_ref()
        .and_then(|all| all.get(LAST_APPLIED))
    {
        Some(last) => serde_json::from_str(last)
            .with_context(|| format!("read the annotation {LAST_APPLIED}"))?,
        None => Value::Null,
    };
    let merged = K::from_json(merge::three_way(&last, file, &live.to_json()?))?;
    if merged == live {
        return Ok("unchanged");
    }
    let written = api.update(&merged).await?;
    let is_same = written.resource_version() == live.resource_version();
    Ok(if is_same { "unchanged" } else { "configured" })
}

/// The manifest in its namespace, with the annotation that the next apply will need.
fn annotated(manifest: &Manifest, namespace: &str) -> anyhow::Result<Value> {
    let mut object = manifest.object.clone();
    let metadata = &mut object["metadata"];
    if manifest.kind.is_namespaced() {
        metadata["namespace"] = json!(namespace);
    }
    // As kubectl, which always writes the map.
    if metadata["annotations"].is_null() {
        metadata["annotations"] = json!({});
    }
    if let Some(annotations) = metadata["annotations"].as_object_mut() {
        annotations.remove(LAST_APPLIED);
    }
    let text = serde_json::to_string(&object)?;
    object["metadata"]["annotations"][LAST_APPLIED] = format!("{text}\n").into();
    Ok(object)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_annotation_is_kubectls() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("x.yaml");
        let text = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: c, image: i}]}";
        std::fs::write(&file, text).unwrap();
        let manifests = manifest::read(&[file]).unwrap();
        let object = annotated(&manifests[0], "default").unwrap();
        let want = "{\"apiVersion\":\"v1\",\"kind\":\"Pod\",\"metadata\":{\"annotations\":{},\"name\":\"a\",\"namespace\":\"default\"},\
            \"spec\":{\"containers\":[{\"image\":\"i\",\"name\":\"c\"}]}}\n";
        assert_eq!(object["metadata"]["annotations"][LAST_APPLIED], want);
    }
}
