//! Fuzzes dumps of clusters, as kubectl prints them, and the audit and repair of each.
//!
//! The input is the flags of the cluster's controller (the cluster CIDR, the lengths of blocks of
//! IPv4 and of IPv6, the service CIDR, separated by spaces; `-` for none), the byte 0x1e, and the
//! dump. Without that byte all of it is the dump.

use std::io::{Cursor, Read};

use podplane_audit::{
    ControllerFlags, DumpCollector, DumpScope, ExpectedBlocks, InputError, Repair, Severity, audit,
};

pub(crate) fn run(data: &[u8]) {
    let at = data.iter().position(|byte| *byte == 0x1e);
    let (flags, dump) = match at {
        Some(at) => (controller_flags(&data[..at]), &data[at + 1..]),
        None => (ControllerFlags::default(), data),
    };
    let whole = report(Cursor::new(dump), &flags);
    let pieces = report(Pieces(dump), &flags);
    assert_eq!(pieces, whole, "the dump depends on how it arrives");
}

fn controller_flags(text: &[u8]) -> ControllerFlags {
    let text = String::from_utf8_lossy(text).into_owned();
    let mut words = text
        .split(' ')
        .map(|word| Some(word.to_owned()).filter(|word| word != "-"));
    let mut next = || words.next().flatten();
    let (cluster_cidr, v4, v6) = (next(), next(), next());
    ControllerFlags {
        cluster_cidr,
        node_cidr_mask_size_ipv4: v4.and_then(|length| length.parse().ok()),
        node_cidr_mask_size_ipv6: v6.and_then(|length| length.parse().ok()),
        service_cidr: next(),
        ..ControllerFlags::default()
    }
}

/// A reader that returns seven bytes at a time, as a slow pipe does.
struct Pieces<'a>(&'a [u8]);

impl Read for Pieces<'_> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        let length = self.0.len().min(buf.len()).min(7);
        let (piece, rest) = self.0.split_at(length);
        buf[..length].copy_from_slice(piece);
        self.0 = rest;
        Ok(length)
    }
}

/// The findings and the files of the repair, or the error.
fn report(reader: impl Read, flags: &ControllerFlags) -> String {
    let mut collector = DumpCollector::new(DumpScope::Nodes);
    if let Err(error) = collector.read(reader) {
        return match error {
            InputError::Read(_) => "unreadable".to_owned(),
            error => error.to_string(),
        };
    }
    let dump = collector.finish(flags);
    let expected = match ExpectedBlocks::new(flags, &dump) {
        Ok(expected) => expected,
        Err(error) => return error.to_string(),
    };
    let report = audit(&dump, &expected);
    let mut lines: Vec<_> = report
        .findings
        .iter()
        .map(|one| format!("{one:?}"))
        .collect();
    match Repair::new(&dump, &expected, &report, Severity::Warning) {
        Ok(repair) => {
            no_block_is_given_twice(&repair);
            let files = repair.files("podplane audit");
            lines.extend(files.into_iter().map(|(name, text)| name + &text));
        }
        Err(error) => lines.push(error.to_string()),
    }
    lines.join("\n")
}

fn no_block_is_given_twice(repair: &Repair) {
    let mut given = Vec::new();
    for one in repair.moves.iter().chain(&repair.assigned) {
        for block in &one.to {
            for (node, other) in &given {
                let overlap = block.contains(other) || ipnet::IpNet::contains(other, block);
                assert!(!overlap, "{block} of {} is in {other} of {node}", one.node);
            }
            given.push((one.node.clone(), *block));
        }
    }
}
