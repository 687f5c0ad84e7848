//! Networks of our plugins that several test programs use.
#![expect(dead_code, reason = "each test program uses a part of it")]

pub(crate) mod network;
pub(crate) mod site;
