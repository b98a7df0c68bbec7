//! The page for operators: HTML that is made here, and read without a script. It decides nothing: every view and every button is a
//! call of the protocol (`api/local`), with the rights of the person who looks.
//!
//! A request is authenticated (`visit`), a change must come from the page itself (`same_site`), a view makes its calls and fills
//! its template in `server/page`, and every answer gets the same headers (`headers`).

mod action; // what is done, to what
mod assets; // the style sheet, the script, the icon
mod bytes; // payloads as JSON, text or hex
mod fields; // what a bulk operation moves and sets
mod headers; // what browsers must keep to
mod json; // JSON with line breaks
mod layout; // what every page has
mod login; // a token becomes a session
mod params; // of a query or a form
mod plot; // bars and lines
mod same_site; // changes come from the page itself
mod session; // the cookie
mod trouble; // errors as pages
mod views;
mod visit; // who looks, at what
mod what; // actions and their words
mod words; // numbers, times and states for people

#[cfg(test)]
mod tried; // whether each view and action has a test

use std::sync::Arc;

use axum::{
    Router,
    extract::{Request, State},
    middleware::from_fn,
    response::{IntoResponse as _, Redirect, Response},
    routing::{MethodRouter, get, post},
};

use tokio::sync::Semaphore;

use crate::{
    api::local::Local,
    broker::SharedBroker,
    config::{AuthModes, PageMode},
    stores::SharedFleet,
};
use session::Sessions;
use trouble::Trouble;
use visit::Visit;

/// The limits of the page, for the list of all limits.
pub(crate) mod bounds {
    pub(crate) use super::{
        action::MOST_IDS,
        bytes::{HEX, TEXT},
        params::{BYTES as FORM_BYTES, MOST as PARAMS},
        session::{LASTS as SESSION, TOKEN_BYTES},
        views::live::{EVERY as LIVE_PERIOD, LASTS as LIVE, MOST as MOST_LIVE},
    };
}

/// Where it is.
const PATH: &str = "/ui";

/// State of the routes.
struct Page {
    /// The main store's.
    broker: SharedBroker,
    local: Local,
    sessions: Sessions,
    /// What links begin with.
    base: String,
    /// The names that this port is called by.
    hosts: Vec<String>,
    reads_only: bool,
    /// Places for browsers that look at live figures.
    live: Arc<Semaphore>,
}

type SharedPage = Arc<Page>;

impl Page {
    /// The credentials that it takes.
    fn auth(&self) -> AuthModes {
        self.broker.config().auth
    }
}

/// The routes; `None`: there is no page.
pub(crate) fn routes(fleet: &SharedFleet) -> Option<Router> {
    let broker = fleet.main();
    let config = broker.config();
    if config.page == PageMode::Off {
        return None;
    }
    let prefix = config.page_prefix.as_deref().unwrap_or_default();
    let page = Arc::new(Page {
        local: Local::new(fleet.clone()),
        sessions: Sessions::new(&broker.page_token_key),
        base: format!("{prefix}{PATH}"),
        hosts: config.http_host.iter().map(|name| name.to_ascii_lowercase()).collect(),
        reads_only: config.page == PageMode::ReadOnly,
        live: Arc::new(Semaphore::new(views::live::MOST)),
        broker: broker.clone(),
    });
    let mut router = under(PATH);
    // Some proxies take their prefix off, and some do not.
    if !prefix.is_empty() {
        router = router.merge(under(&page.base));
    }
    Some(router.layer(from_fn(headers::add)).with_state(page))
}

/// The views, by their paths.
fn views() -> [(&'static str, MethodRouter<SharedPage>); 17] {
    [
        ("/", seen(views::overview::view)),
        ("/types", seen(views::types::view)),
        ("/type", seen(views::task_type::view)),
        ("/jobs", seen(views::jobs::view)),
        ("/job", seen(views::job::view)),
        ("/find", seen(views::find::view)),
        ("/failures", seen(views::failures::view)),
        ("/schedules", seen(views::schedules::view)),
        ("/schedule", seen(views::schedules::one)),
        ("/live", seen(views::live::view)),
        ("/statistics", seen(views::statistics::view)),
        ("/workers", seen(views::workers::view)),
        ("/limits", seen(views::limits::view)),
        ("/bulks", seen(views::bulks::view)),
        ("/storage", seen(views::storage::view)),
        ("/audit", seen(views::audit::view)),
        ("/tokens", seen(views::tokens::view)),
    ]
}

fn under(at: &str) -> Router<SharedPage> {
    let home = async |State(page): State<SharedPage>| Redirect::permanent(&format!("{}/", page.base));
    let router = Router::new()
        .route(at, get(home))
        .route(&format!("{at}/confirm"), seen(views::confirm::view))
        .route(&format!("{at}/act"), post(views::act::act))
        .route(&format!("{at}/login"), get(login::form).post(login::log_in))
        .route(&format!("{at}/logout"), post(login::log_out))
        .route(&format!("{at}/theme"), post(layout::choose_theme))
        .route(&format!("{at}/assets/{{name}}"), get(assets::asset))
        .route(&format!("{at}/{{*other}}"), seen(views::nowhere::view));
    views().into_iter().fold(router, |router, (path, view)| router.route(&format!("{at}{path}"), view))
}

/// A view, for those who may look.
fn seen<F, R>(view: F) -> MethodRouter<SharedPage>
where
    F: Fn(Visit) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Result<Response, Trouble>> + Send,
{
    get(async move |State(page): State<SharedPage>, request: Request| {
        let (parts, _) = request.into_parts();
        let visit = match Visit::of(page, parts).await {
            Ok(visit) => visit,
            Err(trouble) => return trouble.into_response(),
        };
        let layout = visit.layout("");
        view(visit).await.unwrap_or_else(|trouble| trouble.within(layout))
    })
}
