//! Tokens that stand for requests. Whoever has one may do what was requested, once.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use podplane_host::{clock::Instant, random};

use super::StreamRequest;

/// The life of a token, as with other runtimes.
const LIFE: Duration = Duration::from_secs(60);
/// The largest number of unused tokens, as with other runtimes.
const MAX_TOKENS: usize = 1000;

/// There are too many tokens that nobody has used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{MAX_TOKENS} streaming requests were not used yet: try again in a minute")]
pub struct TooManyTokens;

/// Requests by their tokens.
#[derive(Debug, Default)]
pub(super) struct StreamTokens(Mutex<HashMap<String, (Instant, StreamRequest)>>);

impl StreamTokens {
    /// Keeps a request until its token is used, or too old.
    ///
    /// # Errors
    ///
    /// [`TooManyTokens`].
    pub(super) fn insert(&self, request: StreamRequest) -> Result<String, TooManyTokens> {
        let mut requests = self.lock();
        requests.retain(|_, (made, _)| made.elapsed() < LIFE);
        if requests.len() >= MAX_TOKENS {
            return Err(TooManyTokens);
        }
        let token = random::uuid().simple().to_string();
        requests.insert(token.clone(), (Instant::now(), request));
        Ok(token)
    }

    /// Takes the request of a token.
    pub(super) fn take(&self, token: &str) -> Option<StreamRequest> {
        let (made, request) = self.lock().remove(token)?;
        (made.elapsed() < LIFE).then_some(request)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, (Instant, StreamRequest)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
