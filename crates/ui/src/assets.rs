//! The assets and their answers.

use std::{collections::BTreeMap, sync::LazyLock};

use axum::{
    Router,
    body::Body,
    extract::Path,
    response::{IntoResponse as _, Redirect},
    routing::get,
};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};
use include_dir::{Dir, include_dir};
use sha2::{Digest as _, Sha256};

static DIR: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/assets");

/// The page itself.
const INDEX: &str = "index.html";

/// The headers of all answers. The page is nobody's frame, runs nothing but its own modules, and
/// talks to its own server alone.
const HEADERS: [(HeaderName, &str); 5] = [
    (header::CACHE_CONTROL, "no-cache"),
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (
        HeaderName::from_static("cross-origin-opener-policy"),
        "same-origin",
    ),
];

/// An asset.
struct Asset {
    content: &'static [u8],
    media_type: &'static str,
    /// The entity tag, with its quotes.
    tag: String,
}

/// The assets by name.
static ASSETS: LazyLock<BTreeMap<&'static str, Asset>> = LazyLock::new(|| {
    let files = DIR.files().filter_map(|file| {
        let name = file.path().to_str()?;
        Some((name, Asset::new(name, file.contents())))
    });
    files.collect()
});

impl Asset {
    fn new(name: &'static str, content: &'static [u8]) -> Self {
        let digest = Sha256::digest(content);
        let digits: Vec<String> = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        Self {
            content,
            media_type: media_type(name).unwrap_or("application/octet-stream"),
            tag: format!("\"{}\"", digits.concat()),
        }
    }
}

/// The media type by the end of the name.
fn media_type(name: &str) -> Option<&'static str> {
    let (_, end) = name.rsplit_once('.')?;
    Some(match end {
        "css" => "text/css; charset=utf-8",
        "html" => "text/html; charset=utf-8",
        "ico" => "image/x-icon",
        "js" | "mjs" => "text/javascript; charset=utf-8",
        "json" | "webmanifest" => "application/json",
        "png" => "image/png",
        "svg" => "image/svg+xml",
        "txt" => "text/plain; charset=utf-8",
        "woff2" => "font/woff2",
        _ => return None,
    })
}

/// Returns true for the paths that everybody may get: the page without its data.
#[must_use]
pub fn is_public(path: &str) -> bool {
    path == "/ui" || path.starts_with("/ui/")
}

/// The routes of the page: `/ui`, `/ui/` and `/ui/NAME`.
pub fn router<S: Clone + Send + Sync + 'static>() -> Router<S> {
    Router::new()
        .route(
            "/ui",
            get(|| async { with_headers(Redirect::permanent("/ui/").into_response()) }),
        )
        .route("/ui/", get(|headers: HeaderMap| async move { answer(INDEX, &headers) }))
        .route(
            "/ui/{*name}",
            get(|Path(name): Path<String>, headers: HeaderMap| async move {
                answer(&name, &headers)
            }),
        )
}

fn answer(name: &str, headers: &HeaderMap) -> Response<Body> {
    let Some(asset) = ASSETS.get(name) else {
        return with_headers((StatusCode::NOT_FOUND, "no such asset\n").into_response());
    };
    let held = headers.get(header::IF_NONE_MATCH);
    let held = held.and_then(|held| held.to_str().ok()).unwrap_or_default();
    let mut answer = match held.split(',').any(|held| held.trim() == asset.tag) {
        true => StatusCode::NOT_MODIFIED.into_response(),
        false => {
            let media_type = [(header::CONTENT_TYPE, asset.media_type)];
            (media_type, asset.content).into_response()
        }
    };
    answer
        .headers_mut()
        .extend(HeaderValue::from_str(&asset.tag).map(|tag| (header::ETAG, tag)));
    with_headers(answer)
}

fn with_headers(mut answer: Response<Body>) -> Response<Body> {
    for (name, value) in HEADERS {
        answer
            .headers_mut()
            .insert(name, HeaderValue::from_static(value));
    }
    answer
}

#[cfg(test)]
mod tests {
    use axum::body::to_bytes;
    use http::Request;
    use tower::ServiceExt as _;

    use super::*;

    async fn get(path: &str, held: Option<&str>) -> (StatusCode, HeaderMap, Vec<u8>) {
        let mut request = Request::get(path);
        if let Some(held) = held {
            request = request.header(header::IF_NONE_MATCH, held);
        }
        let request = request.body(Body::empty()).unwrap();
        let answer = router().oneshot(request).await.unwrap();
        let (parts, body) = answer.into_parts();
        let body = to_bytes(body, usize::MAX).await.unwrap();
        (parts.status, parts.headers, body.to_vec())
    }

    #[test]
    fn every_asset_has_a_media_type() {
        assert!(ASSETS.contains_key(INDEX));
        for name in ASSETS.keys() {
            assert!(media_type(name).is_some(), "{name}");
        }
        assert_eq!(DIR.dirs().count(), 0, "assets are not in directories");
    }

    #[test]
    fn nothing_but_the_page_is_public() {
        for path in ["/ui", "/ui/", "/ui/main.js"] {
            assert!(is_public(path), "{path}");
        }
        for path in ["/", "/uix", "/api/ui/", "/summary/v1alpha1/cluster"] {
            assert!(!is_public(path), "{path}");
        }
    }

    #[tokio::test]
    async fn answers_have_the_headers_of_security_and_a_tag() {
        let (code, headers, body) = get("/ui/", None).await;
        assert_eq!(code, StatusCode::OK);
        assert_eq!(headers[header::CONTENT_TYPE], "text/html; charset=utf-8");
        assert!(body.starts_with(b"<!doctype html>"));
        for (name, value) in HEADERS {
            assert_eq!(headers[&name], value);
        }
        let tag = headers[header::ETAG].to_str().unwrap();
        let (code, headers, body) = get("/ui/index.html", Some(tag)).await;
        assert_eq!((code, body.len()), (StatusCode::NOT_MODIFIED, 0));
        assert_eq!(headers[header::ETAG], tag);
        let (code, headers, _) = get("/ui", None).await;
        assert_eq!(code, StatusCode::PERMANENT_REDIRECT);
        assert_eq!(headers[header::LOCATION], "/ui/");
    }

    #[tokio::test]
    async fn names_lead_to_no_other_file() {
        for path in [
            "/ui/../Cargo.toml",
            "/ui/..%2fCargo.toml",
            "/ui/%2e%2e/Cargo.toml",
            "/ui//etc/passwd",
            "/ui/assets/index.html",
            "/ui/INDEX.HTML",
            "/ui/index.html%00",
        ] {
            let (code, headers, _) = get(path, None).await;
            assert_eq!(code, StatusCode::NOT_FOUND, "{path}");
            assert_eq!(headers[header::X_CONTENT_TYPE_OPTIONS], "nosniff", "{path}");
        }
    }
}
