//! Parsing and checking of expressions.

use std::{collections::BTreeSet, sync::Arc};

use cel::{
    IdedExpr,
    common::ast::{
        CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedEntryExpr, ListExpr, LiteralValue,
        operators,
    },
    parser::PrattParser,
};

use crate::{
    error::CompileError,
    functions::{self, Overload},
    guard,
    library::{regex::WITH_PATTERN, time},
    pattern::Pattern,
    tree::{Fold, FoldKind, Node, NodeKind},
    types::{DataShape, Declaration, Type},
    value::Value,
};

/// The nesting that the parser allows.
const MAX_BRACKETS: u16 = 120;

/// The names of types, as values.
const TYPE_NAMES: [&str; 18] = [
    "bool",
    "bytes",
    "double",
    "google.protobuf.Duration",
    "google.protobuf.Timestamp",
    "int",
    "kubernetes.NamedFormat",
    "kubernetes.Quantity",
    "kubernetes.URL",
    "list",
    "map",
    "net.CIDR",
    "net.IP",
    "null_type",
    "optional_type",
    "string",
    "type",
    "uint",
];

/// A checked expression and what it needs.
#[derive(Debug)]
pub(crate) struct Checked {
    pub(crate) root: Node,
    /// The number of variables, those of comprehensions included.
    pub(crate) slots: usize,
    /// The declared variables that it reads.
    pub(crate) reads: BTreeSet<usize>,
}

/// A declared variable.
#[derive(Clone, Debug)]
pub(crate) struct Variable {
    pub(crate) name: String,
    pub(crate) ty: Type,
    pub(crate) data: Option<Arc<Declaration>>,
}

pub(crate) fn compile(text: &str, variables: &[Variable]) -> Result<Checked, CompileError> {
    let length = text.chars().count();
    if length > guard::MAX_CHARACTERS {
        return Err(CompileError(format!(
            "ERROR: <input>:1:1: expression code point size exceeds limit: size: {length}, limit {}",
            guard::MAX_CHARACTERS
        )));
    }
    if guard::depth(text) > guard::MAX_DEPTH {
        return Err(CompileError(format!(
            "ERROR: <input>:1:1: expression recursion limit exceeded: {}",
            guard::MAX_DEPTH
        )));
    }
    let parser = PrattParser::new()
        .max_recursion_depth(MAX_BRACKETS)
        .enable_optional_syntax(true)
        .enable_ident_escape_syntax(true);
    let parsed = parser.parse(text).map_err(|errors| {
        let errors = errors
            .errors
            .iter()
            .map(|error| located(text, error.pos, &error.msg));
        CompileError(errors.collect::<Vec<_>>().join("\n"))
    })?;
    let mut checker = Checker {
        text,
        variables,
        locals: Vec::new(),
        slots: variables.len(),
        reads: BTreeSet::new(),
    };
    let root = checker.node(&parsed)?;
    Ok(Checked {
        root,
        slots: checker.slots,
        reads: checker.reads,
    })
}

/// An error with its line and a mark below its column.
fn located(text: &str, (line, column): (isize, isize), message: &str) -> String {
    let line_text = usize::try_from(line - 1)
        .ok()
        .and_then(|line| text.lines().nth(line));
    let (Some(line_text), Ok(column)) = (line_text, usize::try_from(column)) else {
        return format!("ERROR: <input>:1:1: {message}");
    };
    let dots = ".".repeat(column.saturating_sub(1).min(line_text.len()));
    format!("ERROR: <input>:{line}:{column}: {message}\n | {line_text}\n | {dots}^")
}

struct Checker<'t> {
    text: &'t str,
    variables: &'t [Variable],
    /// The variables of the comprehensions around.
    locals: Vec<(Variable, usize)>,
    slots: usize,
    reads: BTreeSet<usize>,
}

type Outcome = Result<Node, CompileError>;

fn plain(kind: NodeKind, ty: Type) -> Node {
    Node {
        kind,
        ty,
        data: None,
    }
}

impl Checker<'_> {
    fn node(&mut self, expr: &IdedExpr) -> Outcome {
        match &expr.expr {
            Expr::Literal(literal) => Ok(self::literal(literal)),
            Expr::Ident(name) => self.ident(name),
            Expr::Select(select) => {
                if let Some(name) = qualified(expr)
                    && !self.is_variable(name.split('.').next().unwrap_or_default())
                    && let Some(name) = TYPE_NAMES.iter().find(|known| **known == name)
                {
                    return Ok(plain(NodeKind::Literal(Value::Type(name)), Type::Type));
                }
                if let Some(name) = qualified(expr)
                    && self.is_qualified_variable(&name)
                {
                    return self.ident(&name);
                }
                let operand = self.node(&select.operand)?;
                if select.test {
                    self.field_type(&operand.ty, &select.field)?;
                    let field = select.field.as_str().into();
                    let operand = Box::new(operand);
                    return Ok(plain(NodeKind::Has { operand, field }, Type::Bool));
                }
                self.select(operand, &select.field, false)
            }
            Expr::Call(call) => self.call(call),
            Expr::List(list) => self.list(list),
            Expr::Map(map) => self.map(&map.entries),
            Expr::Comprehension(comprehension) => self.comprehension(comprehension),
            Expr::Struct(value) => Err(self.undeclared(&value.type_name)),
            Expr::Unspecified => Err(self.error("", "unexpected expression")),
        }
    }

    fn ident(&mut self, name: &str) -> Outcome {
        if let Some((local, slot)) = self
            .locals
            .iter()
            .rev()
            .find(|(local, _)| local.name == name)
        {
            return Ok(Node {
                kind: NodeKind::Variable(*slot),
                ty: local.ty.clone(),
                data: local.data.clone(),
            });
        }
        let bare = name.trim_start_matches('.');
        if let Some(slot) = self
            .variables
            .iter()
            .position(|variable| variable.name == bare)
        {
            let variable = &self.variables[slot];
            self.reads.insert(slot);
            return Ok(Node {
                kind: NodeKind::Variable(slot),
                ty: variable.ty.clone(),
                data: variable.data.clone(),
            });
        }
        match TYPE_NAMES.iter().find(|known| **known == name) {
            Some(name) => Ok(plain(NodeKind::Literal(Value::Type(name)), Type::Type)),
            None => Err(self.undeclared(name)),
        }
    }

    /// True for a declared variable whose name has dots, unless a variable of a comprehension hides
    /// its first part.
    fn is_qualified_variable(&self, name: &str) -> bool {
        let first = name.split('.').next().unwrap_or_default();
        let is_hidden = self.locals.iter().any(|(local, _)| local.name == first);
        let mut declared = self.variables.iter();
        !is_hidden && declared.any(|variable| variable.name == name)
    }

    fn is_variable(&self, name: &str) -> bool {
        let name = name.trim_start_matches('.');
        self.locals.iter().any(|(local, _)| local.name == name)
            || self.variables.iter().any(|variable| variable.name == name)
    }

    /// The type and declaration of a field.
    fn field_type(
        &self,
        ty: &Type,
        field: &str,
    ) -> Result<(Type, Option<Arc<Declaration>>), CompileError> {
        match ty {
            Type::Object(declared) => match declared.field(field) {
                Some(field) => Ok((Type::of(&field.data), Some(Arc::clone(&field.data)))),
                None => Err(self.error(field, &format!("undefined field '{field}'"))),
            },
            Type::Map(entry) => Ok((entry.1.clone(), None)),
            Type::Dyn => Ok((Type::Dyn, None)),
            Type::Optional(inner) => {
                let (ty, data) = self.field_type(inner, field)?;
                Ok((Type::optional(ty), data))
            }
            other => {
                let message = format!("type '{other}' does not support field selection");
                Err(self.error(field, &message))
            }
        }
    }

    fn select(&mut self, operand: Node, field: &str, optional: bool) -> Outcome {
        let (ty, _) = self.field_type(&operand.ty, field)?;
        let data = operand.data.as_ref().and_then(|data| match &data.shape {
            DataShape::Map(values) => Some(Arc::clone(values)),
            _ => data.field(field).map(|field| Arc::clone(&field.data)),
        });
        let is_optional = optional || matches!(operand.ty, Type::Optional(_));
        let ty = match ty {
            ty @ Type::Optional(_) if is_optional => ty,
            ty if is_optional => Type::optional(ty),
            ty => ty,
        };
        let kind = NodeKind::Select {
            operand: Box::new(operand),
            field: field.into(),
            optional: is_optional,
        };
        Ok(Node {
            kind,
            ty,
            data: if is_optional { None } else { data },
        })
    }

    fn call(&mut self, call: &CallExpr) -> Outcome {
        let name = call.func_name.as_str();
        match (name, call.target.as_deref(), call.args.as_slice()) {
            (operators::LOGICAL_AND | operators::LOGICAL_OR, None, [a, b]) => {
                let (a, b) = (self.node(a)?, self.node(b)?);
                if !a.ty.fits(&Type::Bool) || !b.ty.fits(&Type::Bool) {
                    return Err(self.no_overload(name, false, &[a.ty, b.ty]));
                }
                let both = Box::new([a, b]);
                let kind = if name == operators::LOGICAL_AND {
                    NodeKind::And(both)
                } else {
                    NodeKind::Or(both)
                };
                return Ok(plain(kind, Type::Bool));
            }
            (operators::CONDITIONAL, None, [condition, yes, no]) => {
                let (condition, yes, no) = (self.node(condition)?, self.node(yes)?, self.node(no)?);
                if !condition.ty.fits(&Type::Bool) || !yes.ty.fits(&no.ty) {
                    return Err(self.no_overload(name, false, &[condition.ty, yes.ty, no.ty]));
                }
                let ty = common(&yes.ty, &no.ty);
                return Ok(plain(
                    NodeKind::Conditional(Box::new([condition, yes, no])),
                    ty,
                ));
            }
            (operators::OPT_SELECT, None, [operand, field]) => {
                let operand = self.node(operand)?;
                return match &field.expr {
                    Expr::Literal(LiteralValue::String(field)) => {
                        self.select(operand, field.inner(), true)
                    }
                    _ => Err(self.error("?", "unsupported optional field selection")),
                };
            }
            (_, Some(target), args) => {
                if let Some(macro_call) = self.member_macro(name, target, args) {
                    return macro_call;
                }
                // A function with a namespace: `sets.contains`.
                let full = qualified(target).map(|space| format!("{space}.{name}"));
                let is_function = full.as_deref().is_some_and(|full| {
                    let root = full.split('.').next().unwrap_or_default();
                    !self.is_variable(root) && !functions::named(full).is_empty()
                });
                if let (Some(full), true) = (full, is_function) {
                    let args = self.nodes(args)?;
                    return self.apply(&full, false, args);
                }
                let mut all = vec![self.node(target)?];
                all.extend(self.nodes(args)?);
                return self.apply(name, true, all);
            }
            _ => {}
        }
        let args = self.nodes(&call.args)?;
        self.apply(name, false, args)
    }

    fn nodes(&mut self, exprs: &[IdedExpr]) -> Result<Vec<Node>, CompileError> {
        exprs.iter().map(|expr| self.node(expr)).collect()
    }

    fn apply(&mut self, name: &str, is_member: bool, args: Vec<Node>) -> Outcome {
        let named = functions::named(name);
        if named.is_empty() {
            return Err(self.undeclared(name));
        }
        let types: Vec<_> = args.iter().map(|arg| arg.ty.clone()).collect();
        let of_style = named.iter().filter(|overload| overload.member == is_member);
        let fitting: Vec<(&'static Overload, Type)> = of_style
            .filter_map(|overload| Some((*overload, overload.result(&types)?)))
            .collect();
        let Some((_, first)) = fitting.first() else {
            return Err(self.no_overload(name, is_member, &types));
        };
        let is_same = fitting
            .iter()
            .all(|(_, ty)| ty.to_string() == first.to_string());
        let ty = if is_same { first.clone() } else { Type::Dyn };
        let pattern = self.check_literals(name, &args)?;
        let data = match (name, args.first()) {
            ("_[_]", Some(container)) => container
                .data
                .as_ref()
                .and_then(|data| data.elements().cloned()),
            _ => None,
        };
        let kind = NodeKind::Call {
            overloads: fitting.into_iter().map(|(overload, _)| overload).collect(),
            args,
            pattern,
        };
        Ok(Node { kind, ty, data })
    }

    /// Checks literals whose text has a form, and compiles patterns.
    fn check_literals(
        &self,
        name: &str,
        args: &[Node],
    ) -> Result<Option<Arc<Pattern>>, CompileError> {
        let literal = |index: usize| match args.get(index).map(|arg| &arg.kind) {
            Some(NodeKind::Literal(Value::String(text))) => Some(&**text),
            _ => None,
        };
        if WITH_PATTERN.contains(&name)
            && let Some(text) = literal(1)
        {
            let pattern = Pattern::new(text)
                .map_err(|_| self.error(name, &format!("invalid {name} argument")))?;
            return Ok(Some(Arc::new(pattern)));
        }
        let is_valid = match (name, literal(0)) {
            ("duration", Some(text)) => time::duration(text).is_some(),
            ("timestamp", Some(text)) => time::timestamp(text).is_some(),
            _ => true,
        };
        if is_valid {
            Ok(None)
        } else {
            Err(self.error(name, &format!("invalid {name} argument")))
        }
    }

    fn list(&mut self, list: &ListExpr) -> Outcome {
        let mut items = Vec::new();
        let mut ty: Option<Type> = None;
        for (index, element) in list.elements.iter().enumerate() {
            let optional = list.optional_indices.contains(&index);
            let node = self.node(element)?;
            ty = Some(self.joined(ty, self.unwrapped(&node.ty, optional)?)?);
            items.push((node, optional));
        }
        Ok(plain(
            NodeKind::List(items),
            Type::list(ty.unwrap_or(Type::Dyn)),
        ))
    }

    fn unwrapped(&self, ty: &Type, optional: bool) -> Result<Type, CompileError> {
        match ty {
            ty if !optional => Ok(ty.clone()),
            Type::Optional(inner) => Ok((**inner).clone()),
            Type::Dyn => Ok(Type::Dyn),
            other => {
                let message = format!("expected type 'optional_type(dyn)' but found '{other}'");
                Err(self.error("?", &message))
            }
        }
    }

    fn joined(&self, before: Option<Type>, next: Type) -> Result<Type, CompileError> {
        match before {
            None => Ok(next),
            Some(before) if before.fits(&next) => Ok(common(&before, &next)),
            Some(before) => {
                Err(self.error("", &format!("expected type '{before}' but found '{next}'")))
            }
        }
    }

    fn map(&mut self, entries: &[IdedEntryExpr]) -> Outcome {
        let mut nodes = Vec::new();
        let (mut keys, mut values) = (None, None);
        for entry in entries {
            let EntryExpr::MapEntry(entry) = &entry.expr else {
                return Err(self.error("", "unexpected field in a map"));
            };
            let key = self.node(&entry.key)?;
            if !matches!(
                key.ty,
                Type::Dyn | Type::Bool | Type::Int | Type::Uint | Type::String | Type::Double
            ) {
                return Err(self.error("", &format!("unsupported map key type: {}", key.ty)));
            }
            let value = self.node(&entry.value)?;
            keys = Some(self.joined(keys, key.ty.clone())?);
            values = Some(self.joined(values, self.unwrapped(&value.ty, entry.optional)?)?);
            nodes.push((key, value, entry.optional));
        }
        let ty = Type::map(keys.unwrap_or(Type::Dyn), values.unwrap_or(Type::Dyn));
        Ok(plain(NodeKind::Map(nodes), ty))
    }

    /// A comprehension as the parser expands the standard macros.
    fn comprehension(&mut self, comprehension: &ComprehensionExpr) -> Outcome {
        let unknown = || self.error("", "unsupported comprehension");
        let step = match &comprehension.loop_step.expr {
            Expr::Call(step) => step,
            _ => return Err(unknown()),
        };
        let (kind, filter, body) = match (&comprehension.accu_init.expr, step.args.as_slice()) {
            (Expr::Literal(LiteralValue::Boolean(_)), [_, body])
                if step.func_name == operators::LOGICAL_AND =>
            {
                (FoldKind::All, None, body)
            }
            (Expr::Literal(LiteralValue::Boolean(_)), [_, body]) => (FoldKind::Exists, None, body),
            (Expr::Literal(LiteralValue::Int(_)), [body, _, _]) => {
                (FoldKind::ExistsOne, None, body)
            }
            (Expr::List(_), [_, one]) => (FoldKind::List, None, single(one).ok_or_else(unknown)?),
            (Expr::List(_), [filter, step, _]) => {
                let Expr::Call(add) = &step.expr else {
                    return Err(unknown());
                };
                let one = add.args.get(1).and_then(single).ok_or_else(unknown)?;
                (FoldKind::List, Some(filter), one)
            }
            _ => return Err(unknown()),
        };
        self.fold(
            kind,
            &comprehension.iter_range,
            &comprehension.iter_var,
            None,
            filter,
            body,
        )
    }

    /// Macros with two variables, and those of optional values. `None` for other functions.
    fn member_macro(
        &mut self,
        name: &str,
        target: &IdedExpr,
        args: &[IdedExpr],
    ) -> Option<Outcome> {
        let (kind, filter, body) = match (name, args) {
            ("all", [_, _, body]) => (FoldKind::All, None, body),
            ("exists", [_, _, body]) => (FoldKind::Exists, None, body),
            ("existsOne" | "exists_one", [_, _, body]) => (FoldKind::ExistsOne, None, body),
            ("transformList", [_, _, body]) => (FoldKind::List, None, body),
            ("transformList", [_, _, filter, body]) => (FoldKind::List, Some(filter), body),
            ("transformMap", [_, _, body]) => (FoldKind::Map, None, body),
            ("transformMap", [_, _, filter, body]) => (FoldKind::Map, Some(filter), body),
            ("transformMapEntry", [_, _, body]) => (FoldKind::Entries, None, body),
            ("transformMapEntry", [_, _, filter, body]) => (FoldKind::Entries, Some(filter), body),
            ("optMap" | "optFlatMap", [variable, body]) => {
                return Some(self.optional_map(name, target, variable, body));
            }
            _ => return None,
        };
        let (Some(first), Some(second)) =
            (args.first().and_then(simple), args.get(1).and_then(simple))
        else {
            return Some(Err(self.error(name, "argument must be a simple name")));
        };
        if first == second {
            let message = "duplicate variable name: iteration variables must be distinct";
            return Some(Err(self.error(name, message)));
        }
        Some(self.fold(kind, target, first, Some(second), filter, body))
    }

    fn optional_map(
        &mut self,
        name: &str,
        target: &IdedExpr,
        variable: &IdedExpr,
        body: &IdedExpr,
    ) -> Outcome {
        let target = self.node(target)?;
        let Some(variable) = simple(variable) else {
            return Err(self.error(
                name,
                &format!("{name}() variable name must be a simple identifier"),
            ));
        };
        let inner = match &target.ty {
            Type::Optional(inner) => (**inner).clone(),
            Type::Dyn => Type::Dyn,
            other => return Err(self.no_overload(name, true, std::slice::from_ref(other))),
        };
        let slot = self.declare(variable, inner, None);
        let body = self.node(body);
        self.locals.pop();
        let body = body?;
        let flat = name == "optFlatMap";
        if flat && !matches!(body.ty, Type::Optional(_) | Type::Dyn) {
            return Err(self.no_overload(name, true, &[target.ty, body.ty]));
        }
        let ty = if flat {
            body.ty.clone()
        } else {
            Type::optional(body.ty.clone())
        };
        let kind = NodeKind::OptionalMap {
            target: Box::new(target),
            slot,
            body: Box::new(body),
            flat,
        };
        Ok(plain(kind, ty))
    }

    fn declare(&mut self, name: &str, ty: Type, data: Option<Arc<Declaration>>) -> usize {
        let slot = self.slots;
        self.slots += 1;
        let name = name.to_owned();
        self.locals.push((Variable { name, ty, data }, slot));
        slot
    }

    fn fold(
        &mut self,
        kind: FoldKind,
        range: &IdedExpr,
        first: &str,
        second: Option<&str>,
        filter: Option<&IdedExpr>,
        body: &IdedExpr,
    ) -> Outcome {
        let range = self.node(range)?;
        let elements = range
            .data
            .as_ref()
            .and_then(|data| data.elements().cloned());
        let is_map = matches!(range.ty, Type::Map(_));
        let (key, value) = match &range.ty {
            Type::List(items) => (Type::Int, (**items).clone()),
            Type::Map(entry) => (entry.0.clone(), entry.1.clone()),
            Type::Dyn => (Type::Dyn, Type::Dyn),
            other => {
                let message = format!(
                    "expression of type '{other}' cannot be range of a comprehension (must be list, map, or dynamic)"
                );
                return Err(self.error("", &message));
            }
        };
        let of_key = is_map
            .then(|| Arc::new(KEY.clone()))
            .filter(|_| range.data.is_some());
        let (first_slot, second_slot) = match second {
            None if is_map => (self.declare(first, key.clone(), of_key), None),
            None => (self.declare(first, value.clone(), elements), None),
            Some(second) => {
                let slot = self.declare(first, key.clone(), of_key);
                (slot, Some(self.declare(second, value.clone(), elements)))
            }
        };
        let inner = filter
            .map(|filter| self.node(filter))
            .transpose()
            .and_then(|filter| {
                let body = self.node(body)?;
                Ok((filter, body))
            });
        self.locals
            .truncate(self.locals.len() - if second.is_some() { 2 } else { 1 });
        let (filter, body) = inner?;
        if let Some(filter) = filter
            .as_ref()
            .filter(|filter| !filter.ty.fits(&Type::Bool))
        {
            return Err(self.no_overload(
                "_?_:_",
                false,
                &[filter.ty.clone(), Type::Dyn, Type::Dyn],
            ));
        }
        let ty = match kind {
            FoldKind::All | FoldKind::Exists | FoldKind::ExistsOne => {
                if !body.ty.fits(&Type::Bool) {
                    let operator = if kind == FoldKind::Exists {
                        "_||_"
                    } else {
                        "_&&_"
                    };
                    return Err(self.no_overload(operator, false, &[Type::Bool, body.ty]));
                }
                Type::Bool
            }
            FoldKind::List => Type::list(body.ty.clone()),
            FoldKind::Map => Type::map(key, body.ty.clone()),
            FoldKind::Entries => match &body.ty {
                ty @ (Type::Map(_) | Type::Dyn) => ty.clone(),
                other => {
                    return Err(self.no_overload(
                        "cel.@mapInsert",
                        false,
                        std::slice::from_ref(other),
                    ));
                }
            },
        };
        let fold = Fold {
            kind,
            range,
            first: first_slot,
            second: second_slot,
            filter,
            body,
        };
        Ok(plain(NodeKind::Fold(Box::new(fold)), ty))
    }

    fn undeclared(&self, name: &str) -> CompileError {
        self.error(
            name,
            &format!("undeclared reference to '{name}' (in container '')"),
        )
    }

    fn no_overload(&self, name: &str, is_member: bool, types: &[Type]) -> CompileError {
        let types: Vec<_> = types.iter().map(Type::to_string).collect();
        let signature = match types.split_first() {
            Some((target, args)) if is_member => format!("{target}.({})", args.join(", ")),
            _ => format!("({})", types.join(", ")),
        };
        let message = format!("found no matching overload for '{name}' applied to '{signature}'");
        self.error(name.trim_matches(|c| c == '_' || c == '@'), &message)
    }

    /// An error at the first place where `part` is in the expression: the parser keeps no
    /// positions.
    fn error(&self, part: &str, message: &str) -> CompileError {
        let at = self
            .text
            .find(part.trim_end_matches(']').trim_end_matches('_'))
            .unwrap_or_default();
        let before = self.text.get(..at).unwrap_or_default();
        let line = before.matches('\n').count() + 1;
        let column = before
            .rsplit('\n')
            .next()
            .unwrap_or_default()
            .chars()
            .count()
            + 1;
        let place = (
            isize::try_from(line).unwrap_or(1),
            isize::try_from(column).unwrap_or(1),
        );
        CompileError(located(self.text, place, message))
    }
}

/// The keys of a map, whose size no schema bounds; the reference counts none.
const KEY: Declaration = Declaration {
    shape: DataShape::String,
    max_elements: 0,
    min_size: 2,
};

fn literal(literal: &LiteralValue) -> Node {
    let (value, ty) = match literal {
        LiteralValue::Boolean(value) => (Value::Bool(*value.inner()), Type::Bool),
        LiteralValue::Bytes(value) => (Value::Bytes(value.inner().into()), Type::Bytes),
        LiteralValue::Double(value) => (Value::Double(*value.inner()), Type::Double),
        LiteralValue::Int(value) => (Value::Int(*value.inner()), Type::Int),
        LiteralValue::Null => (Value::Null, Type::Null),
        LiteralValue::String(value) => (Value::string(value.inner()), Type::String),
        LiteralValue::UInt(value) => (Value::Uint(*value.inner()), Type::Uint),
    };
    plain(NodeKind::Literal(value), ty)
}

/// The name that an expression spells: `a.b.c`.
fn qualified(expr: &IdedExpr) -> Option<String> {
    let mut parts = Vec::new();
    let mut at = expr;
    loop {
        match &at.expr {
            Expr::Ident(name) => {
                parts.push(name.as_str());
                parts.reverse();
                return Some(parts.join("."));
            }
            Expr::Select(select) if !select.test => {
                parts.push(select.field.as_str());
                at = &select.operand;
            }
            _ => return None,
        }
    }
}

fn simple(expr: &IdedExpr) -> Option<&str> {
    match &expr.expr {
        Expr::Ident(name) => Some(name),
        _ => None,
    }
}

/// The element of a list of one.
fn single(expr: &IdedExpr) -> Option<&IdedExpr> {
    match &expr.expr {
        Expr::List(list) => list.elements.first(),
        _ => None,
    }
}

/// The type of values that have either of two fitting types.
fn common(a: &Type, b: &Type) -> Type {
    match (a, b) {
        (Type::Dyn, _) | (_, Type::Dyn) => Type::Dyn,
        (Type::Null, other) => other.clone(),
        (Type::List(items), other) if matches!(**items, Type::Dyn) => other.clone(),
        (Type::Map(entry), other) if matches!(entry.1, Type::Dyn) => other.clone(),
        (Type::Optional(value), other) if matches!(**value, Type::Dyn) => other.clone(),
        (a, _) => a.clone(),
    }
}
