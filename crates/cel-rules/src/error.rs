//! Errors of expressions.

/// An expression that cannot be compiled. Formatted as in the reference, with the place in the
/// text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CompileError(pub(crate) String);

/// An error of an evaluation. Formatted as in the reference.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The cost exceeds the limit.
    #[error("operation cancelled: actual cost limit exceeded")]
    Cost,
    /// No function has these types of arguments.
    #[error("no such overload")]
    NoSuchOverload,
    /// A map or object has no such key or field.
    #[error("no such key: {0}")]
    NoSuchKey(String),
    /// Any other error.
    #[error("{0}")]
    Other(String),
}

impl Failure {
    pub(crate) fn other<T>(text: impl Into<String>) -> Result<T, Self> {
        Err(Self::Other(text.into()))
    }
}
