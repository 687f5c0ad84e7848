//! The controllers of requests for certificates: they approve those of nodes, sign the approved
//! ones, and delete old ones. They run if the flags name an authority.

mod plan;

use std::{path::PathBuf, time::Duration};

use clap::Args;
use podplane_api::{
    Object as _, ObjectKey,
    certificates::{CertificateSigningRequest, CertificateSigningRequestCondition},
    kinds::certificate_signing_request::{APPROVED, FAILED},
    meta::Time,
};
use podplane_client::{
    ApiError, Cache, CacheChange, Client, DeleteParams, Reason, WorkQueue, answered,
};
use podplane_host::{clock, fs, random};
use podplane_pki::{Authority, PkiError};

use self::plan::{CertificateStep, NodePermission, SigningTerms, plan};
use crate::work::{Latch, unless_gone};

/// Flags of the authority that signs certificates.
#[derive(Args, Clone, Debug)]
pub struct SigningFlags {
    /// Sign requests for certificates by the authority with this certificate (PEM); needs
    /// --cluster-signing-key-file [default: none are approved, signed or deleted]
    #[arg(
        long,
        env = "PODPLANE_CLUSTER_SIGNING_CERT_FILE",
        value_name = "FILE",
        requires = "cluster_signing_key_file"
    )]
    pub cluster_signing_cert_file: Option<PathBuf>,
    /// The private key of the authority (PEM)
    #[arg(
        long,
        env = "PODPLANE_CLUSTER_SIGNING_KEY_FILE",
        value_name = "FILE",
        requires = "cluster_signing_cert_file"
    )]
    pub cluster_signing_key_file: Option<PathBuf>,
    /// The longest life of a signed certificate, such as 8760h, at least 10m
    #[arg(
        long,
        env = "PODPLANE_CLUSTER_SIGNING_DURATION",
        value_name = "DURATION",
        default_value = "8760h"
    )]
    pub cluster_signing_duration: humantime::Duration,
}

/// The authority cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SigningFlagsError {
    /// A file cannot be read.
    #[error("failed to read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The operating system's reason.
        #[source]
        source: std::io::Error,
    },
    /// The files are not those of an authority.
    #[error("failed to use the authority of --cluster-signing-cert-file")]
    Authority(#[from] PkiError),
}

impl SigningFlags {
    /// The authority; `None` without flags.
    ///
    /// # Errors
    ///
    /// [`SigningFlagsError`].
    pub(crate) fn authority(&self) -> Result<Option<Authority>, SigningFlagsError> {
        let (Some(certificate), Some(key)) = (
            &self.cluster_signing_cert_file,
            &self.cluster_signing_key_file,
        ) else {
            return Ok(None);
        };
        let read = |path: &PathBuf| {
            fs::read_to_string(path).map_err(|source| SigningFlagsError::Read {
                path: path.clone(),
                source,
            })
        };
        Ok(Some(Authority::from_pem(&read(certificate)?, &read(key)?)?))
    }
}

/// The controller. It reconciles requests by name, with the client of a leader; a standby only
/// observes.
#[derive(Debug)]
pub(crate) struct CertificateRequests {
    requests: Cache<CertificateSigningRequest>,
    authority: Option<Authority>,
    longest: Duration,
    pub(crate) queue: WorkQueue<String>,
}

impl CertificateRequests {
    /// A controller whose queue is closed. Without an authority, it does nothing.
    pub(crate) fn new(
        requests: Cache<CertificateSigningRequest>,
        authority: Option<Authority>,
        longest: Duration,
    ) -> Self {
        Self {
            requests,
            authority,
            longest,
            queue: WorkQueue::closed(),
        }
    }

    /// Opens the queue, and queues all requests.
    pub(crate) fn open(&self) {
        self.queue.open();
        for request in self.requests.list() {
            self.queue.add(request.name().to_owned());
        }
    }

    /// Observes requests, for ever; `ready` is notified when the first list has been observed.
    pub(crate) async fn follow(&self, ready: &Latch) {
        self.requests.synced().await;
        let mut changes = self.requests.subscribe();
        ready.arrive();
        loop {
            if let CacheChange::Applied { new, .. } = changes.next().await {
                self.queue.add(new.name().to_owned());
            }
        }
    }

    /// Takes the next step for a request.
    pub(crate) async fn reconcile(
        &self,
        client: &Client,
        name: &str,
    ) -> Result<Option<Duration>, ApiError> {
        let found = self.requests.get(&ObjectKey::new("", name));
        let (Some(authority), Some(request)) = (&self.authority, found) else {
            return Ok(None);
        };
        let now = clock::timestamp();
        let api = client.all::<CertificateSigningRequest>();
        let user = plan::requester(&request);
        let mut changed = CertificateSigningRequest::clone(&request);
        match plan(&request, self.longest, now) {
            CertificateStep::Wait(time) => return Ok(Some(time)),
            CertificateStep::Delete(why) => {
                let params = DeleteParams {
                    uid: Some(request.uid().to_owned()),
                    resource_version: Some(request.resource_version().to_owned()),
                    ..DeleteParams::default()
                };
                unless_gone(answered(api.delete(name, &params)).await)?;
                tracing::info!(name, why, "deleted an old certificate signing request");
            }
            CertificateStep::Review(permissions, again) => {
                let Some(why) = reviewed(client, &request, permissions).await? else {
                    tracing::debug!(
                        name,
                        user,
                        ?permissions,
                        "requestor may not have its request approved"
                    );
                    return Ok(Some(again));
                };
                add(&mut changed, APPROVED, "AutoApproved", why.to_owned());
                answered(api.update_approval(&changed)).await?;
                tracing::info!(name, user, why, "approved a certificate signing request");
            }
            CertificateStep::Fail(why) => {
                tracing::warn!(name, user, why, "failed a certificate signing request");
                add(&mut changed, FAILED, "SignerValidationFailure", why);
                answered(api.update_status(&changed)).await?;
            }
            CertificateStep::Sign(terms) => {
                let SigningTerms {
                    request,
                    usages,
                    lifetime,
                } = *terms;
                let serial = random::uuid();
                let signed = authority.sign(&request, &usages, lifetime, serial.as_bytes(), now);
                let signed = signed
                    .map_err(|error| ApiError::new(Reason::InternalError, error.to_string()))?;
                let status = changed.status.get_or_insert_default();
                status.certificate = Some(podplane_api::ByteString(signed.into_bytes()));
                answered(api.update_status(&changed)).await?;
                tracing::info!(name, user, "signed a certificate");
            }
        }
        // The change comes back through the cache.
        Ok(None)
    }
}

/// Reviews whether the requestor has one of these permissions; returns the reason of the approval.
async fn reviewed(
    client: &Client,
    request: &CertificateSigningRequest,
    permissions: &[NodePermission],
) -> Result<Option<&'static str>, ApiError> {
    for permission in permissions {
        let review = plan::review(request, *permission);
        if answered(client.create_subject_access_review(review))
            .await?
            .allowed
        {
            return Ok(Some(permission.reason()));
        }
    }
    Ok(None)
}

fn add(request: &mut CertificateSigningRequest, type_: &str, reason: &str, message: String) {
    let now = Time(clock::timestamp());
    let status = request.status.get_or_insert_default();
    let conditions = status.conditions.get_or_insert_default();
    conditions.push(CertificateSigningRequestCondition {
        type_: type_.to_owned(),
        status: "True".to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message),
        last_update_time: Some(now.clone()),
        last_transition_time: Some(now),
    });
}
