//! Time from facts to geometry, and to each canvas, for 5,000 nodes and 150,000 pods in a /8.

#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a program for developers"
)]

#[path = "../tests/map/samples.rs"]
#[expect(dead_code, reason = "the tests use all of it")]
mod samples;

use std::{hint::black_box, time::Instant};

use podplane_map::{AddressSpace, Scene, TextGrid, TextSize, View, svg};

const ROUNDS: usize = 11;

/// The median of milliseconds.
fn measure<T>(name: &str, mut work: impl FnMut() -> (Instant, T)) {
    let mut times: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let (started, result) = work();
            let time = started.elapsed().as_secs_f64() * 1e3;
            black_box(result);
            time
        })
        .collect();
    times.sort_by(f64::total_cmp);
    println!(
        "{name:<28}{:>8.2} ms (of {ROUNDS}: {:.2} to {:.2})",
        times[ROUNDS / 2],
        times[0],
        times[ROUNDS - 1]
    );
}

fn main() {
    let parts = samples::large();
    measure("facts to space", || {
        let parts = parts.clone();
        let started = Instant::now();
        (started, AddressSpace::new(parts))
    });
    let space = AddressSpace::new(parts);
    let network = &space.networks()[0];
    for (name, limits) in [
        ("space to geometry, 64x64", svg::limits()),
        ("space to geometry, 80x24", TextSize::MIN.limits()),
    ] {
        measure(name, || {
            let started = Instant::now();
            let view = View::new(&space, network, network.cidr(), limits.main);
            (started, view.unwrap())
        });
    }
    let scene = Scene::new(&space, network, network.cidr(), svg::limits()).unwrap();
    measure("geometry to SVG", || (Instant::now(), svg::picture(&scene)));
    let size = TextSize::MIN;
    let scene = Scene::new(&space, network, network.cidr(), size.limits()).unwrap();
    measure("geometry to text, 80x24", || {
        (Instant::now(), TextGrid::new(&scene, size))
    });
}
