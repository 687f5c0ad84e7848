//! Expressions of rules: what they can read, and the conditions that webhooks and policies have in
//! common (source: `k8s.io/apiserver/pkg/admission/plugin/cel` and `webhook/matchconditions`).

use std::{
    collections::BTreeMap,
    sync::{Arc, LazyLock},
};

use podplane_api::admissionregistration::MatchCondition;
use podplane_cel_rules::{
    Access, AccessStage, CALL_LIMIT, DataShape, Declaration, DeclaredField, Environment, Failure,
    ListIdentity, Program, Type, Value as CelValue,
};
use serde_json::Value;

/// The most that the conditions of a webhook or policy may cost together.
const CONDITIONS_BUDGET: u64 = CALL_LIMIT / 4 * 10;

fn declared(shape: DataShape) -> Arc<Declaration> {
    Arc::new(Declaration {
        shape,
        max_elements: u64::MAX,
        min_size: 1,
    })
}

fn fields(fields: &[(&str, &Arc<Declaration>)]) -> Arc<Declaration> {
    let fields = fields.iter().map(|(name, data)| {
        let field = DeclaredField {
            name: (*name).to_owned(),
            data: Arc::clone(data),
        };
        ((*name).to_owned(), field)
    });
    declared(DataShape::Object(fields.collect::<BTreeMap<_, _>>()))
}

fn list(items: &Arc<Declaration>) -> Arc<Declaration> {
    declared(DataShape::List {
        items: Arc::clone(items),
        identity: ListIdentity::Position,
    })
}

static ANY: LazyLock<Arc<Declaration>> = LazyLock::new(|| Arc::new(Declaration::ANY));

/// `AdmissionRequest` without its objects.
static REQUEST: LazyLock<Arc<Declaration>> = LazyLock::new(|| {
    let (text, bool) = (declared(DataShape::String), declared(DataShape::Bool));
    let kind = fields(&[("group", &text), ("version", &text), ("kind", &text)]);
    let resource = fields(&[("group", &text), ("version", &text), ("resource", &text)]);
    let extra = declared(DataShape::Map(list(&text)));
    let user = fields(&[
        ("username", &text),
        ("uid", &text),
        ("groups", &list(&text)),
        ("extra", &extra),
    ]);
    fields(&[
        ("uid", &text),
        ("kind", &kind),
        ("resource", &resource),
        ("subResource", &text),
        ("requestKind", &kind),
        ("requestResource", &resource),
        ("requestSubResource", &text),
        ("name", &text),
        ("namespace", &text),
        ("operation", &text),
        ("userInfo", &user),
        ("dryRun", &bool),
        ("options", &ANY),
    ])
});

/// The fields of a Namespace that expressions can read.
static NAMESPACE: LazyLock<Arc<Declaration>> = LazyLock::new(|| {
    let (text, int) = (declared(DataShape::String), declared(DataShape::Int));
    let time = declared(DataShape::Timestamp);
    let texts = declared(DataShape::Map(Arc::clone(&text)));
    let metadata = fields(&[
        ("name", &text),
        ("generateName", &text),
        ("namespace", &text),
        ("labels", &texts),
        ("annotations", &texts),
        ("UID", &text),
        ("uid", &text),
        ("creationTimestamp", &time),
        ("deletionGracePeriodSeconds", &int),
        ("deletionTimestamp", &time),
        ("generation", &int),
        ("resourceVersion", &text),
        ("finalizers", &list(&text)),
    ]);
    let spec = fields(&[("finalizers", &list(&text))]);
    let status = fields(&[("phase", &text)]);
    fields(&[
        ("metadata", &metadata),
        ("spec", &spec),
        ("status", &status),
    ])
});

/// The parts of a write that expressions can read; `null` for a missing one.
#[derive(Debug, Default)]
pub(super) struct Inputs {
    /// `authorizer` and `authorizer.requestResource`.
    pub(super) access: Option<[Arc<Access>; 2]>,
    pub(super) object: Value,
    pub(super) old: Value,
    pub(super) request: Value,
    pub(super) namespace: Value,
    pub(super) params: Value,
}

/// The names of [`Inputs`], in their order.
fn names() -> [(&'static str, &'static Arc<Declaration>); 5] {
    [
        ("object", &ANY),
        ("oldObject", &ANY),
        ("request", &REQUEST),
        ("namespaceObject", &NAMESPACE),
        ("params", &ANY),
    ]
}

/// The authorizers, as expressions can ask them.
pub(super) const AUTHORIZER: &str = "authorizer";
/// A question about what is requested.
pub(super) const REQUEST_RESOURCE: &str = "authorizer.requestResource";

/// The inputs that expressions can read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    /// The conditions of webhooks: no namespace, no parameters.
    Webhook,
    /// Policies without parameters.
    Policy,
    /// Policies with parameters.
    PolicyWithParams,
}

impl Scope {
    fn inputs(self) -> usize {
        match self {
            Self::Webhook => 3,
            Self::Policy => 4,
            Self::PolicyWithParams => 5,
        }
    }

    /// The environment of expressions.
    pub(super) fn environment(self) -> Environment {
        let inputs = names().into_iter().take(self.inputs());
        let environment = inputs.fold(Environment::default(), |environment, (name, data)| {
            environment.with_data(name, Arc::clone(data))
        });
        let [authorizer, resource] = [AccessStage::Authorizer, AccessStage::Resource];
        environment
            .with_type(AUTHORIZER, Type::Access(authorizer))
            .with_type(REQUEST_RESOURCE, Type::Access(resource))
    }

    /// The values of the inputs.
    pub(super) fn values(self, inputs: &Inputs) -> Vec<CelValue<'_>> {
        let Inputs {
            access,
            object,
            old,
            request,
            namespace,
            params,
        } = inputs;
        let values = [object, old, request, namespace, params];
        let all = values.into_iter().zip(names()).take(self.inputs());
        let all = all.map(|(value, (_, data))| CelValue::of(value, data));
        let access = match access {
            Some(access) => access.clone().map(CelValue::Access),
            None => [CelValue::Null, CelValue::Null],
        };
        all.chain(access).collect()
    }
}

/// Compiles an expression whose value must be of one of these types.
pub(super) fn compile(
    environment: &Environment,
    text: &str,
    types: &[Type],
) -> Result<Program, String> {
    let program = environment.compile(text);
    let program = program.map_err(|error| format!("compilation failed: {error}"))?;
    let is_one = |ty: &Type| std::mem::discriminant(ty) == std::mem::discriminant(program.ty());
    if !types.is_empty() && !types.iter().any(is_one) {
        let names: Vec<_> = types.iter().map(ToString::to_string).collect();
        return Err(match &names[..] {
            [name] => format!("must evaluate to {name}"),
            names => format!("must evaluate to one of [{}]", names.join(" ")),
        });
    }
    Ok(program)
}

/// The value of an expression that failed, as messages say it.
pub(super) fn failed(text: &str, failure: &Failure) -> String {
    format!("expression '{text}' resulted in error: {failure}")
}

/// The conditions of a webhook or policy.
#[derive(Debug)]
pub(super) struct Conditions {
    scope: Scope,
    /// In their order: a name, and the expression.
    all: Vec<Condition>,
}

#[derive(Debug)]
struct Condition {
    name: String,
    text: String,
    /// `Err`: it does not compile, although it did when it was stored.
    program: Result<Program, String>,
}

impl Conditions {
    pub(super) fn new(scope: Scope, conditions: Option<Vec<MatchCondition>>) -> Self {
        let environment = scope.environment();
        let conditions = conditions.into_iter().flatten();
        let compiled = conditions.map(|MatchCondition { expression, name }| Condition {
            name,
            program: compile(&environment, &expression, &[Type::Bool]),
            text: expression,
        });
        Self {
            scope,
            all: compiled.collect(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// True if any of them reads that input.
    pub(super) fn read(&self, variable: &str) -> bool {
        let mut programs = self.all.iter().flat_map(|condition| &condition.program);
        programs.any(|program| program.reads(variable))
    }

    /// True if all hold. One that does not hold decides, whatever errors others have.
    ///
    /// # Errors
    ///
    /// The errors of those that could not be evaluated.
    pub(super) fn hold(&self, inputs: &Inputs) -> Result<bool, String> {
        let mut left = CONDITIONS_BUDGET;
        let mut errors = Vec::new();
        for Condition {
            name,
            text,
            program,
        } in &self.all
        {
            let program = match program {
                Ok(program) => program,
                Err(why) => {
                    errors.push(format!("{name}: {why}"));
                    continue;
                }
            };
            let values = self.scope.values(inputs);
            let outcome = program.evaluate(values, CALL_LIMIT.min(left));
            left = left.saturating_sub(outcome.cost);
            match outcome.result {
                Ok(CelValue::Bool(true)) => {}
                Ok(_) => return Ok(false),
                Err(failure) => errors.push(failed(text, &failure)),
            }
        }
        match errors.len() {
            0 => Ok(true),
            1 => Err(errors.remove(0)),
            _ => Err(format!("[{}]", errors.join(", "))),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn inputs() -> Inputs {
        Inputs {
            object: json!({"metadata": {"name": "a", "namespace": "n"}, "spec": {"replicas": 3}}),
            request: json!({"operation": "CREATE", "namespace": "n", "userInfo": {"username": "eve", "groups": ["g"]}}),
            namespace: json!({"metadata": {"name": "n", "labels": {"env": "prod"}}}),
            ..Inputs::default()
        }
    }

    fn hold(texts: &[&str]) -> Result<bool, String> {
        let conditions = texts.iter().enumerate();
        let conditions = conditions.map(|(index, text)| MatchCondition {
            name: index.to_string(),
            expression: (*text).to_owned(),
        });
        Conditions::new(Scope::Policy, Some(conditions.collect())).hold(&inputs())
    }

    #[test]
    fn conditions_read_the_request_and_one_that_fails_to_hold_decides() {
        assert_eq!(hold(&[]), Ok(true));
        for (texts, expected) in [
            (&["object.spec.replicas == 3"][..], true),
            (
                &["oldObject == null", "request.operation == 'CREATE'"],
                true,
            ),
            (
                &["request.namespace == 'n' && 'g' in request.userInfo.groups"],
                true,
            ),
            (&["!has(request.userInfo.uid)"], true),
            (&["namespaceObject.metadata.labels['env'] == 'prod'"], true),
            (&["object.metadata.namespace == 'n'"], true),
            (
                &[
                    "object.spec.missing == 1",
                    "request.userInfo.username != 'eve'",
                ],
                false,
            ),
        ] {
            assert_eq!(hold(texts), Ok(expected), "{texts:?}");
        }
        assert_eq!(
            hold(&["object.spec.missing == 1"]).unwrap_err(),
            "expression 'object.spec.missing == 1' resulted in error: no such key: missing"
        );
    }

    #[test]
    fn expressions_are_checked_when_they_are_compiled() {
        let environment = Scope::Webhook.environment();
        for (text, why) in [
            ("request.nope == 'x'", "undefined field 'nope'"),
            (
                "namespaceObject == null",
                "undeclared reference to 'namespaceObject'",
            ),
            ("params == null", "undeclared reference to 'params'"),
            ("1 +", "compilation failed: ERROR: <input>:1:"),
            ("'a'", "must evaluate to bool"),
            ("object.spec.flag", "must evaluate to bool"),
        ] {
            let refused = compile(&environment, text, &[Type::Bool]).unwrap_err();
            assert!(refused.contains(why), "{text}: {refused}");
        }
    }
}
