//! Finds the fields in a CEL expression that its objects cannot have.

use std::collections::BTreeMap;

use cel::{
    IdedExpr,
    common::ast::{EntryExpr, Expr, LiteralValue, operators},
};
use podplane_api::schema::{Type, TypeStructure};

use crate::problem::suggestion;

/// A field that objects of its type cannot have.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct StrayField {
    /// The name in the expression.
    pub(crate) field: String,
    pub(crate) message: String,
}

/// Finds the first field in an expression about objects of type `of` that they cannot have.
pub(crate) fn stray(expression: &IdedExpr, of: Type) -> Option<StrayField> {
    let mut walk = Walk { stray: None };
    walk.visit(expression, &Scope::from([("object", of)]));
    walk.stray
}

/// The variables of known type.
type Scope<'a> = BTreeMap<&'a str, Type>;

struct Walk {
    stray: Option<StrayField>,
}

impl Walk {
    /// Visits an expression and all parts of it. Returns the type of its value, if that is known.
    fn visit(&mut self, expression: &IdedExpr, scope: &Scope<'_>) -> Option<Type> {
        match &expression.expr {
            Expr::Ident(name) => scope.get(name.as_str()).copied(),
            Expr::Select(select) => {
                let of = self.visit(&select.operand, scope)?;
                self.field(of, &select.field)
            }
            Expr::Call(call) => {
                let operands = call.target.as_deref().into_iter().chain(&call.args);
                let types: Vec<_> = operands.map(|each| self.visit(each, scope)).collect();
                match (call.func_name.as_str(), call.args.last(), types.first()) {
                    (operators::INDEX, Some(key), Some(Some(of))) => self.indexed(*of, key),
                    _ => None,
                }
            }
            Expr::Comprehension(each) => {
                let range = self.visit(&each.iter_range, scope);
                self.visit(&each.accu_init, scope);
                let mut inner = scope.clone();
                let declared = [&each.iter_var, &each.accu_var].into_iter();
                for name in declared.chain(&each.iter_var2) {
                    inner.remove(name.as_str());
                }
                if let (Some(TypeStructure::List(list)), None) =
                    (range.map(Type::kind), &each.iter_var2)
                {
                    inner.insert(&each.iter_var, list.items());
                }
                for part in [&each.loop_cond, &each.loop_step, &each.result] {
                    self.visit(part, &inner);
                }
                None
            }
            Expr::List(list) => {
                for element in &list.elements {
                    self.visit(element, scope);
                }
                None
            }
            Expr::Map(map) => {
                for entry in &map.entries {
                    if let EntryExpr::MapEntry(entry) = &entry.expr {
                        self.visit(&entry.key, scope);
                        self.visit(&entry.value, scope);
                    }
                }
                None
            }
            Expr::Struct(_) | Expr::Literal(_) | Expr::Unspecified => None,
        }
    }

    /// Returns the type of `of[key]`, if that is known.
    fn indexed(&mut self, of: Type, key: &IdedExpr) -> Option<Type> {
        match (of.kind(), &key.expr) {
            (TypeStructure::List(list), _) => Some(list.items()),
            (TypeStructure::Map(values), _) => Some(values),
            (_, Expr::Literal(LiteralValue::String(name))) => self.field(of, name.inner()),
            _ => None,
        }
    }

    fn field(&mut self, of: Type, name: &str) -> Option<Type> {
        let found = of.field(name);
        if let (None, TypeStructure::Struct(fields)) = (found, of.kind()) {
            let hint = suggestion(name, fields.fields().map(|(name, _)| name));
            self.stray.get_or_insert_with(|| StrayField {
                field: name.into(),
                message: format!("{} has no field {name:?}{hint}", fields.name),
            });
        }
        found
    }
}
