//! The rows of host-local.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::Instant,
};

use anyhow::{Context as _, Result};

use super::{
    fixture::{BenchFixture, FULL, id, no_netns},
    process::Program,
    report::{Goal, ReportLine, ReportUnit},
    sandbox,
    stats::Pairs,
};

/// The number of concurrent processes.
const CROWD: u32 = 64;

/// Measures 100 leases: beside the reference, and beside the lower bound.
pub(super) fn few_leases(fixture: &BenchFixture) -> Vec<ReportLine> {
    let mut lines = against_reference(fixture, 100, fixture.rounds(300), Goal::Better(3.5));
    let floor = || -> Result<[Pairs; 2]> {
        let [ours, _] = fixture.host_locals(100)?;
        let floor = fixture.floor(100)?;
        add_and_del(fixture, [&ours, &floor], fixture.rounds(300))
    };
    lines.extend(add_del_lines(
        "host-local, 100 leases, peer: static C",
        Goal::Within(1.6),
        floor(),
    ));
    lines
}

/// Measures this many leases, beside the reference.
pub(super) fn many_leases(fixture: &BenchFixture, leases: u32, rounds: u32) -> Vec<ReportLine> {
    against_reference(fixture, leases, fixture.rounds(rounds), Goal::Better(5.0))
}

fn against_reference(
    fixture: &BenchFixture,
    leases: u32,
    rounds: u32,
    goal: Goal,
) -> Vec<ReportLine> {
    let measure = || -> Result<[Pairs; 2]> {
        let [ours, theirs] = fixture.host_locals(leases)?;
        add_and_del(fixture, [&ours, &theirs], rounds)
    };
    add_del_lines(&format!("host-local, {leases} leases"), goal, measure())
}

/// Measures ADD and DEL by turns, so that the number of leases stays constant; the order of the
/// sides alternates.
fn add_and_del(fixture: &BenchFixture, programs: [&Program; 2], rounds: u32) -> Result<[Pairs; 2]> {
    let (mut adds, mut dels) = (Pairs::default(), Pairs::default());
    for round in 0..rounds + 1 {
        let id = id(1_000_000 + fixture.serial());
        let mut times = [[0.0; 2]; 2];
        for turn in 0..2 {
            let side = (round as usize + turn) % 2;
            let program = programs[side];
            times[side] = [
                program.time("ADD", &id, no_netns())?,
                program.time("DEL", &id, no_netns())?,
            ];
        }
        // The first round finds caches cold.
        if round > 0 {
            adds.push(times[0][0], times[1][0]);
            dels.push(times[0][1], times[1][1]);
        }
    }
    Ok([adds, dels])
}

/// Three lines: the sum, which has the target, and its parts.
fn add_del_lines(what: &str, goal: Goal, measured: Result<[Pairs; 2]>) -> Vec<ReportLine> {
    let line = |command: &str, goal, measured| ReportLine {
        what: format!("{what}: {command}"),
        unit: ReportUnit::Milliseconds,
        goal,
        measured,
    };
    match measured {
        Err(error) => vec![line("ADD+DEL", goal, Err(error))],
        Ok([adds, dels]) => {
            let sum =
                |adds: &[f64], dels: &[f64]| adds.iter().zip(dels).map(|(a, d)| a + d).collect();
            let both = Pairs {
                ours: sum(&adds.ours, &dels.ours),
                theirs: sum(&adds.theirs, &dels.theirs),
            };
            let part = match goal {
                Goal::Within(_) => goal,
                _ => Goal::None,
            };
            vec![
                line("ADD+DEL", goal, Ok(both)),
                line("ADD", part, Ok(adds)),
                line("DEL", part, Ok(dels)),
            ]
        }
    }
}

/// Measures a /16 with one free address, so that the search goes round; then a full one, in which
/// ADD fails.
pub(super) fn full(fixture: &BenchFixture) -> Vec<ReportLine> {
    let mut lines = Vec::new();
    let programs = match fixture.host_locals(FULL - 1) {
        Ok(programs) => programs,
        Err(error) => return add_del_lines("host-local, full /16", Goal::None, Err(error)),
    };
    let [ours, theirs] = &programs;
    let rounds = fixture.rounds(8);
    let with = |what: &str, goal, lines: &mut Vec<ReportLine>| {
        let measured = add_and_del(fixture, [ours, theirs], rounds);
        let [add, del] = match measured {
            Ok([adds, dels]) => [Ok(adds), Ok(dels)],
            Err(error) => [Err(error), Err(anyhow::anyhow!("as ADD"))],
        };
        for (command, goal, measured) in [("ADD", goal, add), ("DEL", Goal::None, del)] {
            lines.push(ReportLine {
                what: format!("host-local, /16 with one address free, {what}: {command}"),
                unit: ReportUnit::Milliseconds,
                goal,
                measured,
            });
        }
    };
    with("index", Goal::Better(30.0), &mut lines);
    match sandbox::without_index() {
        Ok(_read_only) => with("no index", Goal::Better(4.0), &mut lines),
        Err(error) => lines.extend(add_del_lines(
            "host-local, full /16, no index",
            Goal::None,
            Err(error),
        )),
    }
    for (what, goal, index) in [
        ("index", Goal::Better(30.0), true),
        ("no index", Goal::Better(4.0), false),
    ] {
        let measure = || -> Result<Pairs> {
            let _read_only = if index {
                None
            } else {
                Some(sandbox::without_index()?)
            };
            refusals(fixture, [ours, theirs], rounds)
        };
        lines.push(ReportLine {
            what: format!("host-local, full /16, {what}: ADD that is refused"),
            unit: ReportUnit::Milliseconds,
            goal,
            measured: measure(),
        });
    }
    lines
}

/// Takes the last address, and measures failing requests.
fn refusals(fixture: &BenchFixture, programs: [&Program; 2], rounds: u32) -> Result<Pairs> {
    let last = id(2_000_000 + fixture.serial());
    for program in programs {
        program.time("ADD", &last, no_netns())?;
    }
    let mut pairs = Pairs::default();
    for round in 0..rounds {
        let id = id(1_000_000 + fixture.serial());
        let mut times = [0.0; 2];
        for turn in 0..2 {
            let side = (round as usize + turn) % 2;
            times[side] = programs[side].time_failure(
                "ADD",
                &id,
                "no IP addresses available in range set",
            )?;
        }
        pairs.push(times[0], times[1]);
    }
    for program in programs {
        program.time("DEL", &last, no_netns())?;
    }
    Ok(pairs)
}

/// Measures many processes on one directory: ADD+DEL pairs per second.
pub(super) fn crowd(fixture: &BenchFixture) -> Vec<ReportLine> {
    let measure = || -> Result<Pairs> {
        let [ours, theirs] = fixture.host_locals(100)?;
        let mut pairs = Pairs::default();
        for _ in 0..fixture.rounds(8) {
            pairs.push(throughput(fixture, &ours)?, throughput(fixture, &theirs)?);
        }
        Ok(pairs)
    };
    vec![ReportLine {
        what: format!("host-local, 100 leases, {CROWD} at a time: ADD+DEL pairs"),
        unit: ReportUnit::PerSecond("pairs"),
        goal: Goal::Better(4.0),
        measured: measure(),
    }]
}

fn throughput(fixture: &BenchFixture, program: &Program) -> Result<f64> {
    let (pairs, first) = (
        CROWD * fixture.rounds(8),
        3_000_000 + fixture.serial() * 10_000,
    );
    let next = AtomicU32::new(0);
    let work = || -> Result<()> {
        loop {
            let n = next.fetch_add(1, Ordering::Relaxed);
            if n >= pairs {
                return Ok(());
            }
            let id = id(first + n);
            program.time("ADD", &id, no_netns())?;
            program.time("DEL", &id, no_netns())?;
        }
    };
    let started = Instant::now();
    thread::scope(|scope| -> Result<()> {
        let workers: Vec<_> = (0..CROWD).map(|_| scope.spawn(work)).collect();
        for worker in workers {
            let done = worker.join().ok().context("a worker panicked")?;
            done?;
        }
        Ok(())
    })?;
    Ok(f64::from(pairs) / started.elapsed().as_secs_f64())
}
