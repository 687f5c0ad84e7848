//! `store`: checks, compacts, backs up and restores the store in a data directory.

use std::{
    fs::{self, File},
    io::{self, BufReader, Seek as _, Write as _},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

use anyhow::Context as _;
use futures::{StreamExt as _, TryStreamExt as _, pin_mut};
use podplane_apiserver::check_item;
use podplane_client::endpoint;
use podplane_cluster::{data_dir::DataDir, trust};
use podplane_etcd::EtcdFlags;
use podplane_progress::{HumanBytes, PlainLines, Progress};
use podplane_proto::store::{BackupRequest, store_service_client::StoreServiceClient};
use podplane_store::{
    BackupInfo, CheckReport, EtcdStore, ListQuery, OpenError, RestoreReport, SledStore, Store,
    StoreStatus, back_up, verify_backup,
};
use tempfile::NamedTempFile;

use crate::{
    global::{GlobalOptions, block_on},
    output::{self, page},
    report::UnusableInput,
};

/// Check, back up, restore or compact the store of a cluster
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  podplane store backup cluster.backup\n  podplane store check --data-dir /var/lib/podplane"
)]
pub(crate) struct StoreArgs {
    #[command(subcommand)]
    action: StoreCommand,
}

/// The place of the store: etcd, with its flags, else the data directory.
#[derive(Debug, clap::Args)]
struct StorePlace {
    #[command(flatten)]
    etcd: EtcdFlags,
}

impl StorePlace {
    fn etcd(&self) -> Option<&EtcdFlags> {
        Some(&self.etcd).filter(|etcd| !etcd.etcd_endpoints.is_empty())
    }
}

/// The engine that a store is moved to.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum MoveTo {
    /// From the data directory to etcd.
    Etcd,
    /// From etcd to the data directory.
    Sled,
}

#[derive(Debug, clap::Subcommand)]
enum StoreCommand {
    /// Check the integrity of a stopped cluster's store; read-only
    ///
    /// Exit codes: 0 the store is sound; 1 it is damaged; 2 it could not be read.
    #[command(
        after_help = "Examples:\n  podplane down && podplane store check\n  podplane store check --etcd-endpoints http://127.0.0.1:2379"
    )]
    Check {
        #[command(flatten)]
        place: StorePlace,
    },
    /// Write a consistent snapshot of all objects to FILE; the cluster may run
    #[command(
        after_help = "Examples:\n  podplane store backup cluster.backup\n  podplane store backup cluster.backup --server 10.0.0.1:7080"
    )]
    Backup {
        /// Write to this file; an existing one is replaced only when the backup is complete
        file: PathBuf,
        #[command(flatten)]
        place: StorePlace,
    },
    /// Restore a backup into a data directory without a store, or into etcd
    ///
    /// Old resourceVersions are invalid after a restore: clients must list again.
    #[command(
        after_help = "Examples:\n  podplane store restore cluster.backup --data-dir ./restored\n  podplane up --data-dir ./restored"
    )]
    Restore {
        /// Read the backup from this file
        file: PathBuf,
        #[command(flatten)]
        place: StorePlace,
    },
    /// Move a stopped cluster's store to etcd, or from there to a data directory; the old one stays
    ///
    /// Old resourceVersions are invalid afterwards: clients must list again.
    #[command(
        after_help = "Examples:\n  podplane store migrate etcd --data-dir /var/lib/podplane --etcd-endpoints http://127.0.0.1:2379"
    )]
    Migrate {
        /// The engine that is to have the store
        to: MoveTo,
        #[command(flatten)]
        place: StorePlace,
    },
    /// Discard the history in a stopped cluster's store, and free its disk space
    #[command(after_help = "Examples:\n  podplane down && podplane store compact")]
    Compact,
}

pub(crate) fn run(args: StoreArgs, global: &GlobalOptions) -> anyhow::Result<ExitCode> {
    trust::data_dir(&global.data_dir)?;
    let dir = global.data_dir.join("store");
    match args.action {
        StoreCommand::Check { place } => match place.etcd() {
            Some(etcd) => check_etcd(etcd),
            None => check(&dir),
        },
        StoreCommand::Backup { file, place } => backup(&dir, &file, global, place.etcd()),
        StoreCommand::Restore { file, place } => restore(&dir, &file, global, place.etcd()),
        StoreCommand::Migrate { to, place } => migrate(&dir, to, global, &place.etcd),
        StoreCommand::Compact => compact(&dir),
    }
}

/// The progress of an action.
fn progress(doing: &str) -> Progress {
    Progress::with_lines(doing, PlainLines::IfSlow)
}

fn check(dir: &Path) -> anyhow::Result<ExitCode> {
    let progress = progress("checking the store");
    let mut wrong = Vec::new();
    let checked = SledStore::check(dir, |item| {
        if let Err(what) = check_item(item) {
            wrong.push(format!(
                "{}, as of revision {}, {what}",
                item.key, item.modified
            ));
        }
    });
    drop(progress);
    let CheckReport { status, damage } = match checked {
        Ok(checked) => checked,
        Err(error @ (OpenError::Corrupt { .. } | OpenError::Format { .. })) => {
            return Err(error.into());
        }
        Err(error) => return Err(UnusableInput(error.into()).into()),
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

fn check_etcd(flags: &EtcdFlags) -> anyhow::Result<ExitCode> {
    let progress = progress("checking the store in etcd");
    let (items, status) = block_on(async {
        let store = EtcdStore::open_existing(flags).await?;
        let all = store.list(ListQuery::default()).await?;
        anyhow::Ok((all.items, store.status().await?))
    })
    .map_err(UnusableInput)?;
    drop(progress);
    let mut damaged = 0;
    for item in &items {
        if let Err(what) = check_item(item) {
            damaged += 1;
            output::line(format_args!(
                "{}, as of revision {}, {what}",
                item.key, item.modified
            ))?;
        }
    }
    anyhow::ensure!(
        damaged == 0,
        "the store in etcd is damaged in {damaged} places; restore it from a backup"
    );
    output::line(format_args!(
        "the store in etcd is sound: {}",
        describe(&status)
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// Moves a store by a backup of it.
fn migrate(
    dir: &Path,
    to: MoveTo,
    global: &GlobalOptions,
    etcd: &EtcdFlags,
) -> anyhow::Result<ExitCode> {
    let mut backup = tempfile::tempfile().context("failed to make a file for the backup")?;
    let progress = progress("opening the old store");
    block_on(async {
        match to {
            MoveTo::Etcd => {
                let store = SledStore::open_existing(dir)?;
                write_backup(store, &mut backup, &progress).await
            }
            MoveTo::Sled => {
                let store = EtcdStore::open_existing(etcd).await?;
                write_backup(store, &mut backup, &progress).await
            }
        }
    })?;
    backup.rewind().context("failed to read the backup")?;
    let etcd = matches!(to, MoveTo::Etcd).then_some(etcd);
    restore_from(dir, BufReader::new(backup), global, etcd, &progress)
}

async fn write_backup(
    store: impl Store,
    file: &mut impl io::Write,
    progress: &Progress,
) -> anyhow::Result<()> {
    progress.bytes("backing up", None);
    let mut file = progress.counted(file);
    let pieces = back_up(Arc::new(store));
    pin_mut!(pieces);
    while let Some(piece) = pieces.next().await {
        file.write_all(&piece.context("failed to read the store")?)
            .context("failed to write the backup")?;
    }
    Ok(())
}

fn describe(status: &StoreStatus) -> String {
    let StoreStatus {
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

fn backup(
    dir: &Path,
    file: &Path,
    global: &GlobalOptions,
    etcd: Option<&EtcdFlags>,
) -> anyhow::Result<ExitCode> {
    page::check_replaceable(file)?;
    let parent = page::directory(file);
    // Renamed into place when it is complete.
    let mut written = NamedTempFile::with_prefix_in(".podplane-backup-", parent)
        .with_context(|| format!("failed to make a file in {}", parent.display()))?;
    let progress = progress("opening the store");
    let from = block_on(async {
        if let Some(etcd) = etcd {
            let store = EtcdStore::open_existing(etcd).await?;
            write_backup(store, &mut written, &progress).await?;
            return Ok(format!("{} in etcd", etcd.etcd_prefix));
        }
        let opened = if global.names_server() {
            None
        } else {
            match SledStore::open_existing(dir) {
                Ok(store) => Some(store),
                // The server has the lock, and then sends the backup.
                Err(OpenError::Locked { .. }) => None,
                Err(error) => return Err(error.into()),
            }
        };
        match opened {
            Some(store) => {
                write_backup(store, &mut written, &progress).await?;
                Ok(dir.display().to_string())
            }
            None => {
                let server = global.server()?;
                let mut store = StoreServiceClient::new(endpoint::channel(&server)?);
                let answer = store.backup(BackupRequest {}).await;
                let refused = |status: tonic::Status| podplane_client::ApiError::from(&status);
                let mut pieces = answer.map_err(refused)?.into_inner();
                progress.bytes(&format!("backing up {server}"), None);
                let mut file = progress.counted(&mut written);
                while let Some(next) = pieces.try_next().await.map_err(refused)? {
                    file.write_all(&next.piece)?;
                }
                Ok(server.to_string())
            }
        }
    })?;
    written
        .as_file()
        .sync_all()
        .context("failed to sync the backup")?;
    let again = written.reopen()?;
    progress.bytes("checking the backup", Some(again.metadata()?.len()));
    let info = verify_backup(BufReader::new(progress.counted(again)))
        .context("failed to read the backup again")?;
    drop(progress);
    written
        .persist(file)
        .with_context(|| format!("failed to write {}", file.display()))?;
    File::open(parent)
        .and_then(|parent| parent.sync_all())
        .with_context(|| format!("failed to sync {}", parent.display()))?;
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

fn restore(
    dir: &Path,
    file: &Path,
    global: &GlobalOptions,
    etcd: Option<&EtcdFlags>,
) -> anyhow::Result<ExitCode> {
    let name = || format!("failed to restore {}", file.display());
    let read = || format!("failed to read {}", file.display());
    let backup = File::open(file).with_context(read).map_err(UnusableInput)?;
    let total = Some(backup.metadata().with_context(name)?.len());
    let progress = progress("reading the backup");
    progress.bytes("checking the backup", total);
    let mut backup = BufReader::new(progress.counted(backup));
    let verified = verify_backup(&mut backup).with_context(read);
    verified.map_err(UnusableInput)?;
    backup.rewind().with_context(name)?;
    progress.bytes("restoring", total);
    restore_from(dir, backup, global, etcd, &progress).with_context(name)
}

/// Restores a backup that was verified.
fn restore_from(
    dir: &Path,
    backup: impl io::Read + io::Seek,
    global: &GlobalOptions,
    etcd: Option<&EtcdFlags>,
    progress: &Progress,
) -> anyhow::Result<ExitCode> {
    let now = jiff::Timestamp::now().as_microsecond();
    let now = u64::try_from(now).unwrap_or_default();
    let (restored, place) = match etcd {
        Some(etcd) => {
            let restored = block_on(async {
                let restored = EtcdStore::restore(etcd, backup, now).await;
                restored.map_err(anyhow::Error::from)
            })?;
            (restored, format!("{} in etcd", etcd.etcd_prefix))
        }
        None => {
            let restored = restore_to_dir(dir, backup, global, now)?;
            (restored, dir.display().to_string())
        }
    };
    let RestoreReport { backup, first, .. } = restored;
    progress.suspend(|| {
        output::line(format_args!(
        "restored {} objects, as of revision {} of the old store, to {place}; revisions begin at {first}",
        backup.items, backup.revision,
        ))
    })?;
    Ok(ExitCode::SUCCESS)
}

fn restore_to_dir(
    dir: &Path,
    backup: impl io::Read + io::Seek,
    global: &GlobalOptions,
    now: u64,
) -> anyhow::Result<RestoreReport> {
    let is_used = fs::read_dir(&global.data_dir).is_ok_and(|mut found| found.next().is_some());
    if !is_used {
        // So that `up` accepts the directory.
        DataDir::new(&global.data_dir)?.prepare()?;
    }
    Ok(SledStore::restore(dir, backup, now)?)
}

fn compact(dir: &Path) -> anyhow::Result<ExitCode> {
    let progress = progress("compacting the store");
    let (before, after) = SledStore::compact_offline(dir)?;
    drop(progress);
    let bytes = |status: &StoreStatus| HumanBytes(status.disk_bytes.unwrap_or_default());
    output::line(format_args!(
        "compacted the store in {} from {} to {}: {}",
        dir.display(),
        bytes(&before),
        bytes(&after),
        describe(&after)
    ))?;
    Ok(ExitCode::SUCCESS)
}
