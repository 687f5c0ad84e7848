//! The deadline that a gRPC client sets for its call, which the server keeps as well.

use std::{
    task::{Context, Poll},
    time::Duration,
};

use futures::{
    FutureExt as _,
    future::{BoxFuture, Either},
};
use podplane_host::clock;
use tonic::{
    Status,
    codegen::{
        Service,
        http::{HeaderMap, Request, Response},
    },
};

/// The header of the deadline (gRPC over HTTP/2, "Timeout").
const HEADER: &str = "grpc-timeout";

/// A service that answers calls by their deadline, at least with the beginning of a stream.
#[derive(Clone, Debug)]
pub(super) struct DeadlineService<S>(pub(super) S);

impl<S, A, B> Service<Request<A>> for DeadlineService<S>
where
    S: Service<Request<A>, Response = Response<B>>,
    S::Future: Send + 'static,
    B: Default,
{
    type Response = Response<B>;
    type Error = S::Error;
    type Future = Either<S::Future, BoxFuture<'static, Result<Response<B>, S::Error>>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<A>) -> Self::Future {
        let limit = timeout(request.headers());
        let answered = self.0.call(request);
        let Some(limit) = limit else {
            return Either::Left(answered);
        };
        let bounded = async move {
            match clock::timeout(limit, answered).await {
                Ok(answered) => answered,
                Err(_elapsed) => {
                    let late = Status::deadline_exceeded("the deadline of the call has passed");
                    Ok(late.into_http())
                }
            }
        };
        Either::Right(bounded.boxed())
    }
}

/// The time that a client gives the server: at most eight digits and a unit. Anything else is
/// ignored, as tonic does.
fn timeout(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(HEADER)?.to_str().ok()?;
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if number.len() > 8 || !number.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let number: u64 = number.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(number * 60 * 60),
        "M" => Duration::from_secs(number * 60),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_timeouts_as_grpc_writes_them() {
        for (text, want) in [
            ("1S", Some(Duration::from_secs(1))),
            ("99999999H", Some(Duration::from_secs(99_999_999 * 3600))),
            ("20m", Some(Duration::from_millis(20))),
            ("7u", Some(Duration::from_micros(7))),
            ("0n", Some(Duration::ZERO)),
            ("100000000S", None),
            ("-1S", None),
            ("+1S", None),
            ("S", None),
            ("", None),
            ("1", None),
            ("1s", None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(HEADER, text.parse().unwrap());
            assert_eq!(timeout(&headers), want, "{text}");
        }
    }
}
