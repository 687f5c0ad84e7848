//! The rows that create interfaces, and the memory of a process.

use std::path::{Path, PathBuf};

use anyhow::Result;
use serde_json::{Value, json};

use super::{
    fixture::{BenchFixture, id, ipam, move_into, no_netns},
    process::Program,
    report::{Goal, ReportLine, ReportUnit},
    stats::Pairs,
};

/// Measures bridge with host-local.
pub(super) fn bridge(fixture: &BenchFixture) -> Vec<ReportLine> {
    let goals = [Goal::Better(4.0), Goal::Better(1.3)];
    attach(fixture, "bridge + host-local", "bridge", &json!({}), goals)
}

/// Measures bridge with masquerading: ours by nftables, the reference's by iptables.
pub(super) fn masquerade(fixture: &BenchFixture) -> Vec<ReportLine> {
    let (options, goals) = (
        json!({"ipMasq": true, "ipMasqBackend": "nftables"}),
        [Goal::Better(6.0), Goal::None],
    );
    attach(
        fixture,
        "bridge + host-local, ipMasq by nftables",
        "bridge",
        &options,
        goals,
    )
}

/// Measures ptp with host-local.
pub(super) fn ptp(fixture: &BenchFixture) -> Vec<ReportLine> {
    let goals = [Goal::None, Goal::None];
    attach(fixture, "ptp + host-local", "ptp", &json!({}), goals)
}

/// One side: its program, and the network namespace that represents its node.
struct BenchNode {
    program: Program,
    netns: PathBuf,
}

impl BenchNode {
    fn pair(fixture: &BenchFixture, plugin: &str, options: &Value) -> Result<[Self; 2]> {
        let node = |plugins: &Path| -> Result<Self> {
            let mut config = json!({
                "cniVersion": "1.0.0", "name": "bench", "type": plugin,
                "bridge": "cni0", "isGateway": true,
                "ipam": ipam(&fixture.data_dir(0)?),
            });
            for (key, value) in options.as_object().into_iter().flatten() {
                config[key] = value.clone();
            }
            Ok(Self {
                program: Program::plugin(plugins, plugin, &config),
                netns: fixture.netns()?,
            })
        };
        let [ours, theirs] = BenchFixture::sides();
        Ok([node(&ours)?, node(&theirs)?])
    }
}

/// Measures ADD into a fresh namespace, then DEL while the namespace exists. Namespaces are created
/// before and removed after all measurements: the kernel dismantles them in the background, which
/// would disturb the measurement.
fn attach(
    fixture: &BenchFixture,
    what: &str,
    plugin: &str,
    options: &Value,
    goals: [Goal; 2],
) -> Vec<ReportLine> {
    let measure = || -> Result<[Pairs; 2]> {
        let nodes = BenchNode::pair(fixture, plugin, options)?;
        let (mut adds, mut dels) = (Pairs::default(), Pairs::default());
        for round in 0..=fixture.rounds(50) {
            let pods = [fixture.netns()?, fixture.netns()?];
            let mut times = [[0.0; 2]; 2];
            for turn in 0..2 {
                let side = (round as usize + turn) % 2;
                let (node, id) = (&nodes[side], id(fixture.serial()));
                move_into(&node.netns)?;
                times[side] = [
                    node.program.time("ADD", &id, &pods[side])?,
                    node.program.time("DEL", &id, &pods[side])?,
                ];
            }
            // The first round creates the bridge.
            if round > 0 {
                adds.push(times[0][0], times[1][0]);
                dels.push(times[0][1], times[1][1]);
            }
        }
        Ok([adds, dels])
    };
    let line = |command: &str, goal, measured| ReportLine {
        what: format!("{what}: {command}"),
        unit: ReportUnit::Milliseconds,
        goal,
        measured,
    };
    match measure() {
        Ok([adds, dels]) => vec![
            line("ADD", goals[0], Ok(adds)),
            line("DEL", goals[1], Ok(dels)),
        ],
        Err(error) => vec![line("ADD", goals[0], Err(error))],
    }
}

/// Measures the peak memory of one process: host-local's, and bridge's with host-local as its
/// child.
pub(super) fn memory(fixture: &BenchFixture) -> Vec<ReportLine> {
    let host_local = || -> Result<Pairs> {
        let programs = fixture.host_locals(100)?;
        let mut pairs = Pairs::default();
        for _ in 0..fixture.rounds(10) {
            let id = id(1_000_000 + fixture.serial());
            let [ours, theirs] =
                [0, 1].map(|side| programs[side].peak(&fixture.peak, "ADD", &id, no_netns()));
            pairs.push(ours?, theirs?);
        }
        Ok(pairs)
    };
    let bridge = || -> Result<Pairs> {
        let nodes = BenchNode::pair(fixture, "bridge", &json!({}))?;
        let mut pairs = Pairs::default();
        for _ in 0..fixture.rounds(10) {
            let peak = |node: &BenchNode| -> Result<f64> {
                let pod = fixture.netns()?;
                move_into(&node.netns)?;
                let id = id(fixture.serial());
                node.program.peak(&fixture.peak, "ADD", &id, &pod)
            };
            pairs.push(peak(&nodes[0])?, peak(&nodes[1])?);
        }
        Ok(pairs)
    };
    let line = |what: &str, measured| ReportLine {
        what: format!("{what}: peak memory of ADD"),
        unit: ReportUnit::Kibibytes,
        goal: Goal::Better(5.0),
        measured,
    };
    vec![
        line("host-local, 100 leases", host_local()),
        line("bridge + host-local, the larger", bridge()),
    ]
}
