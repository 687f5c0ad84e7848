//! Conversion of objects between the versions of a kind, by a webhook (source:
//! `pkg/apiserver/conversion` of apiextensions-apiserver).

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::{FutureExt as _, future::BoxFuture};
use podplane_api::apiextensions::CustomResourceDefinition;
use podplane_host::random;
use podplane_proto::error::{ApiError, Reason};
use serde_json::{Map, Value, json};

use crate::{
    error,
    registry::StoredForm,
    served::OtherKinds,
    webhook::{WebhookClient, WebhookPlace},
};

/// The version of the reviews that webhooks get.
const REVIEW: &str = "apiextensions.k8s.io/v1";
/// The time for an answer, as in the reference.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Converts documents of a kind.
pub(super) trait Conversion: fmt::Debug + Send + Sync {
    /// Converts documents to an API version, in their order.
    fn convert<'a>(
        &'a self,
        documents: Vec<Value>,
        to: &'a str,
    ) -> BoxFuture<'a, Result<Vec<Value>, ApiError>>;
}

/// The conversion of a definition; `None` if its versions differ only in their names.
pub(super) fn of(
    kinds: &OtherKinds,
    definition: &CustomResourceDefinition,
) -> Option<Arc<dyn Conversion>> {
    let conversion = definition.spec.conversion.as_ref()?;
    if conversion.strategy != "Webhook" {
        return None;
    }
    let config = conversion.webhook.as_ref()?.client_config.clone()?;
    let place = WebhookPlace::of(
        config.url,
        config.service.map(|service| {
            let path = service.path.unwrap_or_default();
            (service.namespace, service.name, path, service.port)
        }),
    );
    let authorities = config.ca_bundle.unwrap_or_default();
    Some(Arc::new(WebhookConversion {
        client: WebhookClient::new(kinds.clone(), place, &authorities.0),
        kind: definition.spec.names.kind.clone(),
    }))
}

/// The conversion by a webhook.
#[derive(Debug)]
struct WebhookConversion {
    client: WebhookClient,
    kind: String,
}

impl Conversion for WebhookConversion {
    fn convert<'a>(
        &'a self,
        documents: Vec<Value>,
        to: &'a str,
    ) -> BoxFuture<'a, Result<Vec<Value>, ApiError>> {
        self.converted(documents, to).boxed()
    }
}

impl WebhookConversion {
    async fn converted(&self, mut documents: Vec<Value>, to: &str) -> Result<Vec<Value>, ApiError> {
        let foreign = documents.iter().enumerate();
        let foreign = foreign.filter(|(_, document)| document["apiVersion"] != to);
        let places: Vec<usize> = foreign.map(|(place, _)| place).collect();
        let Some(from) = places.first().map(|place| &documents[*place]["apiVersion"]) else {
            return Ok(documents);
        };
        let from = from.as_str().unwrap_or_default().to_owned();
        let failed = |why: &dyn fmt::Display| {
            let kind = &self.kind;
            ApiError::new(
                Reason::InternalError,
                format!("conversion webhook for {from}, Kind={kind} failed: {why}"),
            )
        };
        let uid = random::uuid().to_string();
        let objects: Vec<&Value> = places.iter().map(|place| &documents[*place]).collect();
        let review = json!({
            "kind": "ConversionReview",
            "apiVersion": REVIEW,
            "request": {"uid": uid, "desiredAPIVersion": to, "objects": objects},
        });
        let answer = self.client.call(&review, TIMEOUT, false).await;
        let mut answer = answer.map_err(|error| failed(&error))?;
        let kind = (answer["apiVersion"].as_str(), answer["kind"].as_str());
        if kind != (Some(REVIEW), Some("ConversionReview")) {
            return Err(failed(&format!(
                "invalid response: expected {REVIEW}, Kind=ConversionReview, got {}, Kind={}",
                kind.0.unwrap_or_default(),
                kind.1.unwrap_or_default()
            )));
        }
        let response = answer["response"].take();
        if response["uid"] != uid.as_str() {
            return Err(failed(&format!(
                "invalid response: expected response.uid={uid:?}, got {}",
                response["uid"]
            )));
        }
        if response["result"]["status"] != "Success" {
            let message = response["result"]["message"].as_str();
            let message = message.filter(|message| !message.is_empty());
            return Err(failed(&message.unwrap_or("the response has no message")));
        }
        let converted = response["convertedObjects"].as_array();
        let converted = converted.cloned().unwrap_or_default();
        if converted.len() != places.len() {
            return Err(failed(&format!(
                "invalid response: expected {} converted objects, got {}",
                places.len(),
                converted.len()
            )));
        }
        for (index, (place, new)) in places.into_iter().zip(converted).enumerate() {
            let old = &documents[place];
            let new = checked(old, new, to).map_err(|why| {
                failed(&format!("invalid converted object at index {index}: {why}"))
            })?;
            documents[place] = new;
        }
        Ok(documents)
    }
}

/// Checks that a converted object is the same object, and restores the metadata that a conversion
/// may not change: all but labels and annotations.
fn checked(old: &Value, mut new: Value, to: &str) -> Result<Value, String> {
    if new["apiVersion"] != to {
        return Err(format!(
            "expected apiVersion {to:?}, got {}",
            new["apiVersion"]
        ));
    }
    if new["kind"] != old["kind"] {
        return Err(format!(
            "expected kind {}, got {}",
            old["kind"], new["kind"]
        ));
    }
    for field in ["name", "namespace", "uid"] {
        let (new, old) = (&new["metadata"][field], &old["metadata"][field]);
        if new != old {
            return Err(format!("expected metadata.{field} {old}, got {new}"));
        }
    }
    let mut metadata = old["metadata"].as_object().cloned().unwrap_or_default();
    for field in ["labels", "annotations"] {
        let texts = |value: &Value| -> Option<BTreeMap<String, String>> {
            serde_json::from_value(value.clone()).ok()
        };
        match new["metadata"].get(field) {
            None | Some(Value::Null) => _ = metadata.remove(field),
            Some(given) if texts(given).is_some() => {
                metadata.insert(field.to_owned(), given.clone());
            }
            Some(_) => return Err(format!("metadata.{field} is not a map of strings")),
        }
    }
    let fields: Option<&mut Map<_, _>> = new.as_object_mut();
    if let Some(fields) = fields {
        fields.insert("metadata".to_owned(), metadata.into());
    }
    Ok(new)
}

/// The stored form of a version's objects.
#[derive(Debug)]
pub(super) struct StoredVersion {
    pub(super) conversion: Arc<dyn Conversion>,
    /// The API version of the registry's objects.
    pub(super) own: String,
    /// The API version in which objects are stored.
    pub(super) stored: String,
}

impl StoredVersion {
    async fn converted(&self, value: &[u8], to: &str) -> Result<Bytes, ApiError> {
        let document: Value =
            serde_json::from_slice(value).map_err(|error| error::internal(&error))?;
        if document["apiVersion"] == to {
            return Ok(Bytes::copy_from_slice(value));
        }
        let converted = self.conversion.convert(vec![document], to).await?;
        let value = serde_json::to_vec(converted.first().unwrap_or(&Value::Null));
        value
            .map(|value| Bytes::from(value.into_boxed_slice()))
            .map_err(|error| error::internal(&error))
    }
}

impl StoredForm for StoredVersion {
    fn read<'a>(&'a self, stored: &'a [u8]) -> BoxFuture<'a, Result<Bytes, ApiError>> {
        self.converted(stored, &self.own).boxed()
    }

    fn write(&self, value: Bytes) -> BoxFuture<'_, Result<Bytes, ApiError>> {
        async move {
            match self.own == self.stored {
                true => Ok(value),
                false => self.converted(&value, &self.stored).await,
            }
        }
        .boxed()
    }
}
