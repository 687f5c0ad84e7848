//! `store`: cares for the store of a cluster, in its data directory.

use std::{
    fs::{self, File},
    io::{BufReader, Write as _},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

use anyhow::Context as _;
use futures::{StreamExt as _, TryStreamExt as _, pin_mut};
use indicatif::HumanBytes;
use podplane_apiserver::check_item;
use podplane_client::endpoint;
use podplane_proto::store::{BackupRequest, store_service_client::StoreServiceClient};
use podplane_store::{
    BackupInfo, Checked, OpenError, Restored, SledStore, Status, back_up, verify_backup,
};
use tempfile::NamedTempFile;

use crate::{
    cluster::{data_dir::DataDir, trust},
    global::{Global, block_on},
    output, report,
};

/// Check, compact, back up or restore the store of a cluster
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  podplane store backup cluster.backup\n  podplane store check --data-dir /var/lib/podplane"
)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Read everything in the store of a stopped cluster and say what is wrong with it. Changes nothing
    ///
    /// Exits with 0 if the store is sound, 1 if it is damaged, 2 if it could not be read.
    #[command(after_help = "Example:\n  podplane down && podplane store check")]
    Check,
    /// Write every object, as they are at one moment, to a file; from the server if the cluster runs
    #[command(
        after_help = "Examples:\n  podplane store backup cluster.backup\n  podplane store backup cluster.backup --server 10.0.0.1:7080"
    )]
    Backup {
        /// The file to write; what is there is replaced when the backup is whole
        file: PathBuf,
    },
    /// Make the store of a backup, in a data directory that has none
    ///
    /// Clients of the cluster that was backed up have to list anew: no resourceVersion of theirs is valid in this one.
    #[command(
        after_help = "Example:\n  podplane store restore cluster.backup --data-dir ./restored\n  podplane up --data-dir ./restored"
    )]
    Restore {
        /// The backup
        file: PathBuf,
    },
    /// Forget the history in the store of a stopped cluster, and give the space back that it took
    #[command(after_help = "Example:\n  podplane down && podplane store compact")]
    Compact,
}

/// The exit code of `check` where nothing could be checked.
const NOT_CHECKED: u8 = 2;

pub(crate) fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    trust::data_dir(&global.data_dir)?;
    let dir = global.data_dir.join("store");
    match args.action {
        Action::Check => check(&dir),
        Action::Backup { file } => backup(&dir, &file, global),
        Action::Restore { file } => restore(&dir, &file, global),
        Action::Compact => compact(&dir),
    }
}

fn check(dir: &Path) -> anyhow::Result<ExitCode> {
    let mut wrong = Vec::new();
    let checked = SledStore::check(dir, |item| {
        if let Err(what) = check_item(item) {
            wrong.push(format!(
                "{}, as of revision {}, {what}",
                item.key, item.modified
            ));
        }
    });
    let Checked { status, damage } = match checked {
        Ok(checked) => checked,
        Err(error @ (OpenError::Corrupt { .. } | OpenError::Format { .. })) => {
            return Err(error.into());
        }
        Err(error) => {
            report::print(&error.into());
            return Ok(ExitCode::from(NOT_CHECKED));
        }
    };
    let damage = damage.iter().map(ToString::to_string).chain(wrong);
    let damage: Vec<String> = damage.collect();
    for what in &damage {
        output::line(what)?;
    }
    if damage.is_empty() {
        output::line(format_args!(
            "the store in {} is sound: {}",
            dir.display(),
            describe(&status)
        ))?;
        return Ok(ExitCode::SUCCESS);
    }
    anyhow::bail!(
        "the store in {} is damaged in {} places; restore it from a backup",
        dir.display(),
        damage.len()
    )
}

fn describe(status: &Status) -> String {
    let Status {
        current,
        oldest,
        keys,
        disk_bytes,
        ..
    } = status;
    format!(
        "{keys} objects at revision {current}, history since {oldest}, {} on disk",
        HumanBytes(disk_bytes.unwrap_or_default())
    )
}

fn backup(dir: &Path, file: &Path, global: &Global) -> anyhow::Result<ExitCode> {
    let parent = file
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new("."));
    // Renamed into place when it is whole.
    let mut written = NamedTempFile::with_prefix_in(".podplane-backup-", parent)
        .with_context(|| format!("make a file in {}", parent.display()))?;
    let from = block_on(async {
        let opened = if global.names_server() {
            None
        } else {
            match SledStore::open_existing(dir) {
                Ok(store) => Some(store),
                // By the server, which then gives the backup.
                Err(OpenError::Locked { .. }) => None,
                Err(error) => return Err(error.into()),
            }
        };
        match opened {
            Some(store) => {
                let pieces = back_up(Arc::new(store));
                pin_mut!(pieces);
                while let Some(piece) = pieces.next().await {
                    written.write_all(&piece.context("read the store")?)?;
                }
                Ok(dir.display().to_string())
            }
            None => {
                let server = global.server()?;
                let mut store = StoreServiceClient::new(endpoint::channel(&server)?);
                let answer = store.backup(BackupRequest {}).await;
                let refused = |status: tonic::Status| podplane_client::ApiError::from(&status);
                let mut pieces = answer.map_err(refused)?.into_inner();
                while let Some(next) = pieces.try_next().await.map_err(refused)? {
                    written.write_all(&next.piece)?;
                }
                Ok(server.to_string())
            }
        }
    })?;
    written.as_file().sync_all().context("sync the backup")?;
    let info = verify_backup(BufReader::new(written.reopen()?)).context("read the backup again")?;
    written
        .persist(file)
        .with_context(|| format!("write {}", file.display()))?;
    File::open(parent)
        .and_then(|parent| parent.sync_all())
        .with_context(|| format!("sync {}", parent.display()))?;
    let BackupInfo {
        revision, items, ..
    } = info;
    let bytes = fs::metadata(file)?.len();
    output::line(format_args!(
        "backed up {items} objects of {from} at revision {revision} to {}, {}",
        file.display(),
        HumanBytes(bytes)
    ))?;
    Ok(ExitCode::SUCCESS)
}

fn restore(dir: &Path, file: &Path, global: &Global) -> anyhow::Result<ExitCode> {
    let name = || format!("restore {}", file.display());
    let open = || File::open(file).map(BufReader::new).with_context(name);
    verify_backup(open()?).with_context(name)?;
    let is_used = fs::read_dir(&global.data_dir).is_ok_and(|mut found| found.next().is_some());
    if !is_used {
        // Then `up` takes it for what it is.
        DataDir::new(&global.data_dir)?.prepare()?;
    }
    let now = jiff::Timestamp::now().as_microsecond();
    let now = u64::try_from(now).unwrap_or_default();
    let Restored { backup, first, .. } =
        SledStore::restore(dir, open()?, now).with_context(name)?;
    output::line(format_args!(
        "restored {} objects, as of revision {} of the old store, to {}; revisions begin at {first}",
        backup.items,
        backup.revision,
        dir.display()
    ))?;
    Ok(ExitCode::SUCCESS)
}

fn compact(dir: &Path) -> anyhow::Result<ExitCode> {
    let (before, after) = SledStore::compact_offline(dir)?;
    let bytes = |status: &Status| HumanBytes(status.disk_bytes.unwrap_or_default());
    output::line(format_args!(
        "compacted the store in {} from {} to {}: {}",
        dir.display(),
        bytes(&before),
        bytes(&after),
        describe(&after)
    ))?;
    Ok(ExitCode::SUCCESS)
}
