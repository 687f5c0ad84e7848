//! The messages of gRPC calls as JSON, by the descriptor of their method: for those who look at
//! calls without serving them, such as an audit log.

use prost_reflect::{DynamicMessage, Kind, MessageDescriptor, MethodDescriptor};
use serde_json::Value;

use crate::{
    codec::{self, POOL},
    values,
};

/// A method, of which the messages can be read.
#[derive(Clone, Debug)]
pub struct CallDescriptor(MethodDescriptor);

/// A message as JSON.
#[derive(Clone, Debug, PartialEq)]
pub enum CallMessage {
    /// An object of Kubernetes, or a list of objects, of this kind. `apiVersion` and `kind` may be
    /// missing.
    Object(String, Value),
    /// A message of another shape, such as the options of a deletion.
    Other(Value),
}

impl CallDescriptor {
    /// The method at a path such as `/podplane.core.v1.PodService/GetPod`; `None` if it is not one
    /// of this workspace.
    pub fn at(path: &str) -> Option<Self> {
        let (service, method) = path.strip_prefix('/')?.split_once('/')?;
        let service = POOL.get_service_by_name(service)?;
        let found = service.methods().find(|found| found.name() == method)?;
        Some(Self(found))
    }

    /// True if the client sends one message.
    pub fn has_one_request(&self) -> bool {
        !self.0.is_client_streaming()
    }

    /// True if the server answers with one message.
    pub fn has_one_answer(&self) -> bool {
        !self.0.is_server_streaming()
    }

    /// A request; `None` if the bytes are not its message. The request to write an object is the
    /// object.
    pub fn request(&self, message: &[u8]) -> Option<CallMessage> {
        let input = self.0.input();
        let (json, written) = (json(input.clone(), message)?, written(&input));
        let object = written.and_then(|(field, kind)| Some((kind, json.get(field)?.clone())));
        Some(match object {
            Some((kind, object)) => CallMessage::Object(kind, object),
            None => CallMessage::Other(json),
        })
    }

    /// An answer; `None` if the bytes are not its message.
    pub fn answer(&self, message: &[u8]) -> Option<CallMessage> {
        let output = self.0.output();
        let json = json(output.clone(), message)?;
        Some(match is_object(&output) {
            true => CallMessage::Object(output.name().to_owned(), json),
            false => CallMessage::Other(json),
        })
    }
}

/// The field and the kind of the object that a request consists of.
fn written(input: &MessageDescriptor) -> Option<(String, String)> {
    let mut fields = input.fields();
    let (only, None) = (fields.next()?, fields.next()) else {
        return None;
    };
    match only.kind() {
        Kind::Message(object) if !only.is_list() && is_object(&object) => {
            Some((only.json_name().to_owned(), object.name().to_owned()))
        }
        _ => None,
    }
}

/// True for the messages of objects and of their lists.
fn is_object(message: &MessageDescriptor) -> bool {
    let metadata = message.get_field_by_name("metadata");
    metadata.is_some_and(|field| matches!(field.kind(), Kind::Message(_)))
}

fn json(descriptor: MessageDescriptor, message: &[u8]) -> Option<Value> {
    if values::are_too_many(&descriptor, message) {
        return None;
    }
    let message = DynamicMessage::decode(descriptor, message).ok()?;
    codec::message_json(&message).ok()
}

#[cfg(test)]
mod tests {
    use podplane_api::core::Pod;
    use prost::Message as _;
    use serde_json::json;

    use super::*;
    use crate::wire::{DeleteRequest, WriteRequest};

    fn pod() -> Vec<u8> {
        let pod: Pod = serde_json::from_value(json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "a", "namespace": "b", "generation": 3},
        }))
        .unwrap();
        codec::encode(&pod).unwrap().to_vec()
    }

    #[test]
    fn the_request_to_write_an_object_is_the_object() {
        let call = CallDescriptor::at("/podplane.core.v1.PodService/CreatePod").unwrap();
        let object = Some(pod().into());
        let request = call.request(&WriteRequest { object }.encode_to_vec());
        let want = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "a", "namespace": "b", "generation": 3},
        });
        let want = CallMessage::Object("Pod".to_owned(), want);
        assert_eq!(request, Some(want.clone()));
        assert_eq!(call.answer(&pod()), Some(want));
        assert_eq!(call.request(&[0xff]), None);
    }

    #[test]
    fn other_messages_stay_as_they_are() {
        let call = CallDescriptor::at("/podplane.core.v1.PodService/DeletePod").unwrap();
        let request = DeleteRequest {
            namespace: "b".to_owned(),
            name: "a".to_owned(),
            ..DeleteRequest::default()
        };
        let want = json!({"namespace": "b", "name": "a"});
        let request = call.request(&request.encode_to_vec());
        assert_eq!(request, Some(CallMessage::Other(want)));
    }

    #[test]
    fn methods_are_found_by_their_paths() {
        let watch = CallDescriptor::at("/podplane.core.v1.PodService/WatchPods").unwrap();
        assert!(watch.has_one_request() && !watch.has_one_answer());
        let list = CallDescriptor::at("/podplane.core.v1.PodService/ListPods").unwrap();
        assert!(list.has_one_answer());
        let CallMessage::Object(kind, _) = list.answer(&[]).unwrap() else {
            panic!("the answer is a list of objects");
        };
        assert_eq!(kind, "PodList");
        for path in [
            "",
            "/",
            "/api/v1/pods",
            "/podplane.core.v1.PodService/Get",
            "/podplane.core.v1.PodService/GetPod/x",
        ] {
            assert!(CallDescriptor::at(path).is_none(), "{path}");
        }
    }
}
