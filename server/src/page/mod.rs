//! The page for operators: HTML rendered by the broker, usable without JavaScript. The page contains no business logic:
//! every view and every button makes gRPC API calls (`api/local`) with the operator's rights.
//!
//! `page_request` authenticates a request, and `same_site` checks that a change comes from the page itself. A view
//! makes its calls and fills its template in `server/page`.

mod assets; // the style sheet, the script, the icon
mod bytes; // payloads as JSON, text or hex
mod conditions; // conditions on jobs
mod fields; // fields of a bulk operation that moves jobs or sets options
mod layout; // the frame of every page
mod login; // a token becomes a session
mod params; // parameters of a query or a form
mod plot; // bars and lines
mod same_site; // changes come from the page itself
mod session; // the cookie
mod error_page; // errors as pages
mod views;
mod page_request; // a request and its caller
mod action; // actions: their kinds, texts and targets
mod type_settings; // settings of a task type
mod words; // numbers, times and states for people

#[cfg(test)]
mod coverage_tests; // checks that each view and action has a test

use std::sync::Arc;

use axum::{
    Router,
    extract::{Request, State},
    http::{HeaderName, HeaderValue, header},
    middleware::{Next, from_fn},
    response::{IntoResponse as _, Redirect, Response},
    routing::{MethodRouter, get, post},
};
use howdah_core::config::{AuthModes, PageMode};
use howdah_engine::broker::SharedBroker;

use tokio::sync::Semaphore;

use crate::stores::SharedStores;
use error_page::PageError;
use page_request::PageRequest;
use session::Sessions;

/// URL path of the page.
const PATH: &str = "/ui";

/// State that all routes of the page share.
struct Page {
    /// Broker of the primary store.
    broker: SharedBroker,
    stores: SharedStores,
    sessions: Sessions,
    /// Path prefix of all links of the page, such as `/ui`.
    base: String,
    /// Host names accepted in requests to the HTTP port.
    hosts: Vec<String>,
    reads_only: bool,
    /// Semaphore that limits how many browsers receive live figures at the same time.
    live: Arc<Semaphore>,
}

type SharedPage = Arc<Page>;

impl Page {
    /// Returns the kinds of credentials that the broker accepts.
    fn auth(&self) -> AuthModes {
        self.broker.config().auth
    }
}

/// Returns the page's routes, or `None` if the page is off.
pub(crate) fn routes(stores: &SharedStores) -> Option<Router> {
    let broker = stores.main();
    let config = broker.config();
    if config.page == PageMode::Off {
        return None;
    }
    let prefix = config.page_prefix.as_deref().unwrap_or_default();
    let page = Arc::new(Page {
        stores: stores.clone(),
        sessions: Sessions::new(&broker.page_token_key),
        base: format!("{prefix}{PATH}"),
        hosts: config.http_host.iter().map(|name| name.to_ascii_lowercase()).collect(),
        reads_only: config.page == PageMode::ReadOnly,
        live: Arc::new(Semaphore::new(views::live::MOST)),
        broker: broker.clone(),
    });
    let mut router = under(PATH);
    // Serves the page with and without the prefix: some proxies remove their prefix from the path, others do not.
    if !prefix.is_empty() {
        router = router.merge(under(&page.base));
    }
    Some(router.layer(from_fn(add_headers)).with_state(page))
}

/// All views by path.
fn views() -> [(&'static str, MethodRouter<SharedPage>); 19] {
    [
        ("/", view_route(views::overview::view)),
        ("/types", view_route(views::types::view)),
        ("/type", view_route(views::types::one)),
        ("/jobs", view_route(views::jobs::view)),
        ("/job", view_route(views::job::view)),
        ("/new-job", view_route(views::new_job::view)),
        ("/find", view_route(views::find::view)),
        ("/failures", view_route(views::failures::view)),
        ("/schedules", view_route(views::schedules::view)),
        ("/schedule", view_route(views::schedules::one)),
        ("/schedule/edit", view_route(views::schedule_form::view).post(views::schedule_form::save)),
        ("/live", view_route(views::live::view)),
        ("/statistics", view_route(views::statistics::view)),
        ("/workers", view_route(views::workers::view)),
        ("/limits", view_route(views::limits::view)),
        ("/bulks", view_route(views::bulks::view)),
        ("/storage", view_route(views::storage::view)),
        ("/audit", view_route(views::audit::view)),
        ("/tokens", view_route(views::tokens::view)),
    ]
}

fn under(at: &str) -> Router<SharedPage> {
    let home = async |State(page): State<SharedPage>| Redirect::permanent(&format!("{}/", page.base));
    let router = Router::new()
        .route(at, get(home))
        .route(&format!("{at}/confirm"), view_route(views::confirm::view))
        .route(&format!("{at}/act"), post(views::act::act))
        .route(&format!("{at}/enqueue"), post(views::new_job::enqueue))
        .route(&format!("{at}/login"), get(login::form).post(login::log_in))
        .route(&format!("{at}/logout"), post(login::log_out))
        .route(&format!("{at}/theme"), post(layout::choose_theme))
        .route(&format!("{at}/assets/{{name}}"), get(assets::asset))
        .route(&format!("{at}/{{*other}}"), view_route(views::find::not_found));
    views().into_iter().fold(router, |router, (path, view)| router.route(&format!("{at}{path}"), view))
}

/// Returns a route that authenticates the caller and then calls the view.
fn view_route<F, R>(view: F) -> MethodRouter<SharedPage>
where
    F: Fn(PageRequest) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Result<Response, PageError>> + Send,
{
    get(async move |State(page): State<SharedPage>, request: Request| {
        let (parts, _) = request.into_parts();
        let page_request = match PageRequest::new(page, parts).await {
            Ok(page_request) => page_request,
            Err(error_page) => return error_page.into_response(),
        };
        let layout = page_request.layout("");
        view(page_request).await.unwrap_or_else(|error_page| error_page.within(layout))
    })
}

/// Content security policy: only scripts, styles and images of this origin, nothing inline, no framing.
const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; \
                      form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

const HEADERS: [(HeaderName, HeaderValue); 6] = [
    (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY)),
    (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    (header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY")),
    // The value is `same-origin`, because with `no-referrer` browsers omit the header `Origin` from the page's forms.
    (header::REFERRER_POLICY, HeaderValue::from_static("same-origin")),
    (HeaderName::from_static("cross-origin-opener-policy"), HeaderValue::from_static("same-origin")),
    (HeaderName::from_static("cross-origin-resource-policy"), HeaderValue::from_static("same-origin")),
];

/// Adds the security headers to a response, and `Cache-Control: no-store` if the response has no `Cache-Control`.
async fn add_headers(request: Request, next: Next) -> Response {
    let mut answer = next.run(request).await;
    let headers = answer.headers_mut();
    for (name, value) in HEADERS {
        headers.insert(name, value);
    }
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    answer
}

/// Limits of the page, re-exported for the reference page of all limits.
#[cfg(test)]
pub(crate) mod bounds {
    pub(crate) use super::{
        action::MOST_IDS,
        bytes::{HEX, TEXT},
        params::{BYTES as FORM_BYTES, MOST as PARAMS},
        session::{LASTS as SESSION, TOKEN_BYTES},
        views::live::{EVERY as LIVE_PERIOD, LASTS as LIVE, MOST as MOST_LIVE},
    };
}
