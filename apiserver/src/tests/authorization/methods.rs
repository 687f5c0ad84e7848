//! All gRPC methods, as reflection lists them.

use podplane_client::Channel;
use podplane_client::endpoint;
use prost::Message as _;
use tonic::{Code, client::Grpc};
use tonic_prost::ProstCodec;

use super::{table::call_grpc, *};

/// The methods that everyone may call.
const OPEN: [&str; 2] = [
    "/grpc.health.v1.Health/Check",
    "/grpc.health.v1.Health/Watch",
];

/// The parts of the messages of `grpc.reflection.v1`, and of descriptors, that the test needs.
mod reflection {
    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Request {
        #[prost(string, optional, tag = "4")]
        pub(super) file_containing_symbol: Option<String>,
        #[prost(string, optional, tag = "7")]
        pub(super) list_services: Option<String>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Response {
        #[prost(message, optional, tag = "4")]
        pub(super) files: Option<Files>,
        #[prost(message, optional, tag = "6")]
        pub(super) services: Option<Named>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Files {
        #[prost(bytes = "vec", repeated, tag = "1")]
        pub(super) files: Vec<Vec<u8>>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Named {
        #[prost(message, repeated, tag = "1")]
        pub(super) all: Vec<Name>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Name {
        #[prost(string, tag = "1")]
        pub(super) name: String,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct File {
        #[prost(string, tag = "2")]
        pub(super) package: String,
        #[prost(message, repeated, tag = "6")]
        pub(super) services: Vec<Service>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Service {
        #[prost(string, tag = "1")]
        pub(super) name: String,
        #[prost(message, repeated, tag = "2")]
        pub(super) methods: Vec<Name>,
    }
}

async fn reflect(channel: &Channel, request: reflection::Request) -> reflection::Response {
    let mut grpc = Grpc::new(channel.clone());
    grpc.ready().await.unwrap();
    let mut request = tonic::Request::new(futures::stream::iter([request]));
    let bearer = format!("Bearer {}", token("nobody"));
    request
        .metadata_mut()
        .insert("authorization", bearer.parse().unwrap());
    let path = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
    let codec = ProstCodec::<reflection::Request, reflection::Response>::default();
    let answers = grpc.streaming(request, path.parse().unwrap(), codec);
    let mut answers = within(answers).await.unwrap().into_inner();
    within(answers.message()).await.unwrap().unwrap()
}

#[tokio::test]
async fn no_method_answers_the_anonymous_user_but_health() {
    let server = GatedServer::start().await;
    let channel = endpoint::channel(&server.server.address.parse().unwrap()).unwrap();
    let list = reflection::Request {
        list_services: Some(String::new()),
        ..reflection::Request::default()
    };
    let services = reflect(&channel, list).await.services.unwrap().all;
    let (mut wrong, mut called) = (Vec::new(), 0);
    for service in &services {
        let find = reflection::Request {
            file_containing_symbol: Some(service.name.clone()),
            ..reflection::Request::default()
        };
        let files = reflect(&channel, find).await.files.unwrap().files;
        let files = files.iter().map(|file| reflection::File::decode(&**file));
        let methods: Vec<String> = files
            .flat_map(|file| {
                let reflection::File { package, services } = file.unwrap();
                services.into_iter().map(move |one| (package.clone(), one))
            })
            .filter(|(package, one)| format!("{package}.{}", one.name) == service.name)
            .flat_map(|(_, one)| one.methods.into_iter().map(|method| method.name))
            .collect();
        assert!(!methods.is_empty(), "{}", service.name);
        for method in methods {
            let path = format!("/{}/{method}", service.name);
            let answer = call_grpc(&channel, "anonymous", &path, Vec::new()).await;
            let is_denied = answer
                .as_ref()
                .is_err_and(|status| status.code() == Code::PermissionDenied);
            if is_denied == OPEN.contains(&&*path) {
                wrong.push(format!("{path}: {answer:?}"));
            }
            called += 1;
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(called > 150, "{called} methods");
    // A method of a known service without a rule, and an unknown service.
    for path in [
        "/podplane.store.v1.StoreService/Restore",
        "/grpc.channelz.v1.Channelz/GetServers",
    ] {
        let answer = call_grpc(&channel, "nobody", path, Vec::new()).await;
        assert_eq!(answer.unwrap_err().code(), Code::PermissionDenied, "{path}");
    }
    drop(channel);
    server.stop().await;
}
