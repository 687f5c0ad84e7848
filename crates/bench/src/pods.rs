//! The objects: stored pods of 1,200 bytes, and values of the same size for etcd.

use anyhow::{Result, ensure};
use bytes::Bytes;
use podplane_api::{
    Object,
    core::{Namespace, Node, Pod},
};
use podplane_proto::{
    codec,
    wire::{GetRequest, ListRequest, Verb, WatchRequest, WriteRequest, method_path},
};
use serde_json::{Value, json};

use crate::{call::framed, etcd, server::ServerProcess};

/// The bytes of a stored pod, and of a value in etcd.
pub(crate) const SIZE: usize = 1200;

const NAMESPACE: &str = "default";

/// A request in which only the digits of a name vary.
#[derive(Debug)]
pub(crate) struct RequestTemplate {
    bytes: Bytes,
    /// The offsets of the digits, each time that the name occurs.
    digits: Vec<usize>,
}

const DIGITS: usize = 7;
const PLACEHOLDER: &str = "x-0000000";

impl RequestTemplate {
    fn new(bytes: Bytes) -> Result<Self> {
        let names = bytes.windows(PLACEHOLDER.len()).enumerate();
        let digits: Vec<_> = names
            .filter(|(_, window)| *window == PLACEHOLDER.as_bytes())
            .map(|(at, _)| at + PLACEHOLDER.len() - DIGITS)
            .collect();
        ensure!(!digits.is_empty(), "request does not contain the name");
        Ok(Self { bytes, digits })
    }

    /// The request with this number.
    pub(crate) fn with(&self, number: u32) -> Bytes {
        let mut bytes = self.bytes.to_vec();
        let digits = format!("{number:0DIGITS$}");
        for at in &self.digits {
            bytes[*at..at + DIGITS].copy_from_slice(digits.as_bytes());
        }
        bytes.into()
    }
}

pub(crate) fn create_path<K: Object>() -> String {
    method_path::<K>(&Verb::Create.method::<K>())
}

pub(crate) fn get_path() -> String {
    method_path::<Pod>(&Verb::Get.method::<Pod>())
}

pub(crate) fn get_namespace_path() -> String {
    method_path::<Namespace>(&Verb::Get.method::<Namespace>())
}

pub(crate) fn list_path() -> String {
    method_path::<Pod>(&Verb::List.method::<Pod>())
}

pub(crate) fn watch_path() -> String {
    method_path::<Pod>(&Verb::Watch.method::<Pod>())
}

/// The request that creates a pod.
pub(crate) fn create() -> Result<RequestTemplate> {
    create_of::<Pod>(&pod())
}

/// The request that creates a node.
pub(crate) fn create_node() -> Result<RequestTemplate> {
    create_of::<Node>(&json!({
        "metadata": {"name": PLACEHOLDER, "labels": {"kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}},
        "spec": {},
        "status": {"capacity": {"cpu": "4", "memory": "16Gi", "pods": "110"}},
    }))
}

fn create_of<K: Object>(json: &Value) -> Result<RequestTemplate> {
    let object = codec::encode(&K::from_json(json.clone())?)?;
    RequestTemplate::new(framed(&WriteRequest {
        object: Some(object),
    })?)
}

/// Creates a pod with a name that no other call uses, and checks its size in the store.
pub(crate) async fn check_size(server: &ServerProcess) -> Result<()> {
    let mut connection = server.connect().await?;
    let request = create()?.with(9_999_999);
    let stored = connection.answer(&create_path::<Pod>(), request).await?;
    let mut stored: Pod = codec::decode(&stored)?;
    // The revision is the commit's, and not part of the value.
    stored.metadata.resource_version = None;
    let size = stored.to_vec()?.len();
    let right = (PADDING + SIZE).saturating_sub(size);
    ensure!(
        size == SIZE,
        "a stored pod has {size} bytes, not {SIZE}: PADDING should be {right}"
    );
    Ok(())
}

pub(crate) fn get() -> Result<RequestTemplate> {
    RequestTemplate::new(framed(&GetRequest {
        namespace: NAMESPACE.to_owned(),
        name: PLACEHOLDER.to_owned(),
    })?)
}

pub(crate) fn get_namespace() -> Result<Bytes> {
    framed(&GetRequest {
        namespace: String::new(),
        name: NAMESPACE.to_owned(),
    })
}

pub(crate) fn list() -> Result<Bytes> {
    framed(&ListRequest {
        namespace: NAMESPACE.to_owned(),
        ..ListRequest::default()
    })
}

pub(crate) fn watch() -> Result<Bytes> {
    framed(&WatchRequest {
        namespace: NAMESPACE.to_owned(),
        ..WatchRequest::default()
    })
}

/// The pod as a user writes it, padded so that the stored object has [`SIZE`] bytes including the
/// fields that the server adds.
fn pod() -> Value {
    json!({
        "metadata": {
            "name": PLACEHOLDER, "namespace": NAMESPACE,
            "labels": {"app": "web", "tier": "frontend"},
            "annotations": {"example.com/owner": "x".repeat(PADDING)},
        },
        "spec": {
            "automountServiceAccountToken": false,
            "containers": [{
                "name": "web", "image": "registry.k8s.io/pause:3.10",
                "resources": {"requests": {"cpu": "50m", "memory": "32Mi"}},
            }],
        },
    })
}

const PADDING: usize = 87;

const KEY: &str = "/registry/pods/default/";

/// The request that puts the value at the pod's key in etcd.
pub(crate) fn etcd_put() -> Result<RequestTemplate> {
    RequestTemplate::new(framed(&etcd::PutRequest {
        key: format!("{KEY}{PLACEHOLDER}").into(),
        value: vec![b'x'; SIZE].into(),
        ..etcd::PutRequest::default()
    })?)
}

/// The transaction that puts the value unless the key is there: what a create is in etcd.
pub(crate) fn etcd_create() -> Result<RequestTemplate> {
    let key = Bytes::from(format!("{KEY}{PLACEHOLDER}"));
    let put = etcd::PutRequest {
        key: key.clone(),
        value: vec![b'x'; SIZE].into(),
        ..etcd::PutRequest::default()
    };
    RequestTemplate::new(framed(&etcd::TxnRequest {
        compare: vec![etcd::Compare {
            result: etcd::compare::CompareResult::Equal.into(),
            target: etcd::compare::CompareTarget::Create.into(),
            key,
            target_union: Some(etcd::compare::TargetUnion::CreateRevision(0)),
            ..etcd::Compare::default()
        }],
        success: vec![etcd::RequestOp {
            request: Some(etcd::request_op::Request::RequestPut(put)),
        }],
        ..etcd::TxnRequest::default()
    })?)
}

pub(crate) fn etcd_get() -> Result<RequestTemplate> {
    RequestTemplate::new(framed(&etcd::RangeRequest {
        key: format!("{KEY}{PLACEHOLDER}").into(),
        ..etcd::RangeRequest::default()
    })?)
}

pub(crate) fn etcd_list() -> Result<Bytes> {
    framed(&etcd::RangeRequest {
        key: KEY.into(),
        // The end of the range: the key after the last one with this prefix.
        range_end: KEY.replace("default/", "default0").into(),
        ..etcd::RangeRequest::default()
    })
}
