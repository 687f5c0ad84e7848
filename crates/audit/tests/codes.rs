//! Tests of the findings in small dumps.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::{fs, path::Path};

use podplane_audit::{
    AuditReport, Code, ControllerFlags, DumpCollector, DumpScope, ExpectedBlocks, audit,
};

fn flags(text: &str) -> ControllerFlags {
    let mut flags = ControllerFlags::default();
    for flag in text.split_whitespace() {
        let (name, value) = flag.split_once('=').unwrap();
        let length = || Some(value.parse().unwrap());
        match name {
            "--cluster-cidr" => flags.cluster_cidr = Some(value.into()),
            "--service-cidr" => flags.service_cidr = Some(value.into()),
            "--node-cidr-mask-size" => flags.node_cidr_mask_size = length(),
            "--node-cidr-mask-size-ipv4" => flags.node_cidr_mask_size_ipv4 = length(),
            "--node-cidr-mask-size-ipv6" => flags.node_cidr_mask_size_ipv6 = length(),
            _ => panic!("{flag}"),
        }
    }
    flags
}

/// The flags in a comment of YAML, or in an unknown field of JSON.
fn flags_in(text: &str) -> &str {
    let first = text.lines().next().unwrap();
    let field = first
        .split_once("\"flags\": \"")
        .map(|(_, rest)| rest.split('"').next().unwrap());
    field
        .or_else(|| first.strip_prefix('#'))
        .unwrap_or_default()
}

fn report(text: &str, flag: &str, keep: DumpScope) -> AuditReport {
    let mut collector = DumpCollector::new(keep);
    collector.read(text.as_bytes()).unwrap();
    let flags = flags(flag);
    let dump = collector.finish(&flags);
    let expected = ExpectedBlocks::new(&flags, &dump).unwrap();
    audit(&dump, &expected)
}

fn lines(report: &AuditReport) -> String {
    let lines = report.findings.iter().map(|finding| {
        let objects = finding.objects.iter().map(|object| format!(" {object}"));
        let objects: String = objects.collect();
        format!(
            "{} {}{objects}: {}\n",
            finding.severity, finding.code, finding.message
        )
    });
    lines.collect()
}

#[test]
fn every_dump_has_the_expected_findings() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let mut seen = Vec::new();
    let mut wrong = Vec::new();
    let files = |dir: &Path| {
        fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().path())
    };
    for path in files(&data).chain(files(&data.join("networks"))) {
        if !path
            .extension()
            .is_some_and(|extension| extension == "yaml" || extension == "json")
        {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        let report = report(&text, flags_in(&text), DumpScope::Fields);
        let want = fs::read_to_string(path.with_extension("want")).unwrap_or_default();
        if lines(&report) != want {
            wrong.push(format!("{}:\n{}", path.display(), lines(&report)));
        }
        // A repair reads whole nodes, and finds the same.
        assert_eq!(
            lines(&self::report(&text, flags_in(&text), DumpScope::Nodes)),
            lines(&report)
        );
        seen.extend(report.findings.iter().map(|finding| finding.code));
        assert!(
            report
                .findings
                .iter()
                .all(|finding| !finding.repair.is_empty())
        );
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    for code in Code::ALL {
        assert!(seen.contains(&code), "no dump has {code}");
    }
}
