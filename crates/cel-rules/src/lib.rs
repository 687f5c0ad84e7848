//! CEL (Common Expression Language) as Kubernetes uses it: expressions over declared data, with
//! Kubernetes' extension libraries, and with costs.
//!
//! An expression is compiled against an [`Environment`], which checks its types and gives an
//! estimate of the most that it may cost ([`Program::cost`]). Its evaluation counts what it does
//! and ends at a limit ([`Program::evaluate`]), so that no expression keeps a server busy. The
//! parser is that of the crate `cel`; the evaluator is ours, since that crate's cannot be bounded
//! (ADR 0057).
//!
//! This crate is pure: it does no I/O and reads no clock.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod compile;
mod error;
mod escape;
mod estimate;
mod evaluate;
mod functions;
mod guard;
mod library;
mod list;
mod meter;
mod pattern;
mod tree;
mod types;
mod value;

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

pub use error::{CompileError, Failure};
pub use escape::{escape, unescape};
pub use estimate::Range;
pub use library::{
    access::{Access, AccessDecision, AccessQuestion, AccessStage, Authorizer},
    format::{NamedFormat, is_base64},
    quantity::Quantity,
    url::Url,
};
pub use list::List;
pub use pattern::Pattern;
pub use types::{DataShape, Declaration, DeclaredField, ListIdentity, Type};
pub use value::{Entries, Key, Text, Value};

/// The most that one evaluation may cost, as in the reference: about a tenth of a second there.
pub const CALL_LIMIT: u64 = 1_000_000;

/// The variables of expressions.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    variables: Vec<compile::Variable>,
}

/// A compiled expression.
#[derive(Debug)]
pub struct Program {
    root: tree::Node,
    slots: usize,
    reads: BTreeSet<usize>,
    variables: Vec<String>,
}

/// The outcome of an evaluation.
#[derive(Debug)]
pub struct Evaluation<'a> {
    /// The value.
    pub result: Result<Value<'a>, Failure>,
    /// The cost, in the reference's units.
    pub cost: u64,
}

/// True for a duration, as in Go: `1h30m`.
pub fn is_duration(text: &str) -> bool {
    library::time::duration(text).is_some()
}

/// True for an RFC 3339 time.
pub fn is_date_time(text: &str) -> bool {
    library::time::timestamp(text).is_some()
}

/// True for an RFC 3339 date.
pub fn is_date(text: &str) -> bool {
    text.len() == 10 && text.parse::<jiff::civil::Date>().is_ok()
}

/// True for an absolute URL, or an absolute path.
pub fn is_uri(text: &str) -> bool {
    Url::parse(text).is_ok()
}

impl Environment {
    /// Declares a variable with declared data.
    #[must_use]
    pub fn with_data(mut self, name: &str, data: Arc<Declaration>) -> Self {
        let ty = Type::of(&data);
        self.variables.push(compile::Variable {
            name: name.to_owned(),
            ty,
            data: Some(data),
        });
        self
    }

    /// Declares a variable of any type. Its name may have dots: `variables.a`.
    #[must_use]
    pub fn with_type(mut self, name: &str, ty: Type) -> Self {
        self.variables.push(compile::Variable {
            name: name.to_owned(),
            ty,
            data: None,
        });
        self
    }

    /// Compiles an expression.
    ///
    /// # Errors
    ///
    /// [`CompileError`] for an expression that is malformed, too long or too deep, or whose types
    /// do not fit.
    pub fn compile(&self, text: &str) -> Result<Program, CompileError> {
        let checked = compile::compile(text, &self.variables)?;
        Ok(Program {
            root: checked.root,
            slots: checked.slots,
            reads: checked.reads,
            variables: self
                .variables
                .iter()
                .map(|variable| variable.name.clone())
                .collect(),
        })
    }
}

impl Program {
    /// The type of the value.
    pub fn ty(&self) -> &Type {
        &self.root.ty
    }

    /// True if the expression reads that variable.
    pub fn reads(&self, variable: &str) -> bool {
        let slot = self.variables.iter().position(|name| name == variable);
        slot.is_some_and(|slot| self.reads.contains(&slot))
    }

    /// The estimate of the costs of an evaluation.
    pub fn cost(&self) -> Range {
        estimate::cost(&self.root)
    }

    /// Evaluates the expression with the variables in the order of their declaration, to a cost of
    /// at most `limit`.
    pub fn evaluate<'a>(
        &self,
        variables: impl IntoIterator<Item = Value<'a>>,
        limit: u64,
    ) -> Evaluation<'a> {
        self.evaluate_partly(variables.into_iter().map(Ok), limit)
    }

    /// The same with variables of which some have no value: an expression fails if it reads one.
    pub fn evaluate_partly<'a>(
        &self,
        variables: impl IntoIterator<Item = Result<Value<'a>, Failure>>,
        limit: u64,
    ) -> Evaluation<'a> {
        let mut meter = meter::Meter::new(limit);
        let mut failures = BTreeMap::new();
        let variables = variables.into_iter().take(self.variables.len());
        let values = variables.enumerate().map(|(slot, value)| {
            value.unwrap_or_else(|failure| {
                failures.insert(slot, failure);
                Value::Null
            })
        });
        let mut slots: Vec<_> = values.collect();
        slots.resize(self.slots, Value::Null);
        let mut evaluator = evaluate::Evaluator {
            slots,
            failures,
            meter: &mut meter,
        };
        let result = evaluator.value(&self.root);
        Evaluation {
            result,
            cost: meter.used,
        }
    }
}
