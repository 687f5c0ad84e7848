//! Reviews, which are answered and never stored: the caller's identity, and its permissions.
//!
//! There is no authorization, so everybody may do whatever the server can do; for everything else the
//! answer is *no*, with that reason.

use std::sync::Arc;

use futures::{FutureExt as _, future::BoxFuture};
use podplane_api::{
    Scope,
    authentication::{SelfSubjectReview, SelfSubjectReviewStatus, UserInfo},
    authorization::{
        NonResourceRule, ResourceAttributes, ResourceRule, SelfSubjectAccessReview,
        SelfSubjectRulesReview, SubjectAccessReviewStatus, SubjectRulesReviewStatus,
    },
    strict,
    validation::{ErrorList, FieldPath},
};
use podplane_proto::error::ApiError;
use podplane_service_runtime::identity::Identity;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::{
    discovery::about,
    request::WriteOptions,
    resource::{KindNames, Resource, WriteAnswer},
};
use crate::error;

/// A resource or sub-resource, with its verbs.
#[derive(Clone, Debug)]
struct ServedResource {
    group: &'static str,
    /// `pods`, `pods/eviction`
    resource: String,
    verbs: Vec<&'static str>,
}

impl ServedResource {
    fn covers(&self, asked: &ResourceAttributes) -> bool {
        let matches = |asked: Option<&String>, own: &str| match asked.map(String::as_str) {
            Some("*") => true,
            asked => asked.unwrap_or_default() == own,
        };
        let (resource, part) = self
            .resource
            .split_once('/')
            .unwrap_or((&self.resource, ""));
        let verb = asked.verb.as_deref().unwrap_or_default();
        matches(asked.group.as_ref(), self.group)
            && matches(asked.resource.as_ref(), resource)
            && matches(asked.subresource.as_ref(), part)
            && (verb == "*" || self.verbs.contains(&verb))
    }
}

/// A kind of review.
struct Review {
    names: KindNames,
    served: Arc<[ServedResource]>,
    answer: fn(&[ServedResource], Value, &WriteOptions) -> Result<WriteAnswer, ApiError>,
}

impl Resource for Review {
    fn names(&self) -> &KindNames {
        &self.names
    }

    fn create<'a>(
        &'a self,
        document: Value,
        options: &'a WriteOptions,
    ) -> BoxFuture<'a, Result<WriteAnswer, ApiError>> {
        async move { (self.answer)(&self.served, document, options) }.boxed()
    }
}

/// The kinds of reviews, which answer for the given kinds and themselves.
pub(super) fn reviews(kinds: &[Arc<dyn Resource>]) -> Vec<Arc<dyn Resource>> {
    let stored = kinds.iter().flat_map(|kind| served(kind.names()));
    let reviews = [
        (
            "authentication.k8s.io",
            "SelfSubjectReview",
            "selfsubjectreviews",
            "selfsubjectreview",
            reviewed_user
                as fn(&[ServedResource], Value, &WriteOptions) -> Result<WriteAnswer, ApiError>,
        ),
        (
            "authorization.k8s.io",
            "SelfSubjectAccessReview",
            "selfsubjectaccessreviews",
            "selfsubjectaccessreview",
            access,
        ),
        (
            "authorization.k8s.io",
            "SelfSubjectRulesReview",
            "selfsubjectrulesreviews",
            "selfsubjectrulesreview",
            rules,
        ),
    ];
    let own = reviews.iter().map(|(group, _, plural, ..)| ServedResource {
        group,
        resource: (*plural).to_owned(),
        verbs: vec!["create"],
    });
    let served: Arc<[ServedResource]> = stored.chain(own).collect();
    let review = |(group, kind, plural, singular, answer)| {
        let names = KindNames {
            group,
            version: "v1",
            kind,
            plural,
            singular,
            short: &[],
            categories: &[],
            scope: Scope::Cluster,
            subresources: &[],
            returns_deleted: false,
            is_stored: true,
            verbs: &["create"],
        };
        let served = Arc::clone(&served);
        Arc::new(Review {
            names,
            served,
            answer,
        }) as Arc<dyn Resource>
    };
    reviews.into_iter().map(review).collect()
}

fn served(names: &KindNames) -> Vec<ServedResource> {
    let part = |name: &str, verbs: &[&'static str]| ServedResource {
        group: names.group,
        resource: match name {
            "" => names.plural.to_owned(),
            name => format!("{}/{name}", names.plural),
        },
        verbs: verbs.to_vec(),
    };
    let parts = names.subresources.iter();
    let parts = parts.map(|sub| part(sub.name(), about(names, *sub).verbs));
    std::iter::once(part("", names.verbs))
        .chain(parts)
        .collect()
}

fn reviewed_user(
    _: &[ServedResource],
    document: Value,
    options: &WriteOptions,
) -> Result<WriteAnswer, ApiError> {
    let answer = |review: &mut SelfSubjectReview| {
        review.status = Some(SelfSubjectReviewStatus {
            user_info: Some(user_info(&options.write.by)),
        });
        ErrorList::new()
    };
    answered("SelfSubjectReview", document, options, answer)
}

/// The form of an identity in reviews. Empty fields are absent.
pub(super) fn user_info(identity: &Identity) -> UserInfo {
    let Identity {
        user,
        uid,
        groups,
        extra,
    } = identity;
    UserInfo {
        username: Some(user.clone()),
        uid: Some(uid.clone()).filter(|uid| !uid.is_empty()),
        groups: Some(groups.clone()).filter(|groups| !groups.is_empty()),
        extra: Some(extra.clone()).filter(|extra| !extra.is_empty()),
    }
}

fn access(
    served: &[ServedResource],
    document: Value,
    options: &WriteOptions,
) -> Result<WriteAnswer, ApiError> {
    let answer = |review: &mut SelfSubjectAccessReview| {
        let mut errors = ErrorList::new();
        let path = FieldPath::new("spec").child("resourceAttributes");
        let spec = &review.spec;
        let (allowed, reason) = match (&spec.resource_attributes, &spec.non_resource_attributes) {
            (Some(asked), None) if served.iter().any(|served| served.covers(asked)) => (true, None),
            (Some(_), None) => (false, Some("this server has no such resource or verb")),
            (None, Some(_)) => (true, None),
            (Some(asked), Some(_)) => {
                let detail = "cannot be specified in combination with nonResourceAttributes";
                errors.invalid(&path, json!(asked), detail);
                (false, None)
            }
            (None, None) => {
                let detail =
                    "exactly one of nonResourceAttributes or resourceAttributes must be specified";
                errors.invalid(&path, Value::Null, detail);
                (false, None)
            }
        };
        review.status = Some(SubjectAccessReviewStatus {
            allowed,
            reason: reason.map(str::to_owned),
            ..SubjectAccessReviewStatus::default()
        });
        errors
    };
    answered("SelfSubjectAccessReview", document, options, answer)
}

fn rules(
    served: &[ServedResource],
    document: Value,
    options: &WriteOptions,
) -> Result<WriteAnswer, ApiError> {
    let answer = |review: &mut SelfSubjectRulesReview| {
        let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        let rule = |served: &ServedResource| ResourceRule {
            api_groups: Some(texts(&[served.group])),
            resources: Some(vec![served.resource.clone()]),
            verbs: texts(&served.verbs),
            ..ResourceRule::default()
        };
        let paths = NonResourceRule {
            non_resource_urls: Some(texts(&["*"])),
            verbs: texts(&["get"]),
        };
        review.status = Some(SubjectRulesReviewStatus {
            evaluation_error: None,
            incomplete: false,
            non_resource_rules: vec![paths],
            resource_rules: served.iter().map(rule).collect(),
        });
        ErrorList::new()
    };
    answered("SelfSubjectRulesReview", document, options, answer)
}

/// Reads a review, fills in its answer, and returns it.
pub(super) fn answered<T: DeserializeOwned + Serialize>(
    kind: &str,
    document: Value,
    options: &WriteOptions,
    answer: impl FnOnce(&mut T) -> ErrorList,
) -> Result<WriteAnswer, ApiError> {
    let group = document["apiVersion"].as_str().unwrap_or_default();
    let group = group.split('/').next().unwrap_or_default().to_owned();
    let name = document["metadata"]["name"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    let undecodable = |error| error::not_strictly(kind, "v1", &error);
    let (mut review, unknown) = strict::decode_noting::<T, _>(document).map_err(undecodable)?;
    let warnings = options.judge(unknown).map_err(undecodable)?;
    let errors = answer(&mut review);
    if !errors.is_empty() {
        return Err(error::invalid_of(&group, kind, &name, &errors));
    }
    let document = serde_json::to_value(review).map_err(|error| error::internal(&error))?;
    Ok(WriteAnswer {
        document,
        warnings,
        created: true,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{registry::WriteParams, rest::request::FieldValidation};

    fn served() -> Vec<ServedResource> {
        let served = |group, resource: &str, verbs: &[&'static str]| ServedResource {
            group,
            resource: resource.to_owned(),
            verbs: verbs.to_vec(),
        };
        vec![
            served("", "pods", &["create", "get"]),
            served("", "pods/eviction", &["create"]),
            served("apps", "deployments", &["get"]),
        ]
    }

    fn strict() -> WriteOptions {
        WriteOptions {
            write: WriteParams::by_server(),
            validation: FieldValidation::Strict,
            duplicates: Vec::new(),
        }
    }

    fn review(spec: &Value) -> Value {
        json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "metadata": {}, "spec": spec})
    }

    #[test]
    fn everybody_may_do_everything_that_is_served() {
        for (asked, allowed) in [
            (
                json!({"verb": "get", "resource": "pods", "namespace": "x", "name": "y"}),
                true,
            ),
            (
                json!({"verb": "create", "resource": "pods", "subresource": "eviction"}),
                true,
            ),
            (json!({"verb": "*", "resource": "*", "group": "*"}), true),
            (
                json!({"verb": "get", "resource": "deployments", "group": "apps"}),
                true,
            ),
            (json!({"verb": "get", "resource": "deployments"}), false),
            (
                json!({"verb": "create", "resource": "pods", "subresource": "exec"}),
                false,
            ),
            (json!({"verb": "escalate", "resource": "pods"}), false),
            (json!({"verb": "list", "resource": "secrets"}), false),
        ] {
            let document = review(&json!({"resourceAttributes": asked.clone()}));
            let answer = access(&served(), document, &strict()).unwrap();
            assert_eq!(answer.document["status"]["allowed"], allowed, "{asked}");
            assert_eq!(answer.document["status"]["reason"].is_null(), allowed);
        }
        let paths = review(&json!({"nonResourceAttributes": {"path": "/metrics", "verb": "get"}}));
        let answer = access(&served(), paths, &strict()).unwrap();
        assert_eq!(answer.document["status"]["allowed"], true);
    }

    #[test]
    fn refuses_an_access_review_without_attributes() {
        let error = access(&served(), review(&json!({})), &strict()).unwrap_err();
        assert_eq!(
            error.message,
            "SelfSubjectAccessReview.authorization.k8s.io \"\" is invalid: spec.resourceAttributes: Invalid value: null: exactly one of nonResourceAttributes or resourceAttributes must be specified"
        );
        let unknown = review(&json!({"resourceAttribute": {}}));
        let error = access(&served(), unknown.clone(), &strict()).unwrap_err();
        assert!(
            error
                .message
                .contains("unknown field \"spec.resourceAttribute\""),
            "{error}"
        );
    }

    #[test]
    fn a_review_of_oneself_has_all_of_the_identity() {
        let document = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview", "metadata": {}});
        let mut options = strict();
        for (identity, user_info) in [
            (
                Identity::anonymous(),
                json!({"username": "system:anonymous", "groups": ["system:unauthenticated"]}),
            ),
            (
                Identity {
                    uid: "7".to_owned(),
                    extra: [("project".to_owned(), vec!["x".to_owned()])].into(),
                    ..Identity::new("ada", ["dev"])
                },
                json!({"username": "ada", "uid": "7", "groups": ["dev"], "extra": {"project": ["x"]}}),
            ),
        ] {
            options.write.by = Arc::new(identity);
            let answer = reviewed_user(&[], document.clone(), &options).unwrap();
            assert_eq!(answer.document["status"]["userInfo"], user_info);
        }
    }

    #[test]
    fn rules_review_lists_the_served_verbs() {
        let document = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview", "metadata": {}, "spec": {"namespace": "x"}});
        let answer = rules(&served(), document, &strict()).unwrap();
        let rules = &answer.document["status"]["resourceRules"];
        assert_eq!(
            rules[1],
            json!({"apiGroups": [""], "resources": ["pods/eviction"], "verbs": ["create"]})
        );
        assert_eq!(answer.document["status"]["incomplete"], false);
    }
}
