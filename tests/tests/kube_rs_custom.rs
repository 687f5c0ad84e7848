//! A kind that a program declares with kube-rs' derive: its definition, its objects, their status
//! and what the schema refuses.

use anyhow::{Context as _, Result};
use futures::StreamExt as _;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client, Config, CustomResource, CustomResourceExt as _, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
    runtime::{WatchStreamExt as _, conditions, wait::await_condition, watcher},
};
use podplane_tests::{apiserver::Apiserver, eventually};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

#[derive(CustomResource, Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[kube(
    group = "example.com",
    version = "v1",
    kind = "Gadget",
    namespaced,
    status = "GadgetStatus",
    shortname = "gd",
    printcolumn = r#"{"name": "Size", "type": "integer", "jsonPath": ".spec.size"}"#
)]
struct GadgetSpec {
    #[schemars(range(min = 1, max = 9))]
    size: i32,
    #[serde(default = "blue")]
    colour: String,
}

fn blue() -> String {
    "blue".to_owned()
}

#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
struct GadgetStatus {
    ready: bool,
}

fn gadget(name: &str, size: i32) -> Gadget {
    let colour = "red".to_owned();
    Gadget::new(name, GadgetSpec { size, colour })
}

/// The code of the server's refusal.
fn code<T: std::fmt::Debug>(answer: Result<T, kube::Error>) -> u16 {
    match answer {
        Err(kube::Error::Api(status)) => status.code,
        other => panic!("want a refusal, not {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_derived_kind_is_defined_and_served() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let server = Apiserver::start(dir.path()).await?;
    let config = Config::new(format!("http://{}", server.address()).parse()?);
    let client = Client::try_from(config)?;
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let definition = Gadget::crd();
    let create = PostParams::default();
    definitions.create(&create, &definition).await?;
    let established = conditions::is_crd_established();
    await_condition(definitions.clone(), "gadgets.example.com", established).await?;

    let gadgets: Api<Gadget> = Api::default_namespaced(client);
    let events = watcher(gadgets.clone(), watcher::Config::default());
    let mut touched = Box::pin(events.default_backoff().touched_objects());
    let made = gadgets.create(&create, &gadget("a", 3)).await?;
    assert_eq!(made.spec, gadget("a", 3).spec);
    assert_eq!(made.status, None);
    let seen = touched.next().await.context("an event")??;
    assert_eq!(seen.uid(), made.uid());
    assert_eq!(code(gadgets.create(&create, &gadget("b", 10)).await), 422);

    // A status has a way of its own, and the way of the spec does not change it.
    let ready = json!({"spec": {"size": 9}, "status": {"ready": true}});
    let merge = Patch::Merge(&ready);
    let params = PatchParams::default();
    let patched = gadgets.patch_status("a", &params, &merge).await?;
    assert_eq!(patched.status, Some(GadgetStatus { ready: true }));
    assert_eq!(patched.spec.size, 3);
    let bare = json!({"apiVersion": "example.com/v1", "kind": "Gadget", "metadata": {"name": "b"},
        "spec": {"size": 1}, "status": {"ready": true}});
    let apply = PatchParams::apply("tests").force();
    let applied = gadgets.patch("b", &apply, &Patch::Apply(&bare)).await?;
    assert_eq!(applied.spec.colour, "blue", "the definition's default");
    assert_eq!(applied.status, None);
    let other = PatchParams::apply("others");
    let conflict = json!({"apiVersion": "example.com/v1", "kind": "Gadget", "spec": {"size": 2}});
    let refused = gadgets.patch("b", &other, &Patch::Apply(&conflict)).await;
    assert_eq!(code(refused), 409);

    let listed = gadgets.list(&ListParams::default()).await?;
    let names: Vec<_> = listed.iter().map(ResourceExt::name_any).collect();
    assert_eq!(names, ["a", "b"]);
    let delete = DeleteParams::default();
    definitions.delete("gadgets.example.com", &delete).await?;
    let gone = || async { gadgets.list(&ListParams::default()).await.map(drop) };
    let is_gone = |answer: &Result<(), kube::Error>| matches!(answer, Err(kube::Error::Api(status)) if status.code == 404);
    let answer = eventually("the kind goes with its definition", gone, is_gone).await;
    assert!(is_gone(&answer));
    assert!(server.terminated().await?);
    Ok(())
}
