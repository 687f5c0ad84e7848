use std::{io, path::PathBuf, time::Duration};

use podplane_host::fs;
use podplane_request_audit::{LogOptions, Policy, PolicyError};

use super::AuditSetup;
use crate::ApiserverRunError;

/// The size at which the log is rotated if the flag is 0, in megabytes, as in Kubernetes.
const DEFAULT_MEGABYTES: u32 = 100;

/// The flags of the audit log. Names and meanings are kube-apiserver's.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct AuditFlags {
    /// Write the audit log to this file (mode 0600); `-` is the standard output; needs
    /// --audit-policy-file [default: no audit log]
    ///
    /// Each line is an event of a request: JSON with the fields of audit.k8s.io/v1.
    #[arg(
        long,
        env = "PODPLANE_AUDIT_LOG_PATH",
        value_name = "FILE",
        requires = "audit_policy_file"
    )]
    pub audit_log_path: Option<PathBuf>,

    /// Audit the requests that the policy in this file selects: YAML, a Policy of audit.k8s.io/v1;
    /// read once at the start; needs --audit-log-path
    #[arg(
        long,
        env = "PODPLANE_AUDIT_POLICY_FILE",
        value_name = "FILE",
        requires = "audit_log_path"
    )]
    pub audit_policy_file: Option<PathBuf>,

    /// Rotate the audit log before it has more megabytes than this; 0: 100
    #[arg(
        long,
        env = "PODPLANE_AUDIT_LOG_MAXSIZE",
        value_name = "MEGABYTES",
        default_value_t = DEFAULT_MEGABYTES
    )]
    pub audit_log_maxsize: u32,

    /// Keep this many rotated audit logs; 0: all
    #[arg(
        long,
        env = "PODPLANE_AUDIT_LOG_MAXBACKUP",
        value_name = "N",
        default_value_t = 0
    )]
    pub audit_log_maxbackup: u32,

    /// Remove rotated audit logs after this many days; 0: never
    #[arg(
        long,
        env = "PODPLANE_AUDIT_LOG_MAXAGE",
        value_name = "DAYS",
        default_value_t = 0
    )]
    pub audit_log_maxage: u32,
}

/// The audit policy cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AuditPolicyFileError {
    /// The file cannot be read.
    #[error("failed to read the audit policy {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The operating system's reason.
        #[source]
        source: io::Error,
    },
    /// The file is not a policy.
    #[error("invalid audit policy {}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// The field and its rule.
        #[source]
        source: PolicyError,
    },
}

impl AuditFlags {
    /// The policy, read from its file, and the log; `None` without an audit log.
    ///
    /// # Errors
    ///
    /// One of policy and log without the other, and a policy that cannot be used.
    pub(crate) fn setup(&self) -> Result<Option<AuditSetup>, ApiserverRunError> {
        let Self {
            audit_log_path,
            audit_policy_file,
            audit_log_maxsize: megabytes,
            audit_log_maxbackup: backups,
            audit_log_maxage: days,
        } = self;
        let (log, file) = match (audit_log_path, audit_policy_file) {
            (None, None) => return Ok(None),
            (Some(log), Some(file)) => (log.clone(), file.clone()),
            _ => return Err(ApiserverRunError::IncompleteAudit),
        };
        let megabytes = match megabytes {
            0 => DEFAULT_MEGABYTES,
            megabytes => *megabytes,
        };
        let seconds = u64::from(*days) * 24 * 60 * 60;
        Ok(Some(AuditSetup {
            policy: read(file)?,
            log: LogOptions {
                path: log,
                max_bytes: Some(u64::from(megabytes) << 20),
                max_backups: usize::try_from(*backups).ok().filter(|most| *most > 0),
                max_age: Some(Duration::from_secs(seconds)).filter(|age| !age.is_zero()),
            },
        }))
    }
}

fn read(path: PathBuf) -> Result<Policy, AuditPolicyFileError> {
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(source) => return Err(AuditPolicyFileError::Read { path, source }),
    };
    Policy::parse(&text).map_err(|source| AuditPolicyFileError::Invalid { path, source })
}
