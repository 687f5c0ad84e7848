//! The network of the kernel: a small blocking netlink client, network namespaces ([`netns`]) and
//! their settings ([`sysctl`]). rtnetlink is here, nftables in [`nft`].
//!
//! Changes are [`Request`]s: values that are sent alone or many at once ([`Netlink::execute`]). The
//! kernel takes one lock for all of rtnetlink, so few large sends are faster than many small ones.
//! Reads are methods.
//!
//! This crate decides nothing about any network, has no async runtime, and returns no thread to its
//! caller in another network namespace than the one it came with. Start at [`Netlink`].
#![warn(missing_docs)]

mod address;
pub mod conntrack;
mod limit;
mod link;
mod neighbour;
pub mod netns;
pub mod nft;
mod route;
mod rtnetlink;
mod socket;
mod sys;
pub mod sysctl;
mod tc;
mod unlink;
mod vlan;
mod vxlan;

pub use address::Address;
pub use limit::KernelLimit;
pub use link::{Bridge, Link, OperState, Veth, mac_text, parse_mac};
pub use route::{Route, protocol};
pub use rtnetlink::{Netlink, Request};
pub use socket::NetlinkError;
pub use tc::{RootQdisc, TokenBucket, root_qdisc};
pub use vxlan::{Vxlan, VxlanTunnel};
