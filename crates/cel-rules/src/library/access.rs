//! Questions to the authorizers of a cluster (source: `k8s.io/apiserver/pkg/cel/library/authz.go`).

use std::{fmt, sync::Arc};

use super::arguments;
use crate::{
    error::Failure,
    functions::{
        Declared::{self, Bool, String as StringType},
        Overload, member,
    },
    meter::Meter,
    value::Value,
};

/// The cost of a question.
const CHECK: u64 = 350_000;

/// Decides questions of expressions.
pub trait Authorizer: fmt::Debug + Send + Sync {
    /// Decides a question.
    fn decide(&self, question: &AccessQuestion) -> AccessDecision;
}

/// A question of an expression.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessQuestion {
    /// The namespace and name of a ServiceAccount; `None`: whoever sent the request.
    pub account: Option<(String, String)>,
    /// A path; `None`: a resource.
    pub path: Option<String>,
    /// The API group.
    pub group: String,
    /// The plural name of the kind.
    pub resource: String,
    /// The subresource; empty for the object itself.
    pub subresource: String,
    /// The namespace; empty for all.
    pub namespace: String,
    /// The name; empty for all.
    pub name: String,
    /// The verb.
    pub verb: String,
}

/// The answer to a question.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessDecision {
    /// True if it is allowed.
    pub is_allowed: bool,
    /// The reason; may be empty.
    pub reason: String,
    /// The error of the authorizers, if they had one.
    pub error: Option<String>,
}

/// The progress of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessStage {
    /// Whom to ask.
    Authorizer,
    /// About a path.
    Path,
    /// About a group.
    Group,
    /// About a resource.
    Resource,
    /// Answered.
    Decision,
}

impl AccessStage {
    /// The name of the type.
    pub(crate) fn type_name(self) -> &'static str {
        match self {
            Self::Authorizer => "kubernetes.authorization.Authorizer",
            Self::Path => "kubernetes.authorization.PathCheck",
            Self::Group => "kubernetes.authorization.GroupCheck",
            Self::Resource => "kubernetes.authorization.ResourceCheck",
            Self::Decision => "kubernetes.authorization.Decision",
        }
    }
}

/// A question that an expression builds, or its answer.
#[derive(Clone, Debug)]
pub struct Access {
    authorizer: Arc<dyn Authorizer>,
    pub(crate) stage: AccessStage,
    question: AccessQuestion,
    decision: AccessDecision,
}

impl Access {
    /// The variable `authorizer`.
    pub fn authorizer(authorizer: Arc<dyn Authorizer>) -> Self {
        Self {
            authorizer,
            stage: AccessStage::Authorizer,
            question: AccessQuestion::default(),
            decision: AccessDecision::default(),
        }
    }

    /// The variable `authorizer.requestResource`.
    pub fn resource(authorizer: Arc<dyn Authorizer>, question: AccessQuestion) -> Self {
        Self {
            stage: AccessStage::Resource,
            question,
            ..Self::authorizer(authorizer)
        }
    }
}

const AUTHORIZER: Declared = Declared::Access(AccessStage::Authorizer);
const PATH: Declared = Declared::Access(AccessStage::Path);
const GROUP: Declared = Declared::Access(AccessStage::Group);
const RESOURCE: Declared = Declared::Access(AccessStage::Resource);
const DECISION: Declared = Declared::Access(AccessStage::Decision);

pub(super) static FUNCTIONS: &[Overload] = &[
    member("path", &[AUTHORIZER, StringType], PATH, path),
    member("group", &[AUTHORIZER, StringType], GROUP, group),
    member(
        "serviceAccount",
        &[AUTHORIZER, StringType, StringType],
        AUTHORIZER,
        account,
    ),
    member("resource", &[GROUP, StringType], RESOURCE, resource),
    member(
        "subresource",
        &[RESOURCE, StringType],
        RESOURCE,
        subresource,
    ),
    member("namespace", &[RESOURCE, StringType], RESOURCE, namespace),
    member("name", &[RESOURCE, StringType], RESOURCE, name),
    member("check", &[RESOURCE, StringType], DECISION, check).counts_cost(),
    member("check", &[PATH, StringType], DECISION, check).counts_cost(),
    member("allowed", &[DECISION], Bool, allowed),
    member("reason", &[DECISION], StringType, reason),
    member("errored", &[DECISION], Bool, errored),
    member("error", &[DECISION], StringType, error),
];

type Outcome<'a> = Result<Value<'a>, Failure>;

/// The next stage of a question, with a text more.
fn next<'a>(
    args: &[Value<'a>],
    stage: AccessStage,
    set: impl FnOnce(&mut AccessQuestion, String),
) -> Outcome<'a> {
    arguments!(args, Value::Access(access), Value::String(text));
    let mut access = Access::clone(access);
    access.stage = stage;
    set(&mut access.question, (**text).to_owned());
    Ok(Value::Access(Arc::new(access)))
}

fn path<'a>(_meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    next(args, AccessStage::Path, |question, path| {
        question.path = Some(path);
    })
}

fn group<'a>(_meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    next(args, AccessStage::Group, |question, group| {
        question.group = group;
    })
}

fn account<'a>(_meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(
        args,
        Value::Access(access),
        Value::String(namespace),
        Value::String(name)
    );
    let mut access = Access::clone(access);
    access.question.account = Some(((**namespace).to_owned(), (**name).to_owned()));
    Ok(Value::Access(Arc::new(access)))
}

fn resource<'a>(_meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    next(args, AccessStage::Resource, |question, resource| {
        question.resource = resource;
    })
}

fn subresource<'a>(_meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    next(args, AccessStage::Resource, |question, subresource| {
        question.subresource = subresource;
    })
}

fn namespace<'a>(_meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    next(args, AccessStage::Resource, |question, namespace| {
        question.namespace = namespace;
    })
}

fn name<'a>(_meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    next(args, AccessStage::Resource, |question, name| {
        question.name = name;
    })
}

fn check<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, Value::Access(access), Value::String(verb));
    meter.charge(CHECK)?;
    let mut access = Access::clone(access);
    access.question.verb = (**verb).to_owned();
    access.decision = access.authorizer.decide(&access.question);
    access.stage = AccessStage::Decision;
    Ok(Value::Access(Arc::new(access)))
}

fn allowed<'a>(_meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, Value::Access(access));
    Ok(Value::Bool(access.decision.is_allowed))
}

fn reason<'a>(_meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, Value::Access(access));
    Ok(Value::string(&*access.decision.reason))
}

fn errored<'a>(_meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, Value::Access(access));
    Ok(Value::Bool(access.decision.error.is_some()))
}

fn error<'a>(_meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, Value::Access(access));
    let error = access.decision.error.as_deref();
    Ok(Value::string(error.unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Environment, Type};

    /// Allows what is in its own words.
    #[derive(Debug)]
    struct Echo;

    impl Authorizer for Echo {
        fn decide(&self, question: &AccessQuestion) -> AccessDecision {
            AccessDecision {
                is_allowed: question.verb == "get",
                reason: format!("{question:?}"),
                error: (question.verb == "fail").then(|| "no".to_owned()),
            }
        }
    }

    fn environment() -> Environment {
        let resource = Type::Access(AccessStage::Resource);
        Environment::default()
            .with_type("authorizer", Type::Access(AccessStage::Authorizer))
            .with_type("authorizer.requestResource", resource)
    }

    #[test]
    fn questions_are_built_and_answered() {
        for text in [
            "authorizer.group('apps').resource('deployments').subresource('scale').namespace('n').name('d').check('get').allowed()",
            "authorizer.group('apps').resource('deployments').name('d').check('get').reason().contains('resource: \"deployments\"')",
            "authorizer.path('/livez').check('get').reason().contains('path: Some(\"/livez\")')",
            "!authorizer.path('/livez').check('post').allowed()",
            "authorizer.serviceAccount('n', 'a').group('').resource('pods').check('get').reason().contains('Some((\"n\", \"a\"))')",
            "authorizer.requestResource.check('get').reason().contains('resource: \"own\"')",
            "authorizer.path('/').check('fail').errored() && authorizer.path('/').check('fail').error() == 'no'",
        ] {
            let program = environment().compile(text).unwrap();
            let own = AccessQuestion {
                resource: "own".to_owned(),
                ..AccessQuestion::default()
            };
            let values = [
                Access::authorizer(Arc::new(Echo)),
                Access::resource(Arc::new(Echo), own),
            ];
            let values = values.map(|access| Value::Access(Arc::new(access)));
            let outcome = program.evaluate(values, crate::CALL_LIMIT);
            assert!(
                matches!(outcome.result, Ok(Value::Bool(true))),
                "{text}: {outcome:?}"
            );
            assert!(outcome.cost >= CHECK);
        }
    }

    #[test]
    fn a_question_has_its_parts_in_order() {
        for text in [
            "authorizer.resource('pods')",
            "authorizer.group('apps').check('get')",
            "authorizer.path('/').allowed()",
            "authorizer.requestResource.group('x')",
        ] {
            let refused = environment().compile(text).unwrap_err().to_string();
            assert!(
                refused.contains("found no matching overload"),
                "{text}: {refused}"
            );
        }
    }
}
