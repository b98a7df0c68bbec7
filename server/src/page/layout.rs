//! Layout of every page: head, navigation, principal and theme.

use askama::Template;
use axum::{
    body::Body,
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{Html, IntoResponse as _, Redirect, Response},
};
use howdah_core::error::Error;
use howdah_engine::{access::Operation, store::ReplicaState};

use super::{
    Page, SharedPage, assets, error_page::PageError, page_request::within, params::Params, same_site,
    session::cookie_of,
};
use crate::api::local::{By, Local, Unanswered};

const THEME: &str = "howdah-theme";

/// Theme that the user has chosen. Without one, the operating system's setting applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Theme {
    /// Dark on light.
    Light,
    /// Light on dark.
    Dark,
}

impl Theme {
    const ALL: [(&'static str, Self); 2] = [("light", Self::Light), ("dark", Self::Dark)];

    /// Reads the theme from the request's cookie.
    pub(super) fn from_headers(headers: &HeaderMap) -> Option<Self> {
        Self::parse(cookie_of(headers, THEME)?)
    }

    fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|(known, _)| *known == word).map(|(_, theme)| theme)
    }

    fn word(self) -> &'static str {
        Self::ALL[self as usize].0
    }
}

/// Data that the layout template needs on every page.
#[expect(clippy::struct_excessive_bools, reason = "each flag shows or hides one part of the page")]
#[derive(Clone, Default)]
pub(super) struct Layout {
    /// Path prefix of all links of the page, such as `/ui`.
    pub(super) base: String,
    /// Version of the style sheet and scripts, for their links.
    pub(super) version: &'static str,
    /// Name of the navigation link to highlight.
    pub(super) current: &'static str,
    /// Path of the current view, without the prefix of all links.
    pub(super) here: String,
    /// Name of the chosen theme.
    pub(super) theme: Option<&'static str>,
    /// Name of the broker that serves the page.
    pub(super) broker: String,
    /// Stores whose databases are unreachable.
    pub(super) unreachable: Vec<String>,
    pub(super) unanswered: Unanswered,
    /// Status of each store's read replica.
    pub(super) replicas: Vec<String>,
    /// Whether to show navigation links: false before the login.
    pub(super) known: bool,
    /// Name of the logged-in principal; empty if authentication is off.
    pub(super) principal: String,
    /// Whether to show the button for logging out: false if authentication is off.
    pub(super) session: bool,
    pub(super) reads_only: bool,
    /// Whether the principal may read all task types.
    pub(super) reads_all: bool,
    pub(super) admin: bool,
    /// Message about the action that was just completed.
    pub(super) done: Option<String>,
}

/// Describes the replication lag of a store's read replica. Contains the store's name if there are several stores.
fn replica_words((store, state): (&str, ReplicaState)) -> String {
    let of = if store.is_empty() { String::new() } else { format!(" (store {store})") };
    match state.lag {
        Some(lag) if state.is_read => format!("Read replica {:.1} s behind{of}", lag.as_secs_f64()),
        Some(lag) => format!("Read replica not used: {:.0} s behind, or unreachable{of}", lag.as_secs_f64()),
        None => format!("Read replica not used: unreachable{of}"),
    }
}

impl Layout {
    /// Creates the layout for a page without a logged-in principal.
    pub(super) fn new(page: &Page, here: &str, theme: Option<Theme>, current: &'static str) -> Self {
        Self {
            base: page.base.clone(),
            version: assets::version(),
            current,
            here: here.to_owned(),
            theme: theme.map(Theme::word),
            broker: page.broker.config().name.clone(),
            replicas: Local::new(&page.stores).replicas().into_iter().map(replica_words).collect(),
            reads_only: page.reads_only,
            ..Self::default()
        }
    }

    /// Returns warnings about stores whose data is missing from the page.
    pub(super) fn missing(&self) -> Vec<String> {
        let slow = self.unanswered.names().into_iter().filter(|name| !self.unreachable.contains(name));
        let slow = slow.map(|name| format!("Store {name} has not answered in time: its data is not shown."));
        let unreachable = self.unreachable.iter().map(|name| {
            format!(
                "The database of store {name} cannot be reached now. Its jobs wait, and are not shown here. The other \
                 stores are not affected."
            )
        });
        unreachable.chain(slow).collect()
    }

    /// Returns the navigation links: name, path and text.
    pub(super) fn links(&self) -> Vec<(&'static str, &'static str, &'static str)> {
        let all = [
            (true, "overview", "/", "Overview"),
            (true, "types", "/types", "Types"),
            (true, "jobs", "/jobs", "Jobs"),
            (true, "failures", "/failures", "Failures"),
            (true, "statistics", "/statistics", "Statistics"),
            (true, "workers", "/workers", "Workers"),
            (true, "schedules", "/schedules", "Schedules"),
            (true, "limits", "/limits", "Limits"),
            (true, "bulks", "/bulks", "Bulk"),
            (self.reads_all, "storage", "/storage", "Storage"),
            (self.admin, "audit", "/audit", "Audit"),
            (self.admin, "tokens", "/tokens", "Tokens"),
        ];
        all.into_iter().filter(|(is_shown, ..)| *is_shown).map(|(_, name, path, text)| (name, path, text)).collect()
    }

    /// Adds the principal and the rights of the caller to the layout.
    pub(super) fn of_caller(self, page: &Page, local: &Local, by: &By) -> Self {
        Self {
            known: true,
            unreachable: local.troubled_stores().0.into_iter().map(str::to_owned).collect(),
            unanswered: by.unanswered().clone(),
            principal: by.principal().to_owned(),
            session: !page.auth().is_none(),
            reads_all: by.may_everywhere(Operation::Read),
            admin: by.may_everywhere(Operation::Admin),
            ..self
        }
    }
}

/// Renders a template as an HTML response with this status.
pub(super) fn answer(status: StatusCode, page: &impl Template) -> Response {
    match page.render() {
        Ok(text) => (status, Html(text)).into_response(),
        Err(error) => {
            tracing::error!(%error, "cannot render a page");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

/// Renders a template as an HTML response with status 200.
pub(super) fn render(page: &impl Template) -> Result<Response, PageError> {
    Ok(answer(StatusCode::OK, page))
}

/// Stores the chosen theme in a cookie.
pub(super) async fn choose_theme(State(page): State<SharedPage>, request: Request<Body>) -> Response {
    let (parts, body) = request.into_parts();
    let chosen = async {
        same_site::check(&parts.headers, &page.hosts)?;
        let params = Params::of_form(body).await?;
        let theme =
            Theme::parse(params.get("theme")).ok_or_else(|| Error::invalid("theme", "must be light or dark"))?;
        Ok((theme, format!("{}{}", page.base, within(params.get("back")))))
    };
    match chosen.await {
        Ok((theme, back)) => {
            let cookie = format!("{THEME}={}; Path=/; Max-Age=31536000; HttpOnly; SameSite=Lax", theme.word());
            let cookie = HeaderValue::try_from(cookie).unwrap_or(HeaderValue::from_static(""));
            ([(header::SET_COOKIE, cookie)], Redirect::to(&back)).into_response()
        }
        Err(error) => PageError::of_stranger(error, &page, "/", None).into_response(),
    }
}
