//! `create -f`: creates objects from files; an existing object is an error.

use std::process::ExitCode;

use anyhow::Context as _;
use podplane_api::Object as _;
use podplane_client::Client;

use super::{BatchOutcome, FileArgs, NamespaceArgs, api};
use crate::{
    global::{GlobalOptions, block_on},
    kind::with_kind,
    manifest::{self, Manifest},
    output,
};

/// Create objects from manifest files; fail for those that exist
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  podplane create -f deploy/sample.yaml\n  podplane create -n kube-system -f manifests/"
)]
pub(crate) struct CreateArgs {
    #[command(flatten)]
    files: FileArgs,

    #[command(flatten)]
    namespace: NamespaceArgs,
}

pub(crate) fn run(args: CreateArgs, global: &GlobalOptions) -> anyhow::Result<ExitCode> {
    let manifests = manifest::read(&args.files.filename)?;
    block_on(async {
        let client = global.client()?;
        let mut outcome = BatchOutcome::default();
        for manifest in manifests {
            let created = create(&client, &manifest, &args.namespace.namespace).await;
            let created = created.with_context(|| format!("failed to create {}", manifest.place));
            if let Some(name) = outcome.note(created)? {
                output::line(format_args!("{}/{name} created", manifest.kind))?;
            }
        }
        Ok(outcome.exit_code())
    })
}

/// Creates the object and returns its name, which the server may have generated.
async fn create(client: &Client, manifest: &Manifest, namespace: &str) -> anyhow::Result<String> {
    let namespace = manifest.namespace(namespace);
    Ok(with_kind!(manifest.kind, K => {
        let mut object: K = manifest.decode()?;
        if manifest.kind.is_namespaced() {
            object.metadata.namespace = Some(namespace.into());
        }
        api::<K>(client, Some(namespace)).create(&object).await?.name().to_owned()
    }))
}
