//! Expressions, the parts of a rule.
//!
//! A rule is evaluated from the first expression to the last. Some load a value into a register,
//! some compare it and end the rule if it differs, and the last ones act on the packet. A condition
//! that takes several expressions is a function that returns several. Where `nft` would add a test
//! of the protocol by itself (`ip saddr` in an `inet` table), the functions here do so too, so that
//! `nft` shows the rule that it would have made.

use std::net::IpAddr;

use ipnet::IpNet;
use netlink_packet_core::DefaultNla;
use netlink_packet_netfilter::nftables::{
    Bitwise, Cmp, DataAttribute, ExpressionAttribute, Expressions, Immediate, ListAttribute, Meta,
    MetaKey, Operator, Payload, Register, Verdict, VerdictAttribute,
};

/// One expression of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expr(pub(super) Expressions);

/// The choice between the two addresses of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The sender's address.
    Source,
    /// The receiver's address.
    Destination,
}

/// A transport protocol with ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

/// The header at which an offset in a packet begins.
#[derive(Debug, Clone, Copy)]
enum Header {
    Link = 0,
    Network = 1,
    Transport = 2,
}

/// `NFPROTO_IPV4` and `NFPROTO_IPV6`.
const fn protocol(is_v4: bool) -> u8 {
    if is_v4 { 2 } else { 10 }
}

/// The register that values pass through, and a second one.
const REGISTER: Register = Register::Reg1;
const SECOND: Register = Register::Reg2;

fn payload(base: Header, offset: u32, length: usize) -> Expr {
    Expr(Expressions::Payload(vec![
        Payload::DestinationRegister(REGISTER),
        Payload::Base(base as u32),
        Payload::Offset(offset),
        Payload::Len(u32::try_from(length).unwrap_or(u32::MAX)),
    ]))
}

fn compare(operator: Operator, value: impl Into<Vec<u8>>) -> Expr {
    Expr(Expressions::Cmp(vec![
        Cmp::SourceRegister(REGISTER),
        Cmp::Op(operator),
        Cmp::Data(DataAttribute::Value(value.into())),
    ]))
}

fn equality(is_equal: bool) -> Operator {
    if is_equal {
        Operator::Equal
    } else {
        Operator::NotEqual
    }
}

fn mask(mask: Vec<u8>) -> Expr {
    let zeros = vec![0; mask.len()];
    Expr(Expressions::Bitwise(vec![
        Bitwise::SourceRegister(REGISTER),
        Bitwise::DestinationRegister(REGISTER),
        Bitwise::Length(u32::try_from(mask.len()).unwrap_or(u32::MAX)),
        Bitwise::Mask(DataAttribute::Value(mask)),
        Bitwise::Xor(DataAttribute::Value(zeros)),
    ]))
}

fn meta(key: MetaKey) -> Expr {
    Expr(Expressions::Meta(vec![
        Meta::DestinationRegister(REGISTER),
        Meta::Key(key),
    ]))
}

fn load(register: Register, value: impl Into<Vec<u8>>) -> Expr {
    Expr(Expressions::Immediate(vec![
        Immediate::DestinationRegister(register),
        Immediate::Data(DataAttribute::Value(value.into())),
    ]))
}

/// An expression that the library has no type for. Attribute values are sent in network order.
fn other(name: &str, attributes: &[(u16, u32)]) -> Expr {
    let attributes = attributes.iter();
    let attributes =
        attributes.map(|(kind, value)| DefaultNla::new(*kind, value.to_be_bytes().to_vec()));
    Expr(Expressions::Other {
        expression_type: name.to_owned(),
        attributes: attributes.collect(),
    })
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// Matches packets of one family: `meta nfproto ipv4`.
#[must_use]
pub(crate) fn is_family(is_v4: bool) -> Vec<Expr> {
    vec![
        meta(MetaKey::Nfproto),
        compare(Operator::Equal, [protocol(is_v4)]),
    ]
}

/// Matches an address in a table of that family, where `nft` does not test the family:
/// `ip saddr 10.0.0.1`.
#[must_use]
pub fn address_of_family(side: Side, address: IpAddr) -> Vec<Expr> {
    network_unguarded(side, IpNet::from(address), true)
}

fn network_unguarded(side: Side, net: IpNet, is_equal: bool) -> Vec<Expr> {
    let address = octets(net.network());
    let offset = match (side, net) {
        (Side::Source, IpNet::V4(_)) => 12,
        (Side::Destination, IpNet::V4(_)) => 16,
        (Side::Source, IpNet::V6(_)) => 8,
        (Side::Destination, IpNet::V6(_)) => 24,
    };
    let (whole, part) = (usize::from(net.prefix_len() / 8), net.prefix_len() % 8);
    if part == 0 && whole > 0 {
        let start = &address[..whole];
        return vec![
            payload(Header::Network, offset, whole),
            compare(equality(is_equal), start),
        ];
    }
    vec![
        payload(Header::Network, offset, address.len()),
        mask(octets(net.netmask())),
        compare(equality(is_equal), address),
    ]
}

/// Matches an address of the packet: `ip saddr 10.0.0.1`.
#[must_use]
pub fn address(side: Side, address: IpAddr) -> Vec<Expr> {
    let mut exprs = is_family(address.is_ipv4());
    exprs.extend(address_of_family(side, address));
    exprs
}

/// Matches packets with an address within a network: `ip daddr 10.0.0.0/24`.
#[must_use]
pub fn in_network(side: Side, net: IpNet) -> Vec<Expr> {
    network(side, net, true)
}

/// Matches packets of the network's family with an address outside of it:
/// `ip daddr != 10.0.0.0/24`.
#[must_use]
pub fn not_in_network(side: Side, net: IpNet) -> Vec<Expr> {
    network(side, net, false)
}

fn network(side: Side, net: IpNet, is_equal: bool) -> Vec<Expr> {
    let mut exprs = is_family(net.addr().is_ipv4());
    exprs.extend(network_unguarded(side, net, is_equal));
    exprs
}

/// Matches packets from an address to outside of a network:
/// `ip saddr 10.0.0.1 ip daddr != 10.0.0.0/24`.
#[must_use]
pub fn leaves_network(from: IpAddr, net: IpNet) -> Vec<Expr> {
    let mut exprs = address(Side::Source, from);
    exprs.extend(network_unguarded(Side::Destination, net, false));
    exprs
}

/// Matches packets from one address to another: `ip saddr 10.0.0.1 ip daddr 10.0.0.2`.
#[must_use]
pub fn between(from: IpAddr, to: IpAddr) -> Vec<Expr> {
    let mut exprs = address(Side::Source, from);
    exprs.extend(address_of_family(Side::Destination, to));
    exprs
}

/// Matches packets to a port: `tcp dport 80`.
#[must_use]
pub fn destination_port(transport: Transport, port: u16) -> Vec<Expr> {
    let number = match transport {
        Transport::Tcp => 6,
        Transport::Udp => 17,
        Transport::Sctp => 132,
    };
    vec![
        meta(MetaKey::L4Proto),
        compare(Operator::Equal, [number]),
        payload(Header::Transport, 2, 2),
        compare(Operator::Equal, port.to_be_bytes()),
    ]
}

/// Matches packets to one of this machine's addresses: `fib daddr type local`.
#[must_use]
pub fn destination_is_local() -> Vec<Expr> {
    const REGISTER_OUT: u16 = 1;
    const RESULT: (u16, u32) = (2, 3); // NFTA_FIB_RESULT, NFT_FIB_RESULT_ADDRTYPE
    const FLAGS: (u16, u32) = (3, 2); // NFTA_FIB_FLAGS, NFTA_FIB_F_DADDR
    const LOCAL: u32 = 2; // RTN_LOCAL
    let attributes = [(REGISTER_OUT, REGISTER.into()), RESULT, FLAGS];
    vec![
        other("fib", &attributes),
        compare(Operator::Equal, LOCAL.to_ne_bytes()),
    ]
}

/// Matches packets that came in by an interface: `iifname "veth0"`.
#[must_use]
pub fn incoming_interface(name: &str) -> Vec<Expr> {
    /// `IFNAMSIZ`.
    const SIZE: usize = 16;
    let mut value = name.as_bytes().to_vec();
    value.resize(SIZE, 0);
    vec![meta(MetaKey::Iifname), compare(Operator::Equal, value)]
}

/// Matches the frame's sender: `ether saddr 02:00:00:00:00:01`. In `bridge` tables only.
#[must_use]
pub fn source_mac(mac: [u8; 6]) -> Vec<Expr> {
    vec![payload(Header::Link, 6, 6), compare(Operator::Equal, mac)]
}

/// Matches bits of the packet's mark: `meta mark & mask == value`.
#[must_use]
pub fn mark_is(bits: u32, value: u32) -> Vec<Expr> {
    vec![
        meta(MetaKey::Mark),
        mask(bits.to_ne_bytes().to_vec()),
        compare(Operator::Equal, value.to_ne_bytes()),
    ]
}

/// Counts packets and bytes.
#[must_use]
pub fn counter() -> Expr {
    other("counter", &[])
}

/// Replaces the source by the address of the interface that the packet leaves by.
#[must_use]
pub fn masquerade() -> Expr {
    other("masq", &[])
}

/// Replaces destination and port: `dnat ip to 10.0.0.2:80`. In `ip` and `inet` tables, in chains of
/// the kind `nat`.
#[must_use]
pub fn dnat(to: IpAddr, port: u16) -> Vec<Expr> {
    const FAMILY: u16 = 2;
    const ADDRESS: u16 = 3;
    const PORT: u16 = 5;
    let attributes = [
        (1, 1), // NFTA_NAT_TYPE, NFT_NAT_DNAT
        (FAMILY, u32::from(protocol(to.is_ipv4()))),
        (ADDRESS, REGISTER.into()),
        (PORT, SECOND.into()),
    ];
    vec![
        load(REGISTER, octets(to)),
        load(SECOND, port.to_be_bytes()),
        other("nat", &attributes),
    ]
}

fn verdict(verdict: Verdict, chain: Option<&str>) -> Expr {
    let mut attributes = vec![VerdictAttribute::Code(verdict)];
    attributes.extend(chain.map(|chain| VerdictAttribute::Chain(chain.to_owned())));
    Expr(Expressions::Immediate(vec![
        Immediate::DestinationRegister(Register::Verdict),
        Immediate::Data(DataAttribute::Verdict(attributes)),
    ]))
}

/// Continues in another chain, and returns from it.
#[must_use]
pub fn jump(chain: &str) -> Expr {
    verdict(Verdict::Jump, Some(chain))
}

/// Continues in another chain without returning.
#[must_use]
pub fn goto(chain: &str) -> Expr {
    verdict(Verdict::Goto, Some(chain))
}

/// Returns to the chain that jumped here; in a base chain, applies the policy.
#[must_use]
pub fn return_() -> Expr {
    verdict(Verdict::Return, None)
}

/// Accepts the packet in this base chain.
#[must_use]
pub fn accept() -> Expr {
    verdict(Verdict::Other(1), None)
}

/// Drops the packet.
#[must_use]
pub fn drop() -> Expr {
    verdict(Verdict::Other(0), None)
}

/// The chain that an expression jumps or goes to, from the kernel's listing.
pub(super) fn target(expr: ListAttribute<ExpressionAttribute>) -> Option<String> {
    let ListAttribute::Element(parts) = expr else {
        return None;
    };
    parts.into_iter().find_map(|part| {
        let ExpressionAttribute::Data(Expressions::Immediate(attributes)) = part else {
            return None;
        };
        attributes.into_iter().find_map(|attribute| {
            let Immediate::Data(DataAttribute::Verdict(verdict)) = attribute else {
                return None;
            };
            verdict.into_iter().find_map(|attribute| match attribute {
                VerdictAttribute::Chain(chain) => Some(chain),
                _ => None,
            })
        })
    })
}
