//! Calico: the objects `IPAMBlock`, `IPPool` and `IPAMConfig` (`crd.projectcalico.org/v1`).
//!
//! Calico cuts its pools into blocks. A node takes free addresses of its own blocks first; when they
//! are used up it claims a further block, up to `maxBlocksPerHost`; and when no pool has an unclaimed
//! block left, it borrows single addresses of other nodes' blocks, unless `strictAffinity` forbids
//! it. A node that has reached `maxBlocksPerHost` neither claims nor borrows.
//!
//! So the addresses of a node are those that its pods use and those that it can still get. The latter
//! are counted for each node and are the same for all: see [`CalicoState::addresses`].

use std::collections::BTreeMap;

use ipnet::IpNet;
use podplane_api::ObjectKey;
use podplane_ipam::{Family, parse_cidr};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::{AllocatedAddress, NodeIpam, SourceError};

/// Calico's limit of a node's blocks if the configuration has none.
const DEFAULT_MAX_BLOCKS: u64 = 20;
/// The sizes of a pool's blocks if it does not say.
const DEFAULT_BLOCK_SIZES: [u8; 2] = [26, 122];

/// A block, as far as one node is concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CalicoBlock {
    cidr: IpNet,
    /// True if the block is affine to the node.
    is_own: bool,
    /// The number of its addresses that nobody has.
    free: u64,
    /// The addresses of it that pods of the node have. Addresses that the node has for its tunnels
    /// are not free, and no pod's.
    allocated: Vec<AllocatedAddress>,
}

/// A pool that pods can have addresses of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CalicoPool {
    cidr: IpNet,
    block_bits: u8,
    /// True if its `nodeSelector` has more than `all()`, which is not evaluated: it is taken to
    /// select the node.
    pub is_selector_ignored: bool,
}

/// The global configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CalicoConfig {
    strict_affinity: bool,
    allocates_blocks: bool,
    max_blocks: u64,
}

/// The families of which each pod gets an address, by the CNI configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CalicoFamilies {
    /// `assign_ipv4`, by default true.
    pub ipv4: bool,
    /// `assign_ipv6`, by default false.
    pub ipv6: bool,
}

/// All objects that determine a node's addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CalicoState {
    /// The blocks of all nodes.
    pub blocks: Vec<CalicoBlock>,
    /// The pools that the node may use.
    pub pools: Vec<CalicoPool>,
    /// The configuration.
    pub config: CalicoConfig,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct BlockSpec {
    cidr: String,
    affinity: Option<String>,
    allocations: Vec<Option<usize>>,
    attributes: Vec<Attribute>,
    #[serde(deserialize_with = "null_is_default")]
    deleted: bool,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Attribute {
    handle_id: Option<String>,
    #[serde(deserialize_with = "null_is_default")]
    secondary: BTreeMap<String, String>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct PoolSpec {
    cidr: String,
    block_size: Option<u8>,
    disabled: bool,
    node_selector: Option<String>,
    allowed_uses: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ConfigSpec {
    strict_affinity: bool,
    auto_allocate_blocks: Option<bool>,
    max_blocks_per_host: Option<u64>,
}

fn null_is_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

impl CalicoBlock {
    /// Reads an `IPAMBlock` for a node; `None` if it is being deleted.
    ///
    /// # Errors
    ///
    /// [`SourceError::Object`].
    pub fn parse(name: &str, object: &Value, node: &str) -> Result<Option<Self>, SourceError> {
        let of_kind = Named("IPAMBlock", name);
        let BlockSpec {
            cidr,
            affinity,
            allocations,
            attributes,
            deleted,
        } = of_kind.spec(object)?;
        if deleted {
            return Ok(None);
        }
        let cidr = of_kind.cidr(&cidr)?;
        let mut block = Self {
            cidr,
            is_own: affinity.is_some_and(|to| to.strip_prefix("host:") == Some(node)),
            free: 0,
            allocated: Vec::new(),
        };
        for (ordinal, allocation) in allocations.iter().enumerate() {
            let Some(index) = allocation else {
                block.free += 1;
                continue;
            };
            let attribute = attributes.get(*index);
            block.allocated.extend(attribute.and_then(|attribute| {
                let Attribute {
                    handle_id,
                    secondary,
                } = attribute;
                let is_of_node = secondary.get("node").is_some_and(|of| of == node);
                let pod = Some(ObjectKey {
                    namespace: secondary.get("namespace")?.as_str().into(),
                    name: secondary.get("pod")?.as_str().into(),
                });
                is_of_node.then_some(AllocatedAddress {
                    address: nth(&cidr, ordinal)?,
                    pod,
                    allocation: handle_id.clone().unwrap_or_default(),
                })
            }));
        }
        Ok(Some(block))
    }
}

/// The address at a place of a block.
fn nth(cidr: &IpNet, ordinal: usize) -> Option<std::net::IpAddr> {
    let address = match cidr {
        IpNet::V4(net) => {
            let bits = net.network().to_bits();
            let bits = bits.checked_add(u32::try_from(ordinal).ok()?)?;
            std::net::Ipv4Addr::from_bits(bits).into()
        }
        IpNet::V6(net) => {
            let bits = net.network().to_bits().checked_add(ordinal as u128)?;
            std::net::Ipv6Addr::from_bits(bits).into()
        }
    };
    cidr.contains(&address).then_some(address)
}

impl CalicoPool {
    /// Reads an `IPPool`; `None` if pods without a request for this pool get no address of it: it
    /// is disabled, is not for workloads, or selects no node.
    ///
    /// # Errors
    ///
    /// [`SourceError::Object`].
    pub fn parse(name: &str, object: &Value) -> Result<Option<Self>, SourceError> {
        let of_kind = Named("IPPool", name);
        let PoolSpec {
            cidr,
            block_size,
            disabled,
            node_selector,
            allowed_uses,
        } = of_kind.spec(object)?;
        let cidr = of_kind.cidr(&cidr)?;
        let selector = node_selector.unwrap_or_default();
        let selector: String = selector.split_whitespace().collect();
        let is_for_pods = allowed_uses.is_empty() || allowed_uses.iter().any(|it| it == "Workload");
        if disabled || !is_for_pods || selector == "!all()" {
            return Ok(None);
        }
        let bits = Family::of(&cidr).bits();
        let size = block_size.unwrap_or(match cidr {
            IpNet::V4(_) => DEFAULT_BLOCK_SIZES[0],
            IpNet::V6(_) => DEFAULT_BLOCK_SIZES[1],
        });
        let block_bits = bits.checked_sub(size).filter(|_| size >= cidr.prefix_len());
        let Some(block_bits) = block_bits else {
            let reason = format!("spec.blockSize: {size} is not a prefix length within {cidr}");
            return Err(of_kind.invalid(reason));
        };
        Ok(Some(Self {
            cidr,
            block_bits,
            is_selector_ignored: !["", "all()"].contains(&&*selector),
        }))
    }

    /// The number of blocks that fit into the pool. Saturates for IPv6.
    fn blocks(&self) -> u64 {
        let bits = Family::of(&self.cidr).bits() - self.cidr.prefix_len() - self.block_bits;
        1_u64.checked_shl(bits.into()).unwrap_or(u64::MAX)
    }

    fn block_size(&self) -> u64 {
        let size = 1_u64.checked_shl(self.block_bits.into());
        size.unwrap_or(u64::MAX)
    }
}

impl Default for CalicoConfig {
    fn default() -> Self {
        Self {
            strict_affinity: false,
            allocates_blocks: true,
            max_blocks: DEFAULT_MAX_BLOCKS,
        }
    }
}

impl CalicoConfig {
    /// Reads the `IPAMConfig` of the name `default`.
    ///
    /// # Errors
    ///
    /// [`SourceError::Object`].
    pub fn parse(name: &str, object: &Value) -> Result<Self, SourceError> {
        let ConfigSpec {
            strict_affinity,
            auto_allocate_blocks,
            max_blocks_per_host,
        } = Named("IPAMConfig", name).spec(object)?;
        let max_blocks = max_blocks_per_host.filter(|blocks| *blocks > 0);
        Ok(Self {
            strict_affinity,
            allocates_blocks: auto_allocate_blocks.unwrap_or(true),
            max_blocks: max_blocks.unwrap_or(DEFAULT_MAX_BLOCKS),
        })
    }
}

impl CalicoFamilies {
    /// The families of a plugin's configuration.
    pub fn of(plugin: Option<&serde_json::Map<String, Value>>) -> Self {
        let ipam = plugin.and_then(|plugin| plugin.get("ipam"));
        let is_true = |key: &str, default: bool| {
            let value = ipam.and_then(|ipam| ipam.get(key));
            value.map_or(default, |value| {
                value.as_bool().unwrap_or_else(|| value == "true")
            })
        };
        Self {
            ipv4: is_true("assign_ipv4", true),
            ipv6: is_true("assign_ipv6", false),
        }
    }
}

impl CalicoState {
    /// The addresses of the node: those that its pods have, and all that it can still get.
    ///
    /// What is free can be got by every node, so that the sum over nodes is more than there is. It is
    /// right for each placement as far as the objects have been seen. With `strictAffinity` and with
    /// few blocks for each node the overlap is only in unclaimed blocks.
    ///
    /// # Errors
    ///
    /// [`SourceError::Missing`] if there is no pool of a family that pods get an address of.
    pub fn addresses(&self, families: CalicoFamilies) -> Result<NodeIpam, SourceError> {
        let mut ipam = NodeIpam::default();
        let mut allocated = Vec::new();
        for (is_wanted, is_ipv4) in [(families.ipv4, true), (families.ipv6, false)] {
            if is_wanted {
                let of_family = self.of_family(is_ipv4)?;
                match is_ipv4 {
                    true => ipam.capacity.ipv4 = Some(of_family),
                    false => ipam.capacity.ipv6 = Some(of_family),
                }
            }
            let blocks = self.blocks.iter();
            let blocks = blocks.filter(|block| is_wanted && is_v4(&block.cidr) == is_ipv4);
            allocated.extend(blocks.flat_map(|block| block.allocated.clone()));
        }
        ipam.allocated = Some(allocated);
        Ok(ipam)
    }

    fn of_family(&self, is_ipv4: bool) -> Result<u64, SourceError> {
        let of_family = |net: &IpNet| is_v4(net) == is_ipv4;
        let mut pools: Vec<_> = self.pools.iter().filter(|it| of_family(&it.cidr)).collect();
        if pools.is_empty() {
            let family = if is_ipv4 { "IPv4" } else { "IPv6" };
            let missing = format!("no IPPool gives pods {family} addresses");
            return Err(SourceError::Missing(missing));
        }
        // Of pools with different block sizes the smaller ones are assumed to be claimed first.
        pools.sort_by_key(|pool| pool.block_bits);
        let blocks: Vec<_> = self
            .blocks
            .iter()
            .filter(|it| of_family(&it.cidr))
            .collect();
        let used = blocks.iter().map(|block| block.allocated.len() as u64);
        let used = used.fold(0, u64::saturating_add);
        let is_in = |pool: &CalicoPool, block: &CalicoBlock| pool.cidr.contains(&block.cidr);
        let usable = blocks
            .iter()
            .filter(|it| pools.iter().any(|pool| is_in(pool, it)));
        let free_of = |is_own: bool| {
            let some = usable.clone().filter(|block| block.is_own == is_own);
            some.fold(0_u64, |sum, block| sum.saturating_add(block.free))
        };
        let own_blocks = blocks.iter().filter(|block| block.is_own).count() as u64;
        let mut left = match self.config.allocates_blocks {
            true => self.config.max_blocks.saturating_sub(own_blocks),
            false => 0,
        };
        let mut reachable = free_of(true);
        for pool in &pools {
            let claimed = blocks.iter().filter(|block| is_in(pool, block)).count() as u64;
            let further = pool.blocks().saturating_sub(claimed).min(left);
            left -= further;
            reachable = reachable.saturating_add(further.saturating_mul(pool.block_size()));
        }
        // Only a node that may claim a further block, and finds none, borrows.
        if left > 0 && !self.config.strict_affinity {
            reachable = reachable.saturating_add(free_of(false));
        }
        Ok(used.saturating_add(reachable))
    }
}

fn is_v4(net: &IpNet) -> bool {
    matches!(net, IpNet::V4(_))
}

/// The kind and the name of an object, for errors.
#[derive(Clone, Copy)]
struct Named<'a>(&'static str, &'a str);

impl Named<'_> {
    fn spec<T: for<'de> Deserialize<'de>>(self, object: &Value) -> Result<T, SourceError> {
        let spec = object.get("spec").unwrap_or(&Value::Null);
        let read = T::deserialize(spec);
        read.map_err(|error| self.invalid(format!("spec: {error}")))
    }

    fn cidr(self, text: &str) -> Result<IpNet, SourceError> {
        let parsed = parse_cidr(text);
        parsed.map_err(|error| self.invalid(format!("spec.cidr: {error}")))
    }

    fn invalid(self, reason: String) -> SourceError {
        SourceError::Object {
            kind: self.0,
            name: self.1.into(),
            reason,
        }
    }
}

#[cfg(test)]
mod tests;
