//! The layout by use: a cell for each used prefix of an IPv6 network, which is too large for a
//! picture as a whole.

use ipnet::IpNet;
use podplane_ipam::Family;

use super::{GridLimit, Layout, View, cell};
use crate::{
    curve::Rect,
    parts::Network,
    prefix::{around, bounds},
    space::AddressSpace,
};

impl View {
    /// A cell for each block of the prefix and for what is used outside of blocks; in a block, or
    /// without blocks, a cell for each address in use. Where that is more than fits, neighbours
    /// share a cell.
    pub(super) fn by_use(
        space: &AddressSpace,
        network: &Network,
        prefix: IpNet,
        limit: GridLimit,
    ) -> Self {
        let most = usize::from(limit.columns) * usize::from(limit.rows);
        let mut prefixes = used_prefixes(space, prefix, most);
        if prefixes.is_empty() {
            prefixes.push(prefix);
        }
        let (width, height) = shape(prefixes.len(), limit);
        let mut view = Self::empty(space, network, prefix, Layout::Used);
        (view.width, view.height) = (width, height);
        let positions = (0..height).flat_map(|y| (0..width).map(move |x| (x, y)));
        for (used, (x, y)) in prefixes.into_iter().zip(positions) {
            let mut cell = cell(space, network.role(), used);
            (cell.x, cell.y) = (x, y);
            view.cells.push(cell);
        }
        for place in 0..view.cells.len() {
            let Some(cell) = view.cells.get(place) else {
                break;
            };
            let (x, y) = (cell.x, cell.y);
            let is_block = |index: &usize| {
                let block = space.blocks().get(*index);
                block.is_some_and(|block| block.cidr() == cell.prefix)
            };
            let blocks = space.blocks_starting_within(&cell.prefix).filter(is_block);
            let rect = Rect {
                x,
                y,
                width: 1,
                height: 1,
            };
            for index in blocks.collect::<Vec<_>>() {
                view.outline(space, index, rect);
            }
        }
        view
    }
}

/// The columns and rows of a grid for `count` cells, twice as wide as high where that fits.
fn shape(count: usize, limit: GridLimit) -> (u16, u16) {
    let rows = usize::from(limit.rows);
    let wide = (2 * count).isqrt().max(1);
    let width = wide.max(count.div_ceil(rows)).min(limit.columns.into());
    let height = count.div_ceil(width).min(rows);
    let small = |number: usize| u16::try_from(number).unwrap_or(u16::MAX);
    (small(width), small(height))
}

/// At most `most` disjoint prefixes that contain everything in use, by address.
fn used_prefixes(space: &AddressSpace, prefix: IpNet, most: usize) -> Vec<IpNet> {
    let family = Family::of(&prefix);
    let blocks = space.blocks_starting_within(&prefix);
    let blocks = blocks.filter_map(|index| Some(space.blocks().get(index)?.cidr()));
    let blocks = blocks.filter(|block| block.prefix_len() > prefix.prefix_len());
    let mut items: Vec<(u128, u8)> = blocks
        .map(|block| (bounds(&block).0, block.prefix_len()))
        .collect();
    // Blocks are not taken apart.
    let finest = items.iter().map(|(_, length)| *length).max();
    let finest = finest.unwrap_or(family.bits());
    let addresses = space.numbers_within(&prefix);
    items.extend(addresses.map(|number| (number, family.bits())));
    items.sort_unstable();
    items.dedup();
    let length = longest_within(&items, family, prefix.prefix_len(), finest, most);
    let mut prefixes: Vec<IpNet> = Vec::new();
    for (number, own) in items {
        let used = around(family, number, own.min(length));
        if !prefixes.last().is_some_and(|last| last.contains(&used)) {
            prefixes.push(used);
        }
    }
    prefixes
}

/// The longest prefix length, from `shortest` to `finest`, with at most `most` prefixes that
/// contain an item.
fn longest_within(
    items: &[(u128, u8)],
    family: Family,
    shortest: u8,
    finest: u8,
    most: usize,
) -> u8 {
    let mut parting = [0usize; 129];
    for pair in items.windows(2) {
        let [(a, _), (b, _)] = pair else { continue };
        // The length of their common prefix; longer prefixes tell them apart.
        let common = (a ^ b).leading_zeros() + u32::from(family.bits()) - 128;
        if let Some(count) = parting.get_mut(common as usize) {
            *count += 1;
        }
    }
    let prefixes = |length: u8| {
        let parted = parting.iter().take(length.into()).sum::<usize>();
        parted + usize::from(!items.is_empty())
    };
    let mut lengths = (shortest..=finest).rev();
    lengths
        .find(|length| prefixes(*length) <= most)
        .unwrap_or(shortest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_hold_their_cells() {
        for columns in 1..20 {
            for rows in 1..20 {
                let limit = GridLimit::new(columns, rows).unwrap();
                for count in 1..=usize::from(columns) * usize::from(rows) {
                    let (width, height) = shape(count, limit);
                    assert!(width <= columns && height <= rows);
                    let cells = usize::from(width) * usize::from(height);
                    assert!(cells >= count && cells < count + usize::from(width));
                }
            }
        }
    }

    #[test]
    fn shares_cells_when_there_are_too_many() {
        let items: Vec<(u128, u8)> = (0..64).map(|n| (n * 4, 128)).collect();
        let length = |most| longest_within(&items, Family::V6, 64, 128, most);
        assert_eq!(length(64), 128);
        assert_eq!(length(63), 125, "two in a prefix");
        assert_eq!(length(1), 120);
        assert_eq!(longest_within(&[], Family::V6, 64, 96, 4), 96);
    }
}
