//! A list, as one message for a gRPC client. A long one is encoded in parts, apart from requests,
//! as over REST ([`Renderers`]).

use bytes::Bytes;
use futures::{FutureExt as _, StreamExt as _, future::BoxFuture, stream};
use http::HeaderMap;
use http_body::Frame;
use http_body_util::StreamBody;
use podplane_proto::{
    error::{ApiError, Reason},
    transport::message_prefix,
    wire::{ListRequest, ObjectList, ObjectListParts},
};
use tonic::{
    Request, Status,
    body::Body,
    server::{Grpc, UnaryService},
};
use tonic_prost::ProstCodec;

use super::{KindCall, Response, status};
use crate::{
    error,
    registry::{Freshness, ListPage},
    renderers::{PART, Parts, Renderers},
};

/// Answers a list.
pub(super) fn answer(
    call: KindCall,
    renderers: Renderers,
    request: http::Request<Body>,
) -> Response {
    async move {
        let codec = ProstCodec::<ObjectList, ListRequest>::default();
        let mut response = Grpc::new(codec).unary(List { call }, request).await;
        let long = response.extensions_mut().remove::<LongList>();
        let Some(LongList(list)) = long else {
            return Ok(response);
        };
        Ok(match body(list, &renderers).await {
            Ok(body) => response.map(|_| body),
            Err(error) => status::of(error).into_http(),
        })
    }
    .boxed()
}

/// A list that takes the place of the message, in the extensions of a response: tonic would encode
/// the message at once, on the thread that serves the request.
#[derive(Clone)]
struct LongList(ObjectList);

struct List {
    call: KindCall,
}

impl UnaryService<ListRequest> for List {
    type Response = ObjectList;
    type Future = BoxFuture<'static, Result<tonic::Response<ObjectList>, Status>>;

    fn call(&mut self, request: Request<ListRequest>) -> Self::Future {
        let call = self.call.clone();
        async move {
            let list = list(&call, request.into_inner()).await;
            let list = list.map_err(status::of)?;
            if list.items.len() <= PART {
                return Ok(tonic::Response::new(list));
            }
            let mut response = tonic::Response::new(ObjectList::default());
            response.extensions_mut().insert(LongList(list));
            Ok(response)
        }
        .boxed()
    }
}

async fn list(call: &KindCall, request: ListRequest) -> Result<ObjectList, ApiError> {
    let ListRequest {
        namespace,
        label_selector,
        field_selector,
        limit,
        r#continue: token,
        resource_version: version,
        resource_version_match: version_match,
    } = request;
    let registry = call.open_selected("list", &namespace, &field_selector);
    let registry = registry.await?;
    let query = registry.query(namespace, &label_selector, &field_selector)?;
    let errors = Freshness::validate(&version, &version_match, &token);
    if !errors.is_empty() {
        return Err(error::invalid_options("ListOptions", &errors));
    }
    let freshness = Freshness::parse(&version, &version_match, limit, &token)?;
    let list = registry.list(&query, limit, &token, freshness).await?;
    let ListPage { metadata, items } = list;
    let items = items.iter().map(|entry| entry.message.clone()).collect();
    Ok(ObjectList {
        metadata: Some(metadata),
        items,
    })
}

/// The parts of a message, after the prefix with its length.
struct MessageParts {
    prefix: Option<[u8; 5]>,
    parts: ObjectListParts,
}

impl Parts for MessageParts {
    fn next(&mut self) -> Option<Result<Bytes, ApiError>> {
        let part = self.parts.next()?;
        Some(Ok(match self.prefix.take() {
            Some(prefix) => [&prefix, &*part].concat().into(),
            None => part,
        }))
    }
}

/// The body of the answer: the message and the status of success.
async fn body(list: ObjectList, renderers: &Renderers) -> Result<Body, ApiError> {
    let parts = ObjectListParts::new(list, PART);
    let prefix = message_prefix(parts.len()).ok_or_else(|| {
        let why = "the list has more than 4 GiB, the longest message of gRPC: ask for pages of it, by limit";
        ApiError::new(Reason::RequestEntityTooLarge, why)
    })?;
    let parts = MessageParts {
        prefix: Some(prefix),
        parts,
    };
    let parts = renderers.stream(parts).await?;
    let frames = parts.map(|part| match part {
        Ok(part) => Ok(Frame::data(part)),
        Err(error) => Err(status::of(error)),
    });
    let end = async {
        let mut trailers = HeaderMap::new();
        Status::ok("").add_header(&mut trailers)?;
        Ok(Frame::trailers(trailers))
    };
    let frames = frames.chain(stream::once(end));
    Ok(Body::new(StreamBody::new(frames)))
}

#[cfg(test)]
mod tests {
    use std::{
        sync::mpsc,
        task::{Context, Poll, Waker},
    };

    use http_body_util::BodyExt as _;
    use podplane_proto::wire::ListMeta;
    use prost::Message as _;

    use super::*;

    fn long_list() -> ObjectList {
        let item = |number: usize| Bytes::from(format!("object {number}"));
        ObjectList {
            metadata: Some(ListMeta {
                resource_version: Some("7".to_owned()),
                ..ListMeta::default()
            }),
            items: (0..3 * PART + 1).map(item).collect(),
        }
    }

    #[tokio::test]
    async fn a_long_list_is_one_message_in_parts() {
        let mut body = body(long_list(), &Renderers::default()).await.unwrap();
        let mut parts = Vec::new();
        let trailers = loop {
            match body.frame().await.unwrap().unwrap().into_data() {
                Ok(part) => parts.push(part),
                Err(end) => break end.into_trailers().unwrap(),
            }
        };
        assert_eq!(parts.len(), 4, "of 100, 100, 100 and 1 objects");
        assert_eq!(trailers["grpc-status"], "0");
        assert!(body.frame().await.is_none());
        let all = parts.concat();
        let (prefix, message) = all.split_at(5);
        let length = u32::try_from(message.len()).unwrap().to_be_bytes();
        assert_eq!(prefix, [&[0], &length[..]].concat());
        assert_eq!(ObjectList::decode(message).unwrap(), long_list());
    }

    /// While the threads that render are busy, nothing is encoded.
    #[tokio::test]
    async fn a_long_list_is_not_encoded_by_the_thread_that_serves() {
        let renderers = Renderers::default();
        let (release, released) = mpsc::channel::<()>();
        let released = std::sync::Arc::new(std::sync::Mutex::new(released));
        let busy: Vec<_> = (0..64)
            .map(|_| {
                let released = released.clone();
                let renderers = renderers.clone();
                tokio::spawn(
                    async move { renderers.run(move || released.lock().unwrap().recv()).await },
                )
            })
            .collect();
        tokio::task::yield_now().await;
        let mut body = Box::pin(body(long_list(), &renderers));
        let mut context = Context::from_waker(Waker::noop());
        assert!(matches!(body.as_mut().poll(&mut context), Poll::Pending));
        assert!(matches!(body.as_mut().poll(&mut context), Poll::Pending));
        drop(release);
        let body = body.await.unwrap().collect().await.unwrap().to_bytes();
        assert_eq!(ObjectList::decode(&body[5..]).unwrap(), long_list());
        for busy in busy {
            _ = busy.await.unwrap();
        }
    }
}
