//! The paths of etcd's methods that are measured.

/// `KV.Put`
pub(crate) const PUT: &str = "/etcdserverpb.KV/Put";
/// `KV.Txn`
pub(crate) const TXN: &str = "/etcdserverpb.KV/Txn";
/// `KV.Range`
pub(crate) const RANGE: &str = "/etcdserverpb.KV/Range";

pub(crate) use podplane_etcd::wire::etcdserverpb::{
    Compare, PutRequest, RangeRequest, RequestOp, TxnRequest, compare, request_op,
};
