//! The fields that a CEL expression compares, with their values in an object: the reason why it is
//! not true, in a few lines.

use cel::{
    IdedExpr,
    common::ast::{ComprehensionExpr, EntryExpr, Expr, LiteralValue, operators},
};
use serde_json::{Map, Value};

use crate::look::shown;

/// The most elements of a list that have lines.
const ELEMENTS: usize = 8;

/// Describes the fields of `object` that the expression names, a line each: the path, the wanted
/// value where it is compared with one, and the value. Comparisons that hold are left out.
pub(crate) fn differences(expression: &IdedExpr, object: &Value) -> Vec<String> {
    let mut walk = Walk {
        object,
        lines: Vec::new(),
    };
    walk.demand(expression);
    walk.lines.dedup();
    walk.lines
}

/// A field of the object.
struct Field {
    /// The path for people: `status.podIPs[0].ip`.
    text: String,
    /// The path by RFC 6901.
    pointer: String,
}

impl Field {
    /// The field that the expression names below the variable; `None` for another expression.
    fn below(variable: &str, expression: &IdedExpr) -> Option<Self> {
        match &expression.expr {
            Expr::Ident(name) if name == variable => Some(Self {
                text: String::new(),
                pointer: String::new(),
            }),
            Expr::Select(select) => {
                Some(Self::below(variable, &select.operand)?.named(&select.field))
            }
            Expr::Call(call) if call.func_name == operators::INDEX => {
                let [of, key] = call.args.as_slice() else {
                    return None;
                };
                let of = Self::below(variable, of)?;
                match &key.expr {
                    Expr::Literal(LiteralValue::String(key)) => Some(of.named(key.inner())),
                    Expr::Literal(LiteralValue::Int(index)) => {
                        let index = index.inner();
                        Some(Self {
                            text: format!("{}[{index}]", of.text),
                            pointer: format!("{}/{index}", of.pointer),
                        })
                    }
                    _ => None,
                }
            }
            _ => None,
        }
    }

    fn named(self, name: &str) -> Self {
        let Self { text, pointer } = self;
        let text = match text.is_empty() {
            true => name.to_owned(),
            false => format!("{text}.{name}"),
        };
        let name = name.replace('~', "~0").replace('/', "~1");
        Self {
            text,
            pointer: format!("{pointer}/{name}"),
        }
    }
}

struct Walk<'a> {
    object: &'a Value,
    lines: Vec<String>,
}

impl Walk<'_> {
    /// Visits an expression that must be true.
    fn demand(&mut self, expression: &IdedExpr) {
        let call = match &expression.expr {
            Expr::Call(call) => Some((call.func_name.as_str(), call.args.as_slice())),
            _ => None,
        };
        match call {
            Some((operators::LOGICAL_AND | operators::LOGICAL_OR, parts)) => {
                parts.iter().for_each(|part| self.demand(part));
            }
            Some((operators::EQUALS, [left, right])) => {
                let sides = [(left, right), (right, left)].into_iter();
                let mut compared = sides.filter_map(|(field, literal)| {
                    Some((Field::below("object", field)?, literal_value(literal)?))
                });
                match compared.next() {
                    Some((field, wanted)) => self.compare(&field, Some(&wanted)),
                    None => self.visit(expression),
                }
            }
            _ => self.visit(expression),
        }
    }

    /// Visits an expression of any value.
    fn visit(&mut self, expression: &IdedExpr) {
        if let Some(field) = Field::below("object", expression) {
            return self.compare(&field, None);
        }
        match &expression.expr {
            Expr::Select(select) => self.visit(&select.operand),
            Expr::Call(call) => {
                let operands = call.target.as_deref().into_iter().chain(&call.args);
                operands.for_each(|operand| self.visit(operand));
            }
            Expr::List(list) => list.elements.iter().for_each(|element| self.visit(element)),
            Expr::Map(map) => {
                for entry in &map.entries {
                    if let EntryExpr::MapEntry(entry) = &entry.expr {
                        self.visit(&entry.key);
                        self.visit(&entry.value);
                    }
                }
            }
            Expr::Comprehension(each) => self.comprehension(each),
            Expr::Ident(_) | Expr::Struct(_) | Expr::Literal(_) | Expr::Unspecified => {}
        }
    }

    /// Describes the elements of a list by the fields that a macro such as `exists` compares.
    fn comprehension(&mut self, each: &ComprehensionExpr) {
        let mut named = Vec::new();
        below(&each.iter_var, &each.loop_step, &mut named);
        let list = Field::below("object", &each.iter_range);
        let elements = list.as_ref().and_then(|list| {
            let found = self.object.pointer(&list.pointer)?;
            found.as_array().filter(|list| !list.is_empty())
        });
        let (Some(list), Some(elements)) = (list, elements) else {
            self.visit(&each.iter_range);
            return self.visit(&each.loop_step);
        };
        for (index, element) in elements.iter().take(ELEMENTS).enumerate() {
            let fields = named.iter().filter_map(|field: &Field| {
                Some((field.text.clone(), element.pointer(&field.pointer)?.clone()))
            });
            let fields: Map<_, _> = fields.filter(|(name, _)| !name.is_empty()).collect();
            let value = match fields.is_empty() {
                true => element.clone(),
                false => fields.into(),
            };
            let (list, value) = (&list.text, shown(&value));
            self.lines.push(format!("{list}[{index}]: was {value}"));
        }
        if let Some(more @ 1..) = elements.len().checked_sub(ELEMENTS) {
            self.lines.push(format!("{}: and {more} more", list.text));
        }
        self.visit(&each.loop_step);
    }

    fn compare(&mut self, field: &Field, wanted: Option<&Value>) {
        let found = self.object.pointer(&field.pointer);
        // The object itself is no answer.
        if field.text.is_empty() || found.is_some() && found == wanted {
            return;
        }
        let was = found.map_or_else(|| "missing".to_owned(), shown);
        let expected = wanted.map(|wanted| format!("expected {wanted}, "));
        let expected = expected.unwrap_or_default();
        self.lines
            .push(format!("{}: {expected}was {was}", field.text));
    }
}

/// Adds the fields that the expression names below the variable.
fn below(variable: &str, expression: &IdedExpr, named: &mut Vec<Field>) {
    if let Some(field) = Field::below(variable, expression) {
        return named.push(field);
    }
    match &expression.expr {
        Expr::Select(select) => below(variable, &select.operand, named),
        Expr::Call(call) => {
            let operands = call.target.as_deref().into_iter().chain(&call.args);
            operands.for_each(|operand| below(variable, operand, named));
        }
        Expr::List(list) => {
            let elements = list.elements.iter();
            elements.for_each(|element| below(variable, element, named));
        }
        _ => {}
    }
}

/// The value of a literal, in JSON.
fn literal_value(expression: &IdedExpr) -> Option<Value> {
    match &expression.expr {
        Expr::Literal(LiteralValue::String(text)) => Some(text.inner().into()),
        Expr::Literal(LiteralValue::Int(number)) => Some((*number.inner()).into()),
        Expr::Literal(LiteralValue::Boolean(value)) => Some((*value.inner()).into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::rule::Cel;

    #[test]
    fn names_the_fields_that_an_expression_compares() {
        let pod = json!({
            "metadata": {"labels": {"example.org/app": "web"}},
            "spec": {"priority": 3, "nodeName": "node-0"},
            "status": {"phase": "Pending", "podIPs": [{"ip": "10.0.0.2"}], "conditions": [
                {"type": "PodScheduled", "status": "True", "message": "long"},
                {"type": "Ready", "status": "False"}
            ]},
        });
        let differences = |text: &str| Cel::parse(text).unwrap().differences(&pod);
        for (text, want) in [
            (
                "object.status.phase == 'Running' && object.spec.nodeName == 'node-0'",
                vec![r#"status.phase: expected "Running", was "Pending""#],
            ),
            (
                "object.status.phase == 'Running' || 4 == object.spec.priority",
                vec![
                    r#"status.phase: expected "Running", was "Pending""#,
                    "spec.priority: expected 4, was 3",
                ],
            ),
            (
                "!(object.status.phase == 'Pending')",
                vec![r#"status.phase: was "Pending""#],
            ),
            (
                "object.spec.priority > 5 && has(object.status.hostIP)",
                vec!["spec.priority: was 3", "status.hostIP: was missing"],
            ),
            (
                "object.metadata.labels['example.org/app'] != 'web'",
                vec![r#"metadata.labels.example.org/app: was "web""#],
            ),
            (
                "object.status.podIPs[0].ip.startsWith('10.1.')",
                vec![r#"status.podIPs[0].ip: was "10.0.0.2""#],
            ),
            (
                "object.status.conditions.exists(c, c.type == 'Ready' && c.status == 'True')",
                vec![
                    r#"status.conditions[0]: was {"status":"True","type":"PodScheduled"}"#,
                    r#"status.conditions[1]: was {"status":"False","type":"Ready"}"#,
                ],
            ),
            (
                "object.status.hostIPs.all(h, h.ip == '')",
                vec!["status.hostIPs: was missing"],
            ),
            ("size(object) == 1", vec![]),
        ] {
            assert_eq!(differences(text), want, "{text}");
        }
    }
}
