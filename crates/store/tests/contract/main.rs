//! The contract of `Store`, which every engine must keep. A new engine needs an [`EngineFixture`]
//! and a line in `contract!`.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::disallowed_methods, reason = "a test")]

mod etcd;
mod model;
mod suite;

use podplane_store::{FIRST_REVISION, MemStore, Revision, SledStore, Store};
use tempfile::TempDir;

use crate::etcd::{Etcd, EtcdReopened};

/// An engine under test.
trait EngineFixture: Sized + Send + Sync + 'static {
    type Store: Store;

    /// The time that a store takes to make and use, compared with the one in memory, roughly.
    const COST: u32 = 1;

    /// Creates a fixture with an empty store.
    fn new() -> impl Future<Output = Self> + Send;

    /// The revision of a new store.
    fn first() -> Revision {
        FIRST_REVISION
    }

    fn store(&self) -> &Self::Store;

    /// Called between two steps of a test, where an engine may reopen, compact or the like.
    fn pause(self) -> impl Future<Output = Self> + Send {
        std::future::ready(self)
    }
}

struct Memory(MemStore);

impl EngineFixture for Memory {
    type Store = MemStore;

    async fn new() -> Self {
        Self(MemStore::new())
    }

    fn store(&self) -> &MemStore {
        &self.0
    }
}

struct Sled {
    store: SledStore,
    dir: TempDir,
}

impl EngineFixture for Sled {
    type Store = SledStore;

    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self {
            store: SledStore::open(dir.path()).unwrap(),
            dir,
        }
    }

    fn store(&self) -> &SledStore {
        &self.store
    }
}

/// A fixture that closes and reopens the store at each pause.
struct SledReopened(Sled);

impl EngineFixture for SledReopened {
    type Store = SledStore;

    async fn new() -> Self {
        Self(Sled::new().await)
    }

    fn store(&self) -> &SledStore {
        self.0.store()
    }

    async fn pause(self) -> Self {
        let Sled { store, dir } = self.0;
        drop(store);
        Self(Sled {
            store: SledStore::open(dir.path()).unwrap(),
            dir,
        })
    }
}

macro_rules! contract {
    ($($engine:ident: $fixture:ty;)*) => {
        $(contract!(@engine $engine: $fixture;
            a_new_store_is_empty_and_keeps_its_id,
            every_commit_takes_the_next_revision,
            an_item_knows_when_it_was_created_and_modified,
            a_commit_returns_the_previous_items,
            a_commit_that_changes_nothing_takes_no_revision,
            each_kind_of_guard_holds_or_conflicts,
            a_guard_of_a_count_sees_every_earlier_commit,
            a_commit_is_applied_whole_or_not_at_all,
            refuses_oversized_requests_naming_the_limit,
            large_values_are_kept_whole,
            concurrent_compare_and_set_loses_no_update,
            one_of_concurrent_creates_wins,
            a_list_is_continued_at_its_revision_while_writes_go_on,
            a_list_respects_its_prefix_and_order,
            refuses_future_revisions,
            a_watch_yields_commits_after_it_began,
            a_watch_from_the_past_catches_up,
            a_watch_shows_only_its_prefix_but_whole_commits,
            watchers_of_concurrent_writers_see_every_commit_once_in_order,
            the_position_of_a_watch_advances_past_other_prefixes,
            a_stalled_watcher_blocks_no_writer_and_ends_when_compacted,
            a_dropped_wait_loses_no_commit,
            a_compaction_keeps_its_revision_and_drops_earlier_ones,
            a_compaction_frees_memory,
            history_can_be_bounded_by_bytes,
            partly_compacted_commits_keep_their_other_changes,
            a_watch_ends_when_the_store_does,
        );)*
    };
    (@engine $engine:ident: $fixture:ty; $($case:ident,)*) => {
        mod $engine {
            use super::*;

            $(#[tokio::test]
            async fn $case() {
                suite::within_deadline(suite::$case::<$fixture>()).await;
            })*

            #[test]
            fn behaves_like_the_model() {
                model::check::<$fixture>();
            }
        }
    };
}

contract! {
    etcd_once: Etcd;
    etcd_reopened: EtcdReopened;
    memory: Memory;
    sled: Sled;
    sled_reopened: SledReopened;
}
