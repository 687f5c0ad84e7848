//! After a restore from a backup, earlier revisions are invalid, and clients start over.

use std::{io::Cursor, sync::Arc};

use futures::TryStreamExt as _;
use podplane_client::{ListParams, Reason, reflector};
use podplane_store::{SledStore, back_up};

use super::*;

const PODS: &str = "/api/v1/namespaces/default/pods";

#[tokio::test(flavor = "multi_thread")]
async fn a_restored_store_accepts_no_earlier_revision() {
    let dir = tempfile::tempdir().unwrap();
    let old = dir.path().join("old");
    let server = TestServer::with(SledStore::open(&old).unwrap()).await;
    let address = server.address.clone();
    let a = server.pods().create(&pod("a")).await.unwrap();
    let older = server.pods().create(&pod("b")).await.unwrap();
    let page = ListParams {
        limit: 1,
        ..ListParams::default()
    };
    let token = server.pods().list(&page).await.unwrap().continue_token;
    let token = token.unwrap();
    server.stop().await;

    let store = Arc::new(SledStore::open(&old).unwrap());
    let pieces: Vec<_> = back_up(store).try_collect().await.unwrap();
    let backup = pieces.concat();
    let store = SledStore::open(&old).unwrap();
    let server = TestServer::at(&address, uncounted(), store).await;
    let newer = server.pods().create(&pod("c")).await.unwrap();
    // A client that stays connected all the time.
    let endpoint: Endpoint = address.parse().unwrap();
    let client = Client::connect(&endpoint).unwrap();
    let (cache, follow) = reflector(client.namespaced::<Pod>("default"), ListParams::default());
    let mut following = JoinSet::new();
    following.spawn(follow);
    let mut changes = cache.subscribe();
    let mut present = std::collections::BTreeSet::new();
    let mut until = async |want: &[&str]| {
        while !present.iter().eq(want.iter().copied()) {
            match within(changes.next()).await {
                podplane_client::CacheChange::Applied { new, .. } => {
                    present.insert(new.name().to_owned());
                }
                podplane_client::CacheChange::Deleted(old) => {
                    present.remove(old.name());
                }
            }
        }
    };
    until(&["a", "b", "c"]).await;
    server.stop().await;

    let new = dir.path().join("new");
    SledStore::restore(&new, Cursor::new(&backup), 0).unwrap();
    let store = SledStore::open(&new).unwrap();
    let server = TestServer::at(&address, uncounted(), store).await;
    // It drops objects that were not in the backup.
    until(&["a", "b"]).await;

    for revision in [
        a.resource_version(),
        older.resource_version(),
        newer.resource_version(),
    ] {
        for how in ["", "NotOlderThan", "Exact"] {
            let params = ListParams {
                resource_version: revision.into(),
                resource_version_match: how.into(),
                ..ListParams::default()
            };
            let error = server.pods().list(&params).await.unwrap_err();
            assert_eq!(error.reason, Reason::Expired, "{how} {revision}: {error}");
            let query = match how {
                "" => format!("{PODS}?resourceVersion={revision}"),
                how => format!("{PODS}?resourceVersion={revision}&resourceVersionMatch={how}"),
            };
            assert_eq!(server.rest.get(&query).await.unwrap().code, 410, "{query}");
        }
        for send in [
            "",
            "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan",
        ] {
            let path = format!("{PODS}?watch=1&resourceVersion={revision}{send}");
            let (_, mut events) = server.rest.watch(&path).await.unwrap();
            let event = within(events.next()).await.unwrap().unwrap();
            assert_eq!(event["type"], "ERROR", "{path}");
            assert_eq!(event["object"]["code"], 410, "{path}");
        }
        let watch = server.pods().watch(&ListParams::default(), revision).await;
        let error = watch.err().expect("the revision means nothing");
        assert_eq!(error.reason, Reason::Expired, "{error}");
    }
    let next_page = ListParams {
        continue_token: token,
        ..ListParams::default()
    };
    let error = server.pods().list(&next_page).await.unwrap_err();
    assert_eq!(error.reason, Reason::Expired, "{error}");
    assert!(error.continue_token.is_some());

    // An earlier revision fails as a precondition, and new revisions are greater than all earlier
    // ones.
    let error = server.pods().update(&older).await.unwrap_err();
    assert_eq!(error.reason, Reason::Conflict, "{error}");
    let created = server.pods().create(&pod("c")).await.unwrap();
    let number = |pod: &Pod| pod.resource_version().parse::<u64>().unwrap();
    assert!(number(&created) > number(&newer));
    until(&["a", "b", "c"]).await;
    drop(client);
    following.shutdown().await;
    server.stop().await;
}
