//! The plan as a page or a picture: what it gives, what it wastes, and when it ends.

use podplane_ipam::{
    figures::readable,
    planning::{Alternative, Growth, Plan, Question, RangePlan},
};
use podplane_report::{
    AxisTick, Bar, BarPart, Bars, Block, Column, Count, Figure, GrowthCurve, LinearScale,
    PartStyle, Picture, PictureFile, Report, Row, Section, Table, Tone,
};

use super::{PlanArgs, Verdict, all_pods, details, pods_at, shown_alternatives, used_up};
use crate::output::{page, sheet::Sheet};

/// The number of points of a curve.
const POINTS: u32 = 60;
/// The periods that a curve shows if the growth has no end and no horizon.
const WITHOUT_END: f64 = 10.0;
/// The most bits of a range whose addresses can be drawn as shares of all.
const MOST_BITS: u8 = 32;
/// The part of an axis beyond its last value.
const MARGIN: f64 = 1.1;

/// Writes the page and the picture, if they are wanted.
pub(super) fn write(args: &PlanArgs, question: &Question, plan: &Plan) -> anyhow::Result<()> {
    if let Some(file) = &args.html {
        page::write(file, report(question, plan).html())?;
    }
    if let Some(file) = &args.svg {
        let charts = figures(question, plan).into_iter();
        let picture = PictureFile {
            title: title(plan),
            verdict: Some(verdict(question, plan)),
            charts: charts.map(|chart| (chart.caption, chart.picture)).collect(),
        };
        page::write(file, picture.svg())?;
    }
    Ok(())
}

fn title(plan: &Plan) -> String {
    let ranges = plan.ranges.iter().map(|range| range.range.to_string());
    format!("Address plan: {}", ranges.collect::<Vec<_>>().join(", "))
}

fn verdict(question: &Question, plan: &Plan) -> (Tone, String) {
    let verdict = Verdict::of(question, plan);
    let tone = match verdict.fits {
        true => Tone::Good,
        false => Tone::Bad,
    };
    (tone, verdict.text())
}

fn report(question: &Question, plan: &Plan) -> Report {
    let (tone, text) = verdict(question, plan);
    let count = |number: String, of: &str| Count {
        tone: Tone::Neutral,
        number,
        of: of.to_owned(),
    };
    let figures = figures(question, plan).into_iter();
    let figures = figures.map(|figure| Block::Figure(Box::new(figure)));
    let mut plan_blocks = vec![Block::Notice(tone, text)];
    let mut sheet = Sheet::default();
    details(question, plan, &mut sheet);
    plan_blocks.extend(sheet.blocks());
    Report {
        title: title(plan),
        counts: vec![
            count(plan.max_nodes.to_string(), "nodes at most"),
            count(readable(plan.pods_per_node), "pod addresses per node"),
            count(readable(all_pods(plan)), "pods in total"),
        ],
        facts: page::circumstances("the flags of the controller".into()),
        sections: vec![
            Section::new("plan", "Plan", plan_blocks),
            Section::new("pictures", "Capacity and growth", figures.collect()),
        ],
    }
}

/// The pictures with their tables: the growth first, since it has an end.
fn figures(question: &Question, plan: &Plan) -> Vec<Figure> {
    let growth = question.growth.zip(question.nodes);
    let growth = growth.map(|(growth, nodes)| curve(question, plan, growth, nodes));
    let ranges = plan.ranges.iter().map(|range| bars(range, plan));
    growth.into_iter().chain(ranges).collect()
}

/// The addresses of a range in blocks of several lengths.
fn bars(range: &RangePlan, plan: &Plan) -> Figure {
    let cidr = range.range.cidr();
    let own = range.range.node_mask();
    let is_huge = cidr.max_prefix_len() - cidr.prefix_len() > MOST_BITS;
    let bar = |other: &Alternative| {
        let pods = pods_at(other.max_nodes, other.pods_per_node, plan.max_pods);
        let is_own = if other.node_mask == own {
            " (plan)"
        } else {
            ""
        };
        Bar {
            label: format!("/{}{is_own}", other.node_mask),
            parts: match is_huge {
                true => parts_in_bits(range, other),
                false => parts_in_addresses(range, other, pods),
            },
            value: format!("{} nodes, {} pods", other.max_nodes, readable(pods)),
        }
    };
    let (caption, legend) = match is_huge {
        true => (
            format!("The bits of the addresses of {cidr} in blocks of other lengths"),
            vec![
                (
                    PartStyle::Main,
                    "bits that tell blocks apart: more of them are more nodes".to_owned(),
                ),
                (
                    PartStyle::Rest,
                    "bits within a block: more of them are more addresses of a node".to_owned(),
                ),
            ],
        ),
        false => (
            format!("The addresses of {cidr} in blocks of other lengths, in shares of all"),
            vec![
                (
                    PartStyle::Main,
                    "for pods, as many as a node may run".to_owned(),
                ),
                (
                    PartStyle::Lost,
                    "wasted: in the blocks of nodes, and for no pod".to_owned(),
                ),
            ],
        ),
    };
    let row = |other: &Alternative| {
        let pods = pods_at(other.max_nodes, other.pods_per_node, plan.max_pods);
        Row::of_texts([
            format!("/{}", other.node_mask),
            other.max_nodes.to_string(),
            readable(other.pods_per_node),
            readable(pods),
            readable(other.addresses_wasted),
        ])
    };
    let table = Table {
        caption: String::new(),
        columns: vec![
            Column::text("Blocks"),
            Column::number("Nodes"),
            Column::number("Pods per node"),
            Column::number("Pods"),
            Column::number("Wasted"),
        ],
        rows: shown_alternatives(range, plan).map(row).collect(),
    };
    Figure {
        id: format!("addresses-of-{cidr}"),
        caption,
        picture: Picture::Bars(Bars {
            legend,
            bars: shown_alternatives(range, plan).map(bar).collect(),
        }),
        tables: vec![table],
    }
}

/// The addresses for pods and the wasted ones, as shares of the range.
fn parts_in_addresses(range: &RangePlan, other: &Alternative, pods: u128) -> Vec<BarPart> {
    let total = range.addresses_per_node as f64 * range.range.blocks() as f64;
    let part = |style, number: u128, of: &str| BarPart {
        style,
        share: number as f64 / total.max(1.0),
        text: format!("{} {of}", readable(number)),
    };
    vec![
        part(PartStyle::Main, pods, "addresses for pods"),
        part(PartStyle::Lost, other.addresses_wasted, "addresses wasted"),
    ]
}

/// The bits of an address behind the prefix of the range. Of a range as large as those of IPv6, the
/// shares of pods could not be seen.
fn parts_in_bits(range: &RangePlan, other: &Alternative) -> Vec<BarPart> {
    let cidr = range.range.cidr();
    let all = cidr.max_prefix_len() - cidr.prefix_len();
    let block = cidr.max_prefix_len().saturating_sub(other.node_mask);
    let part = |style, bits: u8, of: &str| BarPart {
        style,
        share: f64::from(bits) / f64::from(all.max(1)),
        text: format!("{bits} bits {of}"),
    };
    vec![
        part(
            PartStyle::Main,
            all.saturating_sub(block),
            "that tell blocks apart",
        ),
        part(PartStyle::Rest, block, "within a block"),
    ]
}

/// The number of nodes over time.
fn curve(question: &Question, plan: &Plan, growth: Growth, nodes: u64) -> Figure {
    let end = plan.exhausted_after.filter(|after| after.is_finite());
    let span = match (question.horizon.filter(|horizon| *horizon > 0.0), end) {
        // An end that is far beyond the horizon would hide all else.
        (Some(horizon), Some(end)) if end <= 3.0 * horizon => horizon.max(end) * MARGIN,
        (Some(horizon), _) => horizon,
        (None, Some(end)) if end > 0.0 => end * MARGIN,
        (None, _) => WITHOUT_END,
    };
    let at = |step: u32, of: u32| {
        let time = span * f64::from(step) / f64::from(of);
        (time, growth.after(nodes, time))
    };
    let limit = plan.max_nodes as f64;
    let (_, last) = at(1, 1);
    let most = (last as f64).max(limit).max(1.0) * MARGIN;
    let place = |(time, count): (f64, u64)| (time / span, count as f64 / most);
    let period = growth.period();
    // Shorter times have no words of their own.
    let (unit, units) = period.named(span);
    let times = LinearScale::up_to(units).in_steps_of(0.1);
    let in_periods = |time: f64| time * span / units;
    let numbers = LinearScale::up_to(most).in_steps_of(1.0);
    let time_label = |time: f64| match time > 0.0 {
        true => unit.amount(time),
        false => "now".into(),
    };
    let row = |time: f64| {
        let count = growth.after(nodes, in_periods(time));
        let fits = if count <= plan.max_nodes { "yes" } else { "no" };
        Row::of_texts([time_label(time), count.to_string(), fits.into()])
    };
    let limit_text = format!("blocks for {} nodes", plan.max_nodes);
    let shown_end = end.filter(|end| *end <= span);
    Figure {
        id: "growth".into(),
        caption: format!("The number of nodes at {growth}, and the blocks for them"),
        picture: Picture::Growth(GrowthCurve {
            points: (0..=POINTS).map(|step| place(at(step, POINTS))).collect(),
            limit: Some(AxisTick {
                at: limit / most,
                label: limit_text,
            }),
            end: shown_end.map(|end| {
                let text = format!("used up {}", used_up(period, end));
                ((end / span, limit / most), text)
            }),
            times: times.ticks(time_label),
            numbers: numbers.ticks(|number| format!("{number:.0}")),
        }),
        tables: vec![Table {
            caption: String::new(),
            columns: vec![
                Column::text("After"),
                Column::number("Nodes"),
                Column::text("Blocks suffice"),
            ],
            rows: times.marks().map(row).collect(),
        }],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::parse_args;

    fn figures_of(line: &str) -> Vec<Figure> {
        let args: PlanArgs = parse_args(format!("plan {line}").split(' ')).unwrap();
        let question = args.question();
        figures(&question, &question.answer().unwrap())
    }

    #[test]
    fn the_curve_crosses_its_limit_where_the_blocks_end() {
        for line in [
            "--nodes 100 --growth 20%/year --horizon 10",
            "--nodes 100 --growth 20%/year",
            "--nodes 100 --growth +50/month --horizon 5",
        ] {
            let figures = figures_of(line);
            let Some(Picture::Growth(curve)) = figures.first().map(|first| &first.picture) else {
                panic!("{figures:?}")
            };
            let limit = curve.limit.as_ref().unwrap().at;
            let ((time, number), _) = curve.end.as_ref().unwrap();
            assert!((number - limit).abs() < 1e-9, "{line}");
            for (at, count) in &curve.points {
                // Counts are rounded up to whole nodes.
                assert!(
                    (at < time) == (*count <= limit) || (at - time).abs() < 0.02,
                    "{line}"
                );
                assert!((0.0..=1.0).contains(count), "{line}: {count}");
            }
        }
    }

    #[test]
    fn axes_have_round_numbers() {
        for (line, times, numbers) in [
            (
                "--nodes 100 --growth 20%/year --horizon 5",
                ["now", "1 year", "2 years"],
                ["0", "50", "100"],
            ),
            (
                "--nodes 100 --growth +50/month --horizon 12",
                ["now", "2 months", "4 months"],
                ["0", "200", "400"],
            ),
            (
                "--nodes 100 --growth +1/month",
                ["now", "2 years", "4 years"],
                ["0", "50", "100"],
            ),
        ] {
            let figures = figures_of(line);
            let Some(Picture::Growth(curve)) = figures.first().map(|first| &first.picture) else {
                panic!("{figures:?}")
            };
            let labels = |ticks: &[AxisTick]| -> Vec<String> {
                ticks
                    .iter()
                    .take(3)
                    .map(|tick| tick.label.clone())
                    .collect()
            };
            assert_eq!(labels(&curve.times), times, "{line}");
            assert_eq!(labels(&curve.numbers), numbers, "{line}");
        }
    }

    #[test]
    fn bars_of_ipv6_show_bits() {
        let figures = figures_of("--cluster-cidr fd00::/48 --node-cidr-mask-size 64");
        let Some(Picture::Bars(bars)) = figures.first().map(|first| &first.picture) else {
            panic!("{figures:?}")
        };
        let own = bars.bars.iter().find(|bar| bar.label == "/64 (plan)");
        let shares: Vec<_> = own.unwrap().parts.iter().map(|part| part.share).collect();
        assert_eq!(shares, [0.2, 0.8], "16 and 64 of 80 bits");
    }

    #[test]
    fn parts_of_bars_are_never_more_than_the_range() {
        let figures = figures_of("--cluster-cidr 10.0.0.0/16,fd00::/48 --service-cidr 10.0.0.0/20");
        assert_eq!(figures.len(), 2, "one for each family");
        for figure in figures {
            let Picture::Bars(bars) = figure.picture else {
                panic!("{figure:?}")
            };
            assert_eq!(bars.bars.len(), figure.tables[0].rows.len());
            for bar in &bars.bars {
                let sum: f64 = bar.parts.iter().map(|part| part.share).sum();
                assert!(sum > 0.0 && sum <= 1.0 + 1e-9, "{bar:?}");
            }
        }
    }
}
