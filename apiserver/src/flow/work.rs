//! The work that a request makes, from its path: the seats that it takes, and for how long.

use std::{collections::HashMap, fmt, sync::Arc};

use http::{Uri, request::Parts};
use podplane_api::any::AnyKind;
use podplane_proto::wire::Verb;

use crate::{
    authorization::{RequestInfo, ResourceRequest},
    rest::{request::RequestOptions, resource::Resource},
    summary,
};

/// The objects of a list for each of its seats, and the most seats of a list, as in Kubernetes.
const OBJECTS_PER_SEAT: u64 = 100;
const MAX_SEATS: u32 = 10;
/// The paths, and what is below them, that tell how the server is.
const PROBES: [&str; 3] = ["/livez", "/readyz", "/healthz"];
/// The name of gRPC's own service for the same.
const HEALTH: &str = "grpc.health.v1.Health";

/// The time for which a request has its seats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Extent {
    /// Until its answer has ended.
    #[default]
    UntilEnd,
    /// Until its answer begins: it may last for hours after that.
    UntilAnswer,
    /// The same, for a watch.
    Watch,
}

/// A request, as flow control sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FlowRequest {
    group: String,
    resource: String,
    subresource: String,
    /// True for questions about the health of the server.
    pub(super) is_probe: bool,
    pub(super) seats: u32,
    pub(super) extent: Extent,
}

impl FlowRequest {
    /// A request for objects of a kind, which takes one seat.
    pub(super) fn of_resource(group: &str, resource: &str, subresource: &str) -> Self {
        Self {
            group: group.to_owned(),
            resource: resource.to_owned(),
            subresource: subresource.to_owned(),
            seats: 1,
            ..Self::default()
        }
    }

    /// A question about the health of the server.
    pub(super) fn probe() -> Self {
        Self {
            is_probe: true,
            extent: Extent::UntilAnswer,
            ..Self::default()
        }
    }

    /// True for a request for objects of that kind.
    pub(super) fn is_of(&self, group: &str, resource: &str) -> bool {
        (&*self.group, &*self.resource) == (group, resource)
    }

    /// True for a request for the status of an object of that kind.
    pub(super) fn is_status_of(&self, group: &str, resource: &str) -> bool {
        self.is_of(group, resource) && self.subresource == "status"
    }
}

/// The kinds, by which requests are read.
#[derive(Default)]
pub(crate) struct FlowKinds {
    /// By API group and resource.
    resources: HashMap<(String, String), Arc<dyn Resource>>,
    /// By the names of their gRPC services.
    services: HashMap<&'static str, KindMethods>,
}

/// The gRPC methods of a kind.
struct KindMethods {
    group: String,
    resource: String,
    verbs: HashMap<String, Verb>,
}

impl fmt::Debug for FlowKinds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.services.keys()).finish()
    }
}

impl FlowKinds {
    /// Adds a kind.
    pub(crate) fn add(&mut self, kind: &dyn AnyKind, objects: Arc<dyn Resource>) {
        let names = kind.names();
        let [group, resource] = [&names.group, &names.plural].map(|name| name.clone().into_owned());
        let key = (group.clone(), resource.clone());
        self.resources.insert(key, objects);
        let Some(service) = kind.service() else {
            return;
        };
        let plural = names.camel_plural();
        let verbs = Verb::ALL.into_iter();
        let verbs = verbs.map(|verb| (verb.method_of(&names.kind, &plural), verb));
        let methods = KindMethods {
            group,
            resource,
            verbs: verbs.collect(),
        };
        self.services.insert(service, methods);
    }

    /// Reads a request.
    pub(super) fn read(&self, parts: &Parts) -> FlowRequest {
        let path = parts.uri.path();
        let called = path.strip_prefix('/').and_then(|path| path.split_once('/'));
        match called {
            Some((service, method)) if service.contains('.') => self.read_call(service, method),
            _ => self.read_path(parts),
        }
    }

    fn read_call(&self, service: &str, method: &str) -> FlowRequest {
        if service == HEALTH {
            return FlowRequest::probe();
        }
        let Some(kind) = self.services.get(service) else {
            // A stream, or an answer that is short.
            return FlowRequest {
                seats: 1,
                extent: Extent::UntilAnswer,
                ..FlowRequest::default()
            };
        };
        let verb = kind.verbs.get(method).copied();
        let subresource = match verb {
            Some(Verb::UpdateStatus | Verb::PatchStatus) => "status",
            _ => "",
        };
        let request = FlowRequest::of_resource(&kind.group, &kind.resource, subresource);
        match verb {
            Some(Verb::Watch) => FlowRequest {
                extent: Extent::Watch,
                ..request
            },
            // The limit is in the message.
            Some(Verb::List) => FlowRequest {
                seats: self.list_seats(&kind.group, &kind.resource, None),
                ..request
            },
            _ => request,
        }
    }

    fn read_path(&self, parts: &Parts) -> FlowRequest {
        let request = match RequestInfo::of(&parts.method, &parts.uri) {
            RequestInfo::Resource(request) => request,
            RequestInfo::Path(_, path) if is_probe(&path) => return FlowRequest::probe(),
            RequestInfo::Path(_, path) => return Self::read_other(&path, &parts.uri),
        };
        let ResourceRequest {
            verb,
            group,
            resource,
            subresource,
            fields,
            ..
        } = &request;
        let seats = match verb.as_str() {
            "list" | "deletecollection" if fields.iter().any(|one| one.key == "metadata.name") => 1,
            "list" | "deletecollection" => {
                let options = RequestOptions::parse(&parts.uri).unwrap_or_default();
                self.list_seats(group, resource, options.limit())
            }
            _ => 1,
        };
        FlowRequest {
            seats,
            extent: match (verb.as_str(), subresource.as_str()) {
                ("watch", _) => Extent::Watch,
                (_, "log" | "attach" | "exec" | "portforward" | "proxy") => Extent::UntilAnswer,
                _ => Extent::UntilEnd,
            },
            ..FlowRequest::of_resource(group, resource, subresource)
        }
    }

    /// Reads a request for something other than objects.
    fn read_other(path: &str, uri: &Uri) -> FlowRequest {
        let request = FlowRequest::of_resource("", "", "");
        let options = RequestOptions::parse(uri).unwrap_or_default();
        // The summary is shared, so that a request costs no more than another.
        match summary::judges(path) && options.is_watch().unwrap_or_default() {
            true => FlowRequest {
                extent: Extent::Watch,
                ..request
            },
            false => request,
        }
    }

    /// The seats of a list, by the objects that it may have to render.
    fn list_seats(&self, group: &str, resource: &str, limit: Option<u64>) -> u32 {
        let of_kind = self
            .resources
            .iter()
            .find(|((of, plural), _)| (&**of, &**plural) == (group, resource));
        let stored = of_kind.and_then(|(_, objects)| objects.count());
        let stored = stored.map_or(0, |count| u64::try_from(count).unwrap_or(u64::MAX));
        let objects = limit.map_or(stored, |limit| limit.min(stored));
        let seats = objects.div_ceil(OBJECTS_PER_SEAT);
        u32::try_from(seats).unwrap_or(u32::MAX).clamp(1, MAX_SEATS)
    }
}

fn is_probe(path: &str) -> bool {
    PROBES.iter().any(|probe| {
        path.strip_prefix(probe)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    })
}
