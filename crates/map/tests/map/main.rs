//! Tests of the map as its users see it: counts against a model, canvases, zoom, and golden files.

#![expect(clippy::unwrap_used, reason = "a test")]

mod canvas;
mod golden;
mod model;
mod samples;
mod topology;
mod zoom;
