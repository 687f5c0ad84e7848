//! The page `/ui/` in Debian's Chromium, against live clusters. What users see and do is compared,
//! never pixels. [`pictures`] writes those of the documentation.

mod accessible;
mod assets;
mod elsewhere;
mod hostile;
mod keyboard;
mod large;
mod live;
mod login;
mod machine;
mod pictures;
mod recording;
mod site;
mod small;
