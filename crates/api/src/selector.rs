//! Label and field selectors: which objects a list or watch is about; and selectors of nodes.

mod field;
mod label;
mod node;

pub use field::{Field, FieldSelector, FieldSet, Selectable};
pub use label::LabelSelector;
pub use node::NodeSelector;

/// A selector that cannot be understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectorError {
    /// Its syntax is wrong.
    #[error("unable to parse selector {selector:?}: {message}")]
    Syntax {
        /// The selector.
        selector: String,
        /// Where it stops making sense, and what would.
        message: String,
    },
    /// A label key or value is malformed.
    #[error("unable to parse selector {selector:?}: {text:?}: {rule}")]
    Label {
        /// The selector.
        selector: String,
        /// The key or value.
        text: String,
        /// The rule that it breaks.
        rule: String,
    },
    /// Part of a field selector is no comparison.
    #[error("invalid selector: '{selector}'; can't understand '{term}'")]
    Term {
        /// The selector.
        selector: String,
        /// The part.
        term: String,
    },
    /// Objects of the kind cannot be selected by the field.
    #[error("field label not supported: {0}")]
    Unsupported(String),
}
