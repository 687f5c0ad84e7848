//! The webhooks' own certificate, for clusters without a certificate manager.
//!
//! The certificate, its key and its authority are in a Secret, which all replicas read. The leader
//! renews it, and writes the authority into `caBundle` of the configurations. The key of an
//! authority is never stored: each certificate has an authority of its own. A renewal publishes the
//! new authority beside the present one first, then replaces the certificate.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use podplane_api::{
    ByteString, Object, ObjectKey,
    admissionregistration::{
        MutatingWebhookConfiguration, ValidatingWebhookConfiguration, WebhookClientConfig,
    },
    core::Secret,
    jiff::Timestamp,
    meta::ObjectMeta,
};
use podplane_client::{Api, ApiError, Client, Permission, answered};
use podplane_error_chain::one_line;
use podplane_host::clock;
use podplane_pki::{
    Authority, CertificateInfo, CertificateTerms, PkiError, ServerName, Subject, Usage,
    write_key_file,
};
use podplane_service_runtime::tls::TlsFlags;

mod flags;
#[cfg(test)]
mod tests;

pub use self::flags::CertificateFlags;

/// The time between two looks at the Secret and the configurations.
const LOOK: Duration = Duration::from_secs(10);
/// The time between two tries.
const RETRY: Duration = Duration::from_secs(2);
/// The life of a certificate. It is renewed after two thirds.
const LIFETIME: Duration = Duration::from_secs(365 * 24 * 3600);
/// The common name of certificates and authorities.
const NAME: &str = "podplane-webhook";
/// The file with certificate and key.
const FILE: &str = "webhook.pem";

/// The keys of the Secret. The first two are those of the type `kubernetes.io/tls`.
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";
/// The authority of the certificate.
const AUTHORITY: &str = "ca.crt";
/// The authority of the certificate before, which replicas may still have.
const PREVIOUS: &str = "previous-ca.crt";

/// The reason why the certificate could not be read, renewed or published.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// The API server refused a call.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// A certificate could not be made or written.
    #[error(transparent)]
    Pki(#[from] PkiError),
}

/// A certificate as the Secret has it.
#[derive(Clone, PartialEq, Eq)]
struct StoredCertificate {
    certificate: String,
    key: String,
    authority: String,
    previous: Option<String>,
}

/// The least that a certificate must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Demand {
    /// It can be served.
    Usable,
    /// It has the wanted names, and is not to be renewed yet.
    Fresh,
}

impl StoredCertificate {
    /// Reads a Secret; `None` if a part is missing or no text.
    fn of(secret: &Secret) -> Option<Self> {
        let data = secret.data.as_ref()?;
        let text = |key: &str| String::from_utf8(data.get(key)?.0.clone()).ok();
        Some(Self {
            certificate: text(CERTIFICATE)?,
            key: text(KEY)?,
            authority: text(AUTHORITY)?,
            previous: text(PREVIOUS),
        })
    }

    /// Makes a certificate with an authority of its own.
    fn issue(
        hosts: &[ServerName],
        previous: Option<String>,
        now: Timestamp,
    ) -> Result<Self, PkiError> {
        let authority = Authority::create(NAME, now)?;
        let terms = CertificateTerms {
            subject: Subject::new(NAME, ""),
            usage: Usage::Server,
            names: hosts.to_vec(),
            lifetime: LIFETIME,
        };
        let issued = authority.issue(&terms, now)?;
        Ok(Self {
            certificate: issued.certificate,
            key: issued.key,
            authority: authority.certificate().to_owned(),
            previous,
        })
    }

    fn data(&self) -> BTreeMap<String, ByteString> {
        let parts = [
            (CERTIFICATE, Some(&self.certificate)),
            (KEY, Some(&self.key)),
            (AUTHORITY, Some(&self.authority)),
            (PREVIOUS, self.previous.as_ref()),
        ];
        let parts = parts.into_iter();
        let present = parts.filter_map(|(key, text)| Some((key, text?.clone().into_bytes())));
        let named = present.map(|(key, bytes)| (key.to_owned(), ByteString(bytes)));
        named.collect()
    }

    /// The authorities that clients must trust.
    fn bundle(&self) -> String {
        format!(
            "{}{}",
            self.authority,
            self.previous.as_deref().unwrap_or_default()
        )
    }

    fn meets(&self, demand: Demand, hosts: &[ServerName], now: Timestamp) -> bool {
        let Ok(info) = CertificateInfo::from_pem(CERTIFICATE, &self.certificate) else {
            return false;
        };
        let has_names = || hosts.iter().all(|host| info.terms.names.contains(host));
        match demand {
            Demand::Usable => now < info.not_after,
            Demand::Fresh => now < info.renew_at() && has_names(),
        }
    }
}

/// The certificate of the webhooks in a cluster.
#[derive(Clone, Debug)]
pub struct ManagedCertificate {
    client: Client,
    secret: ObjectKey,
    file: PathBuf,
    hosts: Vec<ServerName>,
    configuration: String,
}

impl ManagedCertificate {
    /// The certificate of the flags; `None` if they name no Secret.
    pub fn new(client: Client, flags: CertificateFlags) -> Option<Self> {
        let CertificateFlags {
            certificate_secret,
            certificate_dir,
            certificate_hosts,
            webhook_configuration,
        } = flags;
        Some(Self {
            client,
            secret: certificate_secret?.0,
            file: certificate_dir?.join(FILE),
            hosts: certificate_hosts,
            configuration: webhook_configuration,
        })
    }

    /// The permissions that it needs: those on its Secret and on the configurations.
    pub fn permissions(&self) -> Vec<Permission> {
        let ObjectKey { namespace, name } = &self.secret;
        let secrets = |verbs| Permission::on("", "secrets", verbs).in_namespace(namespace.clone());
        let configurations = |resource| {
            Permission::on("admissionregistration.k8s.io", resource, &["get", "update"])
                .named(self.configuration.clone())
        };
        vec![
            secrets(&["get", "update"]).named(name.clone()),
            secrets(&["create"]),
            configurations("mutatingwebhookconfigurations"),
            configurations("validatingwebhookconfigurations"),
        ]
    }

    /// The flags of a server with this certificate.
    pub fn tls(&self, tls: TlsFlags) -> TlsFlags {
        TlsFlags {
            tls_cert_file: Some(self.file.clone()),
            tls_private_key_file: Some(self.file.clone()),
            ..tls
        }
    }

    /// Waits until there is a certificate, makes it if nobody has, and writes the file.
    pub async fn obtain(&self) {
        loop {
            match self.refresh(&self.client, Demand::Usable).await {
                Ok(()) => return,
                Err(error) => {
                    let error = one_line(&error);
                    tracing::warn!(error, retry_in = ?RETRY, "failed to obtain the certificate; trying again");
                    clock::sleep(RETRY).await;
                }
            }
        }
    }

    /// Follows the Secret for ever, as every replica does.
    pub async fn follow(self) {
        loop {
            clock::sleep(LOOK).await;
            if let Err(error) = self.refresh(&self.client, Demand::Usable).await {
                let error = one_line(&error);
                tracing::warn!(error, retry_in = ?LOOK, "failed to read the certificate; trying again");
            }
        }
    }

    /// Renews the certificate and publishes its authorities for ever, as the leader does.
    pub async fn maintain(&self, client: &Client) {
        loop {
            let maintained = async {
                self.refresh(client, Demand::Fresh).await?;
                let stored = self
                    .read(client)
                    .await?
                    .and_then(|secret| StoredCertificate::of(&secret));
                match stored {
                    Some(stored) => self.publish(client, &stored.bundle()).await,
                    None => Ok(()),
                }
            };
            if let Err(error) = maintained.await {
                let error = one_line(&error);
                tracing::warn!(error, retry_in = ?LOOK, "failed to maintain the certificate; trying again");
            }
            clock::sleep(LOOK).await;
        }
    }

    async fn read(&self, client: &Client) -> Result<Option<Secret>, ApiError> {
        let secrets = client.namespaced::<Secret>(self.secret.namespace.as_str());
        match answered(secrets.get(&self.secret.name)).await {
            Ok(secret) => Ok(Some(secret)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Makes or renews the certificate if it is not what is demanded, and writes the file.
    async fn refresh(&self, client: &Client, demand: Demand) -> Result<(), CertificateError> {
        let now = clock::timestamp();
        let secret = self.read(client).await?;
        let stored = secret.as_ref().and_then(StoredCertificate::of);
        let good = stored
            .clone()
            .filter(|stored| stored.meets(demand, &self.hosts, now));
        let stored = match good {
            Some(stored) => stored,
            None => self.renew(client, secret, stored, now).await?,
        };
        let pair = format!("{}{}", stored.key, stored.certificate);
        Ok(write_key_file(&self.file, &pair)?)
    }

    async fn renew(
        &self,
        client: &Client,
        secret: Option<Secret>,
        stored: Option<StoredCertificate>,
        now: Timestamp,
    ) -> Result<StoredCertificate, CertificateError> {
        let previous = stored.map(|stored| stored.authority);
        let fresh = StoredCertificate::issue(&self.hosts, previous, now)?;
        let secrets = client.namespaced::<Secret>(self.secret.namespace.as_str());
        let data = Some(fresh.data());
        match secret {
            Some(secret) => {
                // Whoever asks trusts the new certificate before it is served.
                self.publish(client, &fresh.bundle()).await?;
                // Another replica may have been faster: then its certificate is read later.
                answered(secrets.update(&Secret { data, ..secret })).await?;
            }
            None => {
                let secret = Secret {
                    metadata: ObjectMeta {
                        name: Some(self.secret.name.clone()),
                        namespace: Some(self.secret.namespace.clone()),
                        ..ObjectMeta::default()
                    },
                    type_: Some("kubernetes.io/tls".to_owned()),
                    data,
                    ..Secret::default()
                };
                answered(secrets.create(&secret)).await?;
            }
        }
        tracing::info!(secret = %self.secret, "issued the certificate of the webhooks");
        Ok(fresh)
    }

    /// Writes the authorities into the configurations that are there.
    async fn publish(&self, client: &Client, bundle: &str) -> Result<(), CertificateError> {
        let mutating = client.all::<MutatingWebhookConfiguration>();
        self.write_bundle(mutating, bundle, |configuration| {
            let webhooks = configuration.webhooks.iter_mut().flatten();
            webhooks.map(|webhook| &mut webhook.client_config).collect()
        })
        .await?;
        let validating = client.all::<ValidatingWebhookConfiguration>();
        self.write_bundle(validating, bundle, |configuration| {
            let webhooks = configuration.webhooks.iter_mut().flatten();
            webhooks.map(|webhook| &mut webhook.client_config).collect()
        })
        .await
    }

    async fn write_bundle<K: Object>(
        &self,
        configurations: Api<K>,
        bundle: &str,
        clients: impl for<'a> Fn(&'a mut K) -> Vec<&'a mut WebhookClientConfig>,
    ) -> Result<(), CertificateError> {
        let mut configuration = match answered(configurations.get(&self.configuration)).await {
            Ok(configuration) => configuration,
            Err(error) if error.is_not_found() => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let bundle = ByteString(bundle.as_bytes().to_vec());
        let mut is_changed = false;
        for client in clients(&mut configuration) {
            if client.ca_bundle.as_ref() != Some(&bundle) {
                client.ca_bundle = Some(bundle.clone());
                is_changed = true;
            }
        }
        if is_changed {
            answered(configurations.update(&configuration)).await?;
            let name = &self.configuration;
            tracing::info!(
                kind = K::KIND,
                name,
                "published the authority of the webhooks"
            );
        }
        Ok(())
    }
}
