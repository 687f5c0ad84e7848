//! Label and field selectors for lists and watches, and node selectors.

pub(crate) mod field;
mod label;
mod node;

pub use field::{FieldSelectable, FieldSelector, FieldSet, SelectableField};
pub use label::LabelSelector;
pub use node::NodeSelector;

/// A selector that cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectorError {
    /// The syntax is invalid.
    #[error("unable to parse selector {selector:?}: {message}")]
    Syntax {
        /// The selector.
        selector: String,
        /// The position of the error, and the expected syntax.
        message: String,
    },
    /// A label key or value is malformed.
    #[error("unable to parse selector {selector:?}: {text:?}: {rule}")]
    Label {
        /// The selector.
        selector: String,
        /// The key or value.
        text: String,
        /// The violated rule.
        rule: String,
    },
    /// A term of a field selector is not a comparison.
    #[error("invalid selector: '{selector}'; can't understand '{term}'")]
    Term {
        /// The selector.
        selector: String,
        /// The term.
        term: String,
    },
    /// The kind does not support selection by this field.
    #[error("field label not supported: {0}")]
    Unsupported(String),
}
