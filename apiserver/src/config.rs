use std::path::PathBuf;

use podplane_telemetry::server::Listen;

/// How the API server runs.
#[derive(Clone, Debug, clap::Args)]
pub struct Config {
    /// Where to serve gRPC: HOST:PORT with a numeric host, port 0 for any free one, or unix:PATH.
    #[arg(
        long,
        env = "PODPLANE_APISERVER_LISTEN",
        default_value = "127.0.0.1:7080",
        value_name = "ADDR"
    )]
    pub listen: Listen,

    /// Write the address to this file once it is served, for those who look for the server. Default: `apiserver.address` in --data-dir, if there is one.
    #[arg(long, env = "PODPLANE_APISERVER_ADDRESS_FILE", value_name = "FILE")]
    pub address_file: Option<PathBuf>,

    /// Where the data is kept: the store is in the directory `store` in it, made if it is not there. Required by --store sled.
    #[arg(
        long,
        env = "PODPLANE_APISERVER_DATA_DIR",
        value_name = "DIR",
        required_if_eq("store", "sled")
    )]
    pub data_dir: Option<PathBuf>,

    /// Which engine keeps the objects.
    #[arg(
        long,
        env = "PODPLANE_APISERVER_STORE",
        value_enum,
        default_value_t,
        value_name = "ENGINE"
    )]
    pub store: StoreKind,
}

/// An engine of the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum StoreKind {
    /// On disk, in --data-dir; a write is acknowledged once it is durable.
    #[default]
    Sled,
    /// In memory, and gone when the process ends.
    Memory,
}
