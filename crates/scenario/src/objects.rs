//! Objects of every kind that the API server serves, through its REST API.

use std::{path::Path, time::Duration};

use anyhow::{Context as _, Result, bail};
use http::{Method, StatusCode};
use podplane_http_client::HttpClient;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::{
    format::{Deletion, ObjectRef},
    problem::suggestion,
};

/// The time limit of an answer. A paused service accepts connections and never answers.
pub(crate) const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// The REST API of a cluster.
#[derive(Debug)]
pub(crate) struct Objects {
    client: HttpClient,
    resources: OnceCell<Vec<Resource>>,
}

/// A kind, as the API server's discovery describes it.
#[derive(Clone, Debug)]
struct Resource {
    /// `/apis/apps/v1`
    prefix: String,
    group: String,
    plural: String,
    singular: String,
    kind: String,
    short: Vec<String>,
    namespaced: bool,
}

impl Resource {
    fn is(&self, word: &str) -> bool {
        let kind = self.kind.to_lowercase();
        let full = [&self.plural, &self.singular, &kind];
        full.iter().any(|name| {
            word == name.as_str()
                || (!self.group.is_empty() && word == format!("{name}.{}", self.group))
        }) || self.short.iter().any(|name| name == word)
    }

    fn path(&self, namespace: Option<&str>, name: Option<&str>) -> String {
        let mut path = self.prefix.clone();
        if let Some(namespace) = namespace.filter(|_| self.namespaced) {
            path.push_str("/namespaces/");
            path.push_str(namespace);
        }
        path.push('/');
        path.push_str(&self.plural);
        if let Some(name) = name {
            path.push('/');
            path.push_str(name);
        }
        path
    }
}

impl Objects {
    /// `pki` is the directory of the cluster's certificates, for a server with TLS.
    pub(crate) fn new(pki: &Path, server: &str) -> Result<Self> {
        Ok(Self {
            client: HttpClient::as_admin_of(pki, server)?.with_timeout(ANSWER_LIMIT),
            resources: OnceCell::new(),
        })
    }

    /// Returns the object; `None` if there is none.
    pub(crate) async fn get(&self, namespace: &str, object: &ObjectRef) -> Result<Option<Value>> {
        let path = self
            .resource(&object.kind)
            .await?
            .path(Some(namespace), Some(&object.name));
        let answer = self.client.get(&path).await?;
        if answer.code == StatusCode::NOT_FOUND {
            return Ok(None);
        }
        answer
            .document()
            .map(Some)
            .with_context(|| format!("failed to get {object}"))
    }

    /// Lists the objects of a kind, in one namespace or in all.
    pub(crate) async fn list(
        &self,
        kind: &str,
        namespace: Option<&str>,
        selector: Option<&str>,
    ) -> Result<Vec<Value>> {
        let mut path = self.resource(kind).await?.path(namespace, None);
        if let Some(selector) = selector {
            let encoded: String = form_urlencoded::byte_serialize(selector.as_bytes()).collect();
            path.push_str("?labelSelector=");
            path.push_str(&encoded);
        }
        let answer = self.client.get(&path).await?;
        let mut list = answer
            .document()
            .with_context(|| format!("failed to list {kind}"))?;
        match list["items"].take() {
            Value::Array(items) => Ok(items),
            _ => bail!("failed to list {kind}: the answer has no items"),
        }
    }

    /// Returns the name of a kind in its objects: `Pod`.
    pub(crate) async fn kind(&self, word: &str) -> Result<String> {
        Ok(self.resource(word).await?.kind.clone())
    }

    /// Deletes the object, or begins to. Fails if there is none, so that a wrong name shows.
    pub(crate) async fn delete(&self, deletion: &Deletion) -> Result<()> {
        let Deletion {
            object,
            namespace,
            grace_period_seconds,
            wait: _,
        } = deletion;
        let namespace = namespace.as_deref().unwrap_or("default");
        let path = self
            .resource(&object.kind)
            .await?
            .path(Some(namespace), Some(&object.name));
        let options = grace_period_seconds.map(
            |seconds| json!({"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": seconds}),
        );
        let body = options
            .as_ref()
            .map(|options| ("application/json", options));
        let answer = self.client.send(Method::DELETE, &path, body).await?;
        answer
            .document()
            .with_context(|| format!("failed to delete {object}"))?;
        Ok(())
    }

    /// Merges `patch` into the object.
    pub(crate) async fn patch(
        &self,
        namespace: &str,
        object: &ObjectRef,
        patch: &Value,
    ) -> Result<()> {
        let path = self
            .resource(&object.kind)
            .await?
            .path(Some(namespace), Some(&object.name));
        let body = Some(("application/merge-patch+json", patch));
        let answer = self.client.send(Method::PATCH, &path, body).await?;
        answer
            .document()
            .with_context(|| format!("failed to patch {object}"))?;
        Ok(())
    }

    async fn resource(&self, word: &str) -> Result<&Resource> {
        let resources = self.resources.get_or_try_init(|| self.discover()).await?;
        let word = word.to_lowercase();
        resources
            .iter()
            .find(|resource| resource.is(&word))
            .with_context(|| {
                let known: Vec<_> = resources
                    .iter()
                    .map(|resource| resource.plural.as_str())
                    .collect();
                let hint = suggestion(&word, known.iter().copied());
                format!(
                    "unknown kind {word:?}; the API server serves {}{hint}",
                    known.join(", ")
                )
            })
    }

    async fn discover(&self) -> Result<Vec<Resource>> {
        let mut found = self.group("", "/api/v1").await?;
        let groups = self.document("/apis").await?;
        for group in groups["groups"].as_array().into_iter().flatten() {
            let name = group["name"].as_str().unwrap_or_default();
            let Some(version) = group["preferredVersion"]["groupVersion"].as_str() else {
                continue;
            };
            found.extend(self.group(name, &format!("/apis/{version}")).await?);
        }
        Ok(found)
    }

    async fn group(&self, group: &str, prefix: &str) -> Result<Vec<Resource>> {
        let list = self.document(prefix).await?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let resource = |of: &Value| Resource {
            prefix: prefix.into(),
            group: group.into(),
            plural: text(&of["name"]),
            singular: text(&of["singularName"]),
            kind: text(&of["kind"]),
            short: of["shortNames"]
                .as_array()
                .into_iter()
                .flatten()
                .map(text)
                .collect(),
            namespaced: of["namespaced"] == true,
        };
        let resources = list["resources"]
            .as_array()
            .into_iter()
            .flatten()
            .map(resource);
        // `pods/status` is a subresource, not a kind.
        Ok(resources
            .filter(|resource| !resource.plural.contains('/'))
            .collect())
    }

    async fn document(&self, path: &str) -> Result<Value> {
        let answer = self.client.get(path).await?;
        answer
            .document()
            .with_context(|| format!("failed to call {path}"))
    }
}
