//! The login, as the page asks for it.

use serde::Serialize;

/// The path that says who the user is.
pub const SESSION_PATH: &str = "/ui/session";

/// The path that says, to everybody, which server it is and whether a login is needed. A refusal of
/// [`SESSION_PATH`] would say so as well, and be an error in the console of the browser.
pub const SERVER_PATH: &str = "/ui/server";

/// The server of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum SessionSource {
    /// The API server itself: the page sends a bearer token with each request.
    Apiserver,
    /// `podplane ui`, which has the credentials.
    Listener,
    /// `podplane replay --ui`.
    Recording,
}

/// The answer of [`SESSION_PATH`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Session {
    /// The server of the page.
    pub source: SessionSource,
    /// The name of the user, if there are users.
    pub user: Option<String>,
    /// The server of the data, for people: an address, or the name of a recording.
    pub server: String,
}

/// The answer of [`SERVER_PATH`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PageServer {
    /// The server of the page.
    pub source: SessionSource,
    /// True if this client has to log in first.
    pub needs_login: bool,
}
