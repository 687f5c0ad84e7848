//! The kinds that are served now: those of the program, and those that CustomResourceDefinitions
//! declare.

use std::sync::{Arc, Weak};

use tokio::sync::watch;

use crate::{rest::resource::Resource, upkeep::UpkeepKind};

/// The served kinds. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct ServedKinds(Arc<watch::Sender<Arc<KindList>>>);

/// The served kinds, for one of them: they would otherwise own themselves, and the store would
/// never be closed.
#[derive(Clone, Default)]
pub(crate) struct OtherKinds(Weak<watch::Sender<Arc<KindList>>>);

impl std::fmt::Debug for OtherKinds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OtherKinds(..)")
    }
}

impl OtherKinds {
    /// The kinds that are served now; none once the server has ended.
    pub(crate) fn now(&self) -> Arc<KindList> {
        let served = self.0.upgrade().map(ServedKinds);
        served.map_or_else(Arc::default, |served| served.now())
    }
}

/// The served kinds at a moment.
#[derive(Clone, Default)]
pub(crate) struct KindList {
    /// The resources of the REST API; those of the program come first, so that no other can take
    /// their place.
    pub(crate) resources: Vec<Arc<dyn Resource>>,
    /// The stored kinds.
    pub(crate) stored: Vec<Arc<dyn UpkeepKind>>,
    /// The number of the resources and of the stored kinds that are the program's.
    own: (usize, usize),
    /// Increases with each change.
    pub(crate) generation: u64,
}

impl ServedKinds {
    /// The kinds that are served now.
    pub(crate) fn now(&self) -> Arc<KindList> {
        Arc::clone(&self.0.borrow())
    }

    /// The kinds that are served now, and each change of them.
    pub(crate) fn subscribe(&self) -> watch::Receiver<Arc<KindList>> {
        self.0.subscribe()
    }

    /// The same for one of the kinds.
    pub(crate) fn others(&self) -> OtherKinds {
        OtherKinds(Arc::downgrade(&self.0))
    }

    /// Serves the kinds of the program.
    pub(crate) fn serve_own(
        &self,
        resources: Vec<Arc<dyn Resource>>,
        stored: Vec<Arc<dyn UpkeepKind>>,
    ) {
        self.change(|list| {
            list.own = (resources.len(), stored.len());
            list.resources = resources;
            list.stored = stored;
        });
    }

    /// Serves these custom kinds, and no others.
    pub(crate) fn serve_custom(
        &self,
        resources: Vec<Arc<dyn Resource>>,
        stored: Vec<Arc<dyn UpkeepKind>>,
    ) {
        self.change(|list| {
            let (own, own_stored) = list.own;
            list.resources.truncate(own);
            list.resources.extend(resources);
            list.stored.truncate(own_stored);
            list.stored.extend(stored);
        });
    }

    fn change(&self, change: impl FnOnce(&mut KindList)) {
        self.0.send_modify(|list| {
            let mut changed = (**list).clone();
            change(&mut changed);
            changed.generation += 1;
            *list = Arc::new(changed);
        });
    }
}

impl KindList {
    /// The resource of a path.
    pub(crate) fn find(
        &self,
        group: &str,
        version: &str,
        plural: &str,
    ) -> Option<&Arc<dyn Resource>> {
        self.resources.iter().find(|resource| {
            let names = resource.names();
            names.is(group, plural) && names.version == version
        })
    }

    /// The custom resources.
    pub(crate) fn custom(&self) -> &[Arc<dyn Resource>] {
        self.resources.get(self.own.0..).unwrap_or_default()
    }

    /// The resources of the program.
    pub(crate) fn own(&self) -> &[Arc<dyn Resource>] {
        self.resources.get(..self.own.0).unwrap_or_default()
    }
}
