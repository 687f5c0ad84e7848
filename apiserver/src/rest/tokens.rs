//! The subresource `token` of ServiceAccounts: a `TokenRequest` is answered with a token.

use std::sync::Arc;

use futures::{FutureExt as _, future::BoxFuture};
use podplane_api::{
    ObjectKey,
    authentication::{BoundObjectReference, TokenRequest, TokenRequestStatus},
    core::{Node, Pod, ServiceAccount},
    jiff::{SignedDuration, Timestamp},
    meta::Time,
    strategy::{Strategy, Subresource},
    strict,
    validation::{ErrorList, FieldPath},
};
use podplane_host::clock;
use podplane_proto::error::ApiError;
use podplane_tokens::{BoundReference, MAX_TOKEN_BYTES};
use serde_json::Value;

use crate::{
    authentication::{AccountTokens, TokenBinding},
    authorization::NodeRestriction,
    error,
    registry::{ActAnswer, ChangeTerms, KindRegistry, Registry, SubresourceActions, WriteEffect},
};

const GROUP: &str = "authentication.k8s.io";
const KIND: &str = "TokenRequest";
/// The shortest and the longest life that may be asked for, and that of requests that name none, in
/// seconds. The server's own limit shortens a life and refuses nothing.
const SHORTEST: i64 = 600;
const LONGEST: i64 = 1 << 32;
const DEFAULT: i64 = 3600;

/// The subresource `token`.
#[derive(Debug)]
pub(crate) struct AccountActions {
    pub(crate) pods: Registry<Pod>,
    pub(crate) nodes: Registry<Node>,
    /// The limits of what nodes may ask for.
    pub(crate) restriction: NodeRestriction,
    /// `None` if the server does not authenticate by credentials.
    pub(crate) tokens: Option<Arc<AccountTokens>>,
}

impl SubresourceActions for AccountActions {
    fn act<'a>(
        &'a self,
        accounts: &'a KindRegistry,
        key: &'a ObjectKey,
        act: Subresource,
        document: &'a Value,
        terms: ChangeTerms<'a>,
    ) -> BoxFuture<'a, Result<ActAnswer, ApiError>> {
        async move {
            match act {
                Subresource::Token => self.create(accounts, key, document, terms).await,
                _ => Err(error::not_found::<ServiceAccount>(&key.name)),
            }
        }
        .boxed()
    }
}

impl AccountActions {
    async fn create(
        &self,
        accounts: &KindRegistry,
        key: &ObjectKey,
        document: &Value,
        terms: ChangeTerms<'_>,
    ) -> Result<ActAnswer, ApiError> {
        let tokens = self.tokens.as_ref().ok_or_else(|| {
            error::bad_request(
                "this server issues no tokens: it runs without --authentication=credentials",
            )
        })?;
        let mut request = decode(document)?;
        let account: ServiceAccount = stored(accounts, key).await?;
        self.restriction
            .check_token(terms.by, key, &request)
            .await?;
        complete(&mut request, key, tokens)?;
        let spec = request.spec.get_or_insert_default();
        let mut binding = TokenBinding {
            namespace: key.namespace.clone(),
            account: reference(&account),
            pod: None,
            node: None,
        };
        if let Some(bound) = &spec.bound_object_ref {
            self.bind(&mut binding, bound).await?;
        }
        let asked = spec.expiration_seconds.unwrap_or(DEFAULT);
        let longest = i64::try_from(tokens.longest().as_secs()).unwrap_or(i64::MAX);
        let seconds = asked.min(longest);
        let mut answer = ActAnswer::default();
        if seconds < asked {
            answer.warnings.push(format!(
                "requested expiration of {asked} seconds shortened to {seconds} seconds"
            ));
        }
        spec.expiration_seconds = Some(seconds);
        let now = clock::timestamp();
        let token = match terms.effect {
            // A token has effects, although it is not stored.
            WriteEffect::Dry => String::new(),
            WriteEffect::Durable => {
                let audiences = spec.audiences.clone().unwrap_or_default();
                let signed = tokens.issue(binding, audiences, now, seconds);
                signed.map_err(|error| error::internal(&error))?
            }
        };
        if token.len() > MAX_TOKEN_BYTES {
            let mut errors = ErrorList::new();
            errors.too_long(&FieldPath::new("spec").child("audiences"), MAX_TOKEN_BYTES);
            return Err(error::invalid_of(GROUP, KIND, "", &errors));
        }
        let whole = |time: Timestamp| Timestamp::from_second(time.as_second()).unwrap_or(time);
        request.metadata.creation_timestamp = Some(Time(whole(now)));
        let expires = now.checked_add(SignedDuration::from_secs(seconds));
        request.status = Some(TokenRequestStatus {
            expiration_timestamp: Some(Time(whole(expires.unwrap_or(Timestamp::MAX)))),
            token: Some(token),
        });
        let document = serde_json::to_value(&request).map_err(|error| error::internal(&error))?;
        answer.document = Some(document);
        Ok(answer)
    }

    /// Binds the token to an object, which must be the one meant.
    async fn bind(
        &self,
        binding: &mut TokenBinding,
        bound: &BoundObjectReference,
    ) -> Result<(), ApiError> {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let (version, kind) = (text(&bound.api_version), text(&bound.kind));
        let (name, uid) = (text(&bound.name), text(&bound.uid));
        let found = match (version.as_str(), kind.as_str()) {
            ("v1", "Pod") => {
                let key = ObjectKey::new(binding.namespace.as_str(), name.as_str());
                let pod: Pod = stored(&self.pods, &key).await?;
                let spec = pod.spec.clone().unwrap_or_default();
                let own = spec.service_account_name.unwrap_or_default();
                if own != binding.account.name {
                    return Err(error::bad_request(format!(
                        "cannot bind token for serviceaccount {:?} to pod running with different serviceaccount name.",
                        binding.account.name
                    )));
                }
                if let Some(node) = spec.node_name.filter(|node| !node.is_empty()) {
                    binding.node = Some(self.node_of_pod(node).await?);
                }
                binding.pod.insert(reference(&pod))
            }
            ("v1", "Node") => {
                let node: Node = stored(&self.nodes, &ObjectKey::new("", name.as_str())).await?;
                binding.node.insert(reference(&node))
            }
            _ => {
                return Err(error::bad_request(format!(
                    "cannot bind token to object of type {version}, Kind={kind}: must be a Pod or a Node of v1"
                )));
            }
        };
        match uid.is_empty() || uid == found.uid {
            true => Ok(()),
            false => {
                let why = format!(
                    "the UID in the bound object reference ({uid}) does not match the UID in record. The object might have been deleted and then recreated"
                );
                Err(error::conflict(&kind, &name, &why))
            }
        }
    }

    /// The node of a pod; only its name if there is no such Node.
    async fn node_of_pod(&self, name: String) -> Result<BoundReference, ApiError> {
        match stored::<Node>(&self.nodes, &ObjectKey::new("", name.as_str())).await {
            Ok(node) => Ok(reference(&node)),
            Err(error) if error.is_not_found() => Ok(BoundReference {
                name,
                uid: String::new(),
            }),
            Err(error) => Err(error),
        }
    }
}

fn reference<K: Strategy>(object: &K) -> BoundReference {
    BoundReference {
        name: object.name().to_owned(),
        uid: object.uid().to_owned(),
    }
}

/// Reads an object, at least as new as every acknowledged write.
async fn stored<K: Strategy>(registry: &KindRegistry, key: &ObjectKey) -> Result<K, ApiError> {
    registry.get(key).await?.decode()
}

fn decode(document: &Value) -> Result<TokenRequest, ApiError> {
    let text = |field: &str| document[field].as_str().unwrap_or_default();
    let (version, kind) = (text("apiVersion"), text("kind"));
    if !matches!(version, "" | "authentication.k8s.io/v1") || !matches!(kind, "" | KIND) {
        return Err(error::bad_request(format!(
            "the body is a {kind:?} of {version:?}: must be a TokenRequest of \"authentication.k8s.io/v1\""
        )));
    }
    // Kubernetes takes a body without a type for one of the type that the path has.
    let mut document = document.clone();
    if let Some(fields) = document.as_object_mut() {
        // Go clients send an empty one, whose time is null. The server sets it.
        fields.remove("status");
        fields.insert("apiVersion".to_owned(), "authentication.k8s.io/v1".into());
        fields.insert("kind".to_owned(), KIND.into());
        fields
            .entry("metadata")
            .or_insert_with(|| Value::Object(Default::default()));
        let spec = fields.entry("spec");
        let spec = spec.or_insert_with(|| Value::Object(Default::default()));
        if let Some(spec) = spec.as_object_mut() {
            spec.entry("audiences")
                .or_insert_with(|| Value::Array(Vec::new()));
        }
    }
    let decoded = strict::decode_noting::<TokenRequest, _>(document);
    let (request, _unknown) = decoded.map_err(|error| error::not_strictly(KIND, "v1", &error))?;
    Ok(request)
}

/// Completes a request by its path, and checks it.
fn complete(
    request: &mut TokenRequest,
    key: &ObjectKey,
    tokens: &AccountTokens,
) -> Result<(), ApiError> {
    let mut errors = ErrorList::new();
    let metadata = FieldPath::new("metadata");
    for (field, own, wanted, detail) in [
        (
            "name",
            &mut request.metadata.name,
            &key.name,
            "must match the service account name if specified",
        ),
        (
            "namespace",
            &mut request.metadata.namespace,
            &key.namespace,
            "must match the service account namespace if specified",
        ),
    ] {
        let given = own.get_or_insert_default();
        if given.is_empty() {
            given.clone_from(wanted);
        } else if given != wanted {
            errors.invalid(&metadata.child(field), given.as_str(), detail);
        }
    }
    let spec = request.spec.get_or_insert_default();
    if spec.audiences.as_ref().is_none_or(Vec::is_empty) {
        spec.audiences = Some(tokens.audiences().to_vec());
    }
    let seconds = spec.expiration_seconds.unwrap_or(DEFAULT);
    let path = FieldPath::new("spec").child("expirationSeconds");
    if seconds < SHORTEST {
        let detail = "may not specify a duration less than 10 minutes";
        errors.invalid(&path, seconds, detail);
    }
    if seconds > LONGEST {
        let detail = "may not specify a duration larger than 2^32 seconds";
        errors.invalid(&path, seconds, detail);
    }
    match errors.is_empty() {
        true => Ok(()),
        false => Err(error::invalid_of(GROUP, KIND, &key.name, &errors)),
    }
}
