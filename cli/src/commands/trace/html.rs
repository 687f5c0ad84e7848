//! The traces of a pod as a page to hand out.

use podplane_api::trace::StepGap;
use podplane_proto::trace::GetPodTraceResponse;
use podplane_report::{
    AxisTick, Block, Fact, Figure, Picture, Report, Section, Tone, Waterfall, WaterfallGap,
    WaterfallRow,
};
use podplane_service_runtime::trace::waterfall::{self, RowKind};

use super::{PrintedTrace, TraceEnd};
use crate::output::page;

/// The most failures, and the most times without a step, that are listed at once.
const MOST_LISTED: usize = 5;
/// The number of intervals of the time axis.
const INTERVALS: u32 = 4;

/// The page of one pod.
pub(super) fn report(answer: GetPodTraceResponse, source: String) -> anyhow::Result<Report> {
    let mut facts = vec![Fact::new("UID", answer.uid.clone())];
    facts.extend(page::circumstances(source));
    Ok(Report {
        title: format!("Trace of pod {}/{}", answer.namespace, answer.name),
        counts: Vec::new(),
        facts,
        sections: sections(answer)?,
    })
}

/// A section for the creation of a pod and one for its deletion, as far as they are known.
pub(crate) fn sections(answer: GetPodTraceResponse) -> anyhow::Result<Vec<Section>> {
    let GetPodTraceResponse {
        name,
        creation,
        deletion,
        ..
    } = answer;
    let end = TraceEnd::of(deletion.as_ref());
    let mut sections = Vec::new();
    if let Some(creation) = creation {
        let trace = PrintedTrace::try_from(creation)?;
        let about = trace.journey(end);
        sections.push(section(&trace, "Creation", &name, about));
    }
    if let Some(deletion) = deletion {
        let trace = PrintedTrace::try_from(deletion)?;
        let about = "From the request to the removal of the object.".to_owned();
        sections.push(section(&trace, "Deletion", &name, about));
    }
    Ok(sections)
}

fn section(trace: &PrintedTrace, title: &str, pod: &str, about: String) -> Section {
    let mut facts = vec![
        Fact::new("Trace", trace.trace_id.clone()),
        Fact::new("From", trace.begin()),
    ];
    facts.extend(trace.remarks().map(|remark| Fact::new("Note", remark)));
    let TraceCharts { picture, all, gaps } = TraceCharts::of(trace);
    let mut blocks = vec![Block::Paragraph(about), Block::Facts(facts)];
    blocks.extend(failures(&picture, &all));
    blocks.extend(gaps_block(&gaps));
    let kind = title.to_lowercase();
    blocks.push(Block::Figure(Box::new(Figure {
        id: format!("{kind}-{pod}-steps"),
        caption: format!("The steps of the {kind} of {pod}"),
        tables: vec![all.table()],
        picture: Picture::Waterfall(picture),
    })));
    Section::new(format!("{kind}-{pod}"), title, blocks)
}

/// The number of failures, and a line for each one of the picture.
fn failures(picture: &Waterfall, all: &Waterfall) -> Vec<Block> {
    let is_failed = |row: &&WaterfallRow| row.tone == Tone::Bad;
    let count = all.rows.iter().filter(is_failed).count();
    let lines = picture.rows.iter().filter(is_failed);
    let lines = lines.map(|row| format!("{}, {}: {}", row.name, row.process, row.note));
    let lines: Vec<String> = lines.collect();
    let Some(last) = lines.last() else {
        return Vec::new();
    };
    match lines.len() {
        0..=MOST_LISTED => vec![
            Block::Notice(Tone::Bad, format!("Steps that failed: {count}.")),
            Block::List(lines),
        ],
        _ => vec![
            Block::Notice(
                Tone::Bad,
                format!("{count} steps failed. The last one: {last}"),
            ),
            Block::Folded {
                summary: "The failures, attempts alike as one".to_owned(),
                is_open: false,
                blocks: vec![Block::List(lines)],
            },
        ],
    }
}

/// The times without a step, or their number if there are many.
fn gaps_block(gaps: &[String]) -> Option<Block> {
    let listed = match gaps.len() {
        0 => return None,
        1..=MOST_LISTED => gaps.join("; "),
        count => format!("{count}, each in the table"),
    };
    Some(Block::Paragraph(format!(
        "Times without a step, grey in the picture: {listed}."
    )))
}

/// The waterfall as a picture, folded as that of the terminal, and with all steps.
struct TraceCharts {
    picture: Waterfall,
    all: Waterfall,
    /// The times without a step.
    gaps: Vec<String>,
}

impl TraceCharts {
    fn of(trace: &PrintedTrace) -> Self {
        let (from, until) = waterfall::extent(&trace.spans).unwrap_or_default();
        let time = until.saturating_sub(from);
        let share = |at: u64| at.saturating_sub(from) as f64 / time.max(1) as f64;
        let span = |(start, end): (u64, u64)| (share(start), share(end));
        let outline = waterfall::outline(&trace.spans, &trace.dropped);
        let row = |row: waterfall::WaterfallRow| WaterfallRow {
            depth: row.depth,
            name: row.name,
            process: row.process,
            spans: row.bars.into_iter().map(span).collect(),
            took: row.took,
            note: row.note,
            tone: match row.kind {
                RowKind::Failed => Tone::Bad,
                RowKind::Step | RowKind::Gap => Tone::Neutral,
            },
        };
        let tick = |number: u32| AxisTick {
            at: f64::from(number) / f64::from(INTERVALS),
            label: match number {
                0 => "0".into(),
                _ => waterfall::duration(time / u64::from(INTERVALS) * u64::from(number)),
            },
        };
        let gap = |gap: &StepGap| WaterfallGap {
            span: span((gap.start, gap.end)),
            text: waterfall::duration(gap.end - gap.start),
        };
        let gap_text =
            |gap: &StepGap| format!("{} {}", waterfall::duration(gap.end - gap.start), gap.text);
        // The picture has a band for a time without a step, and no row.
        let rows = waterfall::rows(&trace.spans, &outline, true);
        let rows = rows.into_iter().filter(|row| row.kind != RowKind::Gap);
        let picture = Waterfall {
            rows: rows.map(row).collect(),
            ticks: (0..=INTERVALS).map(tick).collect(),
            gaps: outline.gaps.iter().map(gap).collect(),
        };
        let all = waterfall::rows(&trace.spans, &outline, false);
        Self {
            picture,
            all: Waterfall {
                rows: all.into_iter().map(row).collect(),
                ..Waterfall::default()
            },
            gaps: outline.gaps.iter().map(gap_text).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use podplane_proto::trace::{Span, Trace};

    use super::*;

    fn span(id: u64, parent: u64, name: &str, from: u64, until: u64) -> Span {
        Span {
            span_id: format!("{id:016x}"),
            parent_span_id: match parent {
                0 => String::new(),
                parent => format!("{parent:016x}"),
            },
            name: name.into(),
            service: "kubelet".into(),
            start_time_unix_nano: from,
            end_time_unix_nano: until,
            ..Span::default()
        }
    }

    #[test]
    fn steps_are_where_their_times_are() {
        let failed = Span {
            error: Some("no address".into()),
            ..span(3, 1, "admit", 50_000_000, 75_000_000)
        };
        let answer = GetPodTraceResponse {
            name: "web".into(),
            creation: Some(Trace {
                trace_id: "a".into(),
                spans: vec![
                    span(1, 0, "create", 0, 100_000_000),
                    span(2, 1, "queue", 0, 25_000_000),
                    failed,
                ],
                ..Trace::default()
            }),
            ..GetPodTraceResponse::default()
        };
        let sections = sections(answer).unwrap();
        let [creation] = sections.as_slice() else {
            panic!("{sections:?}")
        };
        let Some(Block::Figure(figure)) = creation.blocks.last() else {
            panic!("{creation:?}")
        };
        let Picture::Waterfall(chart) = &figure.picture else {
            panic!("{figure:?}")
        };
        let rows: Vec<_> = chart
            .rows
            .iter()
            .map(|row| (row.depth, row.name.as_str(), row.spans.as_slice(), row.tone))
            .collect();
        assert_eq!(
            rows,
            [
                (0, "create", &[(0.0, 1.0)][..], Tone::Neutral),
                (1, "queue", &[(0.0, 0.25)][..], Tone::Neutral),
                (1, "admit", &[(0.5, 0.75)][..], Tone::Bad),
            ]
        );
        let labels: Vec<_> = chart.ticks.iter().map(|tick| tick.label.as_str()).collect();
        assert_eq!(labels, ["0", "25.0 ms", "50.0 ms", "75.0 ms", "100 ms"]);
    }

    #[test]
    fn a_time_without_steps_is_a_gap() {
        let second = 1_000_000_000;
        let answer = GetPodTraceResponse {
            name: "web".into(),
            creation: Some(Trace {
                trace_id: "a".into(),
                spans: vec![
                    span(1, 0, "create", 0, second),
                    span(2, 1, "sync", second * 7 / 2, second * 4),
                    span(3, 1, "sync", second * 9 / 2, second * 5),
                ],
                ..Trace::default()
            }),
            ..GetPodTraceResponse::default()
        };
        let sections = sections(answer).unwrap();
        let Some(Block::Figure(figure)) = sections.first().and_then(|one| one.blocks.last()) else {
            panic!("{sections:?}")
        };
        let Picture::Waterfall(chart) = &figure.picture else {
            panic!("{figure:?}")
        };
        let gap = WaterfallGap {
            span: (0.2, 0.7),
            text: "2.5 s".into(),
        };
        assert_eq!(chart.gaps, [gap]);
    }

    #[test]
    fn the_picture_is_folded_as_the_text_and_the_table_has_each_attempt() {
        let second = 1_000_000_000;
        let attempt = |number: u64| Span {
            error: Some("no address".into()),
            ..span(number + 1, 1, "sync", number * second, number * second + 1)
        };
        let answer = GetPodTraceResponse {
            name: "web".into(),
            creation: Some(Trace {
                trace_id: "a".into(),
                spans: [span(1, 0, "create", 0, second)]
                    .into_iter()
                    .chain((1..=8).map(attempt))
                    .collect(),
                ..Trace::default()
            }),
            ..GetPodTraceResponse::default()
        };
        let text = crate::commands::trace::text(answer.clone(), 120).unwrap();
        let sections = sections(answer).unwrap();
        let blocks = &sections.first().unwrap().blocks;
        let Some(Block::Figure(figure)) = blocks.last() else {
            panic!("{blocks:?}")
        };
        let Picture::Waterfall(chart) = &figure.picture else {
            panic!("{figure:?}")
        };
        let names: Vec<_> = chart.rows.iter().map(|row| row.name.as_str()).collect();
        assert_eq!(names, ["create", "sync", "6 attempts in between", "sync"]);
        for (row, line) in chart.rows.iter().zip(text.lines().skip(6)) {
            assert!(line.contains(&row.name), "{}: {text}", row.name);
        }
        assert_eq!(figure.tables[0].rows.len(), 9);
        assert!(
            matches!(blocks.get(2), Some(Block::Notice(_, said)) if said == "Steps that failed: 8."),
            "{blocks:?}"
        );
    }
}
