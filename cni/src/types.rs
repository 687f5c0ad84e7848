//! The types of the CNI specification: versions, errors, results and network configuration.

mod address;
mod args;
mod config;
mod error;
pub mod go_json;
pub mod json;
mod result;
pub mod validate;
mod version;

pub use address::{GoCidr, GoIp, canonical_net, next_ip, parse_cidr, parse_ip};
pub use args::{cni_arg, cni_args};
pub(crate) use config::config_field;
pub use config::{ConfigError, NetworkConfigList, PluginConfig};
pub use error::{CniError, code};
pub use result::{CniResult, Dns, Interface, IpConfig, ResultError, Route};
pub(crate) use version::triple as version_triple;
pub use version::{UnknownVersion, Version};
