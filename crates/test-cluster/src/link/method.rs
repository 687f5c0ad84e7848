//! The methods that are called over links, and their messages as JSON.

use std::sync::LazyLock;

use bytes::Buf as _;
use podplane_proto::DESCRIPTORS;
use prost_reflect::{
    DescriptorPool, DynamicMessage, MessageDescriptor, MethodDescriptor, SerializeOptions,
};
use serde_json::Value;

use crate::{ClusterError, Result};

/// The descriptors of podplane's services and of CRI.
static POOL: LazyLock<DescriptorPool> =
    LazyLock::new(|| DescriptorPool::decode(DESCRIPTORS).expect("it is built with the crate"));

/// A method, by the path of its requests. It may be unknown.
#[derive(Clone, Debug, Default)]
pub(super) struct Method {
    path: String,
    descriptor: Option<MethodDescriptor>,
}

impl Method {
    /// Returns the method for the path of a request: `/podplane.core.v1.PodService/BindPod`.
    pub(super) fn of(path: &str) -> Self {
        let known = path
            .trim_start_matches('/')
            .split_once('/')
            .and_then(|(service, method)| {
                let service = POOL.get_service_by_name(service)?;
                service.methods().find(|known| known.name() == method)
            });
        Self {
            path: path.into(),
            descriptor: known,
        }
    }

    /// Checks that some service has a method of that name: `BindPod`, or
    /// `podplane.core.v1.PodService/BindPod`.
    pub(super) fn check(name: &str) -> Result<()> {
        if all().any(|method| method.is(Some(name))) {
            return Ok(());
        }
        let nearest = all()
            .map(|method| method.name().to_owned())
            .min_by_key(|known| strsim::damerau_levenshtein(known, name));
        Err(ClusterError::NoMethod {
            method: name.into(),
            nearest: nearest.unwrap_or_default(),
        })
    }

    /// Returns true if CRI has a method of that name.
    pub(super) fn is_of_runtimes(name: &str) -> bool {
        let mut of_cri = all().filter(|method| method.path.starts_with("/runtime.v1."));
        of_cri.any(|method| method.is(Some(name)))
    }

    pub(super) fn path(&self) -> &str {
        &self.path
    }

    /// The name without the service: `BindPod`.
    pub(super) fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or_default()
    }

    /// Returns true if this method has that name. `None` stands for every method except the export
    /// of traces, which has no effect and happens at any time.
    pub(super) fn is(&self, name: Option<&str>) -> bool {
        let Some(name) = name else {
            return !self.path.starts_with("/opentelemetry.");
        };
        let name = name.trim_start_matches('/');
        self.name() == name || self.path.trim_start_matches('/') == name
    }

    /// Returns true if the client and the server send one message each.
    pub(super) fn is_unary(&self) -> bool {
        self.descriptor
            .as_ref()
            .is_some_and(|known| !known.is_client_streaming() && !known.is_server_streaming())
    }

    /// Returns true if the client sends one message.
    pub(super) fn takes_one(&self) -> bool {
        self.descriptor
            .as_ref()
            .is_some_and(|known| !known.is_client_streaming())
    }

    /// Decodes the client's message.
    pub(super) fn request(&self, body: &[u8]) -> Option<Value> {
        decode(&self.descriptor.as_ref()?.input(), body)
    }

    /// Decodes the server's message.
    pub(super) fn answer(&self, body: &[u8]) -> Option<Value> {
        decode(&self.descriptor.as_ref()?.output(), body)
    }
}

/// Iterates over all known methods.
fn all() -> impl Iterator<Item = Method> {
    POOL.services().flat_map(|service| {
        let methods = service.methods().map(|method| Method {
            path: format!("/{}/{}", method.parent_service().full_name(), method.name()),
            descriptor: Some(method),
        });
        methods.collect::<Vec<_>>()
    })
}

/// Decodes the first message of a gRPC body to JSON. `None` if there is none, or it is compressed
/// or invalid.
fn decode(descriptor: &MessageDescriptor, mut body: &[u8]) -> Option<Value> {
    if body.len() < 5 || body.get_u8() != 0 {
        return None;
    }
    let length = usize::try_from(body.get_u32()).ok()?;
    let message = DynamicMessage::decode(descriptor.clone(), body.get(..length)?).ok()?;
    let options = SerializeOptions::new().stringify_64_bit_integers(false);
    message
        .serialize_with_options(serde_json::value::Serializer, &options)
        .ok()
}
