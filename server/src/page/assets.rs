//! Static files of the page: style sheet, script and icon.

use std::sync::LazyLock;

use axum::{
    extract::{Path, RawQuery},
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse as _, Response},
};
use sha2::{Digest as _, Sha256};

const ALL: [(&str, &str, &str); 3] = [
    ("page.css", "text/css; charset=utf-8", include_str!("../../page/assets/page.css")),
    ("page.js", "text/javascript; charset=utf-8", include_str!("../../page/assets/page.js")),
    ("icon.svg", "image/svg+xml", include_str!("../../page/assets/icon.svg")),
];

static VERSION: LazyLock<String> = LazyLock::new(|| {
    let all = ALL.iter().fold(Sha256::new(), |all, (_, _, text)| all.chain_update(text));
    hex::encode(&all.finalize()[..6])
});

/// Returns the version of the static files. Links contain the version, so browsers may cache the files.
pub(super) fn version() -> &'static str {
    &VERSION
}

/// Serves a static file; needs no login.
pub(super) async fn asset(Path(name): Path<String>, RawQuery(query): RawQuery) -> Response {
    let Some((_, kind, text)) = ALL.into_iter().find(|(known, _, _)| *known == name) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let is_current = query.is_some_and(|query| query.strip_prefix("v=") == Some(version()));
    let kept = if is_current { "public, max-age=31536000, immutable" } else { "no-cache" };
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(kind)),
        (header::CACHE_CONTROL, HeaderValue::from_static(kept)),
    ];
    (headers, text).into_response()
}
