//! The waterfall of a trace: a line for each span, indented under its parent, with a bar for its
//! time.
//!
//! Consecutive spans that failed in the same way are one line. Pure: takes spans and a width,
//! returns lines; or rows, for other forms.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use podplane_api::trace::{StepKind, failure};

use super::{ReceivedSpan, attribute};

/// Below this width there are no bars.
const MIN_WIDTH: usize = 80;
/// The columns of a duration, as in `999.9 ms`.
const DURATION: usize = 9;
/// The least and most columns of a bar.
const BAR: (usize, usize) = (8, 48);

/// The attributes that are shown; the others repeat the line or the heading.
const SHOWN: [&str; 5] = [
    attribute::CHOSEN,
    attribute::IPS,
    attribute::NETWORK,
    attribute::SANDBOX,
    attribute::NODE,
];
/// The length of an id as other tools shorten it.
const SHORT_ID: usize = 12;

/// The lines for the spans of one trace, in any order, in `width` columns. The time axis goes from
/// the first start to the last end, which the first line states.
pub fn lines(spans: &[ReceivedSpan], width: usize) -> Vec<String> {
    let Some((from, until)) = extent(spans) else {
        return Vec::new();
    };
    let rows = rows(spans);
    let width = width.max(MIN_WIDTH);
    let columns = Columns::for_rows(&rows, width, from, until);
    let mut lines = vec![columns.heading()];
    for row in &rows {
        lines.extend(columns.lines(row, width));
    }
    lines
}

/// The rows for the spans of one trace, in any order: children after their parents.
pub fn rows(spans: &[ReceivedSpan]) -> Vec<WaterfallRow<'_>> {
    let tree = SpanTree::new(spans);
    let mut rows = Vec::new();
    tree.rows(&tree.roots, &mut Vec::new(), &mut rows);
    rows
}

/// The duration in three digits and a suitable unit.
pub fn duration(nanos: u64) -> String {
    let duration = Duration::from_nanos(nanos);
    let micros = duration.as_micros();
    let seconds = duration.as_secs_f64();
    match micros {
        0..1_000 => format!("{micros} µs"),
        1_000..100_000 => format!("{:.1} ms", seconds * 1e3),
        100_000..1_000_000 => format!("{:.0} ms", seconds * 1e3),
        1_000_000..600_000_000 => format!("{seconds:.1} s"),
        _ => format!("{:.0} min", seconds / 60.0),
    }
}

/// The first start and the last end, in nanoseconds; `None` without spans.
pub fn extent(spans: &[ReceivedSpan]) -> Option<(u64, u64)> {
    let from = spans.iter().map(|span| span.start_unix_nano).min()?;
    let until = spans.iter().map(|span| span.end_unix_nano).max()?;
    Some((from, until))
}

/// The spans by their parents.
struct SpanTree<'a> {
    /// The root, and spans without a known parent if the root is not kept; by their start.
    roots: Vec<&'a ReceivedSpan>,
    parts: BTreeMap<u64, Vec<&'a ReceivedSpan>>,
}

/// A row: one span, or several similar ones.
#[derive(Clone, Debug)]
pub struct WaterfallRow<'a> {
    indent: String,
    depth: usize,
    spans: Vec<&'a ReceivedSpan>,
}

impl<'a> SpanTree<'a> {
    fn new(spans: &'a [ReceivedSpan]) -> Self {
        let known: BTreeSet<u64> = spans.iter().map(|span| span.id).collect();
        let mut ordered: Vec<&ReceivedSpan> = spans.iter().collect();
        // Of spans that start at the same time, the one that ends later comes first, as it may
        // contain the other.
        ordered.sort_by_key(|span| (span.start_unix_nano, u64::MAX - span.end_unix_nano, span.id));
        let (mut roots, mut parts) = (Vec::new(), BTreeMap::<u64, Vec<&ReceivedSpan>>::new());
        let root = ordered.iter().find(|span| span.parent == 0);
        let root = root.map(|span| span.id);
        for span in ordered {
            let parent = match known.contains(&span.parent) && span.parent != span.id {
                true => Some(span.parent),
                // The root is around all steps whose parent is not kept.
                false => root.filter(|root| span.parent != 0 && *root != span.id),
            };
            match parent {
                Some(parent) => parts.entry(parent).or_default().push(span),
                None => roots.push(span),
            }
        }
        Self { roots, parts }
    }

    fn parts(&self, of: &ReceivedSpan) -> &[&'a ReceivedSpan] {
        self.parts.get(&of.id).map_or(&[], Vec::as_slice)
    }

    /// Appends the rows of `spans`, which have the same parent, and of their children. `open` is
    /// true for each level above that has more rows.
    fn rows(
        &self,
        spans: &[&'a ReceivedSpan],
        open: &mut Vec<bool>,
        rows: &mut Vec<WaterfallRow<'a>>,
    ) {
        // Spans whose parents form a cycle are not reachable from a root; but a chain may be as
        // long as an export.
        if open.len() > 32 {
            return;
        }
        let groups = self.folded(spans);
        let count = groups.len();
        for (index, group) in groups.into_iter().enumerate() {
            let is_last = index + 1 == count;
            let is_root = open.is_empty();
            let mut indent: String = open
                .iter()
                .skip(1)
                .map(|more| if *more { "│  " } else { "   " })
                .collect();
            if !is_root {
                indent.push_str(if is_last { "└─ " } else { "├─ " });
            }
            // Of similar spans, the last one's children are shown.
            let parts = group.last().map_or(&[][..], |last| self.parts(last));
            rows.push(WaterfallRow {
                indent,
                depth: open.len(),
                spans: group,
            });
            open.push(!is_last);
            self.rows(parts, open, rows);
            open.pop();
        }
    }

    /// Groups spans that failed alike, and similar spans without children.
    fn folded(&self, spans: &[&'a ReceivedSpan]) -> Vec<Vec<&'a ReceivedSpan>> {
        let processes: Vec<String> = spans.iter().map(|span| span.process()).collect();
        let kinds = spans
            .iter()
            .zip(&processes)
            .map(|(span, process)| StepKind {
                name: &span.name,
                process,
                failure: self.failure(span),
                has_parts: !self.parts(span).is_empty(),
            });
        let mut groups: Vec<(StepKind<'_>, Vec<&ReceivedSpan>)> = Vec::new();
        for (span, kind) in spans.iter().zip(kinds) {
            match groups.iter_mut().find(|(first, _)| first.is_alike(&kind)) {
                Some((_, group)) => group.push(span),
                None => groups.push((kind, vec![span])),
            }
        }
        groups.into_iter().map(|(_, group)| group).collect()
    }

    fn failure(&self, span: &'a ReceivedSpan) -> Option<&'a str> {
        let error = |span: &'a ReceivedSpan| span.error.as_deref();
        failure(span, &error, &|span| self.parts(span).to_vec())
    }
}

impl WaterfallRow<'_> {
    /// The level below the root, which has 0.
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// The spans: one, or several similar ones, by their start.
    pub fn spans(&self) -> &[&ReceivedSpan] {
        &self.spans
    }

    /// The name of the step, and how many there are if not one.
    pub fn name(&self) -> String {
        let name = self.spans.first().map_or("", |span| &span.name);
        match self.spans.len() {
            0 | 1 => name.to_owned(),
            count => format!("{name} ×{count}"),
        }
    }

    /// The name behind its indent.
    fn indented(&self) -> String {
        format!("{}{}", self.indent, self.name())
    }

    /// Returns true if the step failed.
    pub fn is_failed(&self) -> bool {
        self.spans.iter().any(|span| span.error.is_some())
    }

    /// The process, with its node.
    pub fn process(&self) -> String {
        self.spans
            .first()
            .map(|span| span.process())
            .unwrap_or_default()
    }

    /// The error and the attributes that people look for.
    pub fn note(&self) -> String {
        let Some(last) = self.spans.last() else {
            return String::new();
        };
        let process = self.process();
        let shown = SHOWN.iter().filter_map(|key| {
            let value = last.attribute(key)?;
            let is_said = *key == attribute::NODE && process.ends_with(value);
            let value = match *key {
                attribute::SANDBOX => value.get(..SHORT_ID).unwrap_or(value),
                _ => value,
            };
            (!is_said).then_some(value)
        });
        let error = last.error.as_ref().map(|error| match error.as_str() {
            "" => "failed".to_owned(),
            why => format!("failed: {why}"),
        });
        let parts: Vec<_> = error.into_iter().chain(shown.map(str::to_owned)).collect();
        parts.join("  ")
    }

    /// The time of all its spans, in nanoseconds.
    pub fn nanos(&self) -> u64 {
        let each = self.spans.iter();
        each.map(|span| span.end_unix_nano - span.start_unix_nano)
            .fold(0, u64::saturating_add)
    }
}

fn widest<'a>(rows: &[WaterfallRow<'a>], text: impl Fn(&WaterfallRow<'a>) -> String) -> usize {
    let widths = rows.iter().map(|row| text(row).chars().count());
    widths.max().unwrap_or_default()
}

/// The widths of the columns.
struct Columns {
    name: usize,
    process: usize,
    bar: usize,
    from: u64,
    until: u64,
}

impl Columns {
    fn for_rows(rows: &[WaterfallRow<'_>], width: usize, from: u64, until: u64) -> Self {
        let (name, process) = (
            widest(rows, WaterfallRow::indented),
            widest(rows, WaterfallRow::process),
        );
        // Notes take the columns that bars leave free.
        let note = widest(rows, WaterfallRow::note).min(width / 4);
        let left = width.saturating_sub(name + process + DURATION + note + 9);
        Self {
            name,
            process,
            bar: left.clamp(BAR.0, BAR.1),
            from,
            until,
        }
    }

    fn heading(&self) -> String {
        let Self {
            name,
            process,
            bar,
            from,
            until,
        } = *self;
        let all = duration(until - from);
        format!(
            "{:name$}  {:process$}  0{all:>end$}  {:>DURATION$}",
            "STEP",
            "PROCESS",
            "TOOK",
            end = bar + 1
        )
    }

    /// The lines of a row. A note that does not fit on the row's line, but on a line of its own,
    /// gets one. A longer note exceeds the width: it has the reason of a failure.
    fn lines(&self, row: &WaterfallRow<'_>, width: usize) -> Vec<String> {
        let Self { name, process, .. } = *self;
        let line = format!(
            "{:name$}  {:process$}  ▕{}▏ {:>DURATION$}",
            row.indented(),
            row.process(),
            self.bar(&row.spans),
            duration(row.nanos()),
        );
        let note = row.note();
        let length = |text: &str| text.chars().count();
        let below = format!("{:name$}  {note}", "");
        match note.is_empty() {
            true => vec![line],
            false if length(&line) + 2 + length(&note) > width && length(&below) <= width => {
                vec![line, below]
            }
            false => vec![format!("{line}  {note}")],
        }
    }

    /// A mark for each interval in which one of the spans was running, and a thin mark for a span
    /// without duration.
    fn bar(&self, spans: &[&ReceivedSpan]) -> String {
        let mut cells = vec![' '; self.bar];
        for span in spans {
            let first = self.cell(span.start_unix_nano).min(self.bar - 1);
            let end = self.cell(span.end_unix_nano).min(self.bar);
            match cells.get_mut(first..end) {
                Some(marked) if !marked.is_empty() => marked.fill('█'),
                _ => {
                    if let Some(cell @ ' ') = cells.get_mut(first) {
                        *cell = '▏';
                    }
                }
            }
        }
        cells.into_iter().collect()
    }

    /// The cell nearest to a time.
    fn cell(&self, at: u64) -> usize {
        let all = u128::from((self.until - self.from).max(1));
        let since = u128::from(at - self.from);
        let cell = (since * self.bar as u128 + all / 2) / all;
        usize::try_from(cell).unwrap_or(self.bar)
    }
}
