//! The flags of the webhooks.

use std::{path::PathBuf, time::Duration};

use clap::Args;
use podplane_api::pod_ips::PodIpResource;
use podplane_client::{ServerFlags, leader::LeaderElection};
use podplane_service_runtime::{boundary::AllowedHosts, server::Listen, serving::ServingFlags};

use crate::{certificates::CertificateFlags, object_name::ObjectName};

/// The flags of the webhooks.
#[derive(Clone, Debug, Args)]
pub struct WebhookConfig {
    /// The API server.
    #[command(flatten)]
    pub server: ServerFlags,

    /// Serve /mutate-pods and /validate-bindings at this address: IP:PORT (port 0: any free port)
    ///
    /// Everyone may post to these paths, since API servers mostly have no credentials for webhooks.
    #[arg(
        long,
        env = "PODPLANE_WEBHOOK_LISTEN",
        value_name = "ADDR",
        default_value = "127.0.0.1:0"
    )]
    pub listen: Listen,

    /// Host names that requests may be addressed to.
    #[command(flatten)]
    pub allowed_hosts: AllowedHosts,

    /// The clients of the address, and its TLS.
    #[command(flatten)]
    pub serving: ServingFlags,

    /// The certificate that the webhooks manage themselves.
    #[command(flatten)]
    pub certificates: CertificateFlags,

    /// Write the listening address to this file, once it is served
    #[arg(long, env = "PODPLANE_WEBHOOK_ADDRESS_FILE", value_name = "FILE")]
    pub address_file: Option<PathBuf>,

    /// Count pod addresses as this extended resource of nodes, and add requests for it to pods
    ///
    /// Each pod without hostNetwork needs one, or as many as it requests.
    #[arg(
        long,
        env = "PODPLANE_POD_IP_RESOURCE",
        default_value_t,
        value_name = "NAME"
    )]
    pub pod_ip_resource: PodIpResource,

    /// Read a pod again whose binding was allowed this long ago and has not been seen, such as 1m;
    /// at least --request-timeout of the API server
    ///
    /// Until then its address is reserved. The API server has carried out the binding after that
    /// time, or never will.
    #[arg(
        long,
        env = "PODPLANE_RESERVATION_TIMEOUT",
        value_name = "DURATION",
        value_parser = humantime::parse_duration,
        default_value = "1m"
    )]
    pub reservation_timeout: Duration,

    /// Write into this ConfigMap whether every node publishes the resource, for a
    /// MutatingAdmissionPolicy that adds the requests [default: the webhook /mutate-pods adds them]
    #[arg(long, env = "PODPLANE_POLICY_PARAMS", value_name = "NAMESPACE/NAME")]
    pub policy_params: Option<ObjectName>,

    /// The election.
    #[command(flatten)]
    pub leader_election: LeaderElection,
}
