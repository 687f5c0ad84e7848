//! A compiled ValidatingAdmissionPolicy (source: `k8s.io/apiserver/pkg/admission/plugin/policy`).

use podplane_api::{
    admissionregistration::{
        ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding, ValidatingAdmissionPolicySpec,
    },
    meta,
    validation::{ErrorList, FieldPath},
};
use podplane_cel_rules::{CALL_LIMIT, Environment, Failure, Program, Type, Value as CelValue};

use super::{
    expressions::{Conditions, Inputs, Scope, compile, failed},
    matching::Matcher,
};

/// The most that the expressions of a policy may cost together, for a write and its parameters.
const BUDGET: u64 = 10 * CALL_LIMIT;
/// The longest value of an annotation.
const MAX_ANNOTATION: usize = 10 * 1024;
const OUT_OF_BUDGET: &str =
    "validation failed due to running out of cost budget, no further validation rules will be run";

/// A policy whose expressions are compiled.
#[derive(Debug)]
pub(super) struct Policy {
    pub(super) matcher: Matcher,
    /// The API version and kind of the parameters.
    pub(super) params: Option<(String, String)>,
    pub(super) conditions: Conditions,
    pub(super) fails_closed: bool,
    scope: Scope,
    variables: Vec<Variable>,
    validations: Vec<Validation>,
    annotations: Vec<Annotation>,
}

#[derive(Debug)]
struct Variable {
    /// The name with its qualifier: `variables.a`.
    name: String,
    program: Program,
}

#[derive(Debug)]
struct Validation {
    text: String,
    program: Program,
    message: Option<String>,
    message_program: Option<Program>,
    reason: Option<String>,
}

#[derive(Debug)]
struct Annotation {
    key: String,
    text: String,
    program: Program,
}

/// A validation that does not hold, or an expression that failed.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Violation {
    pub(super) message: String,
    pub(super) reason: String,
    pub(super) index: usize,
    pub(super) is_error: bool,
}

/// The result of a policy's check of a write.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Findings {
    pub(super) violations: Vec<Violation>,
    /// The keys, without the name of the policy, and the values.
    pub(super) annotations: Vec<(String, String)>,
    /// Annotations that could not be made.
    pub(super) failed_annotations: Vec<String>,
}

/// Collects what is wrong with expressions.
struct Compiler {
    environment: Environment,
    errors: ErrorList,
}

impl Compiler {
    fn program(&mut self, path: &FieldPath, text: &str, types: &[Type]) -> Option<Program> {
        match compile(&self.environment, text, types) {
            Ok(program) => Some(program),
            Err(why) => {
                self.errors.invalid(path, text, &why);
                None
            }
        }
    }
}

impl Policy {
    /// Compiles a policy.
    ///
    /// # Errors
    ///
    /// The expressions that cannot be compiled, and the names that cannot be used.
    pub(super) fn new(policy: &ValidatingAdmissionPolicy) -> Result<Self, ErrorList> {
        let spec = policy.spec.clone().unwrap_or_default();
        let ValidatingAdmissionPolicySpec {
            audit_annotations,
            failure_policy,
            match_conditions,
            match_constraints,
            param_kind,
            validations,
            variables,
        } = spec;
        let scope = match &param_kind {
            Some(_) => Scope::PolicyWithParams,
            None => Scope::Policy,
        };
        let path = FieldPath::new("spec");
        let mut compiler = Compiler {
            environment: scope.environment(),
            errors: ErrorList::new(),
        };
        for (index, condition) in match_conditions.iter().flatten().enumerate() {
            let path = path.child("matchConditions").index(index);
            let path = path.child("expression");
            // Conditions have no variables.
            compiler.program(&path, &condition.expression, &[Type::Bool]);
        }
        let mut compiled = Vec::new();
        for (index, variable) in variables.into_iter().flatten().enumerate() {
            let path = path.child("variables").index(index);
            let name = format!("variables.{}", variable.name);
            if !is_identifier(&variable.name) {
                let why = "name is not a valid CEL identifier";
                let name = variable.name.as_str();
                compiler.errors.invalid(&path.child("name"), name, why);
                continue;
            }
            if compiled.iter().any(|other: &Variable| other.name == name) {
                compiler
                    .errors
                    .duplicate(&path.child("name"), &*variable.name);
                continue;
            }
            let path = path.child("expression");
            // A variable may read those before it.
            if let Some(program) = compiler.program(&path, &variable.expression, &[]) {
                let environment = std::mem::take(&mut compiler.environment);
                compiler.environment = environment.with_type(&name, program.ty().clone());
                compiled.push(Variable { name, program });
            }
        }
        let variables = compiled;
        let mut compiled = Vec::new();
        for (index, rule) in validations.into_iter().flatten().enumerate() {
            let path = path.child("validations").index(index);
            let text = rule.expression;
            let program = compiler.program(&path.child("expression"), &text, &[Type::Bool]);
            let message_path = path.child("messageExpression");
            let message_program = rule
                .message_expression
                .and_then(|text| compiler.program(&message_path, &text, &[Type::String]));
            if let Some(program) = program {
                compiled.push(Validation {
                    text,
                    program,
                    message: rule.message,
                    message_program,
                    reason: rule.reason,
                });
            }
        }
        let validations = compiled;
        let mut annotations = Vec::new();
        for (index, annotation) in audit_annotations.into_iter().flatten().enumerate() {
            let path = path.child("auditAnnotations").index(index);
            let text = annotation.value_expression;
            let types = [Type::String, Type::Null];
            if let Some(program) = compiler.program(&path.child("valueExpression"), &text, &types) {
                annotations.push(Annotation {
                    key: annotation.key,
                    text,
                    program,
                });
            }
        }
        if !compiler.errors.is_empty() {
            return Err(compiler.errors);
        }
        Ok(Self {
            matcher: Matcher::of_resources(match_constraints.unwrap_or_default()),
            params: param_kind.map(|kind| {
                let text = |text: Option<String>| text.unwrap_or_default();
                (text(kind.api_version), text(kind.kind))
            }),
            conditions: Conditions::new(scope, match_conditions),
            fails_closed: failure_policy.as_deref() != Some("Ignore"),
            scope,
            variables,
            validations,
            annotations,
        })
    }

    /// True if any expression reads an input.
    pub(super) fn reads(&self, input: &str) -> bool {
        let variables = self.variables.iter().map(|variable| &variable.program);
        let messages = self.validations.iter();
        let messages = messages.filter_map(|rule| rule.message_program.as_ref());
        let rules = self.validations.iter().map(|rule| &rule.program);
        let annotations = self
            .annotations
            .iter()
            .map(|annotation| &annotation.program);
        let mut all = variables.chain(messages).chain(rules).chain(annotations);
        all.any(|program| program.reads(input)) || self.conditions.read(input)
    }

    /// Evaluates the policy.
    pub(super) fn judge(&self, inputs: &Inputs) -> Findings {
        let mut evaluation = Evaluation {
            policy: self,
            values: self.scope.values(inputs),
            variables: vec![None; self.variables.len()],
            left: BUDGET,
        };
        let mut findings = Findings::default();
        for (index, rule) in self.validations.iter().enumerate() {
            let violation = |message, is_error| Violation {
                message,
                reason: rule.reason.clone().unwrap_or_default(),
                index,
                is_error,
            };
            match evaluation.value(&rule.program, self.variables.len()) {
                Ok(CelValue::Bool(true)) => {}
                Ok(_) => {
                    let made = evaluation.message(rule);
                    let message = made.unwrap_or_else(|| own_message(rule));
                    findings.violations.push(violation(message, false));
                }
                Err(Failure::Cost) if evaluation.left == 0 => {
                    let message = OUT_OF_BUDGET.to_owned();
                    findings.violations.push(violation(message, true));
                    break;
                }
                Err(failure) => {
                    let message = failed(&rule.text, &failure);
                    findings.violations.push(violation(message, true));
                }
            }
        }
        for annotation in &self.annotations {
            match evaluation.value(&annotation.program, self.variables.len()) {
                Ok(value) => {
                    let text = value.as_str().map(str::trim).unwrap_or_default();
                    if !text.is_empty() {
                        let text = &text[..text.floor_char_boundary(MAX_ANNOTATION)];
                        let annotation = (annotation.key.clone(), text.to_owned());
                        findings.annotations.push(annotation);
                    }
                }
                Err(failure) => {
                    let failed = failed(&annotation.text, &failure);
                    findings.failed_annotations.push(failed);
                }
            }
        }
        findings
    }
}

fn own_message(rule: &Validation) -> String {
    match rule.message.as_deref().map(str::trim) {
        Some(message) if !message.is_empty() => message.to_owned(),
        _ => format!("failed expression: {}", rule.text.trim()),
    }
}

/// True for a name that can follow `variables.`.
fn is_identifier(name: &str) -> bool {
    let mut characters = name.chars();
    let begins = characters
        .next()
        .is_some_and(|first| first.is_ascii_alphabetic() || first == '_');
    begins && characters.all(|next| next.is_ascii_alphanumeric() || next == '_')
}

/// An evaluation of a policy: its budget, and its variables, each of which is evaluated once, when
/// an expression first needs it.
struct Evaluation<'p, 'a> {
    policy: &'p Policy,
    values: Vec<CelValue<'a>>,
    variables: Vec<Option<Result<CelValue<'a>, Failure>>>,
    left: u64,
}

impl<'a> Evaluation<'_, 'a> {
    /// The value of an expression that may read the first variables.
    fn value(&mut self, program: &Program, readable: usize) -> Result<CelValue<'a>, Failure> {
        let policy = self.policy;
        for (index, variable) in policy.variables.iter().enumerate().take(readable) {
            if self.variables.get(index).is_some_and(Option::is_some)
                || !program.reads(&variable.name)
            {
                continue;
            }
            let value = self.value(&variable.program, index);
            let value = value.map_err(|failure| match failure {
                Failure::Cost => Failure::Cost,
                other => Failure::Other(format!(
                    "composited variable {:?} fails to evaluate: {other}",
                    variable.name.trim_start_matches("variables.")
                )),
            });
            if let Some(slot) = self.variables.get_mut(index) {
                *slot = Some(value);
            }
        }
        let inputs = self.values.iter().cloned().map(Ok);
        // Those that are not evaluated are not read.
        let unread = || Ok(CelValue::Null);
        let variables = self.variables.iter().take(readable);
        let variables = variables.map(|value| value.clone().unwrap_or_else(unread));
        let limit = CALL_LIMIT.min(self.left);
        let outcome = program.evaluate_partly(inputs.chain(variables), limit);
        self.left = self.left.saturating_sub(outcome.cost);
        outcome.result
    }

    /// The message that an expression makes; `None` if it makes none that can be shown.
    fn message(&mut self, rule: &Validation) -> Option<String> {
        let program = rule.message_program.as_ref()?;
        let value = self.value(program, self.policy.variables.len());
        value.ok()?.message().map(str::to_owned)
    }
}

/// A binding of a policy.
#[derive(Debug)]
pub(super) struct Binding {
    pub(super) policy: String,
    /// `None`: what the policy matches.
    pub(super) matcher: Option<Matcher>,
    pub(super) params: Option<ParamSource>,
    pub(super) actions: Vec<String>,
}

/// The place of a binding's parameters.
#[derive(Debug)]
pub(super) struct ParamSource {
    /// Empty: that of the request.
    pub(super) namespace: String,
    pub(super) selection: ParamSelection,
    /// True to refuse writes while there are no parameters.
    pub(super) is_required: bool,
}

#[derive(Debug)]
pub(super) enum ParamSelection {
    Named(String),
    Labelled(podplane_api::selector::LabelSelector),
}

impl Binding {
    pub(super) fn new(binding: &ValidatingAdmissionPolicyBinding) -> Self {
        let spec = binding.spec.clone();
        let params = spec.param_ref.map(|params| ParamSource {
            namespace: params.namespace.unwrap_or_default(),
            selection: match params.name {
                Some(name) if !name.is_empty() => ParamSelection::Named(name),
                _ => {
                    let selector: meta::LabelSelector = params.selector.unwrap_or_default();
                    ParamSelection::Labelled((&selector).into())
                }
            },
            is_required: params.parameter_not_found_action.as_deref() != Some("Allow"),
        });
        Self {
            policy: spec.policy_name,
            matcher: spec.match_resources.map(Matcher::of_resources),
            params,
            actions: spec.validation_actions,
        }
    }
}

#[cfg(test)]
mod tests {
    use podplane_api::Object as _;
    use serde_json::{Value, json};

    use super::*;

    fn policy(spec: Value) -> Result<Policy, ErrorList> {
        let document = json!({"metadata": {"name": "p"}, "spec": spec});
        Policy::new(&ValidatingAdmissionPolicy::from_json(document).unwrap())
    }

    fn judged(spec: Value, object: Value) -> Findings {
        let inputs = Inputs {
            object,
            ..Inputs::default()
        };
        policy(spec).unwrap().judge(&inputs)
    }

    fn messages(findings: &Findings) -> Vec<&str> {
        let violations = findings.violations.iter();
        violations.map(|one| &*one.message).collect()
    }

    #[test]
    fn messages_come_from_expressions_texts_or_the_rule() {
        let spec = json!({
            "variables": [
                {"name": "count", "expression": "object.spec.replicas"},
                {"name": "twice", "expression": "variables.count * 2"},
            ],
            "validations": [
                {"expression": "variables.twice < 10", "messageExpression": "'too many: ' + string(variables.twice)"},
                {"expression": " variables.count < 5 ", "reason": "Forbidden"},
                {"expression": "variables.count < 5", "message": " at most 5 ", "messageExpression": "'a\\nb'"},
                {"expression": "variables.count > 5"},
            ],
            "auditAnnotations": [
                {"key": "count", "valueExpression": "string(variables.count)"},
                {"key": "none", "valueExpression": "null"},
            ],
        });
        let findings = judged(spec, json!({"spec": {"replicas": 6}}));
        assert_eq!(
            messages(&findings),
            [
                "too many: 12",
                "failed expression: variables.count < 5",
                "at most 5"
            ]
        );
        assert_eq!(findings.violations[1].reason, "Forbidden");
        assert_eq!(findings.annotations, [("count".to_owned(), "6".to_owned())]);
    }

    #[test]
    fn variables_fail_only_where_they_are_read() {
        let spec = json!({
            "variables": [{"name": "image", "expression": "object.spec.image"}],
            "validations": [
                {"expression": "!has(object.spec.image) || variables.image != 'x'"},
                {"expression": "variables.image != 'x'"},
            ],
        });
        let findings = judged(spec.clone(), json!({"spec": {}}));
        let failed = "expression 'variables.image != 'x'' resulted in error: composited variable \"image\" fails to evaluate: no such key: image";
        assert_eq!(messages(&findings), [failed]);
        assert!(findings.violations[0].is_error);
        assert_eq!(
            judged(spec, json!({"spec": {"image": "y"}})),
            Findings::default()
        );
    }

    #[test]
    fn a_policy_ends_at_its_budget() {
        let heavy = "object.l.all(a, object.l.all(b, object.l.all(c, a + b + c >= 0)))";
        let rules = vec![json!({"expression": heavy}); 20];
        let list: Vec<u32> = (0..200).collect();
        let findings = judged(json!({"validations": rules}), json!({"l": list}));
        let messages = messages(&findings);
        assert_eq!(messages.len(), 10);
        assert!(messages[0].ends_with("operation cancelled: actual cost limit exceeded"));
        assert_eq!(messages[9], OUT_OF_BUDGET);
    }

    #[test]
    fn expressions_that_do_not_compile_are_named_by_their_field() {
        for (spec, field, why) in [
            (
                json!({"validations": [{"expression": "object."}]}),
                "spec.validations[0].expression",
                "compilation failed",
            ),
            (
                json!({"validations": [{"expression": "1"}]}),
                "spec.validations[0].expression",
                "must evaluate to bool",
            ),
            (
                json!({"validations": [{"expression": "params == null"}]}),
                "spec.validations[0].expression",
                "undeclared reference to 'params'",
            ),
            (
                json!({"validations": [{"expression": "variables.a"}]}),
                "spec.validations[0].expression",
                "undeclared reference to 'variables'",
            ),
            (
                json!({"validations": [{"expression": "true", "messageExpression": "1"}]}),
                "spec.validations[0].messageExpression",
                "must evaluate to string",
            ),
            (
                json!({"variables": [{"name": "a-b", "expression": "1"}]}),
                "spec.variables[0].name",
                "is not a valid CEL identifier",
            ),
            (
                json!({"variables": [{"name": "a", "expression": "1"}, {"name": "a", "expression": "1"}]}),
                "spec.variables[1].name",
                "Duplicate value",
            ),
            (
                json!({"variables": [{"name": "a", "expression": "variables.b"}, {"name": "b", "expression": "1"}]}),
                "spec.variables[0].expression",
                "undeclared reference",
            ),
            (
                json!({"auditAnnotations": [{"key": "k", "valueExpression": "1"}]}),
                "spec.auditAnnotations[0].valueExpression",
                "must evaluate to one of [string null",
            ),
            (
                json!({"matchConditions": [{"name": "c", "expression": "1"}]}),
                "spec.matchConditions[0].expression",
                "must evaluate to bool",
            ),
        ] {
            let errors = policy(spec.clone()).unwrap_err().to_string();
            assert!(
                errors.contains(field) && errors.contains(why),
                "{spec}: {errors}"
            );
        }
        let good = json!({"paramKind": {"apiVersion": "v1", "kind": "ConfigMap"}, "validations": [{"expression": "params.data.max == '1'"}]});
        assert!(policy(good).unwrap().reads("params"));
    }
}
