//! The names of NodeBlocks.

use std::net::IpAddr;

use ipnet::IpNet;

/// The name of the NodeBlock of a prefix: its network address and its length, with `-` between, as
/// in `10-244-3-0-24`. IPv6 addresses have all their groups with four digits.
///
/// Equal prefixes have the same name, so that creating the object is the lock.
///
/// ```
/// # use podplane_client::block_name;
/// assert_eq!(block_name("10.244.3.7/24".parse().unwrap()), "10-244-3-0-24");
/// assert_eq!(
///     block_name("fd00::1:0/112".parse().unwrap()),
///     "fd00-0000-0000-0000-0000-0000-0001-0000-112"
/// );
/// ```
pub fn block_name(block: IpNet) -> String {
    let length = block.prefix_len();
    let parts: Vec<String> = match block.network() {
        IpAddr::V4(address) => address.octets().iter().map(u8::to_string).collect(),
        IpAddr::V6(address) => {
            let groups = address.segments();
            groups.iter().map(|group| format!("{group:04x}")).collect()
        }
    };
    format!("{}-{length}", parts.join("-"))
}
