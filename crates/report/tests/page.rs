//! Pages, read by the parser of a browser: whole, safe, and with every link inside.

#![expect(clippy::unwrap_used, reason = "a test")]

use podplane_map::{
    AddressClaim, AddressSpace, BlockState, Holder, Network, NetworkRole, NodeBlock, Scene,
    SpaceParts, svg,
};
use podplane_report::{
    AxisTick, Bar, BarPart, Bars, Block, Cell, Column, Count, Fact, Figure, GrowthCurve,
    IntervalRow, Intervals, LogScale, PartStyle, Picture, PictureFile, Report, Row, Section, Table,
    Tone, Waterfall, WaterfallGap, WaterfallRow, map_figure,
};
use podplane_test_page::Page;

/// A name that would be an element, an attribute, a link, an entity, and the end of each.
const HOSTILE: &str = "\"'><script>alert(1)</script><img src=x onerror=y>&lt;</style></title>]]>\u{1b}[2J\u{202e}`[a](http://x.example)";

fn waterfall(name: &str) -> Waterfall {
    let row = |depth, spans: &[(f64, f64)], tone| WaterfallRow {
        depth,
        name: name.into(),
        process: name.into(),
        spans: spans.into(),
        took: "1.0 ms".into(),
        note: name.into(),
        tone,
    };
    Waterfall {
        rows: vec![
            row(0, &[(0.0, 1.0)], Tone::Neutral),
            row(1, &[(0.25, 0.5), (0.6, 0.6)], Tone::Bad),
            row(40, &[(f64::NAN, f64::INFINITY)], Tone::Neutral),
        ],
        ticks: vec![AxisTick {
            at: 0.5,
            label: name.into(),
        }],
        gaps: vec![WaterfallGap {
            span: (0.0, 1.0),
            text: name.into(),
        }],
    }
}

fn bars(name: &str) -> Bars {
    let part = |style, share| BarPart {
        style,
        share,
        text: name.into(),
    };
    Bars {
        legend: vec![
            (PartStyle::Main, name.into()),
            (PartStyle::Lost, "lost".into()),
        ],
        bars: vec![Bar {
            label: name.into(),
            parts: vec![part(PartStyle::Main, 0.5), part(PartStyle::Lost, 0.5)],
            value: name.into(),
        }],
    }
}

fn growth(name: &str) -> GrowthCurve {
    let tick = |at| AxisTick {
        at,
        label: name.into(),
    };
    GrowthCurve {
        points: vec![(0.0, 0.1), (0.5, 0.4), (1.0, 0.9)],
        limit: Some(tick(0.8)),
        end: Some(((0.9, 0.8), name.into())),
        times: vec![tick(0.0), tick(1.0)],
        numbers: vec![tick(0.5)],
    }
}

fn intervals(name: &str) -> Intervals {
    let scale = LogScale::over([0.8, 5.0]);
    let row = |points: &[f64], target, tone| IntervalRow {
        label: name.into(),
        points: points.into(),
        middle_half: (0.25, 0.5),
        median: 0.4,
        target,
        value: name.into(),
        tone,
    };
    Intervals {
        rows: vec![
            row(&[0.1, 0.4, 0.4, 0.9], Some(0.2), Tone::Good),
            row(&[f64::NAN, f64::INFINITY], Some(f64::NAN), Tone::Bad),
            row(&[], None, Tone::Neutral),
        ],
        ticks: scale.ticks(|value| format!("{value} {name}")),
    }
}

/// A space in which everything has the name.
fn space(name: &str) -> AddressSpace {
    let pod = |ip: &str, node: &str| {
        let holder = Holder::Pod {
            name: name.into(),
            node: Some(node.into()),
        };
        AddressClaim::new(ip.parse().unwrap(), holder).unwrap()
    };
    let block = |cidr: &str, node: &str| {
        let block = NodeBlock::parse(cidr, BlockState::Assigned, Some(node)).unwrap();
        block.with_details(name)
    };
    AddressSpace::new(SpaceParts {
        networks: vec![Network::parse(NetworkRole::Pods, "10.244.0.0/16", name).unwrap()],
        blocks: vec![block("10.244.1.0/24", name), block("10.244.1.0/24", "b")],
        claims: vec![
            pod("10.244.1.5", name),
            pod("10.244.1.5", "b"),
            pod("10.244.9.9", "b"),
        ],
        unlocated_orphans: vec![(name.into(), 3)],
        ..SpaceParts::default()
    })
}

/// A report with every kind of block, in which everything has the name.
fn report(name: &str) -> Report {
    let text = || name.to_owned();
    let figure = |picture, tables| {
        Block::Figure(Box::new(Figure {
            id: text(),
            caption: text(),
            picture,
            tables,
        }))
    };
    let table = || Table {
        caption: text(),
        columns: vec![Column::text(name), Column::number(name), Column::text("")],
        rows: vec![
            Row {
                id: Some(text()),
                cells: vec![
                    Cell::Code(text()),
                    Cell::Lines(vec![text(), text()]),
                    Cell::Mark(Tone::Bad, text()),
                ],
                below: vec![Cell::Preformatted(text())],
            },
            Row::new(vec![
                Cell::Indented(2, text()),
                Cell::Several(vec![Cell::Text(text()), Cell::Preformatted(text())]),
                Cell::Toned(Tone::Caution, text()),
            ]),
        ],
    };
    let space = space(name);
    let network = space.networks().first().unwrap();
    let scene = Scene::new(&space, network, network.cidr(), svg::limits()).unwrap();
    let steps = waterfall(name);
    let pictures = vec![
        Block::Figure(Box::new(map_figure(name, name, &scene))),
        figure(Picture::Waterfall(steps.clone()), vec![steps.table()]),
        figure(Picture::Bars(bars(name)), vec![table()]),
        figure(Picture::Growth(growth(name)), vec![table(), table()]),
        figure(Picture::Intervals(intervals(name)), vec![table()]),
    ];
    let inner = Section {
        mark: Some((Tone::Good, text())),
        ..Section::new(name, name, vec![Block::Paragraph(text())])
    };
    let texts = vec![
        Block::Paragraph(text()),
        Block::List(vec![text()]),
        Block::Facts(vec![Fact::new(name, name)]),
        Block::Notice(Tone::Caution, text()),
        Block::Preformatted(text()),
        Block::Markdown(format!(
            "# {name}\n\n{name}\n\n|{name}|\n|---|\n|b|\n\n<{name}>\n"
        )),
        Block::Table(table()),
        Block::Section(inner),
        Block::Folded {
            summary: text(),
            is_open: false,
            blocks: vec![Block::Table(table())],
        },
    ];
    Report {
        title: text(),
        counts: vec![Count {
            tone: Tone::Bad,
            number: text(),
            of: text(),
        }],
        facts: vec![Fact::new(name, name)],
        sections: vec![
            Section::new(name, name, texts),
            Section::new(name, name, pictures),
        ],
    }
}

#[test]
fn a_page_is_whole_and_links_only_into_itself() {
    let page = Page::read(&report("web-0").html());
    page.assert_sound();
    // Each section and picture, and each row with an id.
    for id in ["main", "web-0", "web-0-2", "web-0-12"] {
        assert!(page.ids().contains(&id.to_owned()), "{:?}", page.ids());
    }
    let contents: Vec<_> = page.within("nav", "a").collect();
    assert_eq!(contents.len(), 3, "two sections, one in the first");
}

#[test]
fn each_picture_has_a_name_and_a_table() {
    let page = Page::read(&report("web-0").html());
    let figures: Vec<_> = page.all("figure").collect();
    assert_eq!(figures.len(), 5);
    for figure in figures {
        assert_eq!(figure.all("figcaption").count(), 1);
        let picture = figure.all("svg").next().unwrap();
        assert_eq!(picture.attribute("role").as_deref(), Some("img"));
        let is_named = ["aria-label", "aria-labelledby"].map(|name| picture.attribute(name));
        assert!(is_named.iter().any(Option::is_some));
        assert!(figure.all("table").count() >= 1);
    }
}

#[test]
fn hostile_names_are_texts() {
    let text = report(HOSTILE).html();
    let page = Page::read(&text);
    page.assert_sound();
    // Only elements and attributes that a page with a harmless name has.
    let harmless = Page::read(&report("web-0").html()).shapes();
    let shapes = page.shapes();
    let more: Vec<_> = shapes.difference(&harmless).collect();
    assert!(more.is_empty(), "{more:?}");
    for forbidden in ['\u{1b}', '\u{202e}'] {
        assert!(!text.contains(forbidden));
    }
    let shown = page.all("h1").next().unwrap().text();
    assert!(shown.contains("<script>alert(1)</script>"), "{shown}");
    assert!(shown.contains("\\u{202e}"), "{shown}");
}

#[test]
fn short_pages_have_no_table_of_contents() {
    let section = |id: &str| Section::new(id, id, vec![Block::Paragraph("text".into())]);
    let report = |sections| Report {
        title: "Short".into(),
        sections,
        ..Report::default()
    };
    let short = Page::read(&report(vec![section("a"), section("b")]).html());
    short.assert_sound();
    assert_eq!(short.all("nav").count(), 0);
    let long = report(vec![section("a"), section("b"), section("c")]).html();
    assert_eq!(Page::read(&long).all("nav").count(), 1);
}

#[test]
fn a_file_of_pictures_is_xml_without_anything_else() {
    for name in ["web-0", HOSTILE] {
        let file = PictureFile {
            title: name.into(),
            verdict: Some((Tone::Good, name.into())),
            charts: vec![
                (name.into(), Picture::Bars(bars(name))),
                (name.into(), Picture::Growth(growth(name))),
                (name.into(), Picture::Intervals(intervals(name))),
                (name.into(), Picture::Waterfall(waterfall(name))),
            ],
        };
        let text = file.svg();
        let mut reader = quick_xml::Reader::from_str(&text);
        let mut elements = Vec::new();
        loop {
            match reader
                .read_event()
                .unwrap_or_else(|error| panic!("{error}: {text}"))
            {
                quick_xml::events::Event::Eof => break,
                quick_xml::events::Event::Start(start) => elements.push(start.name().0.to_vec()),
                _ => {}
            }
        }
        assert_eq!(elements.iter().filter(|name| *name == b"svg").count(), 1);
        assert!(!elements.contains(&b"script".to_vec()));
    }
}

/// The contrast of WCAG 2.2, 1.4.3: 4.5 for texts on both backgrounds, light and dark.
#[test]
fn colors_of_texts_have_enough_contrast() {
    let style = include_str!("../src/page.css");
    let schemes: Vec<_> = style
        .match_indices("--page:")
        .map(|(at, _)| &style[at..])
        .collect();
    assert_eq!(schemes.len(), 2, "light and dark");
    for scheme in schemes {
        let color = |name: &str| {
            let at = scheme.find(&format!("--{name}:#")).unwrap();
            luminance(&scheme[at + name.len() + 4..][..6])
        };
        for background in ["page", "soft"] {
            for name in ["ink", "muted", "link", "good", "caution", "bad"] {
                let (a, b) = (color(name), color(background));
                let contrast = (a.max(b) + 0.05) / (a.min(b) + 0.05);
                assert!(contrast >= 4.5, "{name} on {background}: {contrast:.2}");
            }
        }
    }
}

fn luminance(hex: &str) -> f64 {
    let channel = |at: usize| {
        let value = f64::from(u8::from_str_radix(&hex[at..at + 2], 16).unwrap()) / 255.0;
        match value <= 0.04045 {
            true => value / 12.92,
            false => ((value + 0.055) / 1.055).powf(2.4),
        }
    };
    0.2126 * channel(0) + 0.7152 * channel(2) + 0.0722 * channel(4)
}
