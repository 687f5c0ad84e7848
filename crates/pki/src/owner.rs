//! The owners of a cluster's certificates: its processes, its nodes and its administrator.

use std::{fmt, str::FromStr, time::Duration};

use jiff::SignedDuration;

use crate::{CertificateTerms, ServerName, Subject, Usage};

/// The name of an authority that podplane makes.
pub const AUTHORITY: &str = "podplane-ca";

/// The name in the API server's certificate by which clients on the same machine know it. Other
/// processes there have the machine's addresses in their certificates, too, but not this name.
pub const APISERVER_NAME: &str = "podplane-apiserver";

/// The time for which certificates are valid unless something else is asked for.
pub const LIFETIME: Duration = Duration::from_secs(365 * 24 * 3600);

/// The shortest life of the certificates that a cluster on one machine renews by itself. They are
/// renewed when a third of it is left, and processes see that within two seconds.
const SHORTEST_LIFETIME: Duration = Duration::from_secs(15);

/// The life of an authority, which no certificate outlives.
pub const LONGEST_LIFETIME: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Parses the life of the certificates that a cluster on one machine renews by itself, such as
/// `8760h`.
///
/// # Errors
///
/// A message for the user of a flag.
pub fn renewed_lifetime(text: &str) -> Result<Duration, String> {
    let lifetime: SignedDuration = text
        .parse()
        .map_err(|error: jiff::Error| error.to_string())?;
    let lifetime = lifetime.try_into().unwrap_or_default();
    match (SHORTEST_LIFETIME..=LONGEST_LIFETIME).contains(&lifetime) {
        true => Ok(lifetime),
        false => Err("must be between 15s and 87600h, the life of the authority".to_owned()),
    }
}

/// The names of this machine for itself.
pub(crate) const LOCAL_NAMES: [&str; 3] = ["localhost", "127.0.0.1", "::1"];
/// The names by which pods know the API server.
const SERVICE_NAMES: [&str; 4] = [
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
];

/// The owner of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CertificateOwner {
    /// The API server, as a server.
    Apiserver,
    /// A process that has a user of its own: its name, and the user.
    Process(&'static str, &'static str),
    /// A person or program that may do everything.
    Admin,
    /// A program that reads metrics.
    Monitoring,
    /// A node: the kubelet of that name.
    Node(String),
    /// A process as a server of metrics and the like: its name.
    Serving(String),
}

impl CertificateOwner {
    /// The IPAM controller.
    pub const IPAM_CONTROLLER: Self =
        Self::Process("ipam-controller", "system:podplane:ipam-controller");
    /// The kubelets and CRI servers of several nodes each.
    pub const KUBELETS: Self = Self::Process("kubelets", "system:podplane:kubelets");
    /// The part of a kubelet that makes routes to other nodes.
    pub const ROUTE_AGENT: Self = Self::Process("route-agent", "system:podplane:route-agent");

    /// The processes that have a user of their own.
    pub const PROCESSES: [Self; 5] = [
        Self::Process("scheduler", "system:kube-scheduler"),
        Self::Process("controller-manager", "system:kube-controller-manager"),
        Self::IPAM_CONTROLLER,
        Self::KUBELETS,
        Self::ROUTE_AGENT,
    ];

    /// The content of its certificate. `names` are added to those of a server.
    pub fn terms(&self, names: &[ServerName], lifetime: Duration) -> CertificateTerms {
        let own: &[&[&str]] = match self {
            Self::Apiserver => &[&[APISERVER_NAME], &SERVICE_NAMES, &LOCAL_NAMES],
            Self::Serving(_) => &[&LOCAL_NAMES],
            Self::Process(..) | Self::Admin | Self::Monitoring | Self::Node(_) => &[],
        };
        let subject = match self {
            Self::Apiserver => Subject::new("kube-apiserver", ""),
            Self::Process(_, user) => Subject::new(*user, ""),
            Self::Admin => Subject::new("admin", "system:masters"),
            Self::Monitoring => Subject::new("prometheus", "system:monitoring"),
            Self::Node(name) => Subject::node(name),
            Self::Serving(name) => Subject::new(name, ""),
        };
        let own = own.iter().copied().flatten();
        let own = own.filter_map(|name| name.parse::<ServerName>().ok());
        let (usage, names) = match self {
            Self::Apiserver | Self::Serving(_) => {
                let mut names: Vec<_> = own.chain(names.iter().cloned()).collect();
                names.sort();
                names.dedup();
                (Usage::Server, names)
            }
            Self::Process(..) | Self::Admin | Self::Monitoring | Self::Node(_) => {
                (Usage::Client, Vec::new())
            }
        };
        CertificateTerms {
            subject,
            usage,
            names,
            lifetime,
        }
    }
}

/// The name of its file, without `.pem`.
impl fmt::Display for CertificateOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Apiserver => f.write_str("apiserver"),
            Self::Process(name, _) => f.write_str(name),
            Self::Admin => f.write_str("admin"),
            Self::Monitoring => f.write_str("monitoring"),
            Self::Node(name) => write!(f, "node-{name}"),
            Self::Serving(name) => write!(f, "serving-{name}"),
        }
    }
}

/// Reads an owner as the command line has it: `node/NAME` and `serving/NAME`, and the others by the
/// name of their file. The name of a node is not checked.
impl FromStr for CertificateOwner {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('/') {
            Some(("node", name)) => return Ok(Self::Node(name.to_owned())),
            Some(("serving", name)) => return Ok(Self::Serving(name.to_owned())),
            _ => {}
        }
        let own = [Self::Apiserver, Self::Admin, Self::Monitoring].into_iter();
        let mut known = own.chain(Self::PROCESSES);
        known.find(|owner| owner.to_string() == text).ok_or_else(|| {
            "want apiserver, scheduler, controller-manager, ipam-controller, kubelets, route-agent, admin, monitoring, node/NAME or serving/NAME".to_owned()
        })
    }
}
