//! Texts that every canvas has, and names of others made safe for them.

use ipnet::IpNet;
use podplane_ipam::figures::readable;

use crate::{
    parts::{BlockState, Network, NetworkRole, NodeBlock},
    scene::Scene,
    space::{AddressRecord, AddressSpace},
    state::{AddressState, StateCounts},
    view::{Cell, Layout, View},
};

/// Replaces what is not printable ASCII: a terminal would obey control characters, and the width of
/// others is not certain.
pub(crate) fn ascii(text: &str) -> String {
    let is_safe = |c: char| c.is_ascii_graphic() || c == ' ';
    text.chars()
        .map(|c| if is_safe(c) { c } else { '?' })
        .collect()
}

/// Escapes a text for XML, in elements and in quoted attributes. What XML 1.0 does not allow, and
/// what changes the direction of text, is replaced.
pub(crate) fn xml(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&apos;"),
            '\u{fffe}' | '\u{ffff}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
                escaped.push('\u{fffd}');
            }
            c if c.is_control() => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

/// `cluster CIDR 10.244.0.0/16 (pods-a)`.
pub(crate) fn named_network(network: &Network) -> String {
    let (role, cidr) = (network.role(), network.cidr());
    match network.name() {
        "" => format!("{role} {cidr}"),
        name => format!("{role} {cidr} ({name})"),
    }
}

/// The name of a view's network; of one that is known in part, first the part.
pub(crate) fn network(space: &AddressSpace, view: &View) -> String {
    after_known_part(space, view, named_network(view.network()))
}

/// The same in two lines, the second one with the prefix.
pub(crate) fn network_lines(space: &AddressSpace, view: &View) -> [String; 2] {
    let network = view.network();
    let role = match network.name() {
        "" => network.role().to_string(),
        name => format!("{} ({name})", network.role()),
    };
    let prefix = network.cidr().to_string();
    [after_known_part(space, view, role), prefix]
}

fn after_known_part(space: &AddressSpace, view: &View, network: String) -> String {
    match (space.only_namespace(), view.network().role()) {
        (Some(namespace), NetworkRole::Pods) => {
            format!("only pods of namespace {namespace}: {network}")
        }
        _ => network,
    }
}

/// The name and the letter of a state in a network: an address of pods is not free only because no
/// pod of the one known namespace has it.
pub(crate) fn state(
    space: &AddressSpace,
    role: NetworkRole,
    state: AddressState,
) -> (&'static str, char) {
    match (space.only_namespace(), role, state) {
        (Some(_), NetworkRole::Pods, AddressState::Free) => ("unknown", '?'),
        _ => (state.as_str(), state.letter()),
    }
}

/// The part of the network that is shown, and the meaning of a cell.
pub(crate) fn scale(view: &View) -> String {
    let prefix = view.prefix();
    let size = addresses(view.counts().total());
    let shown = match prefix == view.network().cidr() {
        true => size,
        false => format!("view {prefix}, {size}"),
    };
    match (view.layout(), view.cells().first()) {
        (Layout::Curve, Some(cell)) => {
            let length = cell.prefix.prefix_len();
            let each = addresses(cell.counts.total());
            format!("{shown}, each cell a /{length} of {each}")
        }
        _ => format!("{shown}, each cell a used prefix"),
    }
}

/// `1 address`, `256 addresses`.
fn addresses(count: u128) -> String {
    let s = if count == 1 { "" } else { "es" };
    format!("{} address{s}", readable(count))
}

/// `2 duplicate, 12 pod, 230 free`, the most urgent first.
pub(crate) fn counts(space: &AddressSpace, role: NetworkRole, counts: &StateCounts) -> String {
    let each = counts.present();
    let each = each.map(|(one, count)| {
        let (name, _) = state(space, role, one);
        format!("{} {name}", readable(count))
    });
    each.collect::<Vec<_>>().join(", ")
}

/// The nodes of blocks that are named; the others are counted.
pub(crate) const NAMED_NODES: usize = 2;

/// `node-a`, `node-a, node-b` or `node-a, node-b +3`; empty without a node.
pub(crate) fn nodes<'a>(nodes: impl IntoIterator<Item = &'a str>) -> String {
    some_nodes(nodes, NAMED_NODES)
}

/// The same with at most `named` names.
pub(crate) fn some_nodes<'a>(nodes: impl IntoIterator<Item = &'a str>, named: usize) -> String {
    let nodes: Vec<_> = nodes.into_iter().collect();
    let shown = nodes.get(..named).unwrap_or(&nodes);
    let text = shown.join(", ");
    match nodes.len() - shown.len() {
        0 => text,
        more => format!("{text} +{more}"),
    }
}

/// A prefix, and of a single address the address alone.
pub(crate) fn place(prefix: &IpNet) -> String {
    match prefix.prefix_len() == prefix.max_prefix_len() {
        true => prefix.addr().to_string(),
        false => prefix.to_string(),
    }
}

/// `; also of node-b`: the other nodes that have the block, of which there should be none.
pub(crate) fn also(space: &AddressSpace, block: &NodeBlock) -> String {
    let nodes = nodes(space.other_nodes_of(block));
    match nodes.as_str() {
        "" => nodes,
        nodes => format!("; also of {nodes}"),
    }
}

/// `block 10.244.1.0/24 of node-a, draining; also of node-b: 12 pod, 230 free`.
pub(crate) fn block(space: &AddressSpace, role: NetworkRole, index: usize) -> String {
    let Some(block) = space.blocks().get(index) else {
        return String::new();
    };
    let of_block = space.counts(role, &block.cidr());
    let mut text = format!("block {}", block.cidr());
    if let Some(node) = block.node() {
        text = format!("{text} of {node}");
    }
    if block.state() != BlockState::Assigned {
        text = format!("{text}, {}", block.state());
    }
    if !block.details().is_empty() {
        text = format!("{text}, {}", block.details());
    }
    format!(
        "{text}{}: {}",
        also(space, block),
        counts(space, role, &of_block)
    )
}

/// The heading of a list of blocks.
pub(crate) const BLOCKS_HEADING: &str = "blocks: used/usable, node";

/// `10.244.1.0/24 12/253 node-a draining overlap`, for a list of blocks.
pub(crate) fn block_line(space: &AddressSpace, index: usize) -> String {
    let Some(block) = space.blocks().get(index) else {
        return String::new();
    };
    let cidr = block.cidr();
    let used = readable(space.counts(NetworkRole::Pods, &cidr).in_use());
    let node = block.node().unwrap_or("<none>");
    // Of this block alone: what an overlapping one gives is not the node's.
    let usable = readable(block.capacity());
    let line = match block.state() {
        BlockState::Assigned => format!("{cidr} {used}/{usable} {node}"),
        // No node can have it.
        BlockState::Reserved => format!("{cidr} reserved for Services"),
        state => format!("{cidr} {used}/{usable} {node} {state}"),
    };
    match space.overlaps_of(block).next() {
        Some(_) => format!("{line} overlap"),
        None => line,
    }
}

/// `; overlaps block 10.244.0.0/21 of node-b +2`: the others than equal blocks.
fn overlaps(space: &AddressSpace, block: &NodeBlock) -> String {
    let others = space.overlaps_of(block);
    let mut others = others.filter(|other| other.cidr() != block.cidr());
    match (others.next(), others.count()) {
        (None, _) => String::new(),
        (Some(first), 0) => format!("; overlaps {first}"),
        (Some(first), more) => format!("; overlaps {first} +{more}"),
    }
}

/// A cell as a line: `10.244.1.0/28: 12 pod, 3 free; block 10.244.1.0/24 of node-a`, and of one
/// address `pod 10.244.1.5: pod default/a on node-a; block 10.244.1.0/24 of node-a`. `role` is that
/// of the network.
#[must_use]
pub fn cell_line(space: &AddressSpace, role: NetworkRole, cell: &Cell) -> String {
    let ip = cell.prefix.addr();
    let line = match (cell.counts.total(), space.record(ip)) {
        (1, Some(found)) if !found.claims.is_empty() => record(&found),
        (1, _) => format!("{} {ip}", state(space, role, cell.dominant).0),
        _ => format!("{}: {}", cell.prefix, counts(space, role, &cell.counts)),
    };
    let block = cell.block.and_then(|index| space.blocks().get(index));
    let line = match (block, cell.blocks_inside) {
        (Some(block), _) => {
            let node = block.node().map(|node| format!(" of {node}"));
            let (cidr, node) = (block.cidr(), node.unwrap_or_default());
            let others = also(space, block) + &overlaps(space, block);
            match block.state() {
                BlockState::Assigned => format!("{line}; block {cidr}{node}{others}"),
                state => format!("{line}; block {cidr}{node}, {state}{others}"),
            }
        }
        (None, 0) => line,
        (None, blocks) => {
            let s = if blocks == 1 { "" } else { "s" };
            let inside = space.blocks_starting_within(&cell.prefix);
            let inside = inside.filter_map(|index| space.blocks().get(index)?.node());
            let of = match nodes(inside).as_str() {
                "" => String::new(),
                nodes => format!(" of {nodes}"),
            };
            format!("{line}; {blocks} block{s} inside{of}")
        }
    };
    ascii(&line)
}

/// `duplicate 10.244.1.5: pod default/a on node-a, pod default/b on node-b`.
pub(crate) fn record(record: &AddressRecord<'_>) -> String {
    format!("{} {}", record.state, holders(record))
}

/// `10.244.1.5: pod default/a on node-a, pod default/b on node-b`.
pub(crate) fn holders(record: &AddressRecord<'_>) -> String {
    /// An address of many holders is one line all the same.
    const NAMED: usize = 4;
    let named = record.claims.iter().take(NAMED);
    let mut holders: Vec<String> = named.map(|claim| claim.holder().to_string()).collect();
    if record.claims.len() > NAMED {
        holders.push(format!("{} more", record.claims.len() - NAMED));
    }
    format!("{}: {}", record.ip, holders.join(", "))
}

/// The remarks on a scene, at most `most` lines: faults of the view, then overlaps, then addresses
/// without a place in it. The last line says how many are left out; a single one, of how many.
pub(crate) fn notes(scene: &Scene<'_>, most: usize) -> Vec<String> {
    let (space, main) = (scene.space(), scene.main());
    let prefix = main.prefix();
    let faults = AddressState::FAULTS.into_iter();
    let faults: u128 = faults.map(|state| main.counts().of(state)).sum();
    let overlaps = space.overlaps();
    let strays: Vec<_> = space.strays().take(most).collect();
    let strays_total = match strays.len() < most {
        true => strays.len(),
        false => space.strays().count(),
    };
    let orphans = space.unlocated_orphans();
    let total = usize::try_from(faults).unwrap_or(usize::MAX);
    let total = total + overlaps.len() + strays_total + orphans.len();
    // A view of one address names its holder.
    let held = space
        .records(&prefix)
        .filter(|one| main.counts().total() == 1 && faults == 0 && !one.claims.is_empty());
    let held: Vec<String> = held.map(|one| record(&one)).collect();
    let total = total + held.len();
    let lines = held.into_iter();
    let lines = lines.chain(space.faults(&prefix).map(|fault| record(&fault)));
    let lines = lines.chain(overlaps.iter().map(|overlap| format!("overlap: {overlap}")));
    let strays = strays.iter();
    let lines = lines.chain(strays.map(|one| format!("in no network: {}", record(one))));
    let orphans = orphans.iter();
    let lines = lines.chain(
        orphans.map(|(node, count)| format!("orphaned on {node}: {count}, addresses not reported")),
    );
    if total <= most {
        return lines.take(most).collect();
    }
    let mut lines = lines;
    match most {
        0 => Vec::new(),
        // The number alone would say nothing.
        1 => lines
            .next()
            .map(|first| format!("1 of {total}: {first}"))
            .into_iter()
            .collect(),
        _ => {
            let mut notes: Vec<String> = lines.take(most - 1).collect();
            notes.push(format!("and {} more", total - notes.len()));
            notes
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_others_are_harmless() {
        assert_eq!(ascii("a\u{1b}[2J\u{202e}b\n"), "a?[2J?b?");
        assert_eq!(
            xml("<script>\"x\" & 'y'\u{0}\u{202e}é"),
            "&lt;script&gt;&quot;x&quot; &amp; &apos;y&apos;\u{fffd}\u{fffd}é"
        );
    }
}
