//! `podplane store` on a server's data directory, as an operator uses it. After a restore, no
//! earlier revision means anything.

use std::{fs, path::Path, process::Command};

use anyhow::Result;
use podplane_api::{Object as _, core::Namespace, meta::ObjectMeta};
use podplane_client::{ListParams, Reason};
use podplane_tests::{
    apiserver::Apiserver,
    programs::{ProgramOutput, finish, podplane},
};

fn store(dir: &Path, args: &[&str]) -> ProgramOutput {
    finish(podplane(["store"]).args(args).arg("--data-dir").arg(dir))
}

fn namespace(name: &str) -> Namespace {
    Namespace {
        metadata: ObjectMeta {
            name: Some(name.into()),
            ..ObjectMeta::default()
        },
        ..Namespace::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_of_a_running_server_restores_into_another() -> Result<()> {
    let place = tempfile::tempdir()?;
    let (old, new) = (place.path().join("old"), place.path().join("new"));
    fs::create_dir(&old)?;
    let file = place.path().join("backup");
    let file = file.to_str().expect("a temporary name is text");

    let server = Apiserver::start(&old).await?;
    let client = server.client()?;
    let before = client
        .all::<Namespace>()
        .create(&namespace("before"))
        .await?;
    assert!(
        store(&old, &["check"])
            .failed(2)
            .contains("is in use by another process")
    );
    // A backup through the server, which goes on.
    let backup = ["backup", file, "--server", server.address()];
    assert!(store(&old, &backup).ok().contains(" objects of http://"));
    let after = client
        .all::<Namespace>()
        .create(&namespace("after"))
        .await?;
    server.kill()?;

    assert!(store(&old, &["check"]).ok().contains(" is sound: "));
    assert!(
        store(&old, &["compact"])
            .ok()
            .contains("compacted the store in ")
    );
    assert!(store(&old, &["check"]).ok().contains(" is sound: "));
    assert!(
        store(&old, &["restore", file])
            .failed(1)
            .contains("is not empty")
    );
    assert!(
        store(&new, &["check"])
            .failed(2)
            .contains("there is no store in")
    );
    let half = place.path().join("half");
    let bytes = fs::read(file)?;
    fs::write(&half, &bytes[..bytes.len() / 2])?;
    let half = half.to_str().expect("a temporary name is text");
    assert!(
        store(&new, &["restore", half])
            .failed(2)
            .contains("it is truncated")
    );
    assert!(!new.exists());

    assert!(
        store(&new, &["restore", file])
            .ok()
            .contains("revisions begin at")
    );
    assert!(store(&new, &["check"]).ok().contains(" is sound: "));
    let server = Apiserver::start(&new).await?;
    let namespaces = server.client()?.all::<Namespace>();
    let restored = namespaces.get("before").await?;
    assert_eq!(restored.metadata.uid, before.metadata.uid);
    let lost = namespaces.get("after").await.expect_err("made later");
    assert_eq!(lost.reason, Reason::NotFound);
    // No revision that a client of the old server remembers means anything here.
    let rest = server.rest();
    for revision in [before.resource_version(), after.resource_version()] {
        for how in [
            "",
            "&resourceVersionMatch=NotOlderThan",
            "&resourceVersionMatch=Exact",
        ] {
            let path = format!("/api/v1/namespaces?resourceVersion={revision}{how}");
            let answer = rest.get(&path).await?;
            assert_eq!(answer.code, 410, "{path}: {}", answer.body);
        }
        let watch = namespaces.watch(&ListParams::default(), revision).await;
        let refused = watch.err().map(|error| error.reason);
        assert_eq!(refused, Some(Reason::Expired), "{revision}");
    }
    let again = namespaces.create(&namespace("after")).await?;
    let number = |namespace: &Namespace| namespace.resource_version().parse::<u64>();
    assert!(number(&again)? > number(&after)?);
    Ok(())
}

/// The released program ends where sled panics. The message is the same, and the files are left
/// alone.
#[tokio::test(flavor = "multi_thread")]
async fn damage_is_reported_and_files_are_left_alone() -> Result<()> {
    let place = tempfile::tempdir()?;
    let whole = place.path().join("whole");
    fs::create_dir(&whole)?;
    let server = Apiserver::start(&whole).await?;
    let namespaces = server.client()?.all::<Namespace>();
    for number in 0..50 {
        namespaces.create(&namespace(&format!("n{number}"))).await?;
    }
    server.kill()?;
    let data = fs::read(whole.join("store/db"))?;
    let used = data.iter().rposition(|byte| *byte != 0).unwrap_or_default();

    let mut refused = 0;
    for part in 0..20 {
        let dir = place.path().join(part.to_string());
        finish(Command::new("cp").arg("-a").args([&whole, &dir])).ok();
        let mut damaged = data.clone();
        damaged[used * part / 20] ^= 0xff;
        fs::write(dir.join("store/db"), &damaged)?;
        let checked = store(&dir, &["check"]);
        // Otherwise the byte was out of use, such as one of an older version of a page.
        if checked.code != Some(0) {
            let told = checked.failed(1);
            assert!(told.contains("damaged"), "at {part}: {told}");
            assert!(!told.contains("panicked at"), "at {part}: {told}");
            refused += 1;
        }
        assert!(fs::read(dir.join("store/db"))? == damaged, "at {part}");
    }
    assert!(refused > 0, "no byte matters");
    Ok(())
}
