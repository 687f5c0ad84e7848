//! The waterfall of a trace: a line for each span, indented under its parent, with a bar for its
//! time.
//!
//! Spans are folded, and times without a span are lines, as their [`Outline`] says. Pure: takes
//! spans and a width, returns lines; or rows, for other forms.

use std::time::Duration;

use podplane_api::trace::{
    DroppedSteps, Outline, OutlineLine, OutlineStep, StepFold, StepGap, TraceStep,
};

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
pub fn lines(spans: &[ReceivedSpan], dropped: &DroppedSteps, width: usize) -> Vec<String> {
    let Some((from, until)) = extent(spans) else {
        return Vec::new();
    };
    let rows = rows(spans, &outline(spans, dropped), true);
    let width = width.max(MIN_WIDTH);
    let columns = Columns::for_rows(&rows, width, from, until);
    let mut lines = vec![columns.heading()];
    for row in &rows {
        lines.extend(columns.lines(row, width));
    }
    lines
}

/// The outline of the spans of one trace, in any order.
pub fn outline(spans: &[ReceivedSpan], dropped: &DroppedSteps) -> Outline {
    let steps = spans.iter().map(|span| TraceStep {
        id: span.id,
        parent: Some(span.parent).filter(|parent| *parent != 0),
        name: &span.name,
        process: span.actor(),
        error: span.error.as_deref(),
        start: span.start_unix_nano,
        end: span.end_unix_nano,
    });
    Outline::of(&steps.collect::<Vec<_>>(), dropped)
}

/// The rows for the spans of one trace and their outline. `is_folded` is false for a row for each
/// span.
pub fn rows(spans: &[ReceivedSpan], outline: &Outline, is_folded: bool) -> Vec<WaterfallRow> {
    let lines = outline.lines(is_folded);
    // The levels above the row that have further rows.
    let mut open: Vec<bool> = Vec::new();
    let mut rows: Vec<_> = lines
        .into_iter()
        .rev()
        .map(|(depth, line)| {
            open.truncate(depth + 1);
            open.resize(depth + 1, false);
            let indent = indent(&open);
            if let (Some(open), false) = (open.last_mut(), matches!(line, OutlineLine::Gap(_))) {
                *open = true;
            }
            let row = match line {
                OutlineLine::Step(OutlineStep { source, .. }) => {
                    spans.get(source).map_or_else(WaterfallRow::default, step)
                }
                OutlineLine::Fold(fold) => {
                    let steps = fold.attempts.iter().filter_map(|place| {
                        let step = outline.steps.get(*place)?;
                        spans.get(step.source)
                    });
                    folded(fold, &steps.collect::<Vec<_>>())
                }
                OutlineLine::Gap(gap) => without_step(gap),
            };
            WaterfallRow {
                depth,
                indent,
                ..row
            }
        })
        .collect();
    rows.reverse();
    rows
}

/// The branches before a row: `open` is true for each level, the row's own included, that has
/// further rows.
fn indent(open: &[bool]) -> String {
    let Some((own, above)) = open.split_last() else {
        return String::new();
    };
    let mut indent: String = above
        .iter()
        .skip(1)
        .map(|more| if *more { "│  " } else { "   " })
        .collect();
    if !above.is_empty() {
        indent.push_str(if *own { "├─ " } else { "└─ " });
    }
    indent
}

/// The row of a span.
fn step(span: &ReceivedSpan) -> WaterfallRow {
    WaterfallRow {
        name: span.name.clone(),
        process: span.process(),
        bars: vec![(span.start_unix_nano, span.end_unix_nano)],
        took: duration(span.end_unix_nano.saturating_sub(span.start_unix_nano)),
        note: note(span),
        kind: match span.error {
            Some(_) => RowKind::Failed,
            None => RowKind::Step,
        },
        ..WaterfallRow::default()
    }
}

/// The row in place of several spans.
fn folded(fold: &StepFold, spans: &[&ReceivedSpan]) -> WaterfallRow {
    let bars = spans
        .iter()
        .map(|span| (span.start_unix_nano, span.end_unix_nano));
    WaterfallRow {
        name: fold.count.clone(),
        process: spans.first().map(|span| span.process()).unwrap_or_default(),
        bars: bars.collect(),
        note: fold.reason.clone(),
        kind: match fold.reason.is_empty() {
            true => RowKind::Step,
            false => RowKind::Failed,
        },
        ..WaterfallRow::default()
    }
}

/// The row of a time without a span.
fn without_step(gap: &StepGap) -> WaterfallRow {
    WaterfallRow {
        bars: vec![(gap.start, gap.end)],
        took: duration(gap.end.saturating_sub(gap.start)),
        note: gap.text.clone(),
        kind: RowKind::Gap,
        ..WaterfallRow::default()
    }
}

/// The error and the attributes that people look for.
fn note(span: &ReceivedSpan) -> String {
    let process = span.process();
    let shown = SHOWN.iter().filter_map(|key| {
        let value = span.attribute(key)?;
        let is_said = *key == attribute::NODE && process.ends_with(value);
        let value = match *key {
            attribute::SANDBOX => value.get(..SHORT_ID).unwrap_or(value),
            _ => value,
        };
        (!is_said).then_some(value)
    });
    let error = span.error.as_ref().map(|error| match error.as_str() {
        "" => "failed".to_owned(),
        why => format!("failed: {why}"),
    });
    let parts: Vec<_> = error.into_iter().chain(shown.map(str::to_owned)).collect();
    parts.join("  ")
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

/// A row: a span, several that are folded, or a time without one.
#[derive(Clone, Debug, Default)]
pub struct WaterfallRow {
    /// The branches before the name.
    indent: String,
    /// The level below the root, which has 0.
    pub depth: usize,
    /// The name of the step, or the number of steps; empty for a time without a step.
    pub name: String,
    /// The process, with its node.
    pub process: String,
    /// The start and the end of each span, in nanoseconds since 1970.
    pub bars: Vec<(u64, u64)>,
    /// The duration with its unit; empty for several steps, of which some may not be kept.
    pub took: String,
    /// The error and the attributes that people look for, or the cause of a time without a step.
    pub note: String,
    /// The kind of row.
    pub kind: RowKind,
}

/// A kind of row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RowKind {
    /// Of steps that succeeded, or within which others failed.
    #[default]
    Step,
    /// Of steps that failed.
    Failed,
    /// Of a time without a step.
    Gap,
}

impl WaterfallRow {
    /// The name behind its indent.
    fn indented(&self) -> String {
        match self.kind {
            RowKind::Gap => self.indent.replace("├─ ", "│").replace("└─ ", "│"),
            RowKind::Step | RowKind::Failed => format!("{}{}", self.indent, self.name),
        }
    }
}

fn widest(rows: &[WaterfallRow], text: impl Fn(&WaterfallRow) -> String) -> usize {
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
    fn for_rows(rows: &[WaterfallRow], width: usize, from: u64, until: u64) -> Self {
        let (name, process) = (
            widest(rows, WaterfallRow::indented),
            widest(rows, |row| row.process.clone()),
        );
        // Notes take the columns that bars leave free.
        let note = widest(rows, |row| row.note.clone()).min(width / 4);
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
    fn lines(&self, row: &WaterfallRow, width: usize) -> Vec<String> {
        let Self { name, process, .. } = *self;
        let line = format!(
            "{:name$}  {:process$}  ▕{}▏ {:>DURATION$}",
            row.indented(),
            row.process,
            self.bar(row),
            row.took,
        );
        let note = &row.note;
        let length = |text: &str| text.chars().count();
        let below = format!("{:name$}  {note}", "");
        match note.is_empty() {
            true => vec![line.trim_end().to_owned()],
            false if length(&line) + 2 + length(note) > width && length(&below) <= width => {
                vec![line.trim_end().to_owned(), below]
            }
            false => vec![format!("{line}  {note}")],
        }
    }

    /// A mark for each interval in which one of the spans was running, and a thin mark for a span
    /// without duration. A time without a span has pale marks.
    fn bar(&self, row: &WaterfallRow) -> String {
        let mark = match row.kind {
            RowKind::Gap => '░',
            RowKind::Step | RowKind::Failed => '█',
        };
        let mut cells = vec![' '; self.bar];
        for (start, end) in &row.bars {
            let first = self.cell(*start).min(self.bar - 1);
            let end = self.cell(*end).min(self.bar);
            match cells.get_mut(first..end) {
                Some(marked) if !marked.is_empty() => marked.fill(mark),
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
