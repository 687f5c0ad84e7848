//! The host of the listener, and the requests that are for it.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    middleware::Next,
    response::Response,
};
use http::{HeaderMap, StatusCode, Uri, header};

use super::refusal;

/// The bytes of the random part of the name.
const RANDOM_BYTES: usize = 8;

/// The host and port of a listener.
#[derive(Debug)]
pub(super) struct PageHost {
    /// `NAME.localhost:PORT`
    authority: String,
}

impl PageHost {
    pub(super) fn new(port: u16) -> Self {
        let random: [u8; RANDOM_BYTES] = rand::random();
        let name: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
        Self {
            authority: format!("podplane-{name}.localhost:{port}"),
        }
    }

    /// `http://NAME.localhost:PORT`
    pub(super) fn origin(&self) -> String {
        format!("http://{}", self.authority)
    }

    /// Returns the reason why a request is not for this listener, or not from its page.
    fn judge(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), (StatusCode, &'static str)> {
        let mut hosts = headers.get_all(header::HOST).iter();
        let is_ours = |host: &[u8]| host.eq_ignore_ascii_case(self.authority.as_bytes());
        let in_uri = uri
            .authority()
            .map(|authority| authority.as_str().as_bytes());
        let is_named = hosts.next().is_some_and(|host| is_ours(host.as_bytes()));
        if !is_named || hosts.next().is_some() || !in_uri.is_none_or(is_ours) {
            return Err((
                StatusCode::MISDIRECTED_REQUEST,
                "the request is for another host: use the address that was printed",
            ));
        }
        let origin = self.origin();
        let is_foreign =
            |from: &http::HeaderValue| !from.as_bytes().eq_ignore_ascii_case(origin.as_bytes());
        let sites = headers.get_all("sec-fetch-site").iter();
        let is_other_site =
            |site: &http::HeaderValue| !matches!(site.as_bytes(), b"same-origin" | b"none");
        // A link in another program may lead to the page itself, which has no data.
        let is_page = podplane_ui::is_public(uri.path());
        if headers.get_all(header::ORIGIN).iter().any(is_foreign)
            || !is_page && sites.into_iter().any(is_other_site)
        {
            return Err((
                StatusCode::FORBIDDEN,
                "the request comes from another web page",
            ));
        }
        Ok(())
    }
}

/// Refuses requests for other hosts and from other pages.
pub(super) async fn require(
    State(host): State<Arc<PageHost>>,
    request: Request,
    next: Next,
) -> Response {
    match host.judge(request.uri(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err((code, why)) => refusal(code, "Forbidden", why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(host: &PageHost, path: &str, headers: &[(&'static str, &str)]) -> Option<u16> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, value.parse().unwrap());
        }
        let judged = host.judge(&path.parse().unwrap(), &map);
        judged.err().map(|(code, _)| code.as_u16())
    }

    #[test]
    fn only_its_own_page_under_its_own_name_gets_data() {
        let host = PageHost::new(7);
        let own = host.authority.as_str();
        let origin = host.origin();
        let data = "/summary/v1alpha1/cluster";
        for (path, headers, want) in [
            (data, vec![("host", own)], None),
            (data, vec![("host", own), ("origin", &*origin)], None),
            (
                data,
                vec![("host", own), ("sec-fetch-site", "same-origin")],
                None,
            ),
            (data, vec![("host", own), ("sec-fetch-site", "none")], None),
            (data, vec![], Some(421)),
            (data, vec![("host", "127.0.0.1:7")], Some(421)),
            (data, vec![("host", "localhost:7")], Some(421)),
            (data, vec![("host", "evil.example")], Some(421)),
            (
                data,
                vec![("host", own), ("host", "evil.example")],
                Some(421),
            ),
            (
                data,
                vec![("host", own), ("origin", "http://evil.example")],
                Some(403),
            ),
            (data, vec![("host", own), ("origin", "null")], Some(403)),
            (
                data,
                vec![("host", own), ("sec-fetch-site", "same-site")],
                Some(403),
            ),
            (
                data,
                vec![("host", own), ("sec-fetch-site", "cross-site")],
                Some(403),
            ),
            (
                "/ui/",
                vec![("host", own), ("sec-fetch-site", "cross-site")],
                None,
            ),
            ("/ui/", vec![("host", "localhost:7")], Some(421)),
        ] {
            assert_eq!(judged(&host, path, &headers), want, "{path} {headers:?}");
        }
        let elsewhere = PageHost::new(7);
        assert_ne!(elsewhere.authority, host.authority);
    }
}
