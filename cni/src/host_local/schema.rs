//! The types that the reference decodes its configuration into: their names are in its errors, and what
//! they refuse is refused, used or not.

use crate::types::{
    go_json::{Kind, Struct},
    parse_cidr, parse_ip,
};

use super::config::requested_ip;

/// The document.
pub(super) static DOCUMENT: Kind = structure(
    "Net",
    "allocator.Net",
    &[
        ("name", Kind::String),
        ("cniVersion", Kind::String),
        ("ipam", Kind::Pointer(&IPAM)),
        ("runtimeConfig", RUNTIME_CONFIG),
        ("args", Kind::Pointer(&ARGS)),
    ],
);

static IPAM: Kind = structure(
    "IPAMConfig",
    "allocator.IPAMConfig",
    &[
        ("rangeStart", IP),
        ("rangeEnd", IP),
        ("subnet", CIDR),
        ("gateway", IP),
        ("Name", Kind::String),
        ("type", Kind::String),
        (
            "routes",
            Kind::Slice("[]*types.Route", &Kind::Pointer(&ROUTE)),
        ),
        ("dataDir", Kind::String),
        ("resolvConf", Kind::String),
        ("ranges", RANGE_SETS),
        // Ours: the reference ignores these keys, whatever they are.
        ("lockTimeout", Kind::String),
        ("bootID", Kind::Bool),
    ],
);

const RUNTIME_CONFIG: Kind = structure(
    "",
    r#"struct { IPRanges []allocator.RangeSet "json:\"ipRanges,omitempty\""; IPs []*ip.IP "json:\"ips,omitempty\"" }"#,
    &[("ipRanges", RANGE_SETS), ("ips", WISHES)],
);

static ARGS: Kind = structure(
    "",
    r#"struct { A *allocator.IPAMArgs "json:\"cni\"" }"#,
    &[("cni", Kind::Pointer(&CNI_ARGS))],
);

static CNI_ARGS: Kind = structure("IPAMArgs", "allocator.IPAMArgs", &[("ips", WISHES)]);

const RANGE_SETS: Kind = Kind::Slice("[]allocator.RangeSet", &RANGE_SET);

static RANGE_SET: Kind = Kind::Slice("allocator.RangeSet", &RANGE);

static RANGE: Kind = structure(
    "Range",
    "allocator.Range",
    &[
        ("rangeStart", IP),
        ("rangeEnd", IP),
        ("subnet", CIDR),
        ("gateway", IP),
    ],
);

/// The newer keys are those of the reference's head.
static ROUTE: Kind = Kind::Itself(
    &structure(
        "route",
        "types.route",
        &[
            ("dst", CIDR),
            ("gw", IP),
            ("mtu", Kind::Int),
            ("advmss", Kind::Int),
            ("priority", Kind::Int),
            ("table", Kind::Pointer(&Kind::Int)),
            ("scope", Kind::Pointer(&Kind::Int)),
        ],
    ),
    |_| Ok(()),
);

const WISHES: Kind = Kind::Slice("[]*ip.IP", &WISH);

/// What is empty is found out later.
static WISH: Kind = Kind::Text("*ip.IP", |text| {
    unless_empty(text, |text| requested_ip(text).map(drop))
});

const IP: Kind = Kind::Text("net.IP", |text| {
    unless_empty(text, |text| parse_ip(text).map(drop))
});

const CIDR: Kind = Kind::Itself(&Kind::String, |text| parse_cidr(text).map(drop));

const fn structure(
    name: &'static str,
    full: &'static str,
    fields: &'static [(&'static str, Kind)],
) -> Kind {
    Kind::Struct(Struct { name, full, fields })
}

fn unless_empty(text: &str, check: fn(&str) -> Result<(), String>) -> Result<(), String> {
    if text.is_empty() { Ok(()) } else { check(text) }
}
