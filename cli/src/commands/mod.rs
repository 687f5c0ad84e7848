//! One module for each command: its `Args`, and `run`.

pub(crate) mod completion;
