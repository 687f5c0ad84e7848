//! `apply -f`: makes objects equal to their manifests, by server-side apply.
//!
//! The files win: fields of other writers are taken over, for which `kubectl apply --server-side`
//! would need `--force-conflicts`. A field of an earlier file that no other writer owns is removed.

use std::process::ExitCode;

use anyhow::Context as _;
use podplane_api::Object;
use podplane_client::{Client, PatchParams, PatchType};
use serde_json::Value;

use super::{BatchOutcome, FileArgs, NamespaceArgs, api};
use crate::{
    global::{GlobalOptions, block_on},
    kind::with_kind,
    manifest::{self, Manifest},
    output,
};

/// The annotation in which kubectl's client-side apply keeps the last applied configuration.
pub(super) const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// The name under which applied fields are recorded in `metadata.managedFields`.
const FIELD_MANAGER: &str = "podplane";

/// Create or update objects from manifest files, by server-side apply
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  podplane apply -f deploy/sample.yaml\n  podplane get node node-0 -o yaml | sed s/10.244.0/10.244.9/ | podplane apply -f -"
)]
pub(crate) struct ApplyArgs {
    #[command(flatten)]
    files: FileArgs,

    #[command(flatten)]
    namespace: NamespaceArgs,
}

pub(crate) fn run(args: ApplyArgs, global: &GlobalOptions) -> anyhow::Result<ExitCode> {
    let manifests = manifest::read(&args.files.filename)?;
    block_on(async {
        let client = global.client()?;
        let mut outcome = BatchOutcome::default();
        for manifest in manifests {
            let applied = apply_manifest(&client, &manifest, &args.namespace.namespace).await;
            if let Some((name, what)) = outcome.note(applied)? {
                output::line(format_args!("{name} {what}"))?;
            }
        }
        Ok(outcome.exit_code())
    })
}

/// Applies one manifest. Returns the object's name for people, and the outcome: `created`,
/// `configured` or `unchanged`.
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
    let api = api::<K>(client, Some(namespace));
    let before = match api.get(manifest.name()).await {
        Ok(live) => Some(live),
        Err(error) if error.is_not_found() => None,
        Err(error) => return Err(error.into()),
    };
    let mut config = configuration(manifest, namespace);
    if before.is_none()
        && let Some(metadata) = config["metadata"].as_object_mut()
    {
        // The resourceVersion of a deleted object, which is to be created again.
        metadata.remove("resourceVersion");
    }
    let params = PatchParams {
        patch_type: PatchType::Apply,
        patch: config.to_string(),
        field_manager: FIELD_MANAGER.to_owned(),
        force: true,
    };
    let applied = api.patch(manifest.name(), &params).await?;
    let Some(before) = before else {
        return Ok("created");
    };
    let is_unchanged = before.resource_version() == applied.resource_version()
        || has_same_fields(&config, &before.to_json()?, &applied.to_json()?);
    Ok(match is_unchanged {
        true => "unchanged",
        false => "configured",
    })
}

/// Returns true if an apply changed neither the values of its fields nor their set. The object may
/// have another revision: the scheduler and the kubelet write it meanwhile.
fn has_same_fields(config: &Value, before: &Value, after: &Value) -> bool {
    let owned = |object: &Value| {
        let entries = object["metadata"]["managedFields"].as_array();
        let mut entries = entries.into_iter().flatten();
        let own = entries
            .find(|entry| entry["manager"] == FIELD_MANAGER && entry["operation"] == "Apply");
        own.map(|entry| entry["fieldsV1"].clone())
    };
    owned(before) == owned(after) && has_same_values(config, before, after)
}

/// Compares two objects at the fields of `config`, and lists as a whole.
fn has_same_values(config: &Value, before: &Value, after: &Value) -> bool {
    match config {
        Value::Object(fields) => fields.iter().all(|(name, value)| {
            name == "resourceVersion" || has_same_values(value, &before[name], &after[name])
        }),
        _ => before == after,
    }
}

/// The manifest in its namespace, without the fields that only servers write.
fn configuration(manifest: &Manifest, namespace: &str) -> Value {
    let mut object = manifest.object.clone();
    if let Some(metadata) = object["metadata"].as_object_mut() {
        if manifest.kind.is_namespaced() {
            metadata.insert("namespace".to_owned(), namespace.into());
        }
        metadata.remove("managedFields");
    }
    object
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_apply_beside_other_writers_changes_something_only_if_its_fields_change() {
        let object = |revision: &str, labels: Value, node: &str, fields: Value| {
            let own = json!({"manager": "podplane", "operation": "Apply", "fieldsV1": fields});
            json!({"metadata": {"resourceVersion": revision, "labels": labels, "managedFields": [own]},
                "spec": {"nodeName": node, "containers": [{"name": "c"}]}})
        };
        let (one, two) = (json!({"app": "a"}), json!({"app": "a", "b": "b"}));
        let owned = json!({"f:metadata": {"f:labels": {"f:app": {}}}});
        let config = json!({"metadata": {"labels": one, "resourceVersion": "1"},
            "spec": {"containers": [{"name": "c"}]}});
        let before = object("1", one.clone(), "", owned.clone());
        let bound = object("2", one, "node-0", owned.clone());
        assert!(has_same_fields(&config, &before, &bound));
        let labelled = object("2", two.clone(), "", owned.clone());
        assert!(
            has_same_fields(&config, &before, &labelled),
            "a label of another writer"
        );
        let changed = object("2", json!({"app": "x"}), "", owned);
        assert!(!has_same_fields(&config, &changed, &bound));
        let more = json!({"f:metadata": {"f:labels": {"f:app": {}, "f:b": {}}}});
        let dropping = object("1", two, "", more);
        assert!(
            !has_same_fields(&config, &dropping, &bound),
            "a field is dropped"
        );
    }
}
