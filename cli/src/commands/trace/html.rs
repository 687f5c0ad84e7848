//! The traces of a pod as a page to hand out.

use podplane_proto::trace::GetPodTraceResponse;
use podplane_report::{
    AxisTick, Block, Fact, Figure, Picture, Report, Section, Tone, Waterfall, WaterfallGap,
    WaterfallRow, gaps,
};
use podplane_service_runtime::trace::waterfall;

use super::{PrintedTrace, TraceEnd};
use crate::output::page;

/// The least time without a step that is shown, in nanoseconds.
const LEAST_GAP: u64 = 1_000_000_000;
/// The most failures that are not folded.
const MOST_FAILURES: usize = 5;
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
    let chart = chart(trace);
    let failures = chart.rows.iter().filter(|row| row.tone == Tone::Bad);
    let failures = failures.map(|row| format!("{}, {}: {}", row.name, row.process, row.note));
    let failures: Vec<String> = failures.collect();
    let mut blocks = vec![Block::Paragraph(about), Block::Facts(facts)];
    if let Some(last) = failures.last() {
        let (said, all) = match failures.len() {
            count @ 0..=MOST_FAILURES => (format!("Steps that failed: {count}."), None),
            count => (
                format!("{count} steps failed. The last one: {last}"),
                Some(format!("All {count}")),
            ),
        };
        blocks.push(Block::Notice(Tone::Bad, said));
        let list = Block::List(failures);
        blocks.push(match all {
            None => list,
            Some(summary) => Block::Folded {
                summary,
                is_open: false,
                blocks: vec![list],
            },
        });
    }
    let gaps = chart.gaps.iter().map(|gap| gap.text.as_str());
    match gaps.collect::<Vec<_>>().as_slice() {
        [] => {}
        gaps => {
            let what = match trace.dropped_spans {
                0 => "without any step",
                _ => "without a step that is kept",
            };
            blocks.push(Block::Paragraph(format!(
                "Times of a second or more {what}, grey in the picture: {}.",
                gaps.join(", ")
            )));
        }
    }
    let kind = title.to_lowercase();
    blocks.push(Block::Figure(Box::new(Figure {
        id: format!("{kind}-{pod}-steps"),
        caption: format!("The steps of the {kind} of {pod}"),
        tables: vec![chart.table()],
        picture: Picture::Waterfall(chart.shortened()),
    })));
    Section::new(format!("{kind}-{pod}"), title, blocks)
}

/// The waterfall that the terminal shows, in shares of its time.
fn chart(trace: &PrintedTrace) -> Waterfall {
    let (from, until) = waterfall::extent(&trace.spans).unwrap_or_default();
    let all = until.saturating_sub(from);
    let share = |at: u64| at.saturating_sub(from) as f64 / all.max(1) as f64;
    let row = |row: &waterfall::WaterfallRow<'_>| {
        let spans = row.spans().iter();
        let spans = spans.map(|span| (share(span.start_unix_nano), share(span.end_unix_nano)));
        WaterfallRow {
            depth: row.depth(),
            name: row.name(),
            process: row.process(),
            spans: spans.collect(),
            took: waterfall::duration(row.nanos()),
            note: row.note(),
            tone: match row.is_failed() {
                true => Tone::Bad,
                false => Tone::Neutral,
            },
        }
    };
    let tick = |number: u32| AxisTick {
        at: f64::from(number) / f64::from(INTERVALS),
        label: match number {
            0 => "0".into(),
            _ => waterfall::duration(all / u64::from(INTERVALS) * u64::from(number)),
        },
    };
    let steps = trace.spans.iter();
    let steps = steps.map(|span| (span.start_unix_nano, span.end_unix_nano));
    // A span around all others is not what goes on meanwhile.
    let steps = steps.filter(|step| *step != (from, until));
    let gap = |(begin, end): (u64, u64)| WaterfallGap {
        span: (share(begin), share(end)),
        text: waterfall::duration(end - begin),
    };
    Waterfall {
        rows: waterfall::rows(&trace.spans).iter().map(row).collect(),
        ticks: (0..=INTERVALS).map(tick).collect(),
        gaps: gaps(steps, LEAST_GAP).into_iter().map(gap).collect(),
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
}
