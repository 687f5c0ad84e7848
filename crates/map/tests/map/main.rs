//! Tests of the map as its users see it: counts against a model, canvases, and zoom.

#![expect(clippy::unwrap_used, reason = "a test")]

mod canvas;
mod model;
mod samples;
mod zoom;
