//! The map of an address space with the tables behind it.

use podplane_ipam::figures::readable;
use podplane_map::{
    AddressRecord, AddressSpace, AddressState, NetworkRole, Scene, StateCounts, View,
};

use crate::{
    document::Tone,
    figure::{Figure, Picture},
    table::{Cell, Column, Row, Table},
};

/// The most rows of each table: a page with all addresses of a large fault would not open.
const MOST_ROWS: usize = 2_000;

/// The picture of a scene. Behind it are tables of the networks, the blocks, the overlaps, and the
/// addresses that need attention.
#[must_use]
pub fn map_figure(id: &str, caption: &str, scene: &Scene<'_>) -> Figure {
    let space = scene.space();
    let all = std::iter::once(scene.main()).chain(scene.beside());
    let mut tables = vec![Table {
        caption: "Networks".into(),
        columns: vec![
            Column::text("Network"),
            Column::text("For"),
            Column::text("Addresses"),
        ],
        rows: all.clone().map(network).collect(),
    }];
    let numbers = || [Column::number("In use"), Column::number("Free")];
    let mut columns = vec![
        Column::text("Block"),
        Column::text("Node"),
        Column::text("State"),
    ];
    columns.extend(numbers());
    columns.push(Column::text("Needs attention"));
    let blocks = 0..space.blocks().len();
    tables.push(limited(
        "Blocks of nodes",
        columns,
        blocks.filter_map(|index| block(space, index)),
    ));
    tables.push(limited(
        "Overlaps",
        vec![Column::text("Prefix"), Column::text("Overlaps")],
        space
            .overlaps()
            .iter()
            .map(|overlap| Row::of_texts([overlap.narrow.to_string(), overlap.wide.to_string()])),
    ));
    let faults = all.flat_map(|view| {
        let prefix = view.prefix();
        let faults = space.faults(&prefix).map(|record| address(&record));
        faults.collect::<Vec<_>>()
    });
    let columns = || {
        vec![
            Column::text("Address"),
            Column::text("State"),
            Column::text("Holders"),
        ]
    };
    tables.push(limited("Addresses that need attention", columns(), faults));
    tables.push(limited(
        "Addresses in no network",
        columns(),
        space.strays().map(|record| address(&record)),
    ));
    let orphans = space.unlocated_orphans().iter();
    tables.push(limited(
        "Orphaned addresses that nodes report by number",
        vec![Column::text("Node"), Column::number("Addresses")],
        orphans.map(|(node, count)| Row::of_texts([node.clone(), count.to_string()])),
    ));
    // A table without rows says nothing that its absence does not.
    tables.retain(|table| !table.rows.is_empty());
    Figure {
        id: id.to_owned(),
        caption: caption.to_owned(),
        picture: Picture::map(scene),
        tables,
    }
}

/// A table with a remark in its caption if it has not all of the rows.
fn limited(caption: &str, columns: Vec<Column>, rows: impl Iterator<Item = Row>) -> Table {
    let mut rows = rows;
    let shown: Vec<Row> = rows.by_ref().take(MOST_ROWS).collect();
    let caption = match rows.count() {
        0 => caption.to_owned(),
        more => format!("{caption}: the first {MOST_ROWS}, and {more} more"),
    };
    Table {
        caption,
        columns,
        rows: shown,
    }
}

fn network(view: &View) -> Row {
    let network = view.network();
    let role = match network.name() {
        "" => network.role().to_string(),
        name => format!("{} ({name})", network.role()),
    };
    Row::new(vec![
        Cell::Code(network.cidr().to_string()),
        Cell::Text(role),
        Cell::Text(words(view.counts())),
    ])
}

fn block(space: &AddressSpace, index: usize) -> Option<Row> {
    let block = space.blocks().get(index)?;
    let counts = space.counts(NetworkRole::Pods, &block.cidr());
    let faults = AddressState::FAULTS.into_iter();
    let faults = faults.filter(|state| counts.of(*state) > 0);
    let faults = faults.map(|state| format!("{} {state}", readable(counts.of(state))));
    Some(Row::new(vec![
        Cell::Code(block.cidr().to_string()),
        Cell::Text(block.node().unwrap_or_default().to_owned()),
        Cell::Text(match block.details() {
            "" => block.state().to_string(),
            details => format!("{}, {details}", block.state()),
        }),
        Cell::Text(readable(counts.in_use())),
        Cell::Text(readable(space.free_in(block))),
        Cell::Toned(Tone::Bad, faults.collect::<Vec<_>>().join(", ")),
    ]))
}

fn address(record: &AddressRecord<'_>) -> Row {
    let holders = record.claims.iter().map(|claim| claim.holder().to_string());
    let meaning = format!("{}: {}", record.state, record.state.meaning());
    Row::new(vec![
        Cell::Code(record.ip.to_string()),
        Cell::Text(meaning),
        Cell::Lines(holders.collect()),
    ])
}

fn words(counts: &StateCounts) -> String {
    let each = counts.present();
    let each = each.map(|(state, count)| format!("{} {state}", readable(count)));
    each.collect::<Vec<_>>().join(", ")
}
