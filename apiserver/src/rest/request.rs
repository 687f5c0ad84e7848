//! What a request asks for: its path, and the options in its query.

use axum::extract::Query;
use http::{HeaderMap, Uri, header};
use podplane_api::{jiff::SignedDuration, validation::ErrorList};
use podplane_proto::{
    error::ApiError,
    wire::{Preconditions, Propagation},
};
use podplane_store::Revision;
use serde::Deserialize;
use serde_json::Value;

use crate::{
    error,
    registry::{DeleteOptions, Effect, Freshness, Write},
};

/// As in the reference.
const MAX_FIELD_MANAGER: usize = 128;

/// The query of a request: metav1's ListOptions, CreateOptions, PatchOptions and DeleteOptions in one. Unknown ones are ignored, as in Kubernetes.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Options {
    label_selector: String,
    field_selector: String,
    limit: String,
    r#continue: String,
    resource_version: String,
    resource_version_match: String,
    watch: String,
    allow_watch_bookmarks: String,
    send_initial_events: String,
    timeout_seconds: String,
    dry_run: String,
    field_validation: String,
    field_manager: String,
    force: String,
    grace_period_seconds: String,
    propagation_policy: String,
    pub(super) include_object: String,
}

/// Which objects of a kind a request is about.
#[derive(Debug, Default)]
pub(crate) struct Selection {
    /// Empty: all.
    pub(super) namespace: String,
    pub(super) labels: String,
    pub(super) fields: String,
}

/// How to list or watch.
#[derive(Debug)]
pub(crate) struct ListOptions {
    pub(super) selection: Selection,
    pub(super) limit: i64,
    pub(super) token: String,
    pub(super) bookmarks: bool,
    pub(super) send_initial_events: bool,
    /// When a watch is to end.
    pub(super) timeout: Option<SignedDuration>,
    resource_version: String,
    version_match: String,
}

/// How unknown fields are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FieldValidation {
    Strict,
    Warn,
    Ignore,
}

/// How to write.
#[derive(Debug)]
pub(crate) struct WriteOptions {
    pub(super) write: Write,
    pub(super) validation: FieldValidation,
}

impl Options {
    /// Understands a query.
    pub(super) fn parse(uri: &Uri) -> Result<Self, ApiError> {
        let Query(options) = Query::try_from_uri(uri)
            .map_err(|rejection| error::bad_request(rejection.body_text()))?;
        Ok(options)
    }

    pub(super) fn is_watch(&self) -> Result<bool, ApiError> {
        boolean("watch", &self.watch)
    }

    pub(super) fn list(&self, namespace: &str) -> Result<ListOptions, ApiError> {
        let timeout = integer("timeoutSeconds", &self.timeout_seconds)?;
        Ok(ListOptions {
            selection: Selection {
                namespace: namespace.to_owned(),
                labels: self.label_selector.clone(),
                fields: self.field_selector.clone(),
            },
            limit: integer("limit", &self.limit)?.unwrap_or(0),
            token: self.r#continue.clone(),
            bookmarks: boolean("allowWatchBookmarks", &self.allow_watch_bookmarks)?,
            send_initial_events: boolean("sendInitialEvents", &self.send_initial_events)?,
            timeout: timeout
                .filter(|seconds| *seconds > 0)
                .map(SignedDuration::from_secs),
            resource_version: self.resource_version.clone(),
            version_match: self.resource_version_match.clone(),
        })
    }

    /// How to write. A client that names no field manager is known by the first word of its user agent.
    pub(super) fn write(&self, headers: &HeaderMap) -> Result<WriteOptions, ApiError> {
        let validation = match self.field_validation.as_str() {
            "Strict" => FieldValidation::Strict,
            "" | "Warn" => FieldValidation::Warn,
            "Ignore" => FieldValidation::Ignore,
            other => {
                return Err(error::bad_request(format!(
                    "fieldValidation: Unsupported value: {other:?}: supported values: \"Ignore\", \"Strict\", \"Warn\""
                )));
            }
        };
        let manager = match self.field_manager.as_str() {
            "" => user_agent(headers),
            given => given.to_owned(),
        };
        if manager.chars().count() > MAX_FIELD_MANAGER {
            return Err(error::bad_request(format!(
                "fieldManager: Too long: may not be more than {MAX_FIELD_MANAGER} bytes"
            )));
        }
        Ok(WriteOptions {
            write: Write {
                effect: self.effect()?,
                manager: Some(manager),
            },
            validation,
        })
    }

    pub(super) fn effect(&self) -> Result<Effect, ApiError> {
        effect(&self.dry_run)
    }

    /// Whether what is applied takes fields from other managers. Only what is applied does, and says for whom.
    pub(super) fn force(&self, applied: bool) -> Result<bool, ApiError> {
        let invalid = |field: &str, why: &str| {
            let mut errors = ErrorList::new();
            let path = podplane_api::validation::Path::new(field);
            match why {
                "" => errors.required(&path, "is required for apply patch"),
                why => errors.forbidden(&path, why),
            }
            error::invalid_options("PatchOptions", &errors)
        };
        match (applied, self.field_manager.as_str(), self.force.as_str()) {
            (true, "", _) => Err(invalid("fieldManager", "")),
            (false, _, force) if !force.is_empty() => {
                Err(invalid("force", "may not be specified for non-apply patch"))
            }
            (_, _, force) => boolean("force", force),
        }
    }

    /// How to delete: what the body says, else the query.
    pub(super) fn delete(&self, body: &Value) -> Result<DeleteOptions, ApiError> {
        let mut options = delete_options(body)?;
        options.grace_period_seconds = match options.grace_period_seconds {
            None => integer("gracePeriodSeconds", &self.grace_period_seconds)?,
            given => given,
        };
        if self.effect()? == Effect::Dry {
            options.effect = Effect::Dry;
        }
        options.propagation = match options.propagation {
            None => Propagation::parse(&self.propagation_policy)?,
            given => given,
        };
        Ok(options)
    }
}

impl ListOptions {
    /// How new the list has to be.
    pub(super) fn freshness(&self) -> Result<Freshness, ApiError> {
        let Self {
            resource_version: version,
            version_match,
            token,
            ..
        } = self;
        let forbidden =
            |why: &str| error::bad_request(format!("resourceVersionMatch: Forbidden: {why}"));
        if version.is_empty() || !token.is_empty() {
            return match version_match.as_str() {
                "" => Ok(Freshness::Latest),
                _ if !token.is_empty() => Err(forbidden(
                    "resourceVersionMatch is forbidden when continue is provided",
                )),
                _ => Err(forbidden(
                    "resourceVersionMatch is forbidden unless resourceVersion is provided",
                )),
            };
        }
        if version == "0" {
            return match version_match.as_str() {
                "Exact" => Err(forbidden(
                    "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"",
                )),
                _ => Ok(Freshness::Any),
            };
        }
        let revision: Revision = version.parse().map_err(|_| {
            error::bad_request(format!(
                "resourceVersion: Invalid value: {version:?}: not a revision of this server"
            ))
        })?;
        match version_match.as_str() {
            "Exact" => Ok(Freshness::Exact(revision)),
            // A limit asks for pages, which are of one revision.
            "" if self.limit > 0 => Ok(Freshness::Exact(revision)),
            "" | "NotOlderThan" => Ok(Freshness::NotOlderThan(revision)),
            other => Err(error::bad_request(format!(
                "resourceVersionMatch: Unsupported value: {other:?}: supported values: \"Exact\", \"NotOlderThan\""
            ))),
        }
    }

    /// The revision after which a watch begins; empty if it begins with what is present.
    pub(super) fn watch_after(&self) -> String {
        if self.send_initial_events {
            String::new()
        } else {
            self.resource_version.clone()
        }
    }
}

/// `kubectl` of `kubectl/v1.33.0 (linux/amd64) kubernetes/…`
fn user_agent(headers: &HeaderMap) -> String {
    let agent = headers.get(header::USER_AGENT);
    let agent = agent
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    let first = agent.split('/').next().unwrap_or_default();
    first.chars().take(MAX_FIELD_MANAGER).collect()
}

/// metav1.DeleteOptions.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct DeleteBody {
    grace_period_seconds: Option<i64>,
    preconditions: Option<DeletePreconditions>,
    propagation_policy: Option<String>,
    /// What there was before there were policies.
    orphan_dependents: Option<bool>,
    dry_run: Option<Vec<String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct DeletePreconditions {
    uid: Option<String>,
    resource_version: Option<String>,
}

/// metav1.DeleteOptions of a body; an absent one is the default.
pub(super) fn delete_options(body: &Value) -> Result<DeleteOptions, ApiError> {
    let body: Option<DeleteBody> = Option::deserialize(body)
        .map_err(|error| error::bad_request(format!("DeleteOptions cannot be read: {error}")))?;
    let body = body.unwrap_or_default();
    let policy = Propagation::parse(body.propagation_policy.as_deref().unwrap_or_default())?;
    let propagation = match (body.orphan_dependents, policy) {
        (None, policy) => policy,
        (Some(true), None) => Some(Propagation::Orphan),
        (Some(false), None) => Some(Propagation::Background),
        (Some(_), Some(_)) => {
            return Err(error::bad_request(
                "orphanDependents and propagationPolicy cannot be both set",
            ));
        }
    };
    let DeletePreconditions {
        uid,
        resource_version,
    } = body.preconditions.unwrap_or_default();
    Ok(DeleteOptions {
        grace_period_seconds: body.grace_period_seconds,
        preconditions: Preconditions {
            uid,
            resource_version,
        },
        propagation,
        effect: effect(&body.dry_run.unwrap_or_default().join(","))?,
    })
}

fn effect(dry_run: &str) -> Result<Effect, ApiError> {
    match dry_run {
        "" => Ok(Effect::Durable),
        "All" => Ok(Effect::Dry),
        other => Err(error::bad_request(format!(
            "dryRun: Unsupported value: {other:?}: supported values: \"All\""
        ))),
    }
}

/// As Kubernetes reads a boolean of a query: present without a value is true.
fn boolean(name: &str, text: &str) -> Result<bool, ApiError> {
    match text {
        "" | "0" | "false" | "False" | "FALSE" | "f" | "F" => Ok(false),
        "1" | "true" | "True" | "TRUE" | "t" | "T" => Ok(true),
        other => Err(error::bad_request(format!(
            "{name}: {other:?} is no boolean"
        ))),
    }
}

fn integer(name: &str, text: &str) -> Result<Option<i64>, ApiError> {
    if text.is_empty() {
        return Ok(None);
    }
    text.parse()
        .map(Some)
        .map_err(|_| error::bad_request(format!("{name}: {text:?} is no integer")))
}
