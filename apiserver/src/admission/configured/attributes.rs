//! A write as rules see it: what it is about, and its documents.

use std::{fmt, sync::Arc};

use podplane_api::{
    Object as _, ObjectKey, Scope,
    any::{DynObject, KindNames},
    autoscaling::Scale,
    patch,
};
use podplane_proto::error::ApiError;
use podplane_service_runtime::identity::Identity;
use serde_json::{Map, Value, json};

use super::super::{RequestNotes, RequestedWrite};
use crate::{
    error,
    registry::{ObjectPart, Operation, WriteEffect},
    rest::resource::Resource,
    served::{KindList, OtherKinds},
};

/// A group and version with a kind or a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Versioned {
    pub(super) group: String,
    pub(super) version: String,
    pub(super) name: String,
}

impl Versioned {
    fn new(group: &str, version: &str, name: &str) -> Self {
        Self {
            group: group.to_owned(),
            version: version.to_owned(),
            name: name.to_owned(),
        }
    }

    /// The document, in which `name` is called `field`.
    fn document(&self, field: &str) -> Value {
        json!({"group": self.group, "version": self.version, field: self.name})
    }
}

impl fmt::Display for Versioned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.group {
            "" => write!(f, "{}, Kind={}", self.version, self.name),
            group => write!(f, "{group}/{}, Kind={}", self.version, self.name),
        }
    }
}

/// A write, and the documents that it is about.
#[derive(Debug)]
pub(super) struct Attributes<'a> {
    pub(super) names: &'a KindNames,
    pub(super) by: &'a Arc<Identity>,
    /// `CREATE`, `UPDATE` or `DELETE`.
    pub(super) operation: &'static str,
    /// Empty for the object itself.
    pub(super) subresource: &'static str,
    /// The kind of the documents.
    pub(super) kind: Versioned,
    pub(super) name: String,
    /// For Namespaces their own name, as in the reference.
    pub(super) namespace: String,
    /// `None` for a deletion.
    pub(super) object: Option<Value>,
    /// `None` for a creation.
    pub(super) old: Option<Value>,
    pub(super) options: Value,
    pub(super) is_dry: bool,
}

/// The name of an operation, and the subresource through which it comes.
pub(super) fn verb(operation: Operation) -> (&'static str, &'static str) {
    match operation {
        Operation::Create => ("CREATE", ""),
        Operation::Update(part) => ("UPDATE", part.subresource()),
        Operation::Delete => ("DELETE", ""),
        Operation::Evict => ("CREATE", "eviction"),
        Operation::Bind => ("CREATE", "binding"),
    }
}

impl<'a> Attributes<'a> {
    pub(super) fn of(write: RequestedWrite<'a>, kinds: &KindList) -> Result<Self, ApiError> {
        let names = write.kind.names();
        let (operation, subresource) = verb(write.operation);
        let own = |object: &DynObject| object.to_json().map_err(|error| error::internal(&error));
        let ObjectKey { namespace, name } = write.key;
        let (group, version) = (&names.group, &names.version);
        let kind = Versioned::new(group, version, &names.kind);
        let metadata = json!({"name": name, "namespace": namespace});
        let (kind, object, old) = match write.operation {
            Operation::Create | Operation::Update(ObjectPart::Main | ObjectPart::Status) => (
                kind,
                write.new.map(own).transpose()?,
                write.old.map(own).transpose()?,
            ),
            Operation::Update(ObjectPart::Approval) => (
                kind,
                write.new.map(own).transpose()?,
                write.old.map(own).transpose()?,
            ),
            Operation::Update(ObjectPart::Scale) => {
                let resource = kinds.find(group, version, &names.plural);
                let resource = resource.ok_or_else(|| error::not_found_in(names, name))?;
                let scale = |object| resource.scale(&own(object)?);
                (
                    Versioned::new("autoscaling", "v1", "Scale"),
                    write.new.map(scale).transpose()?,
                    write.old.map(scale).transpose()?,
                )
            }
            Operation::Delete => (kind, None, write.old.map(own).transpose()?),
            Operation::Evict => (
                Versioned::new("policy", "v1", "Eviction"),
                Some(json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata})),
                None,
            ),
            Operation::Bind => {
                let pod = write.new.map(own).transpose()?.unwrap_or_default();
                // Schedulers send it, and Kubernetes passes on what they send.
                let uid = &pod["metadata"]["uid"];
                let metadata = json!({"name": name, "namespace": namespace, "uid": uid});
                let target = json!({"kind": "Node", "name": pod["spec"]["nodeName"]});
                let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target});
                (Versioned::new("", "v1", "Binding"), Some(binding), None)
            }
        };
        let is_dry = write.effect == WriteEffect::Dry;
        let namespace = match (names.scope, names.is("", "namespaces")) {
            (_, true) => name,
            (Scope::Namespaced, _) => namespace,
            (Scope::Cluster, _) => "",
        };
        Ok(Self {
            names,
            by: write.by,
            operation,
            subresource,
            kind,
            name: name.to_owned(),
            namespace: namespace.to_owned(),
            object,
            old,
            options: options(operation, is_dry),
            is_dry,
        })
    }

    /// True if rules can change what is written.
    pub(super) fn is_changeable(&self) -> bool {
        self.is_scale() || self.operation != "DELETE" && self.is_of_own_kind()
    }

    /// True for a write through the scale of an object.
    pub(super) fn is_scale(&self) -> bool {
        self.subresource == "scale"
    }

    /// The document of an object with another scale.
    pub(super) fn scaled(
        &self,
        object: &DynObject,
        scale: Value,
        kinds: &KindList,
    ) -> Result<Value, ApiError> {
        let names = self.names;
        let resource = kinds.find(&names.group, &names.version, &names.plural);
        let resource = resource.ok_or_else(|| error::not_found_in(names, &self.name))?;
        let scale = Scale::from_json_noting(scale);
        let (scale, _unknown) = scale.map_err(|error| error::not_strict::<Scale>(&error))?;
        let patch = resource.scaled(&scale)?;
        let document = object.to_json().map_err(|error| error::internal(&error))?;
        let scaled = patch::merge(document, patch);
        scaled.map_err(|error| error::bad_request(error.to_string()))
    }

    /// The requested resource in a version.
    pub(super) fn resource(&self, version: &str) -> Versioned {
        Versioned::new(&self.names.group, version, &self.names.plural)
    }

    /// True for a write of an object of its own kind, and not of a view of it.
    fn is_of_own_kind(&self) -> bool {
        self.kind.name == self.names.kind && self.kind.group == self.names.group
    }

    /// The documents in another version of the kind, as `kinds` convert them.
    pub(super) async fn in_version(
        &self,
        version: &str,
        kinds: &KindList,
    ) -> Result<VersionedDocuments, ApiError> {
        let mut kind = self.kind.clone();
        if version == self.names.version || !self.is_of_own_kind() {
            return Ok(VersionedDocuments {
                kind,
                resource: self.resource(version),
                object: self.object.clone(),
                old: self.old.clone(),
            });
        }
        let other = kinds.find(&self.names.group, version, &self.names.plural);
        let other = other.ok_or_else(|| error::not_found_in(self.names, &self.name))?;
        kind.version = version.to_owned();
        Ok(VersionedDocuments {
            kind,
            resource: self.resource(version),
            object: converted(other, self.object.as_ref()).await?,
            old: converted(other, self.old.as_ref()).await?,
        })
    }

    /// A document that rules changed in another version, in the requested one.
    pub(super) async fn in_own_version(
        &self,
        version: &str,
        document: Value,
        kinds: &KindList,
    ) -> Result<Value, ApiError> {
        if version == self.names.version || !self.is_of_own_kind() {
            return Ok(document);
        }
        let names = self.names;
        let own = kinds.find(&names.group, &names.version, &names.plural);
        let own = own.ok_or_else(|| error::not_found_in(names, &self.name))?;
        own.convert(document).await
    }

    /// The request without its objects: `AdmissionRequest` of admission.k8s.io/v1.
    pub(super) fn request(&self, uid: &str, documents: &VersionedDocuments) -> Map<String, Value> {
        let Identity {
            user,
            uid: user_uid,
            groups,
            extra,
        } = &**self.by;
        let mut info = json!({"username": user});
        if !user_uid.is_empty() {
            info["uid"] = user_uid.as_str().into();
        }
        if !groups.is_empty() {
            info["groups"] = json!(groups);
        }
        if !extra.is_empty() {
            info["extra"] = json!(extra);
        }
        let requested = self.resource(&self.names.version);
        let fields = [
            ("uid", json!(uid)),
            ("kind", documents.kind.document("kind")),
            ("resource", documents.resource.document("resource")),
            ("requestKind", self.kind.document("kind")),
            ("requestResource", requested.document("resource")),
            ("operation", self.operation.into()),
            ("userInfo", info),
            ("dryRun", self.is_dry.into()),
            ("options", self.options.clone()),
        ];
        let texts = [
            ("subResource", self.subresource),
            ("requestSubResource", self.subresource),
            ("name", &*self.name),
            ("namespace", &*self.namespace),
        ];
        let texts = texts.into_iter().filter(|(_, text)| !text.is_empty());
        let texts = texts.map(|(field, text)| (field, Value::from(text)));
        let all = fields.into_iter().chain(texts);
        all.map(|(field, value)| (field.to_owned(), value))
            .collect()
    }
}

/// The documents of a write in one version.
#[derive(Clone, Debug)]
pub(super) struct VersionedDocuments {
    pub(super) kind: Versioned,
    pub(super) resource: Versioned,
    pub(super) object: Option<Value>,
    pub(super) old: Option<Value>,
}

async fn converted(
    to: &Arc<dyn Resource>,
    document: Option<&Value>,
) -> Result<Option<Value>, ApiError> {
    match document {
        None => Ok(None),
        Some(document) => to.convert(document.clone()).await.map(Some),
    }
}

/// The options of the request: `CreateOptions` and the like.
fn options(operation: &str, is_dry: bool) -> Value {
    let kind = match operation {
        "CREATE" => "CreateOptions",
        "UPDATE" => "UpdateOptions",
        _ => "DeleteOptions",
    };
    let mut options = RequestNotes::options();
    options.insert("kind".to_owned(), kind.into());
    options.insert("apiVersion".to_owned(), "meta.k8s.io/v1".into());
    if is_dry {
        options.insert("dryRun".to_owned(), json!(["All"]));
    }
    options.into()
}

/// The versions of a kind that are served, the requested one first.
pub(super) fn versions(names: &KindNames, kinds: &KindList) -> Vec<String> {
    let same = |other: &&KindNames| names.is(&other.group, &other.plural);
    let others = kinds.resources.iter().map(|resource| resource.names());
    let others = others.filter(same).map(|names| names.version.to_string());
    let own = names.version.to_string();
    let others = others.filter(|version| *version != own);
    std::iter::once(own.clone()).chain(others).collect()
}

/// The namespace of that name.
pub(super) async fn namespace(kinds: &OtherKinds, name: &str) -> Result<Value, ApiError> {
    let kinds = kinds.now();
    let missing = || ApiError::not_found("namespaces", name);
    let namespaces = kinds.find("", "v1", "namespaces").ok_or_else(missing)?;
    namespaces.get(&ObjectKey::new("", name)).await
}
