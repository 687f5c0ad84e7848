//! The page of a benchmark: its lines with their targets, as pictures and tables.
//!
//! `cargo xtask bench --html` measures, and computes all figures; this crate shows them. It is a
//! program of its own since everybody compiles `xtask`, and few write such a page. Start reading at
//! [`Benchmark::report`].

#![forbid(unsafe_code)]
#![warn(missing_docs)]

use podplane_report::{
    Block, Cell, Column, Count, Fact, Figure, IntervalRow, Intervals, LogScale, Picture, Report,
    Row, Section, Table, Tone,
};
use serde::Deserialize;

/// A benchmark that was run.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Benchmark {
    /// Its name.
    pub name: String,
    /// The command that repeats it.
    pub command: String,
    /// The machine, the versions, and the meaning of the figures.
    pub circumstances: String,
    /// True if it had too few rounds to mean anything.
    pub is_quick: bool,
    /// The lines of its table.
    pub lines: Vec<Line>,
}

/// A line of the table of a benchmark.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Line {
    /// The measured thing.
    pub what: String,
    /// Our figure, with its unit.
    pub ours: String,
    /// The peer's figure.
    pub peer: String,
    /// The ratio of the two with its quartiles, or the reason why there is none.
    pub ratio: String,
    /// The target, or nothing.
    pub target: String,
    /// The outcome.
    pub verdict: Verdict,
    /// The number of rounds.
    pub rounds: usize,
    /// The measurements, for each axis on which they are drawn.
    pub plots: Vec<Plot>,
}

/// The outcome of a line.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The target was reached.
    Reached,
    /// The target was missed.
    Missed,
    /// There is no target.
    NoTarget,
    /// There are no figures.
    NotMeasured,
}

impl Verdict {
    const ALL: [Self; 4] = [
        Self::Missed,
        Self::NotMeasured,
        Self::Reached,
        Self::NoTarget,
    ];

    const fn text(self) -> &'static str {
        match self {
            Self::Reached => "reached",
            Self::Missed => "missed",
            Self::NoTarget => "no target",
            Self::NotMeasured => "not measured",
        }
    }

    const fn tone(self) -> Tone {
        match self {
            Self::Reached => Tone::Good,
            Self::Missed => Tone::Bad,
            Self::NoTarget => Tone::Neutral,
            Self::NotMeasured => Tone::Caution,
        }
    }
}

/// The values of a line on one axis.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plot {
    /// The axis.
    pub axis: Axis,
    /// The values to draw: all of them, or evenly spaced quantiles of many.
    pub points: Vec<f64>,
    /// The least value, the quartiles, and the largest one.
    pub quartiles: [f64; 5],
    /// The target.
    pub target: Option<f64>,
    /// The median and the target in words.
    pub value: String,
    /// The outcome, as far as it depends on these values.
    pub verdict: Verdict,
}

/// An axis.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Axis {
    /// The peer's figure over ours: more is better.
    TimesBetter,
    /// Our time over the peer's: less is better.
    TimesTheTime,
    /// Our figure beside its target: 1 is the target, and more is better.
    Target,
}

impl Axis {
    const ALL: [Self; 3] = [Self::TimesBetter, Self::TimesTheTime, Self::Target];

    /// The id of the section, its title, and the caption of its picture.
    const fn texts(self) -> [&'static str; 3] {
        match self {
            Self::TimesBetter => [
                "peers",
                "Beside peers",
                "How many times better than the peer, round by round: to the right is better",
            ],
            Self::TimesTheTime => [
                "bounds",
                "Beside lower bounds",
                "Our time over that of the lower bound, round by round: to the left is better",
            ],
            Self::Target => [
                "targets",
                "Beside targets",
                "How many times better than the target: 1 is the target, to the right is better",
            ],
        }
    }
}

impl Benchmark {
    /// The report.
    #[must_use]
    pub fn report(&self) -> Report {
        let mut sections = vec![self.results()];
        sections.extend(Axis::ALL.into_iter().filter_map(|axis| self.section(axis)));
        Report {
            title: format!("Benchmark {}", self.name),
            counts: self.counts(),
            facts: vec![
                Fact::new("Repeat with", &*self.command),
                Fact::new("Measured", &*self.circumstances),
            ],
            sections,
        }
    }

    fn counts(&self) -> Vec<Count> {
        let count = |verdict| {
            let lines = self.lines.iter();
            lines.filter(|line| line.verdict == verdict).count()
        };
        Verdict::ALL
            .into_iter()
            .filter(|verdict| count(*verdict) > 0)
            .map(|verdict| Count {
                tone: verdict.tone(),
                number: count(verdict).to_string(),
                of: match (verdict, count(verdict)) {
                    (Verdict::Reached, 1) => "target reached",
                    (Verdict::Reached, _) => "targets reached",
                    (Verdict::Missed, 1) => "target missed",
                    (Verdict::Missed, _) => "targets missed",
                    (Verdict::NoTarget, _) => "without a target",
                    (Verdict::NotMeasured, _) => "not measured",
                }
                .to_owned(),
            })
            .collect()
    }

    fn results(&self) -> Section {
        let quick = "Only a few rounds were run, to check that the benchmark works: \
                     the figures mean nothing.";
        let notice = Block::Notice(Tone::Caution, quick.to_owned());
        let mut blocks: Vec<Block> = self.is_quick.then_some(notice).into_iter().collect();
        let row = |line: &Line| {
            Row::new(vec![
                Cell::Text(line.what.clone()),
                Cell::Text(line.ours.clone()),
                Cell::Text(line.peer.clone()),
                Cell::Text(line.ratio.clone()),
                Cell::Text(line.target.clone()),
                Cell::Mark(line.verdict.tone(), line.verdict.text().to_owned()),
                Cell::Text(line.rounds.to_string()),
            ])
        };
        blocks.push(Block::Table(Table {
            caption: String::new(),
            columns: vec![
                Column::text("Measured"),
                Column::number("Ours"),
                Column::number("Peer"),
                Column::text("Ratio (quartiles)"),
                Column::text("Target"),
                Column::text("Outcome"),
                Column::number("Rounds"),
            ],
            rows: self.lines.iter().map(row).collect(),
        }));
        Section::new("results", "Results", blocks)
    }

    /// The picture of the lines that have values on an axis.
    fn section(&self, axis: Axis) -> Option<Section> {
        let on_axis = |line: &Line| {
            let plots = line.plots.iter();
            let plots = plots.filter(|plot| plot.axis == axis);
            let plots = plots.map(|plot| (line.what.clone(), line.rounds, plot.clone()));
            plots.collect::<Vec<_>>()
        };
        let plots: Vec<_> = self.lines.iter().flat_map(on_axis).collect();
        if plots.is_empty() {
            return None;
        }
        let values = plots.iter().flat_map(|(_, _, plot)| {
            let drawn = plot.points.iter().chain(&plot.quartiles);
            drawn.chain(&plot.target).copied()
        });
        let scale = LogScale::over(values);
        let row = |(what, _, plot): &(String, usize, Plot)| {
            let [_, low, median, high, _] = plot.quartiles.map(|value| scale.share(value));
            IntervalRow {
                label: what.clone(),
                points: plot.points.iter().map(|one| scale.share(*one)).collect(),
                middle_half: (low, high),
                median,
                target: plot.target.map(|target| scale.share(target)),
                value: plot.value.clone(),
                tone: plot.verdict.tone(),
            }
        };
        let [id, title, caption] = axis.texts();
        let picture = Picture::Intervals(Intervals {
            rows: plots.iter().map(row).collect(),
            ticks: scale.ticks(|value| format!("{value}×")),
        });
        let figure = Figure {
            id: format!("{id}-picture"),
            caption: caption.to_owned(),
            picture,
            tables: vec![table(title, &plots)],
        };
        let mut blocks = vec![Block::Figure(Box::new(figure))];
        if let Some(few) = few_rounds(&plots) {
            blocks.insert(0, Block::Paragraph(few));
        }
        Some(Section::new(id, title, blocks))
    }
}

/// A remark about series that are too short for quartiles to mean much.
fn few_rounds(plots: &[(String, usize, Plot)]) -> Option<String> {
    /// Fewer values than this have no middle half to speak of.
    const FEW: usize = 5;
    let few = plots.iter().filter(|(_, rounds, _)| *rounds < FEW).count();
    (few > 0).then(|| {
        format!(
            "{few} of {} have fewer than {FEW} rounds: their middle half says little.",
            plots.len()
        )
    })
}

fn table(title: &str, plots: &[(String, usize, Plot)]) -> Table {
    let number = |value: f64| Cell::Text(format!("{value:.2}"));
    let row = |(what, rounds, plot): &(String, usize, Plot)| {
        let mut cells = vec![Cell::Text(what.clone()), Cell::Text(rounds.to_string())];
        cells.extend(plot.quartiles.map(number));
        cells.push(plot.target.map_or(Cell::Text("—".to_owned()), number));
        cells.push(Cell::Mark(
            plot.verdict.tone(),
            plot.verdict.text().to_owned(),
        ));
        Row::new(cells)
    };
    let numbers = [
        "Rounds",
        "Least",
        "Lower quartile",
        "Median",
        "Upper quartile",
        "Largest",
        "Target",
    ];
    let mut columns = vec![Column::text("Measured")];
    columns.extend(numbers.map(Column::number));
    columns.push(Column::text("Outcome"));
    Table {
        caption: format!("{title}, in times"),
        columns,
        rows: plots.iter().map(row).collect(),
    }
}
