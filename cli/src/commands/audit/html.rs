//! The audit as a page to hand out: findings, map, repair.

use ipnet::IpNet;
use podplane_audit::{
    AuditReport, Code, Dump, ExpectedBlocks, Finding, Repair, RepairError, Severity,
};
use podplane_map::{AddressSpace, MarkSeverity, NetworkRole, PodRule, Scene, SceneMark, svg};
use podplane_report::{Block, Cell, Column, Count, Report, Row, Section, Table, Tone, map_figure};

use super::{AuditArgs, forms};
use crate::{
    commands::map::source::{StatedRanges, dump},
    output::page,
};

/// Tells the ranges of flags from those that the server has stated.
pub(super) struct GivenRanges {
    pub(super) pods: bool,
    pub(super) services: bool,
}

/// The parts of the page.
pub(super) struct AuditPage<'a> {
    pub(super) args: &'a AuditArgs,
    pub(super) given: GivenRanges,
    pub(super) dump: &'a Dump,
    pub(super) expected: &'a ExpectedBlocks,
    pub(super) report: &'a AuditReport,
    pub(super) repair: Result<Repair, RepairError>,
}

impl AuditPage<'_> {
    /// The whole page.
    pub(super) fn report(&self) -> Report {
        let summary = &self.report.summary;
        let count = |severity: Severity| {
            let number = forms::number(summary, severity);
            Count {
                tone: if number == 0 {
                    Tone::Neutral
                } else {
                    tone(severity)
                },
                number: number.to_string(),
                of: match number {
                    1 => severity.to_string(),
                    _ => plural(severity).to_owned(),
                },
            }
        };
        let lines = forms::summary_lines(summary);
        Report {
            title: "Audit of addresses".into(),
            counts: Severity::ALL.into_iter().rev().map(count).collect(),
            facts: page::circumstances(self.source()),
            sections: vec![
                Section::new("summary", "Summary", vec![Block::List(lines)]),
                self.findings(),
                self.map(),
                self.repair_section(),
                self.checks(),
            ],
        }
    }

    fn source(&self) -> String {
        let AuditArgs { files, cluster, .. } = self.args;
        match files.is_empty() {
            false => page::files(files),
            true if cluster.is_given() => "a live cluster".into(),
            true => "the running podplane cluster".into(),
        }
    }

    /// A section for each code, the worst first.
    fn findings(&self) -> Section {
        let findings = &self.report.findings;
        // Findings come by severity and code.
        let groups = findings.chunk_by(|a, b| (a.severity, a.code) == (b.severity, b.code));
        let mut blocks: Vec<Block> = groups.filter_map(of_code).map(Block::Section).collect();
        if blocks.is_empty() {
            let incomplete = if self.report.is_complete() {
                ""
            } else {
                ", as far as could be read"
            };
            blocks.push(Block::Notice(
                Tone::Good,
                format!("Nothing was found{incomplete}."),
            ));
        }
        Section::new("findings", "Findings", blocks)
    }

    fn map(&self) -> Section {
        let blocks = self.figure().unwrap_or_else(|| {
            let why = "A map needs blocks of nodes or --cluster-cidr, and there are none.";
            vec![Block::Paragraph(why.into())]
        });
        Section::new("map", "Map of the address space", blocks)
    }

    /// The map, and the findings that have no place in it.
    fn figure(&self) -> Option<Vec<Block>> {
        // Only a node or an owner without a name is refused, and a dump has none.
        let mut parts = dump::of_dump(self.dump).ok()?;
        let services = self.expected.services.as_slice().iter();
        let stated = StatedRanges {
            pods: self.expected.ranges.clone(),
            services: services.map(IpNet::trunc).collect(),
        };
        let GivenRanges { pods, services } = self.given;
        let flag = |name, is_given| if is_given { name } else { "" };
        let of_services = match self.dump.services() {
            // Each cluster has at least the Service `kubernetes`.
            [] => "not known which are in use: no Services in the input",
            _ => flag("--service-cidr", services),
        };
        let of_pods = flag("--cluster-cidr", pods);
        stated.add_named(&mut parts, of_pods, of_services).ok()?;
        dump::complete(&mut parts);
        // Where the audit does not expect a pod's address in a block of its node, the map does not.
        let checks = &self.report.summary.checks;
        let check = checks.get(Code::PodOutsideBlock.as_str());
        if check.is_some_and(|check| check.starts_with("off")) {
            parts.rule = PodRule::Anywhere;
        }
        let space = AddressSpace::new(parts);
        let mut networks = space.networks().iter();
        let network = networks.find(|network| network.role() == NetworkRole::Pods)?;
        let scene = Scene::new(&space, network, network.cidr(), svg::limits()).ok()?;
        let scene = scene.with_marks(self.marks());
        let mut caption = format!("The addresses of {}", network.cidr());
        if scene.is_marked() {
            caption.push_str("; a border or a ring marks the place of a finding");
        }
        let figure = Block::Figure(Box::new(map_figure("address-space", &caption, &scene)));
        Some(std::iter::once(figure).chain(outside(&scene)).collect())
    }

    /// The places of the findings. An information is not a fault, and not marked.
    fn marks(&self) -> Vec<SceneMark> {
        let marks = |finding: &Finding| {
            let severity = match finding.severity {
                Severity::Info => return Vec::new(),
                Severity::Warning => MarkSeverity::Warning,
                Severity::Error => MarkSeverity::Error,
            };
            let mark = |prefix: &IpNet| SceneMark {
                prefix: *prefix,
                severity,
                text: format!("{}: {}", finding.code, finding.message),
            };
            finding.prefixes.iter().map(mark).collect()
        };
        self.report.findings.iter().flat_map(marks).collect()
    }

    fn repair_section(&self) -> Section {
        let blocks = match &self.repair {
            Err(error) => vec![Block::Notice(
                Tone::Caution,
                format!("No repair can be written: {error}."),
            )],
            Ok(repair) if repair.is_empty() => vec![Block::Paragraph(format!(
                "No manifests are needed for findings of {} or above: what to do is with each of them.",
                self.args.fail_on
            ))],
            Ok(repair) => self.runbook(repair),
        };
        Section::new("repair", "Repair", blocks)
    }

    fn runbook(&self, repair: &Repair) -> Vec<Block> {
        let files = match &self.args.repair {
            Some(dir) => format!("This runbook and its manifests are also in {}.", dir.display()),
            None => "To have this runbook and its manifests as files, run the audit again with --repair DIR.".to_owned(),
        };
        let mut blocks = vec![Block::Notice(
            Tone::Neutral,
            format!("Nothing has been changed. {files}"),
        )];
        let files = repair.files(&super::repair::command(self.args));
        let (runbooks, manifests): (Vec<_>, Vec<_>) = files
            .into_iter()
            .partition(|(name, _)| name.ends_with(".md"));
        blocks.extend(runbooks.into_iter().map(|(_, text)| Block::Markdown(text)));
        blocks.extend(manifests.into_iter().map(|(name, text)| Block::Folded {
            summary: name,
            is_open: false,
            blocks: vec![Block::Preformatted(text)],
        }));
        blocks
    }

    /// The rules, and whether they could be checked.
    fn checks(&self) -> Section {
        let checks = &self.report.summary.checks;
        let row = |code: Code| {
            let check = checks.get(code.as_str()).cloned().unwrap_or_default();
            let tone = match check.starts_with("incomplete") {
                true => Tone::Caution,
                false => Tone::Neutral,
            };
            Row::new(vec![
                Cell::Code(code.to_string()),
                Cell::Text(code.meaning().to_owned()),
                Cell::Toned(tone, check),
            ])
        };
        let table = Table {
            caption: String::new(),
            columns: ["Rule", "Finds", "Check"].map(Column::text).into(),
            rows: Code::ALL.map(row).into(),
        };
        Section::new("checks", "Checks", vec![Block::Table(table)])
    }
}

/// A table of the marks that have no place in a picture.
fn outside(scene: &Scene<'_>) -> Option<Block> {
    let is_outside = |mark: &&SceneMark| {
        let mut views = std::iter::once(scene.main()).chain(scene.beside());
        !views.any(|view| {
            let (shown, place) = (view.prefix(), mark.prefix);
            shown.contains(&place) || place.contains(&shown)
        })
    };
    let marks: Vec<_> = scene.marks().iter().filter(is_outside).collect();
    // The marks of a finding follow each other.
    let row = |marks: &[&SceneMark]| {
        let text = marks.first().map(|mark| mark.text.clone());
        let places = marks.iter().map(|mark| mark.prefix.to_string());
        Row::new(vec![
            Cell::Lines(places.collect()),
            Cell::Text(text.unwrap_or_default()),
        ])
    };
    let rows: Vec<Row> = marks.chunk_by(|a, b| a.text == b.text).map(row).collect();
    (!rows.is_empty()).then(|| {
        Block::Table(Table {
            caption: "Findings outside of the networks of the map".into(),
            columns: ["Place", "Finding"].map(Column::text).into(),
            rows,
        })
    })
}

/// The findings of one code and severity.
fn of_code(findings: &[Finding]) -> Option<Section> {
    let Finding { code, severity, .. } = findings.first()?;
    let row = |finding: &Finding| Row {
        id: Some(format!("{code}-finding")),
        cells: vec![
            Cell::Text(finding.message.clone()),
            Cell::Lines(finding.objects.clone()),
            Cell::Lines(finding.prefixes.iter().map(ToString::to_string).collect()),
        ],
        below: Vec::new(),
    };
    let remedies = forms::remedies(findings).into_iter();
    let remedies = remedies.map(|(_, remedy)| remedy.to_owned());
    Some(Section {
        id: code.to_string(),
        title: code.to_string(),
        mark: Some((
            tone(*severity),
            match findings.len() {
                1 => format!("1 {severity}"),
                count => format!("{count} {}", plural(*severity)),
            },
        )),
        blocks: vec![
            Block::Paragraph(code.meaning().to_owned()),
            Block::Table(Table {
                caption: String::new(),
                columns: ["Finding", "Objects", "Places"].map(Column::text).into(),
                rows: findings.iter().map(row).collect(),
            }),
            Block::Paragraph("What to do:".into()),
            Block::List(remedies.collect()),
        ],
    })
}

const fn tone(severity: Severity) -> Tone {
    match severity {
        Severity::Info => Tone::Neutral,
        Severity::Warning => Tone::Caution,
        Severity::Error => Tone::Bad,
    }
}

const fn plural(severity: Severity) -> &'static str {
    match severity {
        Severity::Info => "infos",
        Severity::Warning => "warnings",
        Severity::Error => "errors",
    }
}
