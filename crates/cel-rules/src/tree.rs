//! The checked tree of an expression, which the evaluator and the estimate traverse.

use std::sync::Arc;

use crate::{
    functions::Overload,
    pattern::Pattern,
    types::{Declaration, Type},
    value::Value,
};

/// A checked expression.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) kind: NodeKind,
    pub(crate) ty: Type,
    /// The declaration of the data, if the expression is a path to data.
    pub(crate) data: Option<Arc<Declaration>>,
}

#[derive(Debug)]
pub(crate) enum NodeKind {
    Literal(Value<'static>),
    /// The variable in that slot.
    Variable(usize),
    Select {
        operand: Box<Node>,
        field: Arc<str>,
        /// True for `.?field`.
        optional: bool,
    },
    Has {
        operand: Box<Node>,
        field: Arc<str>,
    },
    Call {
        /// The overloads that fit the types that are known.
        overloads: Vec<&'static Overload>,
        args: Vec<Node>,
        /// The pattern, if it is a literal.
        pattern: Option<Arc<Pattern>>,
    },
    And(Box<[Node; 2]>),
    Or(Box<[Node; 2]>),
    Conditional(Box<[Node; 3]>),
    /// The elements; true for optional ones.
    List(Vec<(Node, bool)>),
    /// The keys and values; true for optional ones.
    Map(Vec<(Node, Node, bool)>),
    Fold(Box<Fold>),
    /// `optMap` and `optFlatMap`.
    OptionalMap {
        target: Box<Node>,
        slot: usize,
        body: Box<Node>,
        flat: bool,
    },
}

/// A comprehension.
#[derive(Debug)]
pub(crate) struct Fold {
    pub(crate) kind: FoldKind,
    pub(crate) range: Node,
    /// The slots of the variables; with two, the first is the index or key.
    pub(crate) first: usize,
    pub(crate) second: Option<usize>,
    /// The condition of an element of the result.
    pub(crate) filter: Option<Node>,
    /// The predicate, or the element of the result.
    pub(crate) body: Node,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FoldKind {
    All,
    Exists,
    ExistsOne,
    /// `map`, `filter` and `transformList`.
    List,
    /// `transformMap`: the keys stay.
    Map,
    /// `transformMapEntry`: the body is a map.
    Entries,
}
