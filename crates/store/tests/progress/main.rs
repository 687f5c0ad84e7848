//! A server comes to revisions that are not of its store, in an etcd that has keys of others,
//! by a progress request where that is safe, by a write of its own where it is not. Debian's etcd
//! is too old to be asked, so a server plays a newer one.

mod etcd;

use podplane_store::{EtcdStore, Store as _};

use self::etcd::FakeEtcd;

#[tokio::test]
async fn a_newer_etcd_is_asked_for_its_progress() {
    for version in ["3.4.31", "3.5.13", "3.6.8"] {
        let etcd = FakeEtcd::start(version).unwrap();
        let store = EtcdStore::open(&etcd.flags()).await.unwrap();
        for _ in 0..3 {
            let revision = etcd.another_writes();
            store.current().await.unwrap();
            assert_eq!(
                etcd.revision(),
                revision,
                "{version}: the store wrote a key"
            );
        }
        assert!(etcd.progress_requests() >= 3, "{version}");
    }
}

#[tokio::test]
async fn an_older_etcd_gets_a_write() {
    for version in ["3.4.23", "3.5.12"] {
        let etcd = FakeEtcd::start(version).unwrap();
        let store = EtcdStore::open(&etcd.flags()).await.unwrap();
        let revision = etcd.another_writes();
        store.current().await.unwrap();
        assert!(etcd.revision() > revision, "{version}");
        assert_eq!(etcd.progress_requests(), 0, "{version}");
    }
}
