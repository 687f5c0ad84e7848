//! A small blocking netlink client: rtnetlink here, nftables in [`nft`].
//!
//! Changes are [`Request`]s, values that are sent alone or many at once ([`Netlink::execute`]): the kernel
//! takes one lock for all of rtnetlink, so fewer and larger sends are what is fast. Reads are methods.

mod address;
pub mod conntrack;
mod link;
pub mod nft;
mod route;
mod rtnetlink;
mod socket;
mod unlink;
mod vlan;

pub use address::Address;
pub use link::{Bridge, Link, OperState, Veth, mac_text, parse_mac};
pub use route::{Route, protocol};
pub use rtnetlink::{Netlink, Request};
pub use socket::NetlinkError;
