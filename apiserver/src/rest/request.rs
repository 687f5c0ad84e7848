//! The query options of a request.

use std::sync::Arc;

use axum::extract::Query;
use http::{HeaderMap, Uri, header};
use podplane_api::{
    jiff::SignedDuration,
    strict::{self, StrictError},
    validation::{ErrorList, FieldPath},
};
use podplane_proto::{
    error::ApiError,
    wire::{Preconditions, Propagation},
};
use podplane_service_runtime::identity::Identity;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::{
    admission::fences,
    error,
    registry::{
        DeleteOptions, Freshness, NOT_OLDER_THAN, WatchStart, WriteEffect, WriteParams,
        watch_revision,
    },
};

/// The longest field manager, as in Kubernetes.
const MAX_FIELD_MANAGER: usize = 128;

/// The query of a request: metav1's ListOptions, CreateOptions, PatchOptions and DeleteOptions in
/// one. Unknown parameters are ignored, as in Kubernetes.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct RequestOptions {
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

/// The objects of a kind that a request selects.
#[derive(Clone, Debug, Default)]
pub(crate) struct Selection {
    /// The namespace; empty: all.
    pub(super) namespace: String,
    pub(super) labels: String,
    pub(super) fields: String,
}

/// The options of a list or watch.
#[derive(Clone, Debug)]
pub(crate) struct ListOptions {
    pub(super) selection: Selection,
    pub(super) limit: i64,
    pub(super) token: String,
    pub(super) bookmarks: bool,
    send_initial_events: Option<bool>,
    /// The time after which a watch ends.
    pub(super) timeout: Option<SignedDuration>,
    resource_version: String,
    version_match: String,
}

/// The handling of unknown and duplicate fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FieldValidation {
    Strict,
    Warn,
    Ignore,
}

/// The options of a write.
#[derive(Debug)]
pub(crate) struct WriteOptions {
    pub(crate) write: WriteParams,
    pub(super) validation: FieldValidation,
    /// The duplicate fields of the body.
    pub(crate) duplicates: Vec<String>,
}

impl WriteOptions {
    /// The options of a call whose message has no options: its fields are all known.
    pub(crate) fn of_message(by: &Arc<Identity>) -> Self {
        Self {
            write: WriteParams::by(Arc::clone(by)),
            validation: FieldValidation::Strict,
            duplicates: Vec::new(),
        }
    }

    /// Returns the warnings for unknown and duplicate fields.
    ///
    /// # Errors
    ///
    /// [`StrictError::Fields`] if such fields are refused.
    pub(super) fn judge(&self, unknown: Vec<String>) -> Result<Vec<String>, StrictError> {
        let duplicate = &self.duplicates;
        let has_faults = !unknown.is_empty() || !duplicate.is_empty();
        match self.validation {
            FieldValidation::Strict if has_faults => Err(StrictError::Fields {
                unknown,
                duplicate: duplicate.clone(),
            }),
            FieldValidation::Warn => Ok(strict::field_faults(&unknown, duplicate).collect()),
            FieldValidation::Strict | FieldValidation::Ignore => Ok(Vec::new()),
        }
    }
}

impl RequestOptions {
    /// Parses the query of a URI.
    pub(crate) fn parse(uri: &Uri) -> Result<Self, ApiError> {
        let Query(options) = Query::try_from_uri(uri)
            .map_err(|rejection| error::bad_request(rejection.body_text()))?;
        Ok(options)
    }

    /// The limit of a list; `None` if there is none, or if it cannot be read.
    pub(crate) fn limit(&self) -> Option<u64> {
        self.limit.parse().ok().filter(|limit| *limit > 0)
    }

    /// The selector of fields, as text.
    pub(crate) fn field_selector(&self) -> &str {
        &self.field_selector
    }

    pub(crate) fn is_watch(&self) -> Result<bool, ApiError> {
        boolean("watch", &self.watch)
    }

    /// Turns the options into those of a watch; of one object if `name` is not empty.
    pub(super) fn watch_of(&mut self, name: &str) -> Result<(), ApiError> {
        self.watch = "true".to_owned();
        if name.is_empty() {
            return Ok(());
        }
        let selected = format!("metadata.name={name}");
        let mut terms = self
            .field_selector
            .split(',')
            .filter(|term| !term.is_empty());
        match terms.next() {
            None => self.field_selector = selected,
            Some(term) if term.replace("==", "=") == selected => {}
            Some(_) => {
                return Err(error::bad_request(
                    "fieldSelector metadata.name doesn't match requested name",
                ));
            }
        }
        Ok(())
    }

    /// The options of a list or watch.
    pub(super) fn list(&self, namespace: &str) -> Result<ListOptions, ApiError> {
        let timeout = integer("timeoutSeconds", &self.timeout_seconds)?;
        let send_initial_events = match self.send_initial_events.as_str() {
            "" => None,
            text => Some(boolean("sendInitialEvents", text)?),
        };
        let list = ListOptions {
            selection: Selection {
                namespace: namespace.to_owned(),
                labels: self.label_selector.clone(),
                fields: self.field_selector.clone(),
            },
            limit: integer("limit", &self.limit)?.unwrap_or(0),
            token: self.r#continue.clone(),
            bookmarks: boolean("allowWatchBookmarks", &self.allow_watch_bookmarks)?,
            send_initial_events,
            timeout: timeout
                .filter(|seconds| *seconds > 0)
                .map(SignedDuration::from_secs),
            resource_version: self.resource_version.clone(),
            version_match: self.resource_version_match.clone(),
        };
        let errors = if self.is_watch()? {
            list.validate_watch()
        } else {
            list.validate()
        };
        if !errors.is_empty() {
            return Err(error::invalid_options("ListOptions", &errors));
        }
        Ok(list)
    }

    /// The options of a patch that comes without a query. Unknown and duplicate fields are refused.
    pub(crate) fn of_patch(field_manager: String, force: bool) -> Self {
        let force = if force { "true" } else { "" };
        Self {
            field_manager,
            field_validation: "Strict".to_owned(),
            force: force.to_owned(),
            ..Self::default()
        }
    }

    /// The options of a write. A client that names no field manager is recorded by the first word
    /// of its user agent.
    pub(crate) fn write(
        &self,
        headers: &HeaderMap,
        by: &Arc<Identity>,
    ) -> Result<WriteOptions, ApiError> {
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
            write: WriteParams {
                effect: self.effect()?,
                manager: Some(manager),
                fence: fences::sent(headers)?,
                ..WriteParams::by(Arc::clone(by))
            },
            validation,
            duplicates: Vec::new(),
        })
    }

    /// The fields of `CreateOptions` and the like, as webhooks see them.
    pub(super) fn document(&self) -> Map<String, Value> {
        let texts = [
            ("fieldManager", &self.field_manager),
            ("fieldValidation", &self.field_validation),
        ];
        let texts = texts.into_iter().filter(|(_, text)| !text.is_empty());
        let texts = texts.map(|(field, text)| (field.to_owned(), text.as_str().into()));
        texts.collect()
    }

    pub(super) fn effect(&self) -> Result<WriteEffect, ApiError> {
        effect(&self.dry_run)
    }

    /// Returns true if an apply takes fields over from other managers. Only an apply may do so, and
    /// it must name its manager.
    pub(crate) fn force(&self, applied: bool) -> Result<bool, ApiError> {
        let invalid = |field: &str, why: &str| {
            let mut errors = ErrorList::new();
            let path = podplane_api::validation::FieldPath::new(field);
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

    /// The options of a deletion: those of the body, else those of the query.
    pub(super) fn delete(
        &self,
        headers: &HeaderMap,
        body: &Value,
        by: &Arc<Identity>,
    ) -> Result<DeleteOptions, ApiError> {
        let mut options = delete_options(body, by)?;
        options.fence = fences::sent(headers)?;
        options.grace_period_seconds = match options.grace_period_seconds {
            None => integer("gracePeriodSeconds", &self.grace_period_seconds)?,
            given => given,
        };
        if self.effect()? == WriteEffect::Dry {
            options.effect = WriteEffect::Dry;
        }
        options.propagation = match options.propagation {
            None => Propagation::parse(&self.propagation_policy)?,
            given => given,
        };
        Ok(options)
    }
}

impl ListOptions {
    /// The options for the objects of a namespace that `fields` selects, after a revision if it is
    /// not empty.
    pub(super) fn of(namespace: &str, fields: &str, resource_version: &str) -> Self {
        Self {
            selection: Selection {
                namespace: namespace.to_owned(),
                labels: String::new(),
                fields: fields.to_owned(),
            },
            limit: 0,
            token: String::new(),
            bookmarks: false,
            send_initial_events: None,
            timeout: None,
            resource_version: resource_version.to_owned(),
            version_match: String::new(),
        }
    }

    /// The options for the objects of a namespace that have these labels.
    pub(crate) fn labelled(namespace: &str, labels: &str) -> Self {
        let mut options = Self::of(namespace, "", "");
        options.selection.labels = labels.to_owned();
        options
    }

    /// Kubernetes' `ValidateListOptions`.
    fn validate(&self) -> ErrorList {
        let Self {
            resource_version: version,
            version_match,
            token,
            ..
        } = self;
        let mut errors = Freshness::validate(version, version_match, token);
        if self.send_initial_events.is_some() {
            let path = FieldPath::new("sendInitialEvents");
            errors.forbidden(&path, "sendInitialEvents is forbidden for list");
        }
        errors
    }

    /// The same validation for a watch.
    fn validate_watch(&self) -> ErrorList {
        let mut errors = ErrorList::new();
        let path = FieldPath::new("resourceVersionMatch");
        let version_match = self.version_match.as_str();
        if self.send_initial_events.is_some() && version_match != NOT_OLDER_THAN {
            let why = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
            errors.forbidden(&path, why);
        }
        if !version_match.is_empty() {
            if self.send_initial_events.is_none() {
                let why = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided";
                errors.forbidden(&path, why);
            }
            if version_match != NOT_OLDER_THAN {
                errors.not_supported(&path, version_match, &[NOT_OLDER_THAN]);
            }
            if !self.token.is_empty() {
                let why = "resourceVersionMatch is forbidden when continue is provided";
                errors.forbidden(&path, why);
            }
        }
        errors
    }

    /// The required freshness of the list.
    pub(super) fn freshness(&self) -> Result<Freshness, ApiError> {
        let version = &self.resource_version;
        Freshness::parse(version, &self.version_match, self.limit, &self.token)
    }

    /// The starting point of the watch.
    pub(super) fn start(&self) -> Result<WatchStart, ApiError> {
        let version = self.resource_version.as_str();
        match (self.send_initial_events, version) {
            (None, version) => WatchStart::parse(version),
            (Some(true), "" | "0") => Ok(WatchStart::Present(None)),
            (Some(true), version) => Ok(WatchStart::Present(Some(watch_revision(version)?))),
            (Some(false), "" | "0") => Ok(WatchStart::Now),
            (Some(false), version) => Ok(WatchStart::After(watch_revision(version)?)),
        }
    }

    /// Returns true if a watch announces that all present objects have been sent.
    pub(super) fn announces_end(&self) -> bool {
        self.bookmarks && self.send_initial_events == Some(true)
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
    /// The older form of the propagation policy.
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
pub(super) fn delete_options(body: &Value, by: &Arc<Identity>) -> Result<DeleteOptions, ApiError> {
    let body: Option<DeleteBody> = Option::deserialize(body)
        .map_err(|error| error::bad_request(format!("DeleteOptions cannot be read: {error}")))?;
    let body = body.unwrap_or_default();
    let policy = Propagation::parse(body.propagation_policy.as_deref().unwrap_or_default())?;
    let propagation = match (body.orphan_dependents, policy) {
        (None, policy) => policy,
        (Some(true), None) => Some(Propagation::Orphan),
        (Some(false), None) => Some(Propagation::Background),
        (Some(_), Some(policy)) => {
            let why = "orphanDependents and deletionPropagation cannot be both set";
            let why = format!("Invalid value: {:?}: {why}", policy.as_str());
            return Err(Propagation::invalid(why));
        }
    };
    let DeletePreconditions {
        uid,
        resource_version,
    } = body.preconditions.unwrap_or_default();
    Ok(DeleteOptions {
        by: Arc::clone(by),
        grace_period_seconds: body.grace_period_seconds,
        preconditions: Preconditions {
            uid,
            resource_version,
        },
        propagation,
        effect: effect(&body.dry_run.unwrap_or_default().join(","))?,
        fence: None,
    })
}

fn effect(dry_run: &str) -> Result<WriteEffect, ApiError> {
    match dry_run {
        "" => Ok(WriteEffect::Durable),
        "All" => Ok(WriteEffect::Dry),
        other => Err(error::bad_request(format!(
            "dryRun: Unsupported value: {other:?}: supported values: \"All\""
        ))),
    }
}

/// Parses a boolean of a query as Kubernetes does.
pub(super) fn boolean(name: &str, text: &str) -> Result<bool, ApiError> {
    match text {
        "" | "0" | "false" | "False" | "FALSE" | "f" | "F" => Ok(false),
        "1" | "true" | "True" | "TRUE" | "t" | "T" => Ok(true),
        other => Err(error::bad_request(format!(
            "invalid {name} {other:?}: must be a boolean"
        ))),
    }
}

pub(super) fn integer(name: &str, text: &str) -> Result<Option<i64>, ApiError> {
    if text.is_empty() {
        return Ok(None);
    }
    text.parse()
        .map(Some)
        // Go's message, with the parameter's name, which Go leaves out.
        .map_err(|_| {
            error::bad_request(format!(
                "{name}: strconv.ParseInt: parsing {text:?}: invalid syntax"
            ))
        })
}
