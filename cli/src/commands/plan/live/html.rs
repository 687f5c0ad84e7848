//! The plan of a live cluster as a page or a picture.

use podplane_audit::Dump;
use podplane_report::{
    Bar, BarPart, Bars, Block, Column, Count, Figure, PartStyle, Picture, PictureFile, Report, Row,
    Section, Table, Tone,
};

use super::{LivePlan, RangeUsage};
use crate::{
    commands::plan::PlanArgs,
    output::{page, sheet::Sheet},
};

const TITLE: &str = "Address plan of a live cluster";

/// Writes the page and the picture, if they are wanted.
pub(super) fn write(args: &PlanArgs, plan: &LivePlan<'_>, dump: &Dump) -> anyhow::Result<()> {
    if let Some(file) = &args.html {
        page::write(file, report(args, plan, dump).html())?;
    }
    if let Some(file) = &args.svg {
        let Figure {
            caption, picture, ..
        } = figure(plan);
        let picture = PictureFile {
            title: TITLE.into(),
            verdict: Some(verdict(plan)),
            charts: vec![(caption, picture)],
        };
        page::write(file, picture.svg())?;
    }
    Ok(())
}

fn verdict(plan: &LivePlan<'_>) -> (Tone, String) {
    let reasons = plan.verdict().join("; ");
    match plan.fits() {
        true => (Tone::Good, format!("The ranges are enough: {reasons}.")),
        false => (Tone::Bad, format!("The ranges are not enough: {reasons}.")),
    }
}

fn report(args: &PlanArgs, plan: &LivePlan<'_>, dump: &Dump) -> Report {
    let (tone, text) = verdict(plan);
    let count = |number: u64, of: &str| Count {
        tone: Tone::Neutral,
        number: number.to_string(),
        of: of.to_owned(),
    };
    let source = match args.from.is_empty() {
        true => "a live cluster".to_owned(),
        false => page::files(&args.from),
    };
    let mut blocks = vec![Block::Notice(tone, text)];
    let mut sheet = Sheet::default();
    plan.details(dump, &mut sheet);
    blocks.extend(sheet.blocks());
    Report {
        title: TITLE.into(),
        counts: vec![
            count(plan.live.nodes, "nodes now"),
            count(plan.nodes, "nodes required"),
        ],
        facts: page::circumstances(source),
        sections: vec![
            Section::new("plan", "Plan", blocks),
            Section::new(
                "pictures",
                "What the ranges have left",
                vec![Block::Figure(Box::new(figure(plan)))],
            ),
        ],
    }
}

/// The blocks of each range.
fn figure(plan: &LivePlan<'_>) -> Figure {
    let bar = |usage: &RangeUsage| {
        let total = usage.range.blocks().max(1);
        let others = total.saturating_sub(usage.used + usage.free);
        let part = |style, number: u64, of: &str| BarPart {
            style,
            share: number as f64 / total as f64,
            text: format!("{number} {of}"),
        };
        Bar {
            label: usage.range.to_string(),
            parts: vec![
                part(PartStyle::Main, usage.used, "used"),
                part(PartStyle::Kept, others, "of other networks"),
                part(PartStyle::Rest, usage.free, "free"),
            ],
            value: format!("{} of {total} used", usage.used),
        }
    };
    let row = |usage: &RangeUsage| {
        Row::of_texts([
            usage.range.to_string(),
            usage.range.blocks().to_string(),
            usage.used.to_string(),
            usage.free.to_string(),
        ])
    };
    Figure {
        id: "ranges".into(),
        caption: "The blocks of each range".into(),
        picture: Picture::Bars(Bars {
            legend: vec![
                (PartStyle::Main, "used by nodes".into()),
                (
                    PartStyle::Kept,
                    "of other networks, such as services".into(),
                ),
                (PartStyle::Rest, "free".into()),
            ],
            bars: plan.ranges.iter().map(bar).collect(),
        }),
        tables: vec![Table {
            caption: String::new(),
            columns: vec![
                Column::text("Range"),
                Column::number("Blocks"),
                Column::number("Used"),
                Column::number("Free"),
            ],
            rows: plan.ranges.iter().map(row).collect(),
        }],
    }
}
