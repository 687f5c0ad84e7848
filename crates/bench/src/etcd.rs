//! etcd's published messages, and the paths of the methods that the bench calls.

/// `KV.Put`
pub(crate) const PUT: &str = "/etcdserverpb.KV/Put";
/// `KV.Txn`
pub(crate) const TXN: &str = "/etcdserverpb.KV/Txn";
/// `KV.Range`
pub(crate) const RANGE: &str = "/etcdserverpb.KV/Range";

pub(crate) use generated::etcdserverpb::{
    Compare, PutRequest, RangeRequest, RequestOp, TxnRequest, compare, request_op,
};

#[expect(
    clippy::allow_attributes,
    reason = "expecting dead code in a module is seldom fulfilled"
)]
#[allow(dead_code, reason = "little of it is used")]
#[expect(unreachable_pub, clippy::all, reason = "generated")]
mod generated {
    pub(super) mod authpb {
        tonic::include_proto!("authpb");
    }
    pub(super) mod etcdserverpb {
        tonic::include_proto!("etcdserverpb");
    }
    pub(super) mod mvccpb {
        tonic::include_proto!("mvccpb");
    }
}
