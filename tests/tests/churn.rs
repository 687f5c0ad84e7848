//! No address is on two pods while pods come and go and everything dies.

use std::{path::Path, time::Duration};

use anyhow::{Context as _, Result};
use podplane_tests::{
    Network,
    churn::{ChurnIpam, ChurnTest},
};
use tokio::task::JoinSet;

/// The variable with the seed, in decimal, from which the whole plan follows.
const SEED: &str = "PODPLANE_SEED";
/// The variable with a part of the names of the wanted clusters: `kernel`, `ledger-host-local`.
const ONLY: &str = "PODPLANE_CHURN";

fn seed() -> Result<u64> {
    match std::env::var(SEED) {
        Ok(seed) => seed
            .parse()
            .with_context(|| format!("invalid {SEED} {seed:?}")),
        Err(_) => Ok(fastrand::u64(0..1_000_000)),
    }
}

/// The time in which pods come and go: with start and end a minute and a half of the clock in CI,
/// since all clusters run at the same time.
fn length() -> Duration {
    let soak = std::env::var_os("PODPLANE_SOAK").is_some();
    Duration::from_secs(if soak { 600 } else { 45 })
}

#[tokio::test(flavor = "multi_thread")]
async fn no_address_is_on_two_pods_while_everything_dies() -> Result<()> {
    let seed = seed()?;
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
    eprintln!("{SEED}={seed}, journals in {}", dir.display());
    let only = std::env::var(ONLY).unwrap_or_default();
    let mut churning = JoinSet::new();
    for network in [Network::Kernel, Network::Ledger] {
        for ipam in [ChurnIpam::HostLocal, ChurnIpam::Other] {
            let churn = ChurnTest {
                network,
                ipam,
                seed,
                length: length(),
                dir: dir.to_owned(),
            };
            if churn.to_string().contains(&only) {
                churning.spawn(async move { churn.run().await });
            }
        }
    }
    anyhow::ensure!(!churning.is_empty(), "{ONLY}={only} is none of them");
    let mut findings = Vec::new();
    while let Some(ended) = churning.join_next().await {
        // A churn that panics or does not start hides nothing of the others.
        match ended.map_err(anyhow::Error::from).flatten() {
            Ok(found) => findings.extend(found),
            Err(error) => findings.push(format!("{error:#}\n")),
        }
    }
    assert!(
        findings.is_empty(),
        "{SEED}={seed} repeats the plan\n{}",
        findings.concat()
    );
    Ok(())
}
