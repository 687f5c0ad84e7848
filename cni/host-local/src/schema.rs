//! The fields that the reference decodes: what they refuse is refused, used or not.

use podplane_cni::types::{go_json::Kind, parse_cidr, parse_ip};

use super::config::requested_ip;

/// The document.
pub(super) static DOCUMENT: Kind = Kind::Struct(&[
    ("name", Kind::String),
    ("cniVersion", Kind::String),
    ("ipam", Kind::Pointer(&IPAM)),
    ("runtimeConfig", RUNTIME_CONFIG),
    ("args", Kind::Pointer(&ARGS)),
]);

static IPAM: Kind = Kind::Struct(&[
    ("rangeStart", IP),
    ("rangeEnd", IP),
    ("subnet", CIDR),
    ("gateway", IP),
    ("Name", Kind::String),
    ("type", Kind::String),
    ("routes", Kind::Slice(&Kind::Pointer(&ROUTE))),
    ("dataDir", Kind::String),
    ("resolvConf", Kind::String),
    ("ranges", RANGE_SETS),
    // Ours: the reference ignores these keys, whatever they are.
    ("lockTimeout", Kind::String),
    ("bootID", Kind::Bool),
]);

const RUNTIME_CONFIG: Kind = Kind::Struct(&[("ipRanges", RANGE_SETS), ("ips", WISHES)]);

static ARGS: Kind = Kind::Struct(&[("cni", Kind::Pointer(&CNI_ARGS))]);

static CNI_ARGS: Kind = Kind::Struct(&[("ips", WISHES)]);

const RANGE_SETS: Kind = Kind::Slice(&Kind::Slice(&RANGE));

static RANGE: Kind = Kind::Struct(&[
    ("rangeStart", IP),
    ("rangeEnd", IP),
    ("subnet", CIDR),
    ("gateway", IP),
]);

/// The newer keys are those of the reference's head.
static ROUTE: Kind = Kind::Replaced(&Kind::Struct(&[
    ("dst", CIDR),
    ("gw", IP),
    ("mtu", Kind::Int),
    ("advmss", Kind::Int),
    ("priority", Kind::Int),
    ("table", Kind::Pointer(&Kind::Int)),
    ("scope", Kind::Pointer(&Kind::Int)),
]));

const WISHES: Kind = Kind::Slice(&WISH);

/// A requested address. An empty one is accepted here, and refused when it is used.
static WISH: Kind = Kind::Text(|text| unless_empty(text, |text| requested_ip(text).map(drop)));

const IP: Kind = Kind::Text(|text| unless_empty(text, |text| parse_ip(text).map(drop)));

const CIDR: Kind = Kind::Checked(|text| parse_cidr(text).map(drop));

fn unless_empty(text: &str, check: fn(&str) -> Result<(), String>) -> Result<(), String> {
    if text.is_empty() { Ok(()) } else { check(text) }
}
