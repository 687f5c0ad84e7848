//! The fields that the reference decodes: what they refuse is refused, used or not.

use podplane_cni::types::{go_json::GoType, parse_cidr, parse_ip};

use super::config::requested_ip;

/// The document.
pub(super) static DOCUMENT: GoType = GoType::Struct(&[
    ("name", GoType::String),
    ("cniVersion", GoType::String),
    ("ipam", GoType::Pointer(&IPAM)),
    ("runtimeConfig", RUNTIME_CONFIG),
    ("args", GoType::Pointer(&ARGS)),
]);

static IPAM: GoType = GoType::Struct(&[
    ("rangeStart", IP),
    ("rangeEnd", IP),
    ("subnet", CIDR),
    ("gateway", IP),
    ("Name", GoType::String),
    ("type", GoType::String),
    ("routes", GoType::Slice(&GoType::Pointer(&ROUTE))),
    ("dataDir", GoType::String),
    ("resolvConf", GoType::String),
    ("ranges", RANGE_SETS),
    // Ours: the reference ignores these keys, whatever they are.
    ("lockTimeout", GoType::String),
    ("bootID", GoType::Bool),
]);

const RUNTIME_CONFIG: GoType = GoType::Struct(&[("ipRanges", RANGE_SETS), ("ips", WISHES)]);

static ARGS: GoType = GoType::Struct(&[("cni", GoType::Pointer(&CNI_ARGS))]);

static CNI_ARGS: GoType = GoType::Struct(&[("ips", WISHES)]);

const RANGE_SETS: GoType = GoType::Slice(&GoType::Slice(&RANGE));

static RANGE: GoType = GoType::Struct(&[
    ("rangeStart", IP),
    ("rangeEnd", IP),
    ("subnet", CIDR),
    ("gateway", IP),
]);

/// The newer keys are those of the reference's head.
static ROUTE: GoType = GoType::Replaced(&GoType::Struct(&[
    ("dst", CIDR),
    ("gw", IP),
    ("mtu", GoType::Int),
    ("advmss", GoType::Int),
    ("priority", GoType::Int),
    ("table", GoType::Pointer(&GoType::Int)),
    ("scope", GoType::Pointer(&GoType::Int)),
]));

const WISHES: GoType = GoType::Slice(&WISH);

/// A requested address. An empty one is accepted here, and refused when it is used.
static WISH: GoType = GoType::Text(|text| unless_empty(text, |text| requested_ip(text).map(drop)));

const IP: GoType = GoType::Text(|text| unless_empty(text, |text| parse_ip(text).map(drop)));

const CIDR: GoType = GoType::Checked(|text| parse_cidr(text).map(drop));

fn unless_empty(text: &str, check: fn(&str) -> Result<(), String>) -> Result<(), String> {
    if text.is_empty() { Ok(()) } else { check(text) }
}
