//! The proof that a request was judged.

use std::{fmt, sync::Arc};

use http::Extensions;
use podplane_proto::error::{ApiError, Reason};
use podplane_service_runtime::identity::Identity;

use super::{RequestInfo, request::ResourceRequest};

/// A request that the gate has let through. Nothing outside of this module makes one.
#[derive(Clone, Debug)]
pub(crate) struct Authorized {
    identity: Arc<Identity>,
    /// The judged request, over HTTP.
    info: Option<Arc<RequestInfo>>,
}

impl Authorized {
    /// Only for the gate, after its decision.
    pub(super) fn to(identity: &Arc<Identity>, info: RequestInfo) -> Self {
        Self {
            identity: Arc::clone(identity),
            info: Some(Arc::new(info)),
        }
    }

    /// The same for a call of a gRPC service.
    pub(super) fn to_service(identity: &Arc<Identity>) -> Self {
        Self {
            identity: Arc::clone(identity),
            info: None,
        }
    }

    /// The verdict of the gate in a request's extensions.
    ///
    /// # Errors
    ///
    /// `Forbidden` for a request that the gate has not judged, which only a bug of this program
    /// lets get so far.
    pub(crate) fn of(extensions: &Extensions) -> Result<Self, ApiError> {
        let found = extensions.get::<Self>().cloned();
        found.ok_or_else(|| ApiError::new(Reason::Forbidden, "the request was not authorized"))
    }

    /// The user by whom the request is carried out.
    pub(crate) fn identity(&self) -> &Arc<Identity> {
        &self.identity
    }

    /// Checks that a handler understood the request's path as the gate did.
    ///
    /// # Errors
    ///
    /// `Forbidden` if it did not, which only a bug of this program causes.
    pub(crate) fn covers(&self, served: &ResourceRequest) -> Result<(), ApiError> {
        let is_same = match self.info.as_deref() {
            Some(RequestInfo::Resource(judged)) => {
                // A request for a Namespace is in it, for authorizers.
                let namespace = match &*judged.resource {
                    "namespaces" if served.namespace.is_empty() => "",
                    _ => &*judged.namespace,
                };
                (&judged.group, &judged.version, &judged.resource)
                    == (&served.group, &served.version, &served.resource)
                    && (&judged.subresource, &judged.name) == (&served.subresource, &served.name)
                    && namespace == served.namespace
                    && judged.verb == served.verb
            }
            _ => false,
        };
        match is_same {
            true => Ok(()),
            false => Err(ApiError::new(
                Reason::Forbidden,
                "the request was authorized for another path",
            )),
        }
    }
}

/// A value that only an authorized request may use.
#[derive(Clone)]
pub(crate) struct Gated<T>(T);

impl<T> Gated<T> {
    pub(crate) fn new(inner: T) -> Self {
        Self(inner)
    }

    /// The inner value, for a request that was judged.
    pub(crate) fn open(&self, _: &Authorized) -> &T {
        &self.0
    }
}

impl<T> fmt::Debug for Gated<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gated").finish_non_exhaustive()
    }
}
