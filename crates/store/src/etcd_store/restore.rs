//! Restoring a backup, of whatever engine, into etcd.

use std::io;

use podplane_etcd::{
    EtcdClient, EtcdError, EtcdFlags,
    wire::etcdserverpb::{
        Compare, RangeRequest, RequestOp, TxnRequest,
        compare::{CompareTarget, TargetUnion},
    },
};
use podplane_host::random;

use super::{EtcdOpenError, EtcdStore, StoreRecord, keys::KeySpace, record, request::put};
use crate::{
    RestoreReport,
    backup::{BackupDamage, BackupReader, first_after, verify_backup},
    store::Revision,
};

/// The most items of one transaction; etcd's default.
const MAX_ITEMS: usize = 128;
/// The bytes at which a transaction ends: with one more item of the largest size it is below etcd's
/// default limit, unless that item has more than that alone.
const FULL_BYTES: usize = 512 * 1024;

/// The reason why a backup was not restored into etcd.
#[derive(Debug, thiserror::Error)]
pub enum EtcdRestoreError {
    /// etcd cannot be used.
    #[error(transparent)]
    Open(#[from] EtcdOpenError),
    /// Something is under the prefix.
    #[error(
        "{key} in etcd is not empty: choose another --etcd-prefix, or delete all keys under it"
    )]
    NotEmpty {
        /// The key in etcd.
        key: String,
    },
    /// The backup.
    #[error(transparent)]
    Backup(#[from] BackupDamage),
    /// etcd failed half-way; the store is not opened before it is restored whole.
    #[error("failed to write to etcd; delete all keys under {key}, and restore again")]
    Write {
        /// The key in etcd.
        key: String,
        /// The cause.
        #[source]
        source: EtcdError,
    },
}

impl EtcdStore {
    /// Creates a store from a backup under the prefix of the flags, which must be empty. It has a
    /// new id and begins at a revision higher than any that the original store gave out, as
    /// [`SledStore::restore`](crate::SledStore::restore) does.
    ///
    /// # Errors
    ///
    /// [`EtcdRestoreError`]; there is no store then that could be opened.
    pub async fn restore(
        flags: &EtcdFlags,
        mut backup: impl io::Read + io::Seek,
        now_micros: u64,
    ) -> Result<RestoreReport, EtcdRestoreError> {
        let client = EtcdClient::new(flags).map_err(EtcdOpenError::from)?;
        let keys = KeySpace::new(&flags.etcd_prefix);
        verify_backup(&mut backup)?;
        backup.rewind().map_err(BackupDamage::Read)?;
        let reader = BackupReader::new(&mut backup)?;
        let backup = reader.info();

        let all = keys.all();
        let request = RangeRequest {
            key: all.key,
            range_end: all.end,
            limit: 1,
            keys_only: true,
            ..RangeRequest::default()
        };
        let found = client.range(request).await.map_err(EtcdOpenError::from)?;
        if !found.kvs.is_empty() {
            return Err(EtcdRestoreError::NotEmpty {
                key: flags.etcd_prefix.clone(),
            });
        }
        let now = found.header.map_or(0, |header| header.revision);
        let now = u64::try_from(now).unwrap_or_default();
        let first = first_after(backup.revision, now_micros);
        let mut restored = StoreRecord {
            id: random::uuid(),
            offset: first.number().saturating_sub(now.saturating_add(1)),
            restoring: true,
        };
        let failed = |source| EtcdRestoreError::Write {
            key: flags.etcd_prefix.clone(),
            source,
        };
        let begin = record::write(&keys, &restored, TargetUnion::CreateRevision(0));
        let created = applied(&client, begin).await.map_err(failed)?;

        let mut puts = Vec::new();
        let mut bytes = 0;
        for item in reader {
            let (key, value) = item?;
            bytes += key.as_bytes().len() + value.len();
            puts.push(put(keys.of(&key), value));
            if puts.len() == MAX_ITEMS || bytes >= FULL_BYTES {
                let puts = std::mem::take(&mut puts);
                let part = under_record(&keys, created, puts);
                applied(&client, part).await.map_err(failed)?;
                bytes = 0;
            }
        }
        let rest = under_record(&keys, created, puts);
        applied(&client, rest).await.map_err(failed)?;
        restored.restoring = false;
        let end = record::write(&keys, &restored, TargetUnion::CreateRevision(created));
        applied(&client, end).await.map_err(failed)?;
        let number = u64::try_from(created).unwrap_or_default();
        Ok(RestoreReport {
            backup,
            id: restored.id,
            first: Revision::new(number.saturating_add(restored.offset)).unwrap_or(first),
        })
    }
}

/// Writes that are applied only while this restore is under way.
fn under_record(keys: &KeySpace, created: i64, puts: Vec<RequestOp>) -> TxnRequest {
    TxnRequest {
        compare: vec![Compare {
            target: CompareTarget::Create.into(),
            key: keys.record(),
            target_union: Some(TargetUnion::CreateRevision(created)),
            ..Compare::default()
        }],
        success: puts,
        failure: Vec::new(),
    }
}

/// Sends a transaction of which nothing is lost if it is applied twice; returns etcd's revision.
async fn applied(client: &EtcdClient, txn: TxnRequest) -> Result<i64, EtcdError> {
    let answer = client.repeatable_txn(txn).await?;
    match answer.succeeded {
        true => Ok(answer.header.map_or(0, |header| header.revision)),
        false => Err(EtcdError::Refused {
            message: "another process wrote to the store that is restored".to_owned(),
        }),
    }
}
