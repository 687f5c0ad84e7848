//! Reviews, which are answered and never stored: the caller's identity, and the permissions of the
//! caller or of others.
//!
//! Without authorization everybody may do whatever the server can do; for everything else the
//! answer is *no*, with that reason.

mod access;

use std::{borrow::Cow, sync::Arc};

use futures::{FutureExt as _, future::BoxFuture};
use podplane_api::{
    Scope,
    authentication::{SelfSubjectReview, SelfSubjectReviewStatus, UserInfo},
    authorization::ResourceAttributes,
    strict,
    validation::ErrorList,
};
use podplane_proto::error::ApiError;
use podplane_service_runtime::identity::Identity;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use self::access::Reviewer;
use super::{
    discovery::about,
    request::WriteOptions,
    resource::{KindNames, Resource, WriteAnswer},
};
use crate::{
    authorization::Gate,
    error,
    served::{OtherKinds, ServedKinds},
};

/// A resource or sub-resource, with its verbs.
#[derive(Clone, Debug)]
struct ServedResource {
    group: Cow<'static, str>,
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
        matches(asked.group.as_ref(), &self.group)
            && matches(asked.resource.as_ref(), resource)
            && matches(asked.subresource.as_ref(), part)
            && (verb == "*" || self.verbs.contains(&verb))
    }
}

/// The question of a review.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Question {
    /// Who the caller is.
    Identity,
    /// If the caller may do something.
    OwnAccess,
    /// If another user may do something.
    Access,
    /// The same in one namespace.
    LocalAccess,
    /// Everything that the caller may do in a namespace.
    OwnRules,
}

/// A kind of review.
struct Review {
    names: KindNames,
    kinds: OtherKinds,
    gate: Gate,
    question: Question,
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
        async move {
            let served = || all_served(&self.kinds.now().resources);
            let reviewer = Reviewer {
                gate: &self.gate,
                served: &served,
            };
            match self.question {
                Question::Identity => reviewed_user(document, options),
                Question::OwnAccess => reviewer.own_access(document, options).await,
                Question::Access => reviewer.access(document, options).await,
                Question::LocalAccess => reviewer.local_access(document, options).await,
                Question::OwnRules => reviewer.rules(document, options).await,
            }
        }
        .boxed()
    }
}

const AUTHENTICATION: &str = "authentication.k8s.io";
const AUTHORIZATION: &str = "authorization.k8s.io";

/// Group, kind, plural and singular of the kinds of reviews.
const REVIEWS: [(&str, &str, &str, &str, Question); 5] = [
    (
        AUTHENTICATION,
        "SelfSubjectReview",
        "selfsubjectreviews",
        "selfsubjectreview",
        Question::Identity,
    ),
    (
        AUTHORIZATION,
        "SelfSubjectAccessReview",
        "selfsubjectaccessreviews",
        "selfsubjectaccessreview",
        Question::OwnAccess,
    ),
    (
        AUTHORIZATION,
        "SubjectAccessReview",
        "subjectaccessreviews",
        "subjectaccessreview",
        Question::Access,
    ),
    (
        AUTHORIZATION,
        "LocalSubjectAccessReview",
        "localsubjectaccessreviews",
        "localsubjectaccessreview",
        Question::LocalAccess,
    ),
    (
        AUTHORIZATION,
        "SelfSubjectRulesReview",
        "selfsubjectrulesreviews",
        "selfsubjectrulesreview",
        Question::OwnRules,
    ),
];

/// Resources without a path: permissions to `create`, which the approver of nodes' certificates
/// asks about.
const PERMISSIONS: [(&str, &str); 2] = [
    (
        "certificates.k8s.io",
        "certificatesigningrequests/nodeclient",
    ),
    (
        "certificates.k8s.io",
        "certificatesigningrequests/selfnodeclient",
    ),
];

/// Everything that is served.
fn all_served(kinds: &[Arc<dyn Resource>]) -> Vec<ServedResource> {
    let kinds = kinds.iter().flat_map(|kind| served(kind.names()));
    let permissions = PERMISSIONS.map(|(group, resource)| ServedResource {
        group: group.into(),
        resource: resource.to_owned(),
        verbs: vec!["create"],
    });
    kinds.chain(permissions).collect()
}

/// The kinds of reviews, which answer for the served kinds.
pub(super) fn reviews(kinds: &ServedKinds, gate: &Gate) -> Vec<Arc<dyn Resource>> {
    let review = |(group, kind, plural, singular, question)| {
        let names = KindNames {
            scope: match question {
                Question::LocalAccess => Scope::Namespaced,
                _ => Scope::Cluster,
            },
            ..KindNames::new(group, "v1", kind, plural, singular)
        };
        let (kinds, gate) = (kinds.others(), gate.clone());
        Arc::new(Review {
            names,
            kinds,
            gate,
            question,
        }) as Arc<dyn Resource>
    };
    REVIEWS.into_iter().map(review).collect()
}

fn served(names: &KindNames) -> Vec<ServedResource> {
    let part = |name: &str, verbs: &[&'static str]| ServedResource {
        group: names.group.clone(),
        resource: match name {
            "" => names.plural.clone().into_owned(),
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

fn reviewed_user(document: Value, options: &WriteOptions) -> Result<WriteAnswer, ApiError> {
    let mut read = ReadReview::<SelfSubjectReview>::of("SelfSubjectReview", document, options)?;
    read.review.status = Some(SelfSubjectReviewStatus {
        user_info: Some(user_info(&options.write.by)),
    });
    read.answer()
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

/// A review that was read, to be answered.
pub(super) struct ReadReview<T> {
    kind: &'static str,
    group: String,
    name: String,
    pub(super) review: T,
    warnings: Vec<String>,
}

impl<T: DeserializeOwned + Serialize> ReadReview<T> {
    pub(super) fn of(
        kind: &'static str,
        document: Value,
        options: &WriteOptions,
    ) -> Result<Self, ApiError> {
        let group = document["apiVersion"].as_str().unwrap_or_default();
        let group = group.split('/').next().unwrap_or_default().to_owned();
        let name = document["metadata"]["name"].as_str().unwrap_or_default();
        let name = name.to_owned();
        let undecodable = |error| error::not_strictly(kind, "v1", &error);
        let (review, unknown) = strict::decode_noting::<T, _>(document).map_err(undecodable)?;
        let warnings = options.judge(unknown).map_err(undecodable)?;
        Ok(Self {
            kind,
            group,
            name,
            review,
            warnings,
        })
    }

    /// Refuses an invalid review.
    fn refuse(&self, errors: &ErrorList) -> Result<(), ApiError> {
        match errors.is_empty() {
            true => Ok(()),
            false => Err(error::invalid_of(
                &self.group,
                self.kind,
                &self.name,
                errors,
            )),
        }
    }

    pub(super) fn answer(self) -> Result<WriteAnswer, ApiError> {
        let document =
            serde_json::to_value(self.review).map_err(|error| error::internal(&error))?;
        Ok(WriteAnswer {
            document,
            warnings: self.warnings,
            created: true,
        })
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use serde_json::json;

    use super::{access::all_that_is_served, *};
    use crate::{registry::WriteParams, rest::request::FieldValidation};

    fn served() -> Vec<ServedResource> {
        let served = |group: &'static str, resource: &str, verbs: &[&'static str]| ServedResource {
            group: group.into(),
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

    /// Without authorization nothing waits.
    fn access(document: Value) -> Result<WriteAnswer, ApiError> {
        let gate = Gate::open();
        let served = served();
        let reviewer = Reviewer {
            gate: &gate,
            served: &|| served.clone(),
        };
        let options = strict();
        let answer = reviewer.own_access(document, &options).now_or_never();
        answer.unwrap()
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
            let answer = access(document).unwrap();
            assert_eq!(answer.document["status"]["allowed"], allowed, "{asked}");
            assert_eq!(answer.document["status"]["reason"].is_null(), allowed);
        }
        let paths = review(&json!({"nonResourceAttributes": {"path": "/metrics", "verb": "get"}}));
        let answer = access(paths).unwrap();
        assert_eq!(answer.document["status"]["allowed"], true);
    }

    #[test]
    fn refuses_an_access_review_without_attributes() {
        let error = access(review(&json!({}))).unwrap_err();
        assert_eq!(
            error.message,
            "SelfSubjectAccessReview.authorization.k8s.io \"\" is invalid: spec.resourceAttributes: Invalid value: null: exactly one of nonResourceAttributes or resourceAttributes must be specified"
        );
        let unknown = review(&json!({"resourceAttribute": {}}));
        let error = access(unknown.clone()).unwrap_err();
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
            let answer = reviewed_user(document.clone(), &options).unwrap();
            assert_eq!(answer.document["status"]["userInfo"], user_info);
        }
    }

    #[test]
    fn rules_review_lists_the_served_verbs() {
        let status = serde_json::to_value(all_that_is_served(&served())).unwrap();
        let rules = &status["resourceRules"];
        assert_eq!(
            rules[1],
            json!({"apiGroups": [""], "resources": ["pods/eviction"], "verbs": ["create"]})
        );
        assert_eq!(status["incomplete"], false);
    }
}
