//! The page: its assets inside of the program, and the routes that serve them.
//!
//! The assets are the files of `crates/ui/assets` as they are; there is no build. They are the same
//! for everybody and hold no data, so that they need no login: the data comes from
//! `/summary/v1alpha1` (docs/ui.md).

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod assets;
mod session;

pub use assets::{is_public, router};
pub use session::{PageServer, SERVER_PATH, SESSION_PATH, Session, SessionSource};
