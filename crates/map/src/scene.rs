//! A view of one network, and the other networks beside it.

use ipnet::IpNet;

use crate::{
    overlap::Overlap,
    parts::Network,
    space::AddressSpace,
    view::{GridLimit, View, ViewError},
};

/// The sizes of the grids of a scene.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SceneLimits {
    /// Of the main view.
    pub main: GridLimit,
    /// Of each view beside it.
    pub beside: GridLimit,
}

/// The severity of a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MarkSeverity {
    /// It may fail later.
    Warning,
    /// A fault.
    Error,
}

/// A place to mark, such as that of a finding of an audit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SceneMark {
    /// The place: an address, a block, or any other prefix.
    pub prefix: IpNet,
    /// The severity.
    pub severity: MarkSeverity,
    /// The text for those who point at the mark.
    pub text: String,
}

impl SceneMark {
    /// The marks of all overlaps, at each block.
    #[must_use]
    pub fn of_overlaps(space: &AddressSpace) -> Vec<Self> {
        let marks = |overlap: &Overlap| {
            let text = format!("overlap: {overlap}");
            let mark = move |prefix| Self {
                prefix,
                severity: MarkSeverity::Error,
                text: text.clone(),
            };
            overlap.prefixes().map(mark)
        };
        space.overlaps().iter().flat_map(marks).collect()
    }
}

/// A view of one network, and the other networks beside it: the input of every canvas.
#[derive(Clone, Debug)]
pub struct Scene<'a> {
    space: &'a AddressSpace,
    main: View,
    beside: Vec<View>,
    left_out: usize,
    marks: Vec<SceneMark>,
}

impl<'a> Scene<'a> {
    /// The most networks beside the main view.
    pub const MAX_BESIDE: usize = 8;

    /// Lays out `prefix` of `network`, and the other networks of the space as wholes.
    ///
    /// # Errors
    ///
    /// [`ViewError`].
    pub fn new(
        space: &'a AddressSpace,
        network: &Network,
        prefix: IpNet,
        limits: SceneLimits,
    ) -> Result<Self, ViewError> {
        let main = View::new(space, network, prefix, limits.main)?;
        let mut others = space.networks().iter().filter(|other| *other != network);
        let beside = others
            .by_ref()
            .take(Self::MAX_BESIDE)
            .map(|other| View::new(space, other, other.cidr(), limits.beside));
        let beside = beside.collect::<Result<_, _>>()?;
        Ok(Self {
            space,
            main,
            beside,
            left_out: others.count(),
            marks: Vec::new(),
        })
    }

    /// Adds marks. Those outside of a view are not drawn in it.
    #[must_use]
    pub fn with_marks(self, marks: Vec<SceneMark>) -> Self {
        Self { marks, ..self }
    }

    /// Returns true if a view has a mark.
    #[must_use]
    pub fn is_marked(&self) -> bool {
        let mut views = std::iter::once(&self.main).chain(&self.beside);
        views.any(|view| {
            let mut marks = self.marks.iter();
            marks.any(|mark| view.place_of(&mark.prefix).is_some())
        })
    }

    /// The marks.
    #[must_use]
    pub fn marks(&self) -> &[SceneMark] {
        &self.marks
    }

    /// The address space.
    #[must_use]
    pub const fn space(&self) -> &'a AddressSpace {
        self.space
    }

    /// The main view.
    #[must_use]
    pub const fn main(&self) -> &View {
        &self.main
    }

    /// The other networks, at most [`Scene::MAX_BESIDE`].
    #[must_use]
    pub fn beside(&self) -> &[View] {
        &self.beside
    }

    /// The number of further networks.
    #[must_use]
    pub const fn left_out(&self) -> usize {
        self.left_out
    }
}
