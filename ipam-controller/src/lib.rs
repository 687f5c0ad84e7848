//! The IPAM controller: gives each node its blocks of the cluster CIDR, takes them back, and
//! removes what a deleted node leaves behind.
//!
//! Decisions are in [`plan`] and [`orphans`], which are pure; the loops around them only observe,
//! apply and report. It never gives a block before all nodes and pods are known, and never frees
//! one before its node and the pods in it are known to be gone. Start reading at [`run`].

#![warn(missing_docs)]

mod allocators;
mod cloud;
mod condition;
mod controller;
mod gc;
mod growth;
mod holds;
mod metrics;
pub mod orphans;
mod overlaps;
mod permissions;
pub mod plan;
mod service;
mod upstream;

use std::{path::PathBuf, sync::Arc, time::Duration};

use clap::{ArgAction, Args};
use futures::future::BoxFuture;
use podplane_api::{
    core::{Node, Pod},
    networking::ClusterCIDR,
};
use podplane_client::{
    CredentialFlags, Endpoint, EventRecorder, ListParams, PatchFaults, ServerError, ServerFlags,
    endpoint::EndpointError,
    leader::{LeaderElection, LeaderError},
    reflector, start_check,
};
use podplane_ipam::{
    ClusterRange, Compat, NO_CLOUD, Notice, RangeConfigError, RangeFlags, mask_size_of_flag,
    upstream::FlagError,
};
use podplane_proto::ipam::ipam_service_server::IpamServiceServer;
use podplane_service_runtime::{
    Process, Services, Tasks,
    boundary::AllowedHosts,
    server::Listen,
    serving::{ServingError, ServingFlags},
    tasks::{TaskEnd, TaskError},
};
use tokio_util::sync::CancellationToken;

pub use podplane_ipam::{AllocatorType, InvalidAllocatorType};

/// The name of the election.
const ELECTION: &str = "podplane-ipam-controller";
/// The name under which the reference reports; tools look for it.
const COMPONENT: &str = "cidrAllocator";

/// Flags of the IPAM controller.
#[derive(Args, Clone, Debug)]
pub struct IpamControllerConfig {
    /// The API server.
    #[command(flatten)]
    pub server: ServerFlags,
    /// Serve podplane.ipam.v1 at this address: IP:PORT (port 0: any free port) or unix:PATH
    #[arg(
        long,
        env = "PODPLANE_LISTEN",
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
    /// Write the listening address to this file, once it is served
    #[arg(long, env = "PODPLANE_ADDRESS_FILE", value_name = "FILE")]
    pub address_file: Option<PathBuf>,
    /// Assign each node a pod CIDR of every cluster CIDR; false, the default as in
    /// kube-controller-manager, only records the pod CIDRs that nodes have
    #[arg(
        value_name = "BOOL",
        long,
        env = "PODPLANE_ALLOCATE_NODE_CIDRS",
        action = ArgAction::Set,
        num_args = 0..=1,
        require_equals = true,
        default_value_t = false,
        default_missing_value = "true"
    )]
    pub allocate_node_cidrs: bool,
    /// Assign pod CIDRs by RangeAllocator (from --cluster-cidr), MultiCIDRRangeAllocator (from
    /// ClusterCIDR objects) or CloudAllocator (the cloud assigns them)
    #[arg(
        long,
        env = "PODPLANE_CIDR_ALLOCATOR_TYPE",
        value_name = "TYPE",
        default_value_t = AllocatorType::RangeAllocator
    )]
    pub cidr_allocator_type: AllocatorType,
    /// Assign the nodes' pod CIDRs from this range; for dual stack one IPv4 and one IPv6 range
    ///
    /// A node's pod CIDRs are in the order of the ranges.
    #[arg(
        long,
        env = "PODPLANE_CLUSTER_CIDR",
        value_name = "CIDR[,CIDR]",
        default_value = "",
        hide_default_value = true
    )]
    pub cluster_cidr: String,
    /// Assign pod CIDRs of this prefix length in a single-stack cluster [default: 24 for IPv4, 64
    /// for IPv6]
    #[arg(
        long,
        env = "PODPLANE_NODE_CIDR_MASK_SIZE",
        value_name = "BITS",
        value_parser = mask_size_of_flag
    )]
    pub node_cidr_mask_size: Option<u8>,
    /// Assign IPv4 pod CIDRs of this prefix length [default: 24]
    #[arg(
        long,
        env = "PODPLANE_NODE_CIDR_MASK_SIZE_IPV4",
        value_name = "BITS",
        value_parser = mask_size_of_flag
    )]
    pub node_cidr_mask_size_ipv4: Option<u8>,
    /// Assign IPv6 pod CIDRs of this prefix length [default: 64]
    #[arg(
        long,
        env = "PODPLANE_NODE_CIDR_MASK_SIZE_IPV6",
        value_name = "BITS",
        value_parser = mask_size_of_flag
    )]
    pub node_cidr_mask_size_ipv6: Option<u8>,
    /// Reserve this range for services: no node is assigned a pod CIDR that overlaps it; for dual
    /// stack one IPv4 and one IPv6 range
    #[arg(
        long,
        env = "PODPLANE_SERVICE_CLUSTER_IP_RANGE",
        value_name = "CIDR[,CIDR]",
        default_value = "",
        hide_default_value = true
    )]
    pub service_cluster_ip_range: String,
    /// Reproduce the node IPAM of another system, including its faults: none, upstream,
    /// upstream-1.30, upstream-1.31, upstream-1.32 or gcp
    ///
    /// none is podplane's own behaviour; upstream is the newest Kubernetes; upstream-1.30 is
    /// Kubernetes up to 1.30, upstream-1.31 from 1.31.0 to 1.31.3, upstream-1.32 from 1.31.4 on;
    /// gcp is the fork in cloud-provider-gcp. With all but none, the API server accepts pod CIDRs
    /// that overlap each other or the service range.
    #[arg(long, env = "PODPLANE_COMPAT", default_value_t, value_name = "SYSTEM")]
    pub compat: Compat,
    /// Let the first N writes of node blocks fail: with fail:N they are not sent, with timeout:N
    /// they are carried out and their answers are lost.
    #[arg(
        long,
        env = "PODPLANE_INJECT_PATCH",
        value_name = "FAULT:N",
        hide = true
    )]
    pub inject_patch: Option<PatchFaults>,
    /// Delete the pods of a deleted node after SECONDS, an integer without a unit
    #[arg(
        long,
        env = "PODPLANE_ORPHAN_QUARANTINE",
        value_name = "SECONDS",
        default_value_t = 5
    )]
    pub orphan_quarantine: u32,
    /// Assign pod CIDRs to at most N nodes in one call, from 1 to 1000
    #[arg(
        long,
        env = "PODPLANE_ASSIGN_BATCH_SIZE",
        value_name = "N",
        value_parser = clap::value_parser!(u16).range(1..=1000),
        default_value_t = 256
    )]
    pub assign_batch_size: u16,
    /// The flags that the user of a cluster sets.
    #[command(flatten)]
    pub cluster: CloudFlags,
    /// The election.
    #[command(flatten)]
    pub leader_election: LeaderElection,
}

/// The flags that `podplane up` and `podplane restart` take too, and pass on as they are. Each has
/// one value.
#[derive(Args, Clone, Debug, PartialEq, Eq)]
pub struct CloudFlags {
    /// Connect to the cloud, a server of podplane.cloud.v1, at this address, for CloudAllocator:
    /// HOST:PORT, a URL, or unix:PATH
    ///
    /// With `podplane up`, the instance of a node is podplane://NODE.
    #[arg(long, env = "PODPLANE_CLOUD_ENDPOINT", value_name = "ADDR")]
    pub cloud_endpoint: Option<Endpoint>,
    /// Trust the certificate authorities in this file (PEM) for the cloud's certificate [default:
    /// those of --certificate-authority]
    #[arg(
        long,
        env = "PODPLANE_CLOUD_CERTIFICATE_AUTHORITY",
        value_name = "FILE"
    )]
    pub cloud_certificate_authority: Option<PathBuf>,
    /// Show the cloud the client certificate in this file (PEM); needs --cloud-client-key
    /// [default: that of --client-certificate]
    #[arg(long, env = "PODPLANE_CLOUD_CLIENT_CERTIFICATE", value_name = "FILE")]
    pub cloud_client_certificate: Option<PathBuf>,
    /// Use the private key in this file (PEM), which may be the file of --cloud-client-certificate
    #[arg(long, env = "PODPLANE_CLOUD_CLIENT_KEY", value_name = "FILE")]
    pub cloud_client_key: Option<PathBuf>,
    /// Quarantine a pod CIDR that is no longer used for this long, such as 30s, before it is
    /// assigned to another node
    #[arg(
        long,
        env = "PODPLANE_RELEASE_DELAY",
        value_name = "DURATION",
        value_parser = humantime::parse_duration,
        default_value = "0s"
    )]
    pub release_delay: Duration,
}

impl CloudFlags {
    /// The cloud's address with the credentials for it. What the flags do not name is as for the
    /// API server, but its token: another server must not have that.
    fn endpoint(&self, server: &CredentialFlags) -> Result<Endpoint, IpamControllerRunError> {
        let endpoint = self.cloud_endpoint.clone();
        let endpoint = endpoint.ok_or(IpamControllerRunError::NoCloud)?;
        let (certificate, key) = (&self.cloud_client_certificate, &self.cloud_client_key);
        let (client_certificate, client_key) = match (certificate, key) {
            (None, None) => (&server.client_certificate, &server.client_key),
            (Some(_), Some(_)) => (certificate, key),
            (Some(_), None) | (None, Some(_)) => return Err(IpamControllerRunError::CloudKeyPair),
        };
        let authority = self.cloud_certificate_authority.as_ref();
        let credentials = CredentialFlags {
            certificate_authority: authority.or(server.certificate_authority.as_ref()).cloned(),
            client_certificate: client_certificate.clone(),
            client_key: client_key.clone(),
            // The cloud is known by the host of its address.
            tls_server_name: None,
            token_file: None,
        };
        let endpoint = endpoint.with_credentials(&credentials);
        endpoint.map_err(IpamControllerRunError::Cloud)
    }
}

impl IpamControllerConfig {
    pub(crate) fn range_flags(&self) -> RangeFlags {
        RangeFlags {
            cluster_cidr: self.cluster_cidr.clone(),
            node_cidr_mask_size: self.node_cidr_mask_size,
            node_cidr_mask_size_ipv4: self.node_cidr_mask_size_ipv4,
            node_cidr_mask_size_ipv6: self.node_cidr_mask_size_ipv6,
            service_cluster_ip_range: self.service_cluster_ip_range.clone(),
        }
    }
}

/// The reasons why the controller does not run.
#[derive(Debug, thiserror::Error)]
pub enum IpamControllerRunError {
    /// The ranges are refused; the text is the reference's.
    #[error(transparent)]
    Ranges(#[from] RangeConfigError),
    /// The ranges are refused by the system that `--compat` names.
    #[error(transparent)]
    Flags(#[from] FlagError),
    /// cloud-provider-gcp's controller does not run without `--allocate-node-cidrs`. The text is
    /// the reference's.
    #[error("the AllocateNodeCIDRs is not enabled")]
    NotAllocating,
    /// The system that `--compat` names does not have this allocator. The text is the reference's.
    #[error(transparent)]
    AllocatorType(#[from] InvalidAllocatorType),
    /// `--compat` does not imitate this allocator of the system that it names.
    #[error(
        "--compat: Invalid value: \"{compat}\": imitates the RangeAllocator only, and --cidr-allocator-type is {kind}; give --compat=none, or --cidr-allocator-type=RangeAllocator"
    )]
    NotImitated {
        /// `--compat`.
        compat: Compat,
        /// `--cidr-allocator-type`.
        kind: AllocatorType,
    },
    /// A ClusterCIDR cannot be cut into blocks this small.
    #[error(
        "--cluster-cidr: Invalid value: \"{range}\": MultiCIDRRangeAllocator gives no smaller blocks than /{longest} (perNodeHostBits 4); give a --node-cidr-mask-size, or that of the family, of at most {longest}"
    )]
    BlocksTooSmall {
        /// The range.
        range: ClusterRange,
        /// The longest prefix of a block.
        longest: u8,
    },
    /// The service range takes every block.
    #[error("{0}")]
    NoBlockLeft(Notice),
    /// The allocator asks a cloud, and no cloud is configured. The text is the reference's.
    #[error("{NO_CLOUD}")]
    NoCloud,
    /// A certificate without its key, or a key without its certificate.
    #[error("--cloud-client-certificate and --cloud-client-key need each other")]
    CloudKeyPair,
    /// The cloud's address or the credentials for it are invalid.
    #[error("failed to prepare the connection to the cloud")]
    Cloud(#[source] EndpointError),
    /// The apiserver's address or its TLS material is invalid.
    #[error("failed to prepare the connection to the apiserver")]
    Server(#[from] ServerError),
    /// The flags of the election are invalid.
    #[error(transparent)]
    Election(#[from] LeaderError),
    /// The address to listen on cannot be used.
    #[error("failed to start the server")]
    Listen(#[from] ServingError),
    /// A task of the controller ended.
    #[error("failed to run the controller")]
    Ended(#[from] TaskEnd),
}

/// Runs until `stop` is cancelled.
///
/// # Errors
///
/// Everything that [`IpamControllerRunError`] names. An unreachable apiserver is not an error: the
/// controller waits for it.
pub fn run(
    config: IpamControllerConfig,
    stop: CancellationToken,
) -> BoxFuture<'static, Result<(), IpamControllerRunError>> {
    // Boxed, so that it is compiled with this crate and not with each program that calls it.
    Box::pin(run_until(config, stop))
}

async fn run_until(
    config: IpamControllerConfig,
    stop: CancellationToken,
) -> Result<(), IpamControllerRunError> {
    let allocator = allocators::ChosenAllocator::new(&config)?;
    allocator.announce();
    let wants_cluster_cidrs = allocator.wants_cluster_cidrs();
    let client = config.server.connect().await?;
    let client = client.with_patch_faults(config.inject_patch.clone());
    let candidate = config.leader_election.candidate(client.clone(), ELECTION)?;
    let (hosts, file) = (config.allowed_hosts.clone(), config.address_file.as_deref());
    let listeners = config
        .serving
        .listeners(&config.listen, hosts, file)
        .await?;

    let known = Arc::new(controller::AllocatorHandle::default());
    let metrics = metrics::AllocatorMetrics::new();
    let (nodes, follow_nodes) = reflector(client.all::<Node>(), ListParams::default());
    let (pods, follow_pods) = reflector(client.all::<Pod>(), ListParams::default());
    let (cluster_cidrs, follow_cluster_cidrs) =
        reflector(client.all::<ClusterCIDR>(), ListParams::default());
    let (events, write_events) = EventRecorder::new(client.clone(), COMPONENT, "");
    let mut needed = [permissions::NEEDED, &candidate.permissions()].concat();
    needed.extend(wants_cluster_cidrs.then_some(permissions::CLUSTER_CIDRS));
    let check = start_check(client, config.server.clone(), needed, stop.clone());

    let mut process = Process::new(podplane_proto::DESCRIPTORS);
    metrics.register(process.registry(), known.clone());
    candidate.register(process.registry());
    let mut services = Services::default();
    services.add(IpamServiceServer::new(service::AllocatorService::new(
        known.clone(),
        pods.clone(),
    )));
    process.serve_at(listeners, services);
    process.ready_when("nodes", nodes.synced());
    process.ready_when("pods", pods.synced());
    if wants_cluster_cidrs {
        process.ready_when("clustercidrs", cluster_cidrs.synced());
    }
    // An imitated allocator knows only the nodes from the moment on in which it leads.
    process.ready_when("leader election", candidate.decided());

    // Only a leader runs these. Caches are kept while standing by, too.
    let quarantine = Duration::from_secs(config.orphan_quarantine.into());
    let end = stop.clone();
    let leads = async move {
        let led = candidate.lead(&end, |leading| {
            let parts = allocators::AllocatorContext {
                client: leading.client.clone(),
                nodes: nodes.clone(),
                pods: pods.clone(),
                cluster_cidrs,
                events,
                known,
                metrics,
            };
            let collector = gc::PodCollector {
                client: leading.client,
                nodes,
                pods,
                quarantine,
            };
            let collect = ended(collector.run(end.clone()));
            let allocate = allocator.run(parts, end.clone());
            async { tokio::try_join!(allocate, collect).map(drop) }
        });
        // A controller that lost the lead ends, so that none of its state is used later.
        Box::pin(led).await?.unwrap_or(Ok(()))
    };

    let mut tasks = Tasks::new(stop);
    if wants_cluster_cidrs {
        tasks.follow("ClusterCIDR watch", follow_cluster_cidrs);
    }
    tasks.follow("node watch", follow_nodes);
    tasks.follow("pod watch", follow_pods);
    tasks.follow("event writer", write_events);
    tasks.spawn("leader", leads);
    tasks.spawn("start check", check);
    process.start(&mut tasks).await;
    Ok(tasks.run().await?)
}

async fn ended(work: impl Future<Output = ()>) -> Result<(), TaskError> {
    work.await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct ConfigProgram {
        #[command(flatten)]
        config: IpamControllerConfig,
    }

    fn parse(flags: &[&str]) -> Result<IpamControllerConfig, clap::Error> {
        let common = ["ipam-controller", "--server=127.0.0.1:1"];
        ConfigProgram::try_parse_from(common.iter().chain(flags)).map(|cli| cli.config)
    }

    #[test]
    fn flags_match_the_reference() {
        let config = parse(&[
            "--allocate-node-cidrs=true",
            "--cluster-cidr=10.255.0.0/19",
            "--node-cidr-mask-size=30",
            "--service-cluster-ip-range=10.255.31.0/24",
        ]);
        assert_eq!(config.unwrap().ranges().unwrap().max_nodes(), 1984);
        assert!(
            parse(&["--allocate-node-cidrs"])
                .unwrap()
                .allocate_node_cidrs
        );
        assert!(parse(&["--node-cidr-mask-size=300"]).is_err());
    }

    #[test]
    fn imitates_only_the_range_allocator() {
        let refused = |compat: &str, kind: &str| {
            let (compat, kind) = (
                format!("--compat={compat}"),
                format!("--cidr-allocator-type={kind}"),
            );
            let range = "--cluster-cidr=10.0.0.0/16";
            let config = parse(&["--allocate-node-cidrs", range, &compat, &kind]).unwrap();
            let chosen = allocators::ChosenAllocator::new(&config);
            chosen.err().map(|error| error.to_string())
        };
        for compat in Compat::ALL {
            assert_eq!(refused(compat.name(), "RangeAllocator"), None);
        }
        for kind in ["MultiCIDRRangeAllocator", "CloudAllocator"] {
            for compat in ["upstream", "upstream-1.31", "upstream-1.32"] {
                let want = format!("invalid CIDR allocator type: {kind}");
                assert_eq!(refused(compat, kind), Some(want));
            }
            for compat in ["upstream-1.30", "gcp"] {
                let message = refused(compat, kind).unwrap();
                let want = format!("--compat: Invalid value: \"{compat}\": ");
                assert!(
                    message.starts_with(&want) && message.contains(kind),
                    "{message}"
                );
            }
        }
    }

    /// The message of the error, if the flags are refused.
    fn cloud_refused(flags: &[&str]) -> Option<String> {
        let own = [
            "--allocate-node-cidrs",
            "--cidr-allocator-type=CloudAllocator",
        ];
        let config = parse(&[&own, flags].concat()).unwrap();
        let refused = allocators::ChosenAllocator::new(&config).err();
        refused.map(|error| podplane_error_chain::one_line(&error))
    }

    #[tokio::test]
    async fn the_cloud_gets_no_token_and_needs_complete_credentials() {
        let dir = tempfile::tempdir().unwrap();
        let token = dir.path().join("token");
        podplane_host::fs::write(&token, "s3cret").unwrap();
        let token = format!("--token-file={}", token.display());
        // A token would be refused: others on the network could read it.
        assert_eq!(
            cloud_refused(&["--cloud-endpoint=10.0.0.9:7090", &token]),
            None
        );
        let secure = "--cloud-endpoint=https://10.0.0.9:7090";
        assert_eq!(
            cloud_refused(&[secure]).unwrap(),
            "failed to prepare the connection to the cloud: https://10.0.0.9:7090 needs --certificate-authority, to know the server by its certificate"
        );
        for half in ["--cloud-client-certificate=a", "--cloud-client-key=a"] {
            assert_eq!(
                cloud_refused(&[secure, half]).unwrap(),
                "--cloud-client-certificate and --cloud-client-key need each other"
            );
        }
        let missing = cloud_refused(&[secure, "--cloud-certificate-authority=/nowhere/ca.crt"]);
        assert!(missing.unwrap().contains("/nowhere/ca.crt"));
    }

    #[test]
    fn rejects_blocks_too_small_for_a_cluster_cidr() {
        let refused = |mask: &str| {
            let config = parse(&[
                "--allocate-node-cidrs",
                "--cidr-allocator-type=MultiCIDRRangeAllocator",
                "--cluster-cidr=10.0.0.0/16",
                mask,
            ]);
            let chosen = allocators::ChosenAllocator::new(&config.unwrap());
            chosen.err().map(|error| error.to_string())
        };
        assert_eq!(refused("--node-cidr-mask-size=28"), None);
        let message = refused("--node-cidr-mask-size=29").unwrap();
        assert!(
            message.contains("10.0.0.0/16 in blocks of /29"),
            "{message}"
        );
        assert!(message.contains("at most 28"), "{message}");
    }

    #[test]
    fn ignores_ranges_that_are_not_used() {
        for flags in [
            &[][..],
            &["--allocate-node-cidrs=false", "--cluster-cidr=rubbish"],
        ] {
            assert_eq!(parse(flags).unwrap().ranges().unwrap().ranges, []);
        }
    }
}
