//! The map of the address space: which part of it is shown, and where the cursor is.

use std::net::IpAddr;

use ipnet::IpNet;
use podplane_api::ObjectKey;
use podplane_map::{
    AddressSpace, Cell, Holder, Layout, MapTarget, Network, Scene, ShownPart, TextSize,
};

use crate::{
    row::{Subject, Target},
    scope::Scope,
};

/// The bits of a step of the zoom: a sixteenth of what is shown.
const ZOOM_BITS: u8 = 4;

/// The part of an address space on the screen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MapScreen {
    /// The part at the beginning; `None` for the first network, all of it.
    start: Option<MapTarget>,
    /// `None` until a key has moved the cursor.
    place: Option<Place>,
    /// The prefixes that were zoomed in from, which zooming out leads back to.
    steps: Vec<IpNet>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    network: Network,
    prefix: IpNet,
    /// The first address of the cell under the cursor. It survives another size of the terminal.
    cursor: IpAddr,
}

/// A direction of the cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Left,
    Right,
    Up,
    Down,
}

impl MapScreen {
    /// A map that begins with a part.
    pub(crate) fn new(start: Option<MapTarget>) -> Self {
        Self {
            start,
            ..Self::default()
        }
    }

    /// The network and prefix that are shown, and the cursor. `None` if there are no networks.
    fn place(&self, space: &AddressSpace) -> Option<Place> {
        let kept = self.place.as_ref().and_then(|place| place.within(space));
        kept.or_else(|| Place::at(space, self.start.as_ref()).ok())
            .or_else(|| space.networks().first().map(Place::whole))
    }

    /// The reason why the map does not begin with the part that it should, until a key is pressed.
    pub(crate) fn problem(&self, space: &AddressSpace) -> Option<String> {
        match self.place {
            Some(_) => None,
            None => Place::at(space, self.start.as_ref()).err(),
        }
    }

    /// The scene on the screen, in this size.
    pub(crate) fn scene<'a>(&self, space: &'a AddressSpace, size: TextSize) -> Option<Scene<'a>> {
        let Place {
            network, prefix, ..
        } = self.place(space)?;
        Scene::new(space, &network, prefix, size.limits()).ok()
    }

    /// The cell under the cursor.
    pub(crate) fn cell(&self, scene: &Scene<'_>) -> Option<Cell> {
        let cursor = self.place(scene.space())?.cursor;
        let view = scene.main();
        view.cell_of(cursor)
            .or_else(|| view.cells().first())
            .cloned()
    }

    /// Moves the cursor by a cell.
    pub(crate) fn step(&mut self, space: &AddressSpace, size: TextSize, direction: Direction) {
        let Some(scene) = self.scene(space, size) else {
            return;
        };
        let Some(cell) = self.cell(&scene) else {
            return;
        };
        let (x, y) = match direction {
            Direction::Left => (cell.x.checked_sub(1), Some(cell.y)),
            Direction::Right => (cell.x.checked_add(1), Some(cell.y)),
            Direction::Up => (Some(cell.x), cell.y.checked_sub(1)),
            Direction::Down => (Some(cell.x), cell.y.checked_add(1)),
        };
        let next = x.zip(y).and_then(|(x, y)| scene.main().at(x, y));
        if let Some(next) = next {
            let cursor = next.prefix.network();
            self.place = self.place(space).map(|place| Place { cursor, ..place });
        }
    }

    /// Shows a part around the cursor. Returns false if a cell is one address already.
    pub(crate) fn zoom_in(&mut self, space: &AddressSpace, size: TextSize) -> bool {
        let Some(scene) = self.scene(space, size) else {
            return false;
        };
        let Some(cell) = self.cell(&scene) else {
            return false;
        };
        let view = scene.main();
        // Of used prefixes a step of bits would often show the same ones again.
        let bits = match view.layout() {
            Layout::Curve => ZOOM_BITS,
            Layout::Used => u8::MAX,
        };
        let zoomed = view.zoom_in(cell.x, cell.y, bits);
        let Some(prefix) = zoomed.filter(|prefix| *prefix != view.prefix()) else {
            return false;
        };
        // Zooming ends where each address has a cell.
        if cell.counts.total() <= 1 {
            return false;
        }
        let cursor = cell.prefix.network();
        self.steps.push(view.prefix());
        self.place = self.place(space).map(|place| Place {
            prefix,
            cursor,
            ..place
        });
        true
    }

    /// Shows more around the present part.
    pub(crate) fn zoom_out(&mut self, space: &AddressSpace, size: TextSize) {
        let Some(scene) = self.scene(space, size) else {
            return;
        };
        let view = scene.main();
        let step = self.steps.pop();
        // Networks may have changed since.
        let network = view.network().cidr();
        let step = step.filter(|outer| outer.contains(&view.prefix()) && network.contains(outer));
        let prefix = step.unwrap_or_else(|| view.zoom_out(ZOOM_BITS));
        self.place = self.place(space).map(|place| Place { prefix, ..place });
    }

    /// Returns true if it shows a part of a network.
    pub(crate) fn is_part(&self, space: &AddressSpace) -> bool {
        let place = self.place(space);
        place.is_some_and(|place| place.prefix != place.network.cidr())
    }

    /// Shows all of the next network.
    pub(crate) fn next_network(&mut self, space: &AddressSpace) {
        let Some(shown) = self.place(space) else {
            return;
        };
        self.steps.clear();
        let networks = space.networks();
        let after = networks
            .iter()
            .skip_while(|network| **network != shown.network);
        let next = after.skip(1).chain(networks).next();
        self.place = next.map(Place::whole);
    }

    /// The pod of the address under the cursor, else the node of the block.
    pub(crate) fn subject(&self, space: &AddressSpace, size: TextSize) -> Option<Subject> {
        let scene = self.scene(space, size)?;
        let cell = self.cell(&scene)?;
        let of_pod = pod_at(space, &cell).map(Subject::Pod);
        of_pod.or_else(|| node_at(space, &cell).map(Subject::Node))
    }

    /// The page that Enter opens: the description of the pod that has the only address of the cell.
    pub(crate) fn target(&self, space: &AddressSpace, size: TextSize) -> Option<Target> {
        let scene = self.scene(space, size)?;
        let pod = pod_at(space, &self.cell(&scene)?)?;
        Some(Target::Description(Subject::Pod(pod)))
    }

    /// The pods of the node under the cursor.
    pub(crate) fn pods(&self, space: &AddressSpace, size: TextSize) -> Option<Target> {
        let scene = self.scene(space, size)?;
        let node = node_at(space, &self.cell(&scene)?)?;
        Some(Target::Pods(Scope::Node(node)))
    }
}

impl Place {
    /// The place of a part; around an address, its block.
    fn at(space: &AddressSpace, part: Option<&MapTarget>) -> Result<Self, String> {
        let ShownPart { network, prefix } = ShownPart::new(space, part)?;
        let blocks = space.blocks().iter().map(|block| block.cidr());
        let around = match part {
            // They may overlap: a block that goes beyond the network cannot be shown.
            Some(MapTarget::Address(ip)) => blocks
                .filter(|block| block.contains(ip) && network.cidr().contains(block))
                .max_by_key(|block| block.prefix_len())
                .unwrap_or_else(|| network.cidr()),
            _ => prefix,
        };
        Ok(Self {
            network: network.clone(),
            prefix: around,
            cursor: prefix.network(),
        })
    }

    /// The same place in the networks of the space, if its network is still there. The range of an
    /// inferred network is another one after nodes have come or gone: it is known by its role.
    fn within(&self, space: &AddressSpace) -> Option<Self> {
        let networks = space.networks();
        if networks.contains(&self.network) {
            return Some(self.clone());
        }
        let is_whole = self.prefix == self.network.cidr();
        let same = networks.iter().filter(|network| {
            let cidr = network.cidr();
            let is_around = cidr.contains(&self.prefix) || is_whole && self.prefix.contains(&cidr);
            network.role() == self.network.role() && is_around
        });
        let network = same.max_by_key(|network| network.cidr().prefix_len())?;
        Some(Self {
            network: network.clone(),
            prefix: match is_whole {
                true => network.cidr(),
                false => self.prefix,
            },
            cursor: self.cursor,
        })
    }

    fn whole(network: &Network) -> Self {
        Self {
            prefix: network.cidr(),
            cursor: network.cidr().network(),
            network: network.clone(),
        }
    }
}

/// The pod that has the only address of a cell.
fn pod_at(space: &AddressSpace, cell: &Cell) -> Option<ObjectKey> {
    if cell.counts.total() != 1 {
        return None;
    }
    let record = space.record(cell.prefix.addr())?;
    record.claims.iter().find_map(|claim| match claim.holder() {
        Holder::Pod { name, .. } => {
            let (namespace, name) = name.split_once('/')?;
            Some(ObjectKey::new(namespace, name))
        }
        _ => None,
    })
}

/// The node of the block that contains the cell, or of the only block in it.
fn node_at(space: &AddressSpace, cell: &Cell) -> Option<String> {
    let block = space.blocks().get(cell.block?)?;
    block.node().map(str::to_owned)
}
