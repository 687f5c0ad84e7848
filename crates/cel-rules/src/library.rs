//! The functions of CEL's standard library, and of the extension libraries that Kubernetes has.

pub(crate) mod access;
mod conversions;
pub(crate) mod format;
mod lists;
mod net;
mod operators;
mod optional;
pub(crate) mod quantity;
pub(crate) mod regex;
mod strings;
mod template;
pub(crate) mod time;
pub(crate) mod url;

use crate::functions::{Declared, Overload};

pub(crate) const LIST_A: Declared = Declared::List(&Declared::A);
pub(crate) const LIST_STRING: Declared = Declared::List(&Declared::String);
pub(crate) const MAP_AB: Declared = Declared::Map(&Declared::A, &Declared::B);

/// The functions of all libraries.
pub(crate) static ALL: &[&[Overload]] = &[
    operators::FUNCTIONS,
    operators::LESS,
    operators::LESS_EQUALS,
    operators::GREATER,
    operators::GREATER_EQUALS,
    conversions::FUNCTIONS,
    strings::FUNCTIONS,
    template::FUNCTIONS,
    regex::FUNCTIONS,
    lists::FUNCTIONS,
    optional::FUNCTIONS,
    time::FUNCTIONS,
    quantity::FUNCTIONS,
    net::FUNCTIONS,
    url::FUNCTIONS,
    format::FUNCTIONS,
    access::FUNCTIONS,
];

/// Destructures the arguments of an overload, whose types were checked.
macro_rules! arguments {
    ($args:expr, $($pattern:pat),*) => {
        let [$($pattern),*] = $args else {
            return Err($crate::error::Failure::NoSuchOverload);
        };
    };
}
pub(crate) use arguments;
