//! The tokens of ServiceAccounts: issued for requests, and accepted as long as the objects exist to
//! which they are bound.

use std::{
    sync::{Arc, OnceLock, PoisonError, RwLock},
    time::Duration,
};

use futures::future::BoxFuture;
use podplane_api::{
    ObjectKey,
    core::{Node, Pod, ServiceAccount},
    jiff::Timestamp,
    strategy::Strategy,
};
use podplane_host::{clock, random, task};
use podplane_service_runtime::identity::{Identity, service_account_user};
use podplane_tokens::{
    BoundReference, Claims, Jwk, KeyDir, KeyDirError, KeyPolicy, KeyRing, KubernetesClaims,
    SignError, TokenExpectation, TokenRefusal,
};

use crate::registry::Registry;

/// The interval at which keys are looked at, if none is due earlier.
const KEYS_EVERY: Duration = Duration::from_secs(60);
/// The seconds after its deletion in which an object still counts, as in Kubernetes: a pod uses its
/// token while it ends.
const DELETION_LEEWAY_SECONDS: i64 = 60;

/// The issuer of ServiceAccounts' tokens, and their judge.
#[derive(Debug)]
pub(crate) struct AccountTokens {
    pub(super) issuer: String,
    /// The audiences of the API server itself.
    pub(super) audiences: Vec<String>,
    /// The longest life of a token.
    pub(super) longest: Duration,
    dir: KeyDir,
    keys: RwLock<Arc<KeyRing>>,
    /// Set once the caches are filled.
    objects: OnceLock<TokenObjects>,
}

/// The objects to which tokens are bound.
#[derive(Debug)]
pub(crate) struct TokenObjects {
    pub(crate) accounts: Registry<ServiceAccount>,
    pub(crate) pods: Registry<Pod>,
    pub(crate) nodes: Registry<Node>,
}

/// The objects for which a token is issued.
#[derive(Clone, Debug)]
pub(crate) struct TokenBinding {
    pub(crate) namespace: String,
    pub(crate) account: BoundReference,
    pub(crate) pod: Option<BoundReference>,
    pub(crate) node: Option<BoundReference>,
}

/// The user of a valid token.
#[derive(Debug)]
pub(crate) struct TokenUser {
    pub(crate) identity: Identity,
    /// The audiences of the token.
    pub(crate) audiences: Vec<String>,
}

/// The reason why a token is refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AccountTokenRefusal {
    #[error(transparent)]
    Token(#[from] TokenRefusal),
    /// `serviceaccount "a"`
    #[error("its {0} does not exist any more")]
    Deleted(String),
    #[error("the server is starting")]
    Starting,
}

impl AccountTokens {
    /// Takes keys that others replace.
    pub(super) fn with_keys(
        issuer: String,
        audiences: Vec<String>,
        longest: Duration,
        keys: KeyRing,
    ) -> Self {
        Self {
            issuer,
            audiences,
            longest,
            dir: KeyDir::in_memory(),
            keys: RwLock::new(Arc::new(keys)),
            objects: OnceLock::new(),
        }
    }

    /// Opens the keys, and makes the first if there is none.
    pub(super) fn open(
        issuer: String,
        audiences: Vec<String>,
        policy: KeyPolicy,
        dir: KeyDir,
    ) -> Result<Self, KeyDirError> {
        let keys = dir.open(policy, clock::timestamp())?;
        Ok(Self {
            issuer,
            audiences,
            longest: policy.longest_token,
            dir,
            keys: RwLock::new(Arc::new(keys)),
            objects: OnceLock::new(),
        })
    }

    /// Says where the objects of tokens are. Tokens are refused before that.
    pub(crate) fn look_up_in(&self, objects: TokenObjects) {
        // Each server has its own issuer, and calls this once.
        _ = self.objects.set(objects);
    }

    pub(crate) fn audiences(&self) -> &[String] {
        &self.audiences
    }

    pub(crate) fn issuer(&self) -> &str {
        &self.issuer
    }

    /// The longest life of a token.
    pub(crate) fn longest(&self) -> Duration {
        self.longest
    }

    /// The public keys by which others may verify tokens.
    pub(crate) fn public_keys(&self) -> Vec<Jwk> {
        self.keys().public_keys(clock::timestamp())
    }

    fn keys(&self) -> Arc<KeyRing> {
        let keys = self.keys.read();
        Arc::clone(&keys.unwrap_or_else(PoisonError::into_inner))
    }

    /// Issues a token.
    pub(crate) fn issue(
        &self,
        binding: TokenBinding,
        audiences: Vec<String>,
        now: Timestamp,
        lifetime_seconds: i64,
    ) -> Result<String, SignError> {
        let TokenBinding {
            namespace,
            account,
            pod,
            node,
        } = binding;
        let now = now.as_second();
        let claims = Claims {
            aud: audiences,
            exp: now.saturating_add(lifetime_seconds),
            iat: now,
            iss: self.issuer.clone(),
            jti: random::uuid().to_string(),
            sub: service_account_user(&namespace, &account.name),
            kubernetes: KubernetesClaims {
                namespace,
                node,
                pod,
                serviceaccount: account,
                warnafter: None,
            },
            nbf: now,
        };
        self.keys().sign(&claims)
    }

    /// The user of a token for one of these audiences. The objects are those of the caches: await
    /// [`settled`](Self::settled) before.
    pub(crate) fn user(
        &self,
        token: &str,
        audiences: &[String],
    ) -> Result<TokenUser, AccountTokenRefusal> {
        let objects = self.objects.get().ok_or(AccountTokenRefusal::Starting)?;
        let now = clock::timestamp();
        let expected = TokenExpectation {
            issuer: &self.issuer,
            audiences,
            now: now.as_second(),
        };
        let claims = self.keys().verify(token, &expected)?;
        objects.check(&claims.kubernetes, now)?;
        Ok(TokenUser {
            identity: identity(&claims),
            audiences: claims.aud,
        })
    }

    /// Waits until the caches have every write that any client may know of; `None` if they do.
    pub(super) fn settled(&self) -> Option<BoxFuture<'static, ()>> {
        self.objects.get()?.accounts.lag()
    }

    /// Makes new keys and removes retired ones when they are due.
    pub(crate) async fn rotate(self: Arc<Self>) -> Result<(), std::convert::Infallible> {
        loop {
            clock::sleep(KEYS_EVERY).await;
            let now = clock::timestamp();
            let ring = self.keys();
            let plan = ring.plan(now);
            if !plan.rotates && plan.retired.is_empty() {
                continue;
            }
            let tokens = Arc::clone(&self);
            let applied = {
                let plan = plan.clone();
                task::spawn_blocking(move || tokens.dir.apply(&ring, &plan, now))
            };
            let error: Box<dyn std::error::Error + Send + Sync> = match applied.await {
                Ok(Ok(changed)) => {
                    let mut keys = self.keys.write().unwrap_or_else(PoisonError::into_inner);
                    *keys = Arc::new(changed);
                    drop(keys);
                    let retired = plan.retired.len();
                    tracing::info!(new = plan.rotates, retired, "rotated signing keys");
                    continue;
                }
                Ok(Err(error)) => error.into(),
                Err(error) => error.into(),
            };
            let error: &dyn std::error::Error = &*error;
            tracing::warn!(error, retry_in = ?KEYS_EVERY, "failed to rotate signing keys");
        }
    }
}

impl TokenObjects {
    /// Checks that the objects of a token are still those for which it was issued. The node of a
    /// pod's token is only for information, as in Kubernetes.
    fn check(&self, claims: &KubernetesClaims, now: Timestamp) -> Result<(), AccountTokenRefusal> {
        let KubernetesClaims {
            namespace,
            node,
            pod,
            serviceaccount,
            warnafter: _,
        } = claims;
        is_there(&self.accounts, namespace, serviceaccount, now)?;
        match (pod, node) {
            (Some(pod), _) => is_there(&self.pods, namespace, pod, now),
            (None, Some(node)) => is_there(&self.nodes, "", node, now),
            (None, None) => Ok(()),
        }
    }
}

fn is_there<K: Strategy>(
    registry: &Registry<K>,
    namespace: &str,
    reference: &BoundReference,
    now: Timestamp,
) -> Result<(), AccountTokenRefusal> {
    let BoundReference { name, uid } = reference;
    let key = ObjectKey::new(namespace, name.as_str());
    let found: Option<K> = registry.cached(&key);
    let is_same = found.is_some_and(|found| {
        let deleted = found.metadata().deletion_timestamp.as_ref();
        let ends = deleted.map(|deleted| deleted.0.as_second() + DELETION_LEEWAY_SECONDS);
        found.uid() == uid && ends.is_none_or(|ends| ends > now.as_second())
    });
    match is_same {
        true => Ok(()),
        false => Err(AccountTokenRefusal::Deleted(format!(
            "{} {name:?}",
            K::SINGULAR
        ))),
    }
}

/// The identity of a ServiceAccount with the facts that Kubernetes adds.
fn identity(claims: &Claims) -> Identity {
    const PREFIX: &str = "authentication.kubernetes.io/";
    let KubernetesClaims {
        namespace,
        node,
        pod,
        serviceaccount,
        warnafter: _,
    } = &claims.kubernetes;
    let mut identity = Identity::service_account(namespace, &serviceaccount.name);
    identity.uid.clone_from(&serviceaccount.uid);
    let mut add = |key: &str, value: String| {
        if !value.is_empty() {
            identity.extra.insert(format!("{PREFIX}{key}"), vec![value]);
        }
    };
    add("credential-id", format!("JTI={}", claims.jti));
    for (kind, reference) in [("pod", pod), ("node", node)] {
        if let Some(BoundReference { name, uid }) = reference {
            add(&format!("{kind}-name"), name.clone());
            add(&format!("{kind}-uid"), uid.clone());
        }
    }
    identity
}
