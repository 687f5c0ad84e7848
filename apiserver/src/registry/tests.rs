//! The writer of a change on its way to admission.

use std::sync::{Mutex, PoisonError};

use futures::FutureExt as _;
use podplane_api::{Object as _, core::Node};
use podplane_store::MemStore;

use super::*;
use crate::cache::Feeder;

/// Records the users of changes.
#[derive(Debug, Default)]
struct UserRecorder(Mutex<Vec<String>>);

impl Admission<Node> for UserRecorder {
    fn additions<'a>(
        &'a self,
        change: ProposedChange<'a, Node>,
    ) -> BoxFuture<'a, Result<CommitAdditions, ApiError>> {
        let mut users = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        users.push(change.by.user.clone());
        async { Ok(CommitAdditions::default()) }.boxed()
    }

    fn check_guards<'a>(
        &'a self,
        _change: ProposedChange<'a, Node>,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        async { Ok(()) }.boxed()
    }
}

#[tokio::test]
async fn admission_sees_who_writes() {
    let engine = Engine::new(MemStore::new()).await.unwrap();
    let feeder = Feeder::new();
    let recorder = Arc::new(UserRecorder::default());
    let admission: Arc<dyn Admission<Node>> = recorder.clone();
    let registry = Registry::new(engine, Registry::<Node>::cache(), feeder.position());
    let registry = registry.admitting(Some(admission));
    let by = |user: &str| WriteParams::by(Arc::new(Identity::new(user, ["dev"])));
    let mut node = Node::default();
    node.metadata.name = Some("n".to_owned());
    let key = ObjectKey::new("", "n");

    let created = registry.create(node, &by("creator")).await.unwrap();
    let writer = by("updater");
    let update = registry.update(created, ObjectPart::Main, &writer);
    update.await.unwrap();
    let patch = Patch::Merge(serde_json::json!({"metadata": {"labels": {"a": "b"}}}));
    let decode = |document| {
        let (node, _) = Node::from_json_noting(document).unwrap();
        let node: Box<DynObject> = Box::new(node);
        Ok((node, Vec::new()))
    };
    let writer = by("patcher");
    let patch = registry.patch(&key, ObjectPart::Main, &patch, &writer, &decode);
    patch.await.unwrap();
    let dry = ChangeTerms {
        effect: WriteEffect::Dry,
        ..writer.terms()
    };
    registry
        .modify(&key, Operation::Update(ObjectPart::Main), dry, |_| Ok(()))
        .await
        .unwrap();
    let options = DeleteOptions {
        by: by("deleter").by,
        ..DeleteOptions::by_server()
    };
    registry.delete(&key, &options).await.unwrap();
    let again = Node {
        metadata: podplane_api::meta::ObjectMeta {
            name: Some("n".to_owned()),
            ..Default::default()
        },
        ..Node::default()
    };
    registry
        .create(again, &WriteParams::by_server())
        .await
        .unwrap();

    let users = recorder.0.lock().unwrap_or_else(PoisonError::into_inner);
    let want = [
        "creator",
        "updater",
        "patcher",
        "patcher",
        "deleter",
        "system:apiserver",
    ];
    assert_eq!(*users, want);
}
