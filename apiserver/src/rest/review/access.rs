//! Reviews of permissions: access reviews and rules reviews.

use podplane_access::{Attributes, Requirement, RequirementOperator, ResourceTarget};
use podplane_api::{
    authorization::{
        FieldSelectorAttributes, LocalSubjectAccessReview, NonResourceAttributes, NonResourceRule,
        ResourceAttributes, ResourceRule, SelfSubjectAccessReview, SelfSubjectRulesReview,
        SubjectAccessReview, SubjectAccessReviewSpec, SubjectAccessReviewStatus,
        SubjectRulesReviewStatus,
    },
    validation::{ErrorList, FieldPath},
};
use podplane_proto::error::ApiError;
use podplane_service_runtime::identity::Identity;
use serde_json::{Value, json};

use super::{ReadReview, ServedResource};
use crate::{
    authorization::{Gate, requirements},
    error,
    rest::{request::WriteOptions, resource::WriteAnswer},
};

/// Answers reviews of permissions.
#[derive(Clone, Copy)]
pub(super) struct Reviewer<'a> {
    pub(super) gate: &'a Gate,
    pub(super) served: &'a (dyn Fn() -> Vec<ServedResource> + Sync),
}

/// The request that a review asks about.
#[derive(Clone, Copy, Debug)]
enum ReviewedRequest<'a> {
    Resource(&'a ResourceAttributes),
    Path(&'a NonResourceAttributes),
}

impl Reviewer<'_> {
    pub(super) async fn own_access(
        self,
        document: Value,
        options: &WriteOptions,
    ) -> Result<WriteAnswer, ApiError> {
        let kind = "SelfSubjectAccessReview";
        let mut read = ReadReview::<SelfSubjectAccessReview>::of(kind, document, options)?;
        let spec = &read.review.spec;
        let mut errors = ErrorList::new();
        let path = FieldPath::new("spec").child("resourceAttributes");
        let asked = match (&spec.resource_attributes, &spec.non_resource_attributes) {
            (Some(_), Some(_)) => {
                let detail = "cannot be specified in combination with nonResourceAttributes";
                errors.invalid(&path, json!(spec.non_resource_attributes), detail);
                None
            }
            (resource, other) => asked(resource.as_ref(), other.as_ref(), &path, &mut errors),
        };
        let status = match asked {
            Some(asked) => Some(self.status(&options.write.by, asked).await?),
            None => None,
        };
        read.refuse(&errors)?;
        read.review.status = status;
        read.answer()
    }

    pub(super) async fn access(
        self,
        document: Value,
        options: &WriteOptions,
    ) -> Result<WriteAnswer, ApiError> {
        let kind = "SubjectAccessReview";
        let mut read = ReadReview::<SubjectAccessReview>::of(kind, document, options)?;
        let mut errors = ErrorList::new();
        let status = self.of_other(&read.review.spec, &mut errors).await?;
        read.refuse(&errors)?;
        read.review.status = status;
        read.answer()
    }

    pub(super) async fn local_access(
        self,
        document: Value,
        options: &WriteOptions,
    ) -> Result<WriteAnswer, ApiError> {
        let kind = "LocalSubjectAccessReview";
        let mut read = ReadReview::<LocalSubjectAccessReview>::of(kind, document, options)?;
        let mut errors = ErrorList::new();
        let spec = &read.review.spec;
        let status = self.of_other(spec, &mut errors).await?;
        let path = FieldPath::new("spec");
        let namespace = read.review.metadata.namespace.as_deref();
        if let Some(asked) = &spec.resource_attributes
            && asked.namespace.as_deref().unwrap_or_default() != namespace.unwrap_or_default()
        {
            let path = path.child("resourceAttributes").child("namespace");
            errors.invalid(
                &path,
                json!(asked.namespace),
                "must match metadata.namespace",
            );
        }
        if let Some(asked) = &spec.non_resource_attributes {
            let path = path.child("nonResourceAttributes");
            errors.invalid(&path, json!(asked), "disallowed on this kind of request");
        }
        read.refuse(&errors)?;
        read.review.status = status;
        read.answer()
    }

    /// The answer about the user of the spec; `None` with an error if it has none.
    async fn of_other(
        self,
        spec: &SubjectAccessReviewSpec,
        errors: &mut ErrorList,
    ) -> Result<Option<SubjectAccessReviewStatus>, ApiError> {
        let path = FieldPath::new("spec");
        let asked = match (&spec.resource_attributes, &spec.non_resource_attributes) {
            (Some(_), Some(other)) => {
                let path = path.child("nonResourceAttributes");
                let detail = "cannot be specified in combination with resourceAttributes";
                errors.invalid(&path, json!(other), detail);
                None
            }
            (resource, other) => {
                let path = path.child("resourceAttributes");
                asked(resource.as_ref(), other.as_ref(), &path, errors)
            }
        };
        let identity = Identity {
            user: spec.user.clone().unwrap_or_default(),
            uid: spec.uid.clone().unwrap_or_default(),
            groups: spec.groups.clone().unwrap_or_default(),
            extra: spec.extra.clone().unwrap_or_default(),
        };
        if identity.user.is_empty() && identity.groups.is_empty() {
            let detail = "at least one of user or group must be specified";
            errors.invalid(&path.child("user"), "", detail);
        }
        match asked {
            Some(asked) => self.status(&identity, asked).await.map(Some),
            None => Ok(None),
        }
    }

    async fn status(
        self,
        identity: &Identity,
        asked: ReviewedRequest<'_>,
    ) -> Result<SubjectAccessReviewStatus, ApiError> {
        if !self.gate.has_rules() {
            let is_served = match asked {
                ReviewedRequest::Resource(asked) => {
                    let mut served = (self.served)().into_iter();
                    served.any(|served| served.covers(asked))
                }
                ReviewedRequest::Path(_) => true,
            };
            let reason = (!is_served).then_some("this server has no such resource or verb");
            return Ok(SubjectAccessReviewStatus {
                allowed: is_served,
                reason: reason.map(str::to_owned),
                ..SubjectAccessReviewStatus::default()
            });
        }
        fn text(text: Option<&String>) -> &str {
            text.map(String::as_str).unwrap_or_default()
        }
        let fields;
        let attributes = match asked {
            ReviewedRequest::Path(asked) => Attributes::path(
                identity,
                text(asked.verb.as_ref()),
                text(asked.path.as_ref()),
            ),
            ReviewedRequest::Resource(asked) => {
                let selected = asked.field_selector.as_ref().map(selected);
                fields = selected.transpose()?.unwrap_or_default();
                let target = ResourceTarget {
                    group: text(asked.group.as_ref()),
                    version: text(asked.version.as_ref()),
                    resource: text(asked.resource.as_ref()),
                    subresource: text(asked.subresource.as_ref()),
                    namespace: text(asked.namespace.as_ref()),
                    name: text(asked.name.as_ref()),
                    field_selector: &fields,
                    label_selector: &[],
                };
                Attributes::resource(identity, text(asked.verb.as_ref()), target)
            }
        };
        let verdict = self.gate.decide(&attributes).await?;
        let reason = verdict.decision.reason();
        Ok(SubjectAccessReviewStatus {
            allowed: verdict.is_allowed(),
            denied: None,
            reason: (!reason.is_empty()).then(|| reason.to_owned()),
            evaluation_error: None,
        })
    }

    pub(super) async fn rules(
        self,
        document: Value,
        options: &WriteOptions,
    ) -> Result<WriteAnswer, ApiError> {
        let kind = "SelfSubjectRulesReview";
        let mut read = ReadReview::<SelfSubjectRulesReview>::of(kind, document, options)?;
        let namespace = read.review.spec.namespace.as_deref().unwrap_or_default();
        let status = match self.gate.rules(&options.write.by, namespace).await? {
            None => all_that_is_served(&(self.served)()),
            Some(_) if namespace.is_empty() => {
                return Err(error::bad_request("no namespace on request"));
            }
            Some(status) => status,
        };
        read.review.status = Some(status);
        read.answer()
    }
}

/// The request that a review asks about, if there is one.
fn asked<'a>(
    resource: Option<&'a ResourceAttributes>,
    other: Option<&'a NonResourceAttributes>,
    path: &FieldPath,
    errors: &mut ErrorList,
) -> Option<ReviewedRequest<'a>> {
    match (resource, other) {
        (Some(asked), _) => Some(ReviewedRequest::Resource(asked)),
        (None, Some(asked)) => Some(ReviewedRequest::Path(asked)),
        (None, None) => {
            let detail =
                "exactly one of nonResourceAttributes or resourceAttributes must be specified";
            errors.invalid(path, Value::Null, detail);
            None
        }
    }
}

/// The conditions of a field selector. Those that only labels have count as none: fewer conditions
/// allow less.
fn selected(selector: &FieldSelectorAttributes) -> Result<Vec<Requirement>, ApiError> {
    let raw = selector.raw_selector.as_deref().unwrap_or_default();
    let given = selector.requirements.as_deref().unwrap_or_default();
    if !raw.is_empty() && !given.is_empty() {
        let why = "fieldSelector: rawSelector and requirements may not both be set";
        return Err(error::bad_request(why));
    }
    let each = given.iter().filter_map(|one| {
        let operator = match (&*one.operator, one.values.as_deref()) {
            ("In", Some([_])) => RequirementOperator::Equals,
            ("NotIn", Some([_])) => RequirementOperator::NotEquals,
            _ => return None,
        };
        Some(Requirement {
            key: one.key.clone(),
            operator,
            values: one.values.clone().unwrap_or_default(),
        })
    });
    Ok(requirements(raw).into_iter().chain(each).collect())
}

/// The rules without authorization.
pub(super) fn all_that_is_served(served: &[ServedResource]) -> SubjectRulesReviewStatus {
    let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
    let rule = |served: &ServedResource| ResourceRule {
        api_groups: Some(texts(&[&served.group])),
        resources: Some(vec![served.resource.clone()]),
        verbs: texts(&served.verbs),
        ..ResourceRule::default()
    };
    let paths = NonResourceRule {
        non_resource_urls: Some(texts(&["*"])),
        verbs: texts(&["get"]),
    };
    SubjectRulesReviewStatus {
        evaluation_error: None,
        incomplete: false,
        non_resource_rules: vec![paths],
        resource_rules: served.iter().map(rule).collect(),
    }
}
