//! The `scale` sub-resource: an object's present and desired numbers of replicas, as a `Scale` of
//! autoscaling/v1.

use http::{Method, StatusCode};
use podplane_api::{
    Object as _,
    autoscaling::Scale,
    meta,
    schema::Type,
    selector::LabelSelector,
    validation::{ErrorList, FieldPath},
};
use podplane_proto::error::{ApiError, Reason};
use serde::Deserialize as _;
use serde_json::{Map, Value, json};

use super::{
    answer::{self, RestAnswer},
    body,
    call::{CallRefusal, RestCall},
    patch,
    request::RequestOptions,
    resource,
};
use crate::{
    error,
    registry::{ObjectPart, Patch},
};

impl RestCall<'_> {
    pub(super) async fn scale(&self, options: &RequestOptions) -> Result<RestAnswer, CallRefusal> {
        let (resource, key) = (&self.target.resource, self.target.key());
        let change = match self.method {
            Method::GET => {
                let scale = resource.scale(&resource.get(&key).await?)?;
                return Ok(answer::document(StatusCode::OK, &scale));
            }
            Method::PUT => ScaleChange::Whole(body::document(&self.headers, &self.body)?),
            Method::PATCH => ScaleChange::Patch(patch::parse(&self.headers, &self.body)?),
            _ => return Ok(answer::not_allowed()),
        };
        let write = self.write_options(options)?;
        loop {
            let live = resource.scale(&resource.get(&key).await?)?;
            let document = change.of(live.clone())?;
            let (scale, warnings) = resource::decode_view::<Scale>(document, &write)?;
            // The patch applies to the state that was read, so another write in between is no
            // conflict unless the patch itself names a revision.
            let patched = matches!(change, ScaleChange::Patch(_))
                && live["metadata"]["resourceVersion"] == scale.resource_version();
            check(&scale, &key.name)?;
            let replicas = Patch::Merge(with_metadata(resource.scaled(&scale)?, &scale));
            match resource
                .patch(&key, ObjectPart::Scale, &replicas, &write)
                .await
            {
                Err(refused) if refused.reason == Reason::Conflict && patched => {}
                written => {
                    let scale = resource.scale(&written?.document)?;
                    let mut answer = answer::document(StatusCode::OK, &scale);
                    answer::warn(&mut answer, &warnings);
                    return Ok(answer);
                }
            }
        }
    }
}

/// A requested change of a scale.
enum ScaleChange {
    Whole(Value),
    Patch(Patch),
}

impl ScaleChange {
    fn of(&self, live: Value) -> Result<Value, ApiError> {
        match self {
            Self::Whole(document) if document.is_object() => Ok(document.clone()),
            Self::Whole(_) => Err(error::bad_request(
                "the body of the request is not an object",
            )),
            Self::Patch(patch) => patch.of(Type::of::<Scale>(), "scales.autoscaling", live),
        }
    }
}

/// The number of replicas of a scale.
pub(super) fn replicas(scale: &Scale) -> i32 {
    let spec = scale.spec.as_ref();
    spec.and_then(|spec| spec.replicas).unwrap_or_default()
}

/// Checks a scale that is to change its object.
fn check(scale: &Scale, name: &str) -> Result<(), ApiError> {
    if !scale.name().is_empty() && scale.name() != name {
        return Err(error::bad_request(format!(
            "the name of the object ({}) does not match the name on the URL ({name})",
            scale.name()
        )));
    }
    let replicas = replicas(scale);
    if replicas < 0 {
        let mut errors = ErrorList::new();
        let path = FieldPath::new("spec").child("replicas");
        errors.invalid(&path, replicas, "must be greater than or equal to 0");
        return Err(error::invalid::<Scale>(name, &errors));
    }
    Ok(())
}

/// The merge patch of an object, with the UID and revision that its scale names.
fn with_metadata(mut patch: Value, scale: &Scale) -> Value {
    let mut metadata = Map::new();
    for (field, value) in [
        ("uid", scale.uid()),
        ("resourceVersion", scale.resource_version()),
    ] {
        let value = Some(value).filter(|value| !value.is_empty());
        metadata.insert(field.to_owned(), value.into());
    }
    patch["metadata"] = metadata.into();
    patch
}

/// The scale of an object.
pub(super) fn view(object: &Value) -> Value {
    let metadata = [
        "name",
        "namespace",
        "uid",
        "resourceVersion",
        "creationTimestamp",
    ]
    .into_iter()
    .filter_map(|field| Some((field.to_owned(), object["metadata"].get(field)?.clone())));
    let selector = meta::LabelSelector::deserialize(&object["spec"]["selector"]);
    let selector = LabelSelector::from(&selector.unwrap_or_default()).to_string();
    let replicas = |part: &str| object[part]["replicas"].as_i64().unwrap_or_default();
    json!({
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": metadata.collect::<Map<_, _>>(),
        "spec": {"replicas": replicas("spec")},
        "status": {"replicas": replicas("status"), "selector": selector},
    })
}
