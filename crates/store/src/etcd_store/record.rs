//! The record of a store in etcd. Without it, there is no store under the prefix.

use podplane_etcd::{
    EtcdClient,
    wire::etcdserverpb::{
        Compare, RangeRequest, TxnRequest,
        compare::{CompareTarget, TargetUnion},
    },
};
use podplane_host::random;

use super::{EtcdOpenError, StoreRecord, keys::KeySpace, request::put};

/// The record, and the revision of etcd at which it was created.
pub(super) async fn read(
    client: &EtcdClient,
    keys: &KeySpace,
) -> Result<Option<(StoreRecord, i64)>, EtcdOpenError> {
    let request = RangeRequest {
        key: keys.record(),
        ..RangeRequest::default()
    };
    let Some(found) = client.range(request).await?.kvs.pop() else {
        return Ok(None);
    };
    let record = serde_json::from_slice(&found.value);
    let record = record.map_err(|error| EtcdOpenError::NotAStore {
        key: keys.record().escape_ascii().to_string(),
        why: error.to_string(),
    })?;
    Ok(Some((record, found.create_revision)))
}

/// The same; makes the record of a new store if it is not there.
pub(super) async fn read_or_create(
    client: &EtcdClient,
    keys: &KeySpace,
) -> Result<(StoreRecord, i64), EtcdOpenError> {
    loop {
        if let Some(found) = read(client, keys).await? {
            return Ok(found);
        }
        let record = StoreRecord {
            id: random::uuid(),
            offset: 0,
            restoring: false,
        };
        match client
            .txn(write(keys, &record, TargetUnion::CreateRevision(0)))
            .await
        {
            // Read again in each case: another server may have been first.
            Err(error) if !error.is_transient() => return Err(error.into()),
            Ok(_) | Err(_) => {}
        }
    }
}

/// The transaction that writes the record where its creation revision is this one; 0: where it is
/// absent.
pub(super) fn write(keys: &KeySpace, record: &StoreRecord, created: TargetUnion) -> TxnRequest {
    let value = serde_json::json!(record).to_string();
    TxnRequest {
        compare: vec![Compare {
            target: CompareTarget::Create.into(),
            key: keys.record(),
            target_union: Some(created),
            ..Compare::default()
        }],
        success: vec![put(keys.record(), value.into())],
        failure: Vec::new(),
    }
}
