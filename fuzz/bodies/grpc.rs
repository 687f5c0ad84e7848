//! Fuzzes the messages of gRPC requests to the API server.
//!
//! The input is messages, separated by the byte 0x1e; each is the path of a method, a line break,
//! and the message: as protobuf's JSON if it begins with a brace, and otherwise its bytes.

use podplane_proto::codec::POOL;
use prost_reflect::{
    DynamicMessage, MethodDescriptor, ReflectMessage as _, Value, prost::Message as _,
};

#[path = "server.rs"]
mod server;

use server::{Answer, TestServer};

/// The most requests of an input.
const MOST_REQUESTS: usize = 4;

/// The status codes of gRPC that no request may get: UNKNOWN, INTERNAL and DATA_LOSS.
const FAULTS: [&str; 3] = ["2", "13", "15"];

pub(crate) fn run(data: &[u8]) {
    let requests: Vec<_> = data
        .split(|byte| *byte == 0x1e)
        .take(MOST_REQUESTS)
        .filter_map(GrpcRequest::parse)
        .collect();
    if !requests.is_empty() {
        let are_reads = requests.iter().all(GrpcRequest::is_read);
        server::with(are_reads, |server| {
            requests.iter().for_each(|request| request.send_to(server));
        });
    }
}

struct GrpcRequest {
    method: MethodDescriptor,
    message: Vec<u8>,
}

impl GrpcRequest {
    fn parse(input: &[u8]) -> Option<Self> {
        let at = input.iter().position(|byte| *byte == b'\n')?;
        let path = std::str::from_utf8(&input[..at]).ok()?;
        let (service, name) = path.strip_prefix('/')?.split_once('/')?;
        let service = POOL.get_service_by_name(service)?;
        let method = service.methods().find(|method| method.name() == name)?;
        let bytes = &input[at + 1..];
        let message = match bytes.first() {
            Some(b'{') => {
                let mut json = serde_json::Deserializer::from_slice(bytes);
                let message = DynamicMessage::deserialize(method.input(), &mut json).ok()?;
                message.encode_to_vec()
            }
            _ => bytes.to_vec(),
        };
        Some(Self { method, message })
    }

    fn is_read(&self) -> bool {
        let reads = ["Get", "List", "Watch", "Find"];
        reads
            .iter()
            .any(|verb| self.method.name().starts_with(verb))
    }

    fn path(&self) -> String {
        let service = self.method.parent_service();
        format!("/{}/{}", service.full_name(), self.method.name())
    }

    fn send_to(&self, server: &TestServer) {
        let send = || {
            let is_stream = self.method.is_server_streaming();
            let answer = server.grpc(&self.path(), &self.message, is_stream);
            self.check(&answer);
            answer
        };
        let kind = self.method.name().strip_prefix("Create");
        let Some(kind) = kind.filter(|kind| !["Node", "Namespace"].contains(kind)) else {
            send();
            return;
        };
        server.undone(|| {
            let created = send();
            created
                .headers
                .get("grpc-status")
                .is_some_and(|status| status != "0")
                || self.delete(server, kind, created.body.get(5..).unwrap_or_default())
        });
    }

    /// Deletes the created object at once. Returns true if it is gone.
    fn delete(&self, server: &TestServer, kind: &str, created: &[u8]) -> bool {
        let package = self.method.parent_service().package_name().to_owned();
        let service = self.method.parent_service().full_name().to_owned();
        let request =
            |verb: &str| POOL.get_message_by_name(&format!("{package}.{verb}{kind}Request"));
        let object = DynamicMessage::decode(self.method.output(), created).ok();
        let metadata = object
            .as_ref()
            .and_then(|object| object.get_field_by_name("metadata"));
        let metadata = metadata.as_ref().and_then(|field| field.as_message());
        let (Some(metadata), Some(delete), Some(get)) =
            (metadata, request("Delete"), request("Get"))
        else {
            return false;
        };
        let call = |verb: &str, message: DynamicMessage| {
            server.grpc(
                &format!("/{service}/{verb}{kind}"),
                &message.encode_to_vec(),
                false,
            )
        };
        let place = |descriptor| {
            let mut message = DynamicMessage::new(descriptor);
            for field in ["namespace", "name"] {
                if let Some(value) = metadata.get_field_by_name(field) {
                    let _ = message.try_set_field_by_name(field, value.into_owned());
                }
            }
            message
        };
        let mut message = place(delete);
        let _ = message.try_set_field_by_name("grace_period_seconds", Value::I64(0));
        call("Delete", message);
        let gone = call("Get", place(get));
        gone.headers
            .get("grpc-status")
            .is_some_and(|status| status == "5")
    }

    /// Nothing is the server's fault, unless the message is none; an answer is a message of the
    /// method, without a field that it does not have.
    fn check(&self, answer: &Answer) {
        let path = self.path();
        assert_eq!(answer.status.as_u16(), 200, "{path}: {answer:?}");
        let text = |name| {
            answer
                .headers
                .get(name)
                .and_then(|value| value.to_str().ok())
        };
        let status = text("grpc-status").unwrap_or_default();
        if FAULTS.contains(&status) {
            let is_message = DynamicMessage::decode(self.method.input(), &*self.message).is_ok();
            assert!(!is_message, "{path}: {status} {:?}", text("grpc-message"));
        }
        if status == "0" && !self.method.is_server_streaming() {
            let bytes = answer.body.get(5..).unwrap_or_default();
            let message = DynamicMessage::decode(self.method.output(), bytes);
            let message = message.unwrap_or_else(|error| panic!("{path}: {error}"));
            assert_eq!(message.unknown_fields().count(), 0, "{path}: {message:?}");
            assert_eq!(message.descriptor(), self.method.output());
        }
    }
}
