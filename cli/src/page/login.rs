//! The login at the listener: a token that is used once, and the cookie that it is exchanged for.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::{
    Router,
    body::Bytes,
    extract::{Request, State},
    middleware::Next,
    response::{IntoResponse as _, Response},
    routing::get,
};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use podplane_ui::{PageServer, SERVER_PATH, SESSION_PATH, Session};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::{document, host::PageHost, refusal};
use crate::output;

/// The name of the cookie.
const COOKIE: &str = "podplane-session";
/// The bytes of a secret.
const SECRET_BYTES: usize = 32;

/// The hash of a secret. Secrets are compared by it, so that the time of a comparison says nothing.
type Fingerprint = [u8; 32];

/// The logins of a listener.
#[derive(Debug)]
pub(super) struct Login {
    host: Arc<PageHost>,
    session: Session,
    state: Mutex<LoginState>,
}

#[derive(Debug, Default)]
struct LoginState {
    /// The token that was offered and not used yet.
    token: Option<Fingerprint>,
    /// The cookie of the user who is logged in.
    cookie: Option<Fingerprint>,
}

fn fingerprint(secret: &[u8]) -> Fingerprint {
    Sha256::digest(secret).into()
}

fn secret() -> String {
    let random: [u8; SECRET_BYTES] = rand::random();
    random.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Login {
    pub(super) fn new(host: Arc<PageHost>, session: Session) -> Self {
        let state = Mutex::default();
        Self {
            host,
            session,
            state,
        }
    }

    /// The address of the page with a new token, in place of one that was not used.
    pub(super) fn offer(&self) -> String {
        let token = secret();
        self.lock().token = Some(fingerprint(token.as_bytes()));
        // Browsers do not send the fragment, so that it is in no log.
        format!("{}/ui/#token={token}", self.host.origin())
    }

    /// Exchanges the token for a cookie; `None` if it is wrong or was used.
    fn exchange(&self, token: &str) -> Option<String> {
        let mut state = self.lock();
        if state.token? != fingerprint(token.as_bytes()) {
            return None;
        }
        let cookie = secret();
        state.token = None;
        state.cookie = Some(fingerprint(cookie.as_bytes()));
        Some(cookie)
    }

    fn is_logged_in(&self, headers: &HeaderMap) -> bool {
        let Some(known) = self.lock().cookie else {
            return false;
        };
        let sent = headers.get_all(header::COOKIE).iter();
        let sent = sent.filter_map(|value| value.to_str().ok());
        let mut pairs = sent.flat_map(|value| value.split(';'));
        pairs.any(|pair| {
            let value = pair.trim().strip_prefix(COOKIE);
            let value = value.and_then(|rest| rest.strip_prefix('='));
            value.is_some_and(|value| fingerprint(value.as_bytes()) == known)
        })
    }

    fn lock(&self) -> MutexGuard<'_, LoginState> {
        // Nothing panics under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The routes of the session.
pub(super) fn routes(login: Arc<Login>) -> Router {
    let session = get(session).post(log_in).delete(log_out);
    Router::new()
        .route(SESSION_PATH, session)
        .route(SERVER_PATH, get(server))
        .with_state(login)
}

/// Refuses requests for data without the cookie.
pub(super) async fn require(
    State(login): State<Arc<Login>>,
    request: Request,
    next: Next,
) -> Response {
    let is_public = podplane_ui::is_public(request.uri().path());
    match is_public || login.is_logged_in(request.headers()) {
        true => next.run(request).await,
        false => unauthorized(),
    }
}

fn unauthorized() -> Response {
    let why = "log in: open the address that was printed; it can be used once";
    refusal(StatusCode::UNAUTHORIZED, "Unauthorized", why)
}

async fn session(State(login): State<Arc<Login>>, headers: HeaderMap) -> Response {
    if !login.is_logged_in(&headers) {
        return unauthorized();
    }
    json(&login.session)
}

/// Says to everybody which server it is.
async fn server(State(login): State<Arc<Login>>, headers: HeaderMap) -> Response {
    json(&PageServer {
        source: login.session.source,
        needs_login: !login.is_logged_in(&headers),
    })
}

fn json(value: &impl Serialize) -> Response {
    match serde_json::to_string(value) {
        Ok(text) => document(text),
        Err(error) => {
            let code = StatusCode::INTERNAL_SERVER_ERROR;
            refusal(code, "InternalError", &error.to_string())
        }
    }
}

#[derive(Deserialize)]
struct TokenDocument {
    token: String,
}

async fn log_in(State(login): State<Arc<Login>>, headers: HeaderMap, body: Bytes) -> Response {
    // Forms of other pages cannot send this type.
    let media_type = headers.get(header::CONTENT_TYPE);
    let media_type = media_type.and_then(|value| value.to_str().ok());
    let is_json = media_type.is_some_and(|value| value.starts_with("application/json"));
    let document = serde_json::from_slice::<TokenDocument>(&body);
    let (true, Ok(TokenDocument { token })) = (is_json, document) else {
        let why = "want a JSON document such as {\"token\": \"…\"}";
        return refusal(StatusCode::BAD_REQUEST, "BadRequest", why);
    };
    let cookie = login.exchange(&token).and_then(|cookie| {
        let cookie = format!("{COOKIE}={cookie}; HttpOnly; SameSite=Strict; Path=/");
        HeaderValue::from_str(&cookie).ok()
    });
    match cookie {
        Some(cookie) => (StatusCode::NO_CONTENT, [(header::SET_COOKIE, cookie)]).into_response(),
        None => {
            let why = "this address was used already, or a part of it is missing";
            refusal(StatusCode::UNAUTHORIZED, "Unauthorized", why)
        }
    }
}

async fn log_out(State(login): State<Arc<Login>>, headers: HeaderMap) -> Response {
    if !login.is_logged_in(&headers) {
        return unauthorized();
    }
    login.lock().cookie = None;
    // For the next login; a terminal that has gone does not need it.
    _ = output::line(format_args!("{}", login.offer()));
    let cookie = format!("{COOKIE}=; HttpOnly; SameSite=Strict; Path=/; Max-Age=0");
    match HeaderValue::from_str(&cookie) {
        Ok(cookie) => (StatusCode::NO_CONTENT, [(header::SET_COOKIE, cookie)]).into_response(),
        Err(_) => StatusCode::NO_CONTENT.into_response(),
    }
}

#[cfg(test)]
mod tests {
    use podplane_ui::SessionSource;

    use super::*;

    fn login() -> Login {
        let session = Session {
            source: SessionSource::Listener,
            user: None,
            server: String::new(),
        };
        Login::new(Arc::new(PageHost::new(1)), session)
    }

    fn with_cookie(cookie: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(header::COOKIE, cookie.parse().unwrap());
        headers
    }

    #[test]
    fn a_token_is_used_once_and_the_cookie_is_another_secret() {
        let login = login();
        let url = login.offer();
        let (_, token) = url.split_once("/ui/#token=").unwrap();
        assert_eq!(login.exchange("wrong"), None);
        assert_eq!(login.exchange(""), None);
        let cookie = login.exchange(token).unwrap();
        assert_ne!(cookie, token);
        assert_eq!(login.exchange(token), None, "used");
        for (sent, is_logged_in) in [
            (format!("{COOKIE}={cookie}"), true),
            (format!("a=b; {COOKIE}={cookie}; c=d"), true),
            (format!("{COOKIE}={token}"), false),
            (format!("{COOKIE}="), false),
            (format!("x{COOKIE}={cookie}"), false),
            (String::new(), false),
        ] {
            assert_eq!(
                login.is_logged_in(&with_cookie(&sent)),
                is_logged_in,
                "{sent}"
            );
        }
        let again = login.offer();
        assert!(!again.contains(token));
    }
}
