//! A request to the page: its caller, parameters and path.

use std::sync::Arc;

use axum::{
    body::Body,
    extract::Request,
    http::{HeaderMap, header, request::Parts},
};
use howdah_core::{error::Error, job::ClusterSettings};
use howdah_engine::access::Operation;
use tokio::sync::Semaphore;
use tonic::Code;

use super::{
    SharedPage,
    action::done_sentence,
    error_page::PageError,
    layout::{Layout, Theme},
    params::Params,
    same_site,
    type_settings::Defaults,
};
use crate::api::local::{By, Client, Local};

/// Maximum number of task types that a form suggests.
const SUGGESTED: usize = 200;

/// An authenticated request to the page.
pub(super) struct PageRequest {
    page: SharedPage,
    /// Makes calls with the stores at the start of the request.
    local: Local,
    /// Caller and rights.
    pub(super) by: By,
    /// The parameters of the query, or of the form.
    pub(super) params: Params,
    /// Path and query of the request, without the prefix of all links.
    here: String,
    theme: Option<Theme>,
}

impl PageRequest {
    /// Authenticates a request for a view.
    pub(super) async fn new(page: SharedPage, parts: Parts) -> Result<Self, PageError> {
        let here = here(&page, &parts);
        let theme = Theme::from_headers(&parts.headers);
        let req = async {
            let by = caller(&page, &parts).await?;
            Ok((by, Params::parse(parts.uri.query().unwrap_or_default())?))
        };
        match req.await {
            Ok((by, params)) => Ok(Self { local: Local::new(&page.stores), page, by, params, here, theme }),
            Err(error) => Err(PageError::of_stranger(error, &page, &here, theme)),
        }
    }

    /// Authenticates a form that requests a change. The form must come from the page itself.
    pub(super) async fn of_change(page: SharedPage, request: Request<Body>) -> Result<Self, PageError> {
        let (parts, body) = request.into_parts();
        let theme = Theme::from_headers(&parts.headers);
        let req = async {
            same_site::check(&parts.headers, &page.hosts)?;
            let by = caller(&page, &parts).await?;
            Ok((by, Params::of_form(body).await?))
        };
        match req.await {
            Ok((by, params)) => {
                let by = by.because(params.get("reason"));
                Ok(Self { local: Local::new(&page.stores), page, by, params, here: "/".into(), theme })
            }
            Err(error) => Err(PageError::of_stranger(error, &page, "/", theme)),
        }
    }

    pub(super) fn calls(&self) -> &Local {
        &self.local
    }

    /// Settings of the cluster.
    pub(super) fn cluster(&self) -> Arc<ClusterSettings> {
        self.page.broker.cluster()
    }

    /// Returns the layout around the view. `current` is the navigation link to highlight.
    pub(super) fn layout(&self, current: &'static str) -> Layout {
        let layout =
            Layout::new(&self.page, &self.here, self.theme, current).of_caller(&self.page, &self.local, &self.by);
        Layout { done: done_sentence(&self.params), ..layout }
    }

    /// Returns a link to a view of the page.
    pub(super) fn link(&self, path: &str, query: &str) -> String {
        let question = if query.is_empty() { "" } else { "?" };
        format!("{}{path}{question}{query}", self.page.base)
    }

    /// Returns the link to which a change redirects. The link never leads outside the page.
    pub(super) fn back(&self) -> String {
        format!("{}{}", self.page.base, within(self.params.get("back")))
    }

    /// Whether no task type of this name exists, to distinguish a mistyped name from a type without jobs. Returns false
    /// if the caller may not read the type, or for an empty name.
    pub(super) async fn is_unknown(&self, task_type: &str) -> bool {
        self.by.may(Operation::Read, task_type)
            && self.calls().counted_type(&self.by, task_type).await.is_err_and(|it| it.code() == Code::NotFound)
    }

    /// Names of the task types that forms suggest.
    pub(super) async fn type_names(&self) -> Result<Vec<String>, PageError> {
        let types = self.calls().counted_types(&self.by).await?.types;
        let mut names: Vec<String> = types.into_iter().map(|view| view.name).collect();
        // A type that several stores have is listed once for each.
        names.dedup();
        names.truncate(SUGGESTED);
        Ok(names)
    }

    /// Settings that apply to task types without own values.
    pub(super) fn type_defaults(&self) -> Defaults<'_> {
        let cluster = self.page.broker.cluster();
        let payload_bytes = i64::try_from(cluster.payload_bytes).unwrap_or(i64::MAX);
        Defaults { config: self.page.broker.config(), payload_bytes, dead_days: cluster.dead_days }
    }

    /// Semaphore that limits how many browsers receive live figures at the same time.
    pub(super) fn live_slots(&self) -> &Arc<Semaphore> {
        &self.page.live
    }

    /// Whether the broker is stopping.
    pub(super) fn is_draining(&self) -> bool {
        self.page.broker.is_draining()
    }

    /// Fails with the reason if the broker is not ready.
    pub(super) async fn readiness(&self) -> Result<(), String> {
        self.page.broker.operator.readiness().await
    }
}

/// Returns the path if it leads to a view of the page, else `/`.
pub(super) fn within(path: &str) -> &str {
    let is_plain = path.bytes().all(|b| b.is_ascii_graphic() && b != b'\\');
    let segments = path.split(['?', '#']).next().unwrap_or_default().split('/');
    let climbs = segments.map(str::to_ascii_lowercase).any(|segment| {
        // Browsers resolve dot segments, encoded or not, so such a path could lead out of the page.
        matches!(segment.replace("%2e", ".").as_str(), "." | "..") || segment.contains("%2f") || segment.contains("%5c")
    });
    if path.len() <= 4_000 && is_plain && !climbs && path.starts_with('/') && !path.starts_with("//") {
        path
    } else {
        "/"
    }
}

fn here(page: &SharedPage, parts: &Parts) -> String {
    let whole = parts.uri.path_and_query().map_or("/", |whole| whole.as_str());
    let rest = whole.strip_prefix(&page.base).or_else(|| whole.strip_prefix(super::PATH)).unwrap_or("/");
    without_done(within(rest))
}

/// Removes the query parameters that report a completed action.
fn without_done(path: &str) -> String {
    let Some((path, query)) = path.split_once('?') else { return path.to_owned() };
    let kept: Vec<&str> =
        query.split('&').filter(|pair| !pair.starts_with("done=") && !pair.starts_with("n=")).collect();
    if kept.is_empty() { path.to_owned() } else { format!("{path}?{}", kept.join("&")) }
}

/// Authenticates the caller by the header `Authorization`, or by the session cookie of a browser.
async fn caller(page: &SharedPage, parts: &Parts) -> Result<By, Error> {
    let client = parts.extensions.get::<Client>().ok_or_else(|| Error::Internal("bug: no client address".into()))?;
    let credential = credential(page, &parts.headers).await?;
    if credential.is_none() && !page.auth().is_none() {
        return Err(Error::Unauthenticated("log in first".into()));
    }
    let credential = credential.as_deref().map(str::as_bytes);
    By::from_request(page.stores.authenticator(), credential, client, page.reads_only).await
}

async fn credential(page: &SharedPage, headers: &HeaderMap) -> Result<Option<String>, Error> {
    if let Some(given) = headers.get(header::AUTHORIZATION) {
        return Ok(Some(String::from_utf8_lossy(given.as_bytes()).into_owned()));
    }
    let Some(session) = page.sessions.find(headers, page.broker.config().insecure) else { return Ok(None) };
    // The list of logged-out sessions is in the database. While the database is unreachable, the check is skipped;
    // views then show no data.
    if !page.broker.is_unreachable() && page.stores.authenticator().session_has_ended(&session.hash).await? {
        return Ok(None);
    }
    Ok(Some(format!("Bearer {}", session.token)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redirect_back_leads_only_to_paths_of_the_page() {
        for good in ["/", "/jobs?type=a&state=dead", "/job?id=1#payload", "/jobs?key=/../x&type=a..b"] {
            assert_eq!(within(good), good);
        }
        for bad in [
            "",
            "jobs",
            "//evil.example",
            "https://evil.example",
            "/\\evil.example",
            "/a b",
            "/../../evil",
            "/..",
            "/jobs/../../x",
            "/%2e%2E/x",
            "/.%2e/x",
            "/..%2f../x",
            "/./x",
            "/a\r\nSet-Cookie: x",
            &format!("/{}", "x".repeat(5_000)),
        ] {
            assert_eq!(within(bad), "/", "{bad}");
        }
    }
}
