use podplane_client::ListParams;
use podplane_store::SledStore;

use super::*;

#[tokio::test]
async fn objects_and_watches_survive_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::with(SledStore::open(dir.path()).unwrap()).await;
    let first = server.pods().create(&pod("a")).await.unwrap();
    let second = server.pods().create(&pod("b")).await.unwrap();
    server.stop().await;

    let server = TestServer::with(SledStore::open(dir.path()).unwrap()).await;
    let list = server.pods().list(&ListParams::default()).await.unwrap();
    assert_eq!(list.items, [first.clone(), second.clone()]);
    let mut events = Box::pin(
        server
            .pods()
            .watch(&ListParams::default(), first.resource_version())
            .await
            .unwrap(),
    );
    assert_eq!(next(&mut events).await, ObjectEvent::Added(second.clone()));
    let third = server.pods().create(&pod("c")).await.unwrap();
    assert!(
        third.resource_version().parse::<u64>().unwrap()
            > second.resource_version().parse().unwrap()
    );
    assert_eq!(next(&mut events).await, ObjectEvent::Added(third));
    server.stop().await;
}
