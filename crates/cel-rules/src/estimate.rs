//! The estimate of the most that an expression may cost, by the sizes that a schema allows.

use std::{collections::HashMap, sync::Arc};

use crate::{
    meter,
    tree::{Fold, FoldKind, Node, NodeKind},
    types::{Declaration, Type},
    value::Value,
};

/// A range of costs or sizes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Range {
    /// The least.
    pub min: u64,
    /// The most; `u64::MAX` if there is no bound.
    pub max: u64,
}

impl Range {
    const UNKNOWN: Self = Self {
        min: 0,
        max: u64::MAX,
    };

    const fn fixed(value: u64) -> Self {
        Self {
            min: value,
            max: value,
        }
    }

    fn add(self, other: Self) -> Self {
        Self {
            min: self.min.saturating_add(other.min),
            max: self.max.saturating_add(other.max),
        }
    }

    fn times(self, other: Self) -> Self {
        Self {
            min: self.min.saturating_mul(other.min),
            max: self.max.saturating_mul(other.max),
        }
    }

    fn union(self, other: Self) -> Self {
        Self {
            min: self.min.min(other.min),
            max: self.max.max(other.max),
        }
    }

    /// The cost of traversing that many characters `times` times: a tenth of each.
    fn traversed(self, times: u64) -> Self {
        let tenth = |size: u64| match size {
            u64::MAX => u64::MAX,
            size => size.saturating_mul(times).div_ceil(10),
        };
        Self {
            min: tenth(self.min),
            max: tenth(self.max),
        }
    }

    /// A quarter of the length of a pattern.
    fn of_pattern(self) -> Self {
        let quarter = |size: u64| {
            if size == u64::MAX {
                size
            } else {
                size.div_ceil(4)
            }
        };
        Self {
            min: quarter(self.min),
            max: quarter(self.max),
        }
    }
}

/// The bounds that are known of a value.
#[derive(Clone, Debug, Default)]
struct Estimated {
    cost: Range,
    size: Option<Range>,
    /// The sizes of keys and of values.
    entries: Option<(Range, Range)>,
}

impl Estimated {
    fn size(&self) -> Range {
        self.size.unwrap_or(Range::UNKNOWN)
    }
}

/// The cost of an expression with variables of the declared sizes.
pub(crate) fn cost(node: &Node) -> Range {
    let mut estimator = Estimator {
        slots: HashMap::new(),
    };
    estimator.node(node).cost
}

struct Estimator {
    /// The sizes of the variables of comprehensions that are no paths to data.
    slots: HashMap<usize, Estimated>,
}

/// The size of declared data.
fn declared(data: Option<&Arc<Declaration>>) -> Option<Range> {
    data.map(|data| Range {
        min: 0,
        max: data.max_elements,
    })
}

impl Estimator {
    fn node(&mut self, node: &Node) -> Estimated {
        let mut found = self.kind(node);
        // A literal or result has the size that was found; then the declaration counts.
        let is_literal = matches!(
            node.kind,
            NodeKind::Literal(_) | NodeKind::List(_) | NodeKind::Map(_)
        );
        if !is_literal && let Some(size) = declared(node.data.as_ref()) {
            found.size = Some(size);
        }
        if found.size.is_none() && node.ty.is_scalar() {
            found.size = Some(Range::fixed(1));
        }
        found
    }

    fn kind(&mut self, node: &Node) -> Estimated {
        match &node.kind {
            NodeKind::Literal(value) => Estimated {
                cost: Range::fixed(0),
                size: Some(Range::fixed(match value {
                    Value::String(text) => length(text.chars().count()),
                    Value::Bytes(bytes) => length(bytes.len()),
                    _ => 1,
                })),
                entries: None,
            },
            NodeKind::Variable(slot) => {
                let known = self.slots.get(slot);
                Estimated {
                    cost: Range::fixed(meter::SELECT),
                    size: known.and_then(|known| known.size),
                    entries: known.and_then(|known| known.entries),
                }
            }
            NodeKind::Select {
                operand, optional, ..
            } => {
                let mut cost = self.node(operand).cost;
                let is_counted = matches!(operand.ty, Type::Map(_) | Type::Object(_) | Type::Dyn);
                if is_counted || *optional {
                    cost = cost.add(Range::fixed(meter::SELECT));
                }
                Estimated {
                    cost,
                    ..Estimated::default()
                }
            }
            NodeKind::Has { operand, .. } => Estimated {
                cost: self.node(operand).cost,
                size: Some(Range::fixed(1)),
                entries: None,
            },
            NodeKind::And(both) | NodeKind::Or(both) => {
                let [first, second] = &**both;
                let (first, second) = (self.node(first).cost, self.node(second).cost);
                let cost = Range {
                    min: first.min,
                    max: first.add(second).max,
                };
                Estimated {
                    cost,
                    ..Estimated::default()
                }
            }
            NodeKind::Conditional(parts) => {
                let [condition, yes, no] = &**parts;
                let (condition, yes, no) = (self.node(condition), self.node(yes), self.node(no));
                Estimated {
                    cost: condition.cost.add(yes.cost.union(no.cost)),
                    size: Some(yes.size().union(no.size())),
                    entries: union(yes.entries, no.entries),
                }
            }
            NodeKind::List(items) => {
                let mut cost = Range::fixed(meter::LIST);
                let mut of_items: Option<Range> = None;
                for (item, _) in items {
                    let item = self.node(item);
                    cost = cost.add(item.cost);
                    of_items = Some(of_items.map_or(item.size(), |all| all.union(item.size())));
                }
                Estimated {
                    cost,
                    size: Some(Range::fixed(length(items.len()))),
                    entries: Some((Range::fixed(1), of_items.unwrap_or_default())),
                }
            }
            NodeKind::Map(entries) => {
                let mut cost = Range::fixed(meter::MAP);
                let mut sizes: Option<(Range, Range)> = None;
                for (key, value, _) in entries {
                    let (key, value) = (self.node(key), self.node(value));
                    cost = cost.add(key.cost).add(value.cost);
                    let next = (key.size(), value.size());
                    sizes =
                        Some(sizes.map_or(next, |all| (all.0.union(next.0), all.1.union(next.1))));
                }
                Estimated {
                    cost,
                    size: Some(Range::fixed(length(entries.len()))),
                    entries: Some(sizes.unwrap_or_default()),
                }
            }
            NodeKind::Fold(fold) => self.fold(fold),
            NodeKind::OptionalMap {
                target, slot, body, ..
            } => {
                let target = self.node(target);
                let inner = Estimated {
                    size: target.size,
                    entries: target.entries,
                    cost: Range::default(),
                };
                self.slots.insert(*slot, inner);
                let body = self.node(body);
                Estimated {
                    // `hasValue`, and `value` of the target.
                    cost: Range {
                        min: target.cost.min,
                        max: target
                            .cost
                            .add(target.cost)
                            .add(body.cost)
                            .max
                            .saturating_add(12),
                    },
                    size: body.size,
                    entries: body.entries,
                }
            }
            NodeKind::Call {
                overloads, args, ..
            } => {
                let name = overloads.first().map_or("", |overload| overload.name);
                let of_args: Vec<_> = args.iter().map(|arg| self.node(arg)).collect();
                let mut found = call(name, args, &of_args);
                for arg in &of_args {
                    found.cost = found.cost.add(arg.cost);
                }
                found
            }
        }
    }

    fn fold(&mut self, fold: &Fold) -> Estimated {
        let range = self.node(&fold.range);
        let is_list = matches!(fold.range.ty, Type::List(_));
        let sized = |size: Option<Range>| Estimated {
            size,
            ..Estimated::default()
        };
        let (keys, values) = range.entries.unzip();
        match fold.second {
            None => {
                _ = self
                    .slots
                    .insert(fold.first, sized(if is_list { values } else { keys }))
            }
            Some(second) => {
                self.slots.insert(fold.first, sized(keys));
                self.slots.insert(second, sized(values));
            }
        }
        let filter = fold
            .filter
            .as_ref()
            .map(|filter| self.node(filter).cost)
            .unwrap_or_default();
        let body = self.node(&fold.body);
        let list = Range::fixed(meter::LIST + 2);
        // The cost of a step of the macro's expansion, with its condition.
        let step = match fold.kind {
            FoldKind::All => Range {
                min: 3,
                max: body.cost.max.saturating_add(3),
            },
            FoldKind::Exists => Range {
                min: 4,
                max: body.cost.max.saturating_add(4),
            },
            FoldKind::ExistsOne => body.cost.add(Range { min: 1, max: 2 }),
            FoldKind::List if fold.filter.is_some() => {
                filter.add(body.cost.add(list).union(Range::fixed(meter::SELECT)))
            }
            FoldKind::List => body.cost.add(list),
            FoldKind::Map | FoldKind::Entries => filter.add(body.cost).add(Range::fixed(2)),
        };
        let start = match fold.kind {
            FoldKind::All | FoldKind::Exists => 0,
            FoldKind::ExistsOne => 2,
            FoldKind::List => meter::LIST,
            FoldKind::Map | FoldKind::Entries => meter::MAP,
        };
        let cost = range
            .cost
            .add(range.size().times(step))
            .add(Range::fixed(start + meter::SELECT));
        let (size, entries) = match fold.kind {
            FoldKind::All | FoldKind::Exists | FoldKind::ExistsOne => (Some(Range::fixed(1)), None),
            FoldKind::List => (Some(range.size()), Some((Range::fixed(1), body.size()))),
            FoldKind::Map => {
                let keys = range.entries.map_or(Range::UNKNOWN, |entries| entries.0);
                (Some(range.size()), Some((keys, body.size())))
            }
            FoldKind::Entries => (Some(range.size().times(body.size())), body.entries),
        };
        Estimated {
            cost,
            size,
            entries,
        }
    }
}

fn length(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}

fn union(a: Option<(Range, Range)>, b: Option<(Range, Range)>) -> Option<(Range, Range)> {
    let (a, b) = (a?, b?);
    Some((a.0.union(b.0), a.1.union(b.1)))
}

/// The size of the elements of a list.
fn elements(node: &Node, found: &Estimated) -> Range {
    let of_data = node.data.as_ref().and_then(|data| data.elements());
    match (declared(of_data), found.entries) {
        (Some(size), _) => size,
        (None, Some(entries)) => entries.1,
        (None, None) => match &node.ty {
            Type::List(items) if items.is_scalar() => Range::fixed(1),
            _ => Range::UNKNOWN,
        },
    }
}

/// The cost of a call without its arguments, and the size of its result.
fn call(name: &str, nodes: &[Node], args: &[Estimated]) -> Estimated {
    let size = |index: usize| args.get(index).map_or(Range::UNKNOWN, Estimated::size);
    let one = Range::fixed(1);
    let (cost, result) = match name {
        "dyn" => (one, args.first().and_then(|arg| arg.size)),
        "_[_]" => (
            one,
            args.first()
                .and_then(|arg| arg.entries)
                .map(|entries| entries.1),
        ),
        "isSorted" | "sum" | "min" | "max" | "indexOf" | "lastIndexOf" | "includes" => {
            match nodes.first() {
                Some(
                    node @ Node {
                        ty: Type::List(items),
                        ..
                    },
                ) => {
                    let each = match **items {
                        Type::String | Type::Bytes => one.add(
                            args.first()
                                .map_or(Range::UNKNOWN, |found| elements(node, found))
                                .traversed(1),
                        ),
                        _ => one,
                    };
                    (size(0).times(each), None)
                }
                _ => (size(0).traversed(1), None),
            }
        }
        "url" | "lowerAscii" | "upperAscii" | "substring" | "trim" => {
            (size(0).traversed(1), Some(size(0)))
        }
        "charAt" => (one, Some(one)),
        "reverse" | "strings.quote" => (
            size(0).traversed(1),
            Some(size(0).times(Range::fixed(2)).add(Range::fixed(2))),
        ),
        "replace" => (
            size(0).traversed(2),
            Some(replaced(size(0), size(1), size(2))),
        ),
        "split" => {
            let most = match nodes.get(2).map(|node| &node.kind) {
                Some(NodeKind::Literal(Value::Int(most))) => {
                    u64::try_from(*most).unwrap_or(size(0).max)
                }
                _ => size(0).max,
            };
            (size(0).traversed(2), Some(Range { min: 0, max: most }))
        }
        "join" => {
            let of_items = match (nodes.first(), args.first()) {
                (Some(node), Some(found)) => elements(node, found),
                _ => Range::UNKNOWN,
            };
            let list = size(0);
            let separators = Range {
                min: list.min.saturating_sub(1),
                max: list.max.saturating_sub(1),
            };
            let separator = if args.len() > 1 {
                size(1)
            } else {
                Range::default()
            };
            let all = list.times(of_items).add(separators.times(separator));
            (all.traversed(1), Some(all))
        }
        "matches" | "find" | "findAll" => {
            let cost = size(0).add(one).traversed(1).times(size(1).of_pattern());
            let result = Range {
                min: 0,
                max: size(0).max,
            };
            (cost, (name != "matches").then_some(result))
        }
        "contains" => (size(0).traversed(1).times(size(1).traversed(1)), None),
        "startsWith" | "endsWith" => (size(1).traversed(1), None),
        "format" => (size(0).traversed(1), None),
        "cidr" | "isIP" | "isCIDR" | "quantity" | "isQuantity" | "isURL" => {
            (size(0).traversed(1), None)
        }
        "ip" if matches!(nodes.first(), Some(Node { ty: Type::Cidr, .. })) => (one, None),
        "ip" => (size(0).traversed(1), None),
        "ip.isCanonical" => (size(0).traversed(2), None),
        "containsIP" | "containsCIDR" => {
            let address = Range { min: 4, max: 16 };
            let mut cost = address.traversed(if name == "containsIP" { 2 } else { 3 });
            if name == "containsCIDR" {
                cost = cost.add(one);
            }
            if matches!(
                nodes.get(1),
                Some(Node {
                    ty: Type::String,
                    ..
                })
            ) {
                cost = cost.add(size(1).traversed(1));
            }
            (cost, None)
        }
        "validate" => (size(1).traversed(1).times(Range::fixed(32)), None),
        "bytes" | "string"
            if matches!(
                nodes.first(),
                Some(Node {
                    ty: Type::String | Type::Bytes,
                    ..
                })
            ) =>
        {
            (
                size(0).traversed(1),
                Some(Range {
                    min: 0,
                    max: size(0).max.saturating_mul(4),
                }),
            )
        }
        "@in"
            if !matches!(
                nodes.get(1),
                Some(Node {
                    ty: Type::Map(_),
                    ..
                })
            ) =>
        {
            (size(1), None)
        }
        "sets.contains" | "sets.intersects" => (size(0).times(size(1)).add(one), None),
        "sets.equivalent" => (size(0).times(size(1)).times(Range::fixed(2)).add(one), None),
        "distinct" => (size(0).times(size(0)).add(one), Some(size(0))),
        "sort" => (size(0).times(Range::fixed(20)).add(one), Some(size(0))),
        "slice" => (
            size(0).add(one),
            Some(Range {
                min: 0,
                max: size(0).max,
            }),
        ),
        "flatten" => (size(0).add(one), None),
        "lists.range" => match nodes.first().map(|node| &node.kind) {
            Some(NodeKind::Literal(Value::Int(end))) => {
                let size = Range::fixed(u64::try_from(*end).unwrap_or_default());
                (size.add(one), Some(size))
            }
            _ => (Range::UNKNOWN, Some(Range::UNKNOWN)),
        },
        "_+_" => {
            let total = size(0).add(size(1));
            let cost = match nodes.first().map(|node| &node.ty) {
                Some(Type::String | Type::Bytes | Type::Dyn) => total.traversed(1),
                _ => one,
            };
            let sized = matches!(
                nodes.first().map(|node| &node.ty),
                Some(Type::String | Type::Bytes | Type::List(_) | Type::Dyn)
            );
            let entries = union(
                args.first().and_then(|arg| arg.entries),
                args.get(1).and_then(|arg| arg.entries),
            );
            return Estimated {
                cost,
                size: sized.then_some(total),
                entries,
            };
        }
        "_==_" | "_!=_" => match nodes.first().map(|node| &node.ty) {
            Some(Type::Ip | Type::Cidr | Type::Quantity | Type::Format) => (one, None),
            _ => (compared(size(0), size(1)), None),
        },
        "_<_" | "_<=_" | "_>_" | "_>=_" => match nodes.first().map(|node| &node.ty) {
            Some(Type::String | Type::Bytes | Type::Dyn) => (compared(size(0), size(1)), None),
            _ => (one, None),
        },
        "value" | "orValue" | "or" | "optional.of" | "optional.ofNonZeroValue" => {
            let other = args.get(1).map_or_else(
                || args.first().and_then(|arg| arg.size),
                |other| Some(args.first()?.size?.union(other.size?)),
            );
            (one, other)
        }
        _ => (one, None),
    };
    Estimated {
        cost,
        size: result,
        entries: None,
    }
}

/// The cost of comparing two values: that of the smaller one.
fn compared(a: Range, b: Range) -> Range {
    let smaller = a.max.min(b.max);
    Range {
        min: u64::from(smaller > 0),
        max: smaller,
    }
    .traversed(1)
}

/// The size of a text in which one part is replaced with another.
fn replaced(text: Range, old: Range, new: Range) -> Range {
    let (mut count, mut kept) = (Range::default(), Range::default());
    if old.min == 0 {
        count.max = text.max.saturating_add(1);
        kept.max = text.max;
    } else if new.max <= old.min {
        kept.max = text.max;
    } else {
        count.max = text.max.div_ceil(old.min);
        // What is not replaced stays.
        kept.max = text.max;
    }
    if old.max == 0 {
        count.min = text.min.saturating_add(1);
        kept.min = text.min;
    } else if old.max <= new.min {
        kept.min = text.min;
    } else {
        count.min = text.min.div_ceil(old.max);
    }
    count.times(new).add(kept)
}
