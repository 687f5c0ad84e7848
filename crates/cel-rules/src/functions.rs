//! The declarations of functions, and the choice among overloads.

use std::{
    collections::HashMap,
    sync::{Arc, LazyLock},
};

use crate::{
    error::Failure,
    library::{self, access::AccessStage},
    meter::Meter,
    types::Type,
    value::Value,
};

/// A function's body. Its arguments have the types of the overload.
pub(crate) type Run = for<'a> fn(&mut Meter, &[Value<'a>]) -> Result<Value<'a>, Failure>;

/// The type of a parameter or result in a declaration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Declared {
    Dyn,
    Bool,
    Int,
    Uint,
    Double,
    String,
    Bytes,
    Duration,
    Timestamp,
    Type,
    Quantity,
    Ip,
    Cidr,
    Url,
    Format,
    /// A question to authorizers.
    Access(AccessStage),
    /// Any one type, the same at each place.
    A,
    /// Another one.
    B,
    List(&'static Declared),
    Map(&'static Declared, &'static Declared),
    Optional(&'static Declared),
}

/// One signature of a function.
#[derive(Debug)]
pub(crate) struct Overload {
    pub(crate) name: &'static str,
    /// True for `x.f(y)`, false for `f(x, y)`.
    pub(crate) member: bool,
    pub(crate) args: &'static [Declared],
    pub(crate) result: Declared,
    /// True if the body counts its own cost.
    pub(crate) counts: bool,
    pub(crate) run: Run,
}

/// A function on its first argument.
pub(crate) const fn member(
    name: &'static str,
    args: &'static [Declared],
    result: Declared,
    run: Run,
) -> Overload {
    Overload {
        name,
        member: true,
        args,
        result,
        counts: false,
        run,
    }
}

/// A function or operator.
pub(crate) const fn global(
    name: &'static str,
    args: &'static [Declared],
    result: Declared,
    run: Run,
) -> Overload {
    Overload {
        name,
        member: false,
        args,
        result,
        counts: false,
        run,
    }
}

impl Overload {
    pub(crate) const fn counts_cost(mut self) -> Self {
        self.counts = true;
        self
    }

    /// True if these values have the types of the parameters.
    pub(crate) fn accepts(&self, args: &[Value<'_>]) -> bool {
        self.args.len() == args.len()
            && self
                .args
                .iter()
                .zip(args)
                .all(|(declared, arg)| declared.accepts(arg))
    }

    /// The type of the result if arguments of these types fit.
    pub(crate) fn result(&self, args: &[Type]) -> Option<Type> {
        if self.args.len() != args.len() {
            return None;
        }
        let mut variables = [None, None];
        for (declared, arg) in self.args.iter().zip(args) {
            if !declared.bind(arg, &mut variables) {
                return None;
            }
        }
        Some(self.result.ty(&variables))
    }
}

impl Declared {
    fn accepts(self, value: &Value<'_>) -> bool {
        matches!(
            (self, value),
            (Self::Dyn | Self::A | Self::B, _)
                | (Self::Bool, Value::Bool(_))
                | (Self::Int, Value::Int(_))
                | (Self::Uint, Value::Uint(_))
                | (Self::Double, Value::Double(_))
                | (Self::String, Value::String(_))
                | (Self::Bytes, Value::Bytes(_))
                | (Self::Duration, Value::Duration(_))
                | (Self::Timestamp, Value::Timestamp(_))
                | (Self::Type, Value::Type(_))
                | (Self::Quantity, Value::Quantity(_))
                | (Self::Ip, Value::Ip(_))
                | (Self::Cidr, Value::Cidr(_))
                | (Self::Url, Value::Url(_))
                | (Self::Format, Value::Format(_))
                | (Self::List(_), Value::List(_))
                | (Self::Map(..), Value::Map(_))
                | (Self::Optional(_), Value::Optional(_))
        ) || matches!((self, value), (Self::Access(stage), Value::Access(access)) if access.stage == stage)
    }

    fn bind(self, ty: &Type, variables: &mut [Option<Type>; 2]) -> bool {
        let variable = match self {
            Self::A => 0,
            Self::B => 1,
            _ => return self.bind_structure(ty, variables),
        };
        match variables.get_mut(variable) {
            Some(Some(Type::Dyn)) if !matches!(ty, Type::Dyn) => true,
            Some(Some(bound)) => {
                let fits = bound.fits(ty);
                if fits && matches!(ty, Type::Dyn) {
                    *bound = Type::Dyn;
                }
                fits
            }
            Some(free) => {
                *free = Some(ty.clone());
                true
            }
            None => false,
        }
    }

    fn bind_structure(self, ty: &Type, variables: &mut [Option<Type>; 2]) -> bool {
        match (self, ty) {
            (Self::Dyn, _) => true,
            (Self::List(items), Type::List(ty)) => items.bind(ty, variables),
            (Self::Optional(value), Type::Optional(ty)) => value.bind(ty, variables),
            (Self::Map(keys, values), Type::Map(entry)) => {
                keys.bind(&entry.0, variables) && values.bind(&entry.1, variables)
            }
            (Self::List(inner) | Self::Optional(inner), Type::Dyn) => {
                inner.bind(&Type::Dyn, variables)
            }
            (Self::Map(keys, values), Type::Dyn) => {
                keys.bind(&Type::Dyn, variables) && values.bind(&Type::Dyn, variables)
            }
            (declared, ty) => match declared.plain() {
                Some(declared) => declared.fits(ty) && !matches!(ty, Type::Null),
                None => false,
            },
        }
    }

    fn plain(self) -> Option<Type> {
        Some(match self {
            Self::Dyn => Type::Dyn,
            Self::Bool => Type::Bool,
            Self::Int => Type::Int,
            Self::Uint => Type::Uint,
            Self::Double => Type::Double,
            Self::String => Type::String,
            Self::Bytes => Type::Bytes,
            Self::Duration => Type::Duration,
            Self::Timestamp => Type::Timestamp,
            Self::Type => Type::Type,
            Self::Quantity => Type::Quantity,
            Self::Ip => Type::Ip,
            Self::Cidr => Type::Cidr,
            Self::Url => Type::Url,
            Self::Format => Type::Format,
            Self::Access(stage) => Type::Access(stage),
            _ => return None,
        })
    }

    fn ty(self, variables: &[Option<Type>; 2]) -> Type {
        let variable = |at: usize| variables.get(at).cloned().flatten().unwrap_or(Type::Dyn);
        match self {
            Self::A => variable(0),
            Self::B => variable(1),
            Self::List(items) => Type::list(items.ty(variables)),
            Self::Optional(value) => Type::optional(value.ty(variables)),
            Self::Map(keys, values) => {
                Type::Map(Arc::new((keys.ty(variables), values.ty(variables))))
            }
            plain => plain.plain().unwrap_or(Type::Dyn),
        }
    }
}

static BY_NAME: LazyLock<HashMap<&'static str, Vec<&'static Overload>>> = LazyLock::new(|| {
    let mut all = HashMap::<_, Vec<_>>::new();
    for overload in library::ALL.iter().copied().flatten() {
        all.entry(overload.name).or_default().push(overload);
    }
    all
});

/// The overloads of a function, called in either way.
pub(crate) fn named(name: &str) -> &'static [&'static Overload] {
    BY_NAME.get(name).map_or(&[], Vec::as_slice)
}
