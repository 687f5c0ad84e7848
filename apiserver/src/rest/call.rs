//! One request for objects, from its options to its answer.

use std::sync::Arc;

use bytes::Bytes;
use futures::{StreamExt as _, stream};
use http::{HeaderMap, Method, StatusCode, Uri};
use podplane_access::ResourceTarget;
use podplane_api::strategy::Subresource;
use podplane_proto::error::{ApiError, Reason};
use serde_json::{Value, json};

use super::{
    Facade, RequestTarget,
    answer::{self, ObjectForm, RefusalSubject, RestAnswer},
    body, discovery, log, patch,
    place::place,
    render::ListRendering,
    request::{FieldValidation, RequestOptions, WriteOptions},
    resource::{Documents, WriteAnswer},
    table::{self, RowInclusion, TableForm},
    watch,
};
use crate::{
    admission::{RequestNotes, fences},
    audit::RequestRecord,
    authorization::{Authorized, ResourceRequest},
    error,
    registry::{ActAnswer, ChangeTerms, ObjectPart, Patch},
};

/// The number of objects of a collection that are deleted concurrently.
const AT_ONCE: usize = 32;

/// The refusal of a call: an error, or a complete answer.
pub(super) enum CallRefusal {
    Error(ApiError),
    Answer(Box<RestAnswer>),
}

impl From<ApiError> for CallRefusal {
    fn from(error: ApiError) -> Self {
        Self::Error(error)
    }
}

impl From<RestAnswer> for CallRefusal {
    fn from(answer: RestAnswer) -> Self {
        Self::Answer(Box::new(answer))
    }
}

/// Maps errors in options, which are refused as objects of the kind `kind`.
pub(super) fn of_options(kind: &'static str) -> impl Fn(ApiError) -> CallRefusal {
    move |error| match error.reason {
        Reason::Invalid => answer::refusal_of_options(&error, kind).into(),
        _ => error.into(),
    }
}

/// One request.
pub(super) struct RestCall<'a> {
    pub(super) target: &'a RequestTarget,
    pub(super) method: Method,
    pub(super) uri: Uri,
    pub(super) headers: HeaderMap,
    pub(super) form: ObjectForm,
    pub(super) body: Bytes,
    /// The verdict of the gate.
    pub(super) authorized: Authorized,
    pub(super) facade: &'a Facade,
}

impl RestCall<'_> {
    /// The notes of the request, for the rules that judge it.
    pub(super) fn notes(&self) -> RequestNotes {
        let body =
            (self.method == Method::DELETE).then(|| body::document(&self.headers, &self.body).ok());
        let options = match body.flatten() {
            Some(Value::Object(options)) => options,
            _ => {
                let options = RequestOptions::parse(&self.uri).unwrap_or_default();
                options.document()
            }
        };
        RequestNotes::with_options(options)
    }

    pub(super) async fn answer(&self) -> Result<RestAnswer, CallRefusal> {
        let mut options = RequestOptions::parse(&self.uri)?;
        if self.target.is_watch {
            if self.method != Method::GET {
                return Ok(answer::not_allowed());
            }
            options.watch_of(&self.target.name)?;
            self.check("watch")?;
            return self.list(&options).await;
        }
        let named = !self.target.name.is_empty();
        let names = self.target.resource.names();
        let verb = match (&self.method, named) {
            (&Method::GET, true) => "get",
            (&Method::GET, false) => "list",
            (&Method::POST, _) => "create",
            (&Method::PUT, true) => "update",
            (&Method::PATCH, true) => "patch",
            (&Method::DELETE, true) => "delete",
            (&Method::DELETE, false) => "deletecollection",
            _ => return Ok(answer::not_allowed()),
        };
        let allowed = match self.target.subresource {
            None => names.verbs,
            Some(subresource) => discovery::about(names, subresource).verbs,
        };
        if !allowed.contains(&verb) {
            return Ok(answer::not_allowed());
        }
        self.check(if self.is_watch() { "watch" } else { verb })?;
        body::check_type(&self.method, &self.headers, &self.body)?;
        let part = match self.target.subresource {
            None => ObjectPart::Main,
            Some(Subresource::Status) => ObjectPart::Status,
            Some(Subresource::Approval) => ObjectPart::Approval,
            Some(Subresource::Log) => return self.log().await,
            Some(act @ (Subresource::Attach | Subresource::Exec | Subresource::PortForward)) => {
                return Ok(self.nothing_runs(act));
            }
            Some(Subresource::Scale) => return self.scale(&options).await,
            Some(act) => return self.act(act, &options).await,
        };
        match (&self.method, named) {
            (&Method::GET, true) => self.get(&options).await,
            (&Method::GET, false) => self.list(&options).await,
            (&Method::POST, false) => self.create(&options).await,
            (&Method::PUT, true) => self.update(part, &options).await,
            (&Method::PATCH, true) => self.patch(part, &options).await,
            (&Method::DELETE, true) => self.delete(&options).await,
            (&Method::DELETE, false) => self.delete_collection(&options).await,
            _ => Ok(answer::not_allowed()),
        }
    }

    /// Checks that this request is the one that was authorized.
    fn check(&self, verb: &str) -> Result<(), ApiError> {
        let names = self.target.resource.names();
        let RequestTarget {
            namespace, name, ..
        } = self.target;
        self.authorized.covers(&ResourceRequest {
            verb: verb.to_owned(),
            group: names.group.clone().into_owned(),
            version: names.version.clone().into_owned(),
            resource: names.plural.clone().into_owned(),
            subresource: self
                .target
                .subresource
                .map_or("", Subresource::name)
                .to_owned(),
            namespace: namespace.clone(),
            name: name.clone(),
            fields: Vec::new(),
        })
    }

    /// Returns true for a watch. As in Kubernetes, `watch` is ignored on the path of one object.
    pub(super) fn is_watch(&self) -> bool {
        let asks = || RequestOptions::parse(&self.uri)?.is_watch();
        self.target.is_watch || self.target.name.is_empty() && asks().unwrap_or_default()
    }

    async fn get(&self, options: &RequestOptions) -> Result<RestAnswer, CallRefusal> {
        let RequestTarget { resource, .. } = self.target;
        let document = resource.get(&self.target.key()).await?;
        Ok(self.object_answer(StatusCode::OK, document, options)?)
    }

    async fn list(&self, options: &RequestOptions) -> Result<RestAnswer, CallRefusal> {
        let RequestTarget {
            resource,
            namespace,
            ..
        } = self.target;
        let list = options.list(namespace).map_err(of_options("ListOptions"))?;
        let include = RowInclusion::parse(&options.include_object)?;
        if options.is_watch()? {
            if answer::wants_yaml(&self.headers) {
                return Ok(answer::not_acceptable(&[
                    "application/json;stream=watch",
                    "application/vnd.kubernetes.protobuf;stream=watch",
                ]));
            }
            let resource = Arc::clone(resource);
            let watching = self.facade.metrics.watches(resource.names());
            let stop = self.facade.stop.clone();
            return Ok(watch::answer(resource, &list, self.form, include, stop, watching).await);
        }
        let documents = resource.list(&list).await?;
        Ok(self.listed(documents, include).await?)
    }

    async fn listed(
        &self,
        documents: Documents,
        include: RowInclusion,
    ) -> Result<RestAnswer, ApiError> {
        let rendering = ListRendering {
            resource: Arc::clone(&self.target.resource),
            form: self.form,
            include,
        };
        rendering.answer(documents, &self.facade.renderers).await
    }

    /// Answers with an object in the form that the client wants.
    fn object_answer(
        &self,
        code: StatusCode,
        document: Value,
        options: &RequestOptions,
    ) -> Result<RestAnswer, ApiError> {
        let document = match self.form {
            ObjectForm::Whole | ObjectForm::Protobuf => document,
            ObjectForm::Metadata(version) => table::metadata_only(&document, version),
            ObjectForm::Table(version) => {
                let include = RowInclusion::parse(&options.include_object)?;
                let revision = document["metadata"]["resourceVersion"].as_str();
                let metadata = podplane_proto::wire::ListMeta {
                    resource_version: revision.map(str::to_owned),
                    ..Default::default()
                };
                let resource = self.target.resource.as_ref();
                TableForm { version, include }.of(resource, &metadata, vec![document])?
            }
        };
        Ok(self.form.answer(code, &document))
    }

    fn written(
        &self,
        code: StatusCode,
        written: WriteAnswer,
        options: &RequestOptions,
    ) -> Result<RestAnswer, CallRefusal> {
        let WriteAnswer {
            document, warnings, ..
        } = written;
        let mut answer = match document["kind"].as_str() {
            // The outcome of an act, not an object of the kind.
            Some("Status") => answer::document(code, &document),
            _ => self.object_answer(code, document, options)?,
        };
        answer::warn(&mut answer, &warnings);
        Ok(answer)
    }

    /// Parses the object of the body.
    fn object(&self) -> Result<Value, CallRefusal> {
        Ok(self.placed(body::document(&self.headers, &self.body)?)?)
    }

    /// Completes a document to an object of the kind, with the path's namespace and name.
    fn placed(&self, document: Value) -> Result<Value, ApiError> {
        let RequestTarget {
            resource,
            namespace,
            name,
            ..
        } = &self.target;
        place(document, resource.names(), namespace, name)
    }

    /// The options of a write, with the duplicate fields of the body.
    pub(super) fn write_options(&self, options: &RequestOptions) -> Result<WriteOptions, ApiError> {
        let mut write = options.write(&self.headers, self.authorized.identity())?;
        if write.validation != FieldValidation::Ignore {
            write.duplicates = body::duplicates(&self.headers, &self.body);
        }
        Ok(write)
    }

    /// The refusal of a write that may create an object. It can also fail because its namespace, or
    /// the pod that it binds, is missing.
    fn refused(&self, error: &ApiError) -> CallRefusal {
        let kinds = self.facade.kinds.now();
        let mut kinds = kinds.resources.iter().map(|kind| kind.names());
        // Only the message names the missing object.
        let missing = kinds.find_map(|names| {
            let resource = error::resource_in(names);
            let name = error.message.strip_prefix(&format!("{resource} \""))?;
            let name = name.strip_suffix("\" not found")?;
            let names = Some(names);
            Some(RefusalSubject { names, name })
        });
        let missing = missing.filter(|_| error.is_not_found());
        answer::refusal(error, missing.unwrap_or_else(|| self.target.about())).into()
    }

    /// The reason why an update or apply by this user may not create its object.
    async fn refused_creation(&self) -> Result<Option<ApiError>, ApiError> {
        let names = self.target.resource.names();
        let target = ResourceTarget {
            group: &names.group,
            version: &names.version,
            resource: &names.plural,
            namespace: &self.target.namespace,
            name: &self.target.name,
            ..ResourceTarget::default()
        };
        let identity = self.authorized.identity();
        // Whether the object is created is not known yet, so this decides nothing by itself.
        let unrecorded = RequestRecord::none();
        let gate = &self.facade.gate;
        let judged = gate.authorize(identity, "create", target, &unrecorded);
        match judged.await {
            Err(refused) if refused.reason == Reason::Forbidden => Ok(Some(refused)),
            judged => judged.map(|_| None),
        }
    }

    async fn create(&self, options: &RequestOptions) -> Result<RestAnswer, CallRefusal> {
        let RequestTarget { resource, .. } = self.target;
        if let Some(why) = resource.refused_creation() {
            let code = StatusCode::METHOD_NOT_ALLOWED;
            return Ok(answer::refuse(code, "MethodNotAllowed", &why));
        }
        let object = self.object()?;
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let name = name.to_owned();
        let write = self.write_options(options)?;
        let written = resource.create(object, &write).await.map_err(|error| {
            if error.reason == Reason::NotFound {
                return self.refused(&error);
            }
            // The path does not name the refused object.
            let names = Some(resource.names());
            CallRefusal::from(answer::refusal(
                &error,
                RefusalSubject { names, name: &name },
            ))
        })?;
        self.written(StatusCode::CREATED, written, options)
    }

    async fn update(
        &self,
        part: ObjectPart,
        options: &RequestOptions,
    ) -> Result<RestAnswer, CallRefusal> {
        let resource = &self.target.resource;
        let object = self.object()?;
        let mut write = self.write_options(options)?;
        write.write.refused_creation = self.refused_creation().await?;
        let written = resource.update(object, part, &write).await;
        let written = written.map_err(|error| self.refused(&error))?;
        self.written(written.code(), written, options)
    }

    async fn patch(
        &self,
        part: ObjectPart,
        options: &RequestOptions,
    ) -> Result<RestAnswer, CallRefusal> {
        let mut patch = patch::parse(&self.headers, &self.body)?;
        if matches!(patch, Patch::Strategic(_)) && self.target.resource.custom().is_some() {
            return Err(body::unsupported(&self.headers, &patch::OF_CUSTOM_KINDS).into());
        }
        let mut write = self.write_options(options)?;
        let applied = matches!(patch, Patch::Apply { .. });
        let forced = options.force(applied).map_err(of_options("PatchOptions"))?;
        if let Patch::Apply { config, force } = &mut patch {
            *config = self.placed(std::mem::take(config))?;
            *force = forced;
            write.write.refused_creation = self.refused_creation().await?;
        }
        let key = self.target.key();
        let resource = &self.target.resource;
        let written = resource.patch(&key, part, &patch, &write).await;
        let written = written.map_err(|error| self.refused(&error))?;
        self.written(written.code(), written, options)
    }

    async fn delete(&self, options: &RequestOptions) -> Result<RestAnswer, CallRefusal> {
        let options = options
            .delete(
                &self.headers,
                &body::document(&self.headers, &self.body)?,
                self.authorized.identity(),
            )
            .map_err(of_options("DeleteOptions"))?;
        let RequestTarget { resource, name, .. } = self.target;
        let document = resource.delete(&self.target.key(), &options).await?;
        let names = resource.names();
        if names.returns_deleted || document["metadata"]["deletionTimestamp"].is_string() {
            // The object may still exist; its deletionTimestamp says until when.
            return Ok(answer::document(StatusCode::OK, &document));
        }
        let mut details =
            json!({"name": name, "kind": names.plural, "uid": document["metadata"]["uid"]});
        if !names.group.is_empty() {
            details["group"] = (&*names.group).into();
        }
        let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details});
        Ok(answer::document(StatusCode::OK, &status))
    }

    async fn delete_collection(&self, options: &RequestOptions) -> Result<RestAnswer, CallRefusal> {
        let RequestTarget {
            resource,
            namespace,
            ..
        } = self.target;
        let list = options.list(namespace).map_err(of_options("ListOptions"))?;
        let delete = options
            .delete(
                &self.headers,
                &body::document(&self.headers, &self.body)?,
                self.authorized.identity(),
            )
            .map_err(of_options("DeleteOptions"))?;
        let keys = resource.keys(&list.selection).await?;
        // Futures do nothing before they are polled.
        let each: Vec<_> = keys
            .iter()
            .map(|key| resource.delete(key, &delete))
            .collect();
        let mut deleting = stream::iter(each).buffered(AT_ONCE);
        let mut items = Vec::new();
        while let Some(deleted) = deleting.next().await {
            match deleted {
                Ok(document) => items.push(document.into()),
                // Another client deleted it already.
                Err(error) if error.reason == Reason::NotFound => {}
                Err(error) => return Err(error.into()),
            }
        }
        let documents = Documents {
            metadata: Default::default(),
            items,
        };
        Ok(self.listed(documents, RowInclusion::Metadata).await?)
    }

    async fn log(&self) -> Result<RestAnswer, CallRefusal> {
        let kinds = self.facade.kinds.now();
        let Some(events) = kinds.find("", "v1", "events") else {
            return Ok(answer::no_such_path());
        };
        if self.method != Method::GET {
            return Ok(answer::not_allowed());
        }
        let pods = &self.target.resource;
        let sources = log::Sources {
            pods,
            events,
            journeys: &self.facade.journeys,
        };
        let stop = self.facade.stop.clone();
        Ok(log::answer(sources, &self.target.key(), &self.uri, stop).await?)
    }

    /// Refuses an act that needs a process in the pod.
    fn nothing_runs(&self, act: Subresource) -> RestAnswer {
        let why = format!(
            "{} of pod {:?}: no containers run in the pods of podplane, which are networks only; `podplane exec` and `podplane ping` work in a pod's network",
            act.name(),
            self.target.name
        );
        answer::refuse_path(StatusCode::NOT_IMPLEMENTED, "NotImplemented", &why)
    }

    async fn act(
        &self,
        act: Subresource,
        options: &RequestOptions,
    ) -> Result<RestAnswer, CallRefusal> {
        let document = body::document(&self.headers, &self.body)?;
        let fence = fences::sent(&self.headers)?;
        let terms = ChangeTerms {
            by: self.authorized.identity(),
            effect: options.effect()?,
            fence: fence.as_ref(),
        };
        let RequestTarget { resource, .. } = self.target;
        let acted = resource
            .act(&self.target.key(), act, &document, terms)
            .await;
        let ActAnswer { document, warnings } = acted?;
        let mut answer = match document {
            Some(document) => self.form.answer(StatusCode::CREATED, &document),
            None => {
                let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201});
                answer::document(StatusCode::CREATED, &status)
            }
        };
        answer::warn(&mut answer, &warnings);
        Ok(answer)
    }
}
