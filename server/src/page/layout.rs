//! What every page has: its head, the links above, who looks, light or dark.

use askama::Template;
use axum::{
    body::Body,
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{Html, IntoResponse as _, Redirect, Response},
};

use super::{Page, SharedPage, assets, params::Params, same_site, session::cookie_of, trouble::Trouble, visit::within};
use crate::{
    access::Operation,
    api::local::{By, Unanswered},
    error::Error,
    store::ReplicaState,
};

const THEME: &str = "howdah-theme";

/// Light or dark, if somebody has chosen. Otherwise the system has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Theme {
    /// Dark on light.
    Light,
    /// Light on dark.
    Dark,
}

impl Theme {
    const ALL: [(&'static str, Self); 2] = [("light", Self::Light), ("dark", Self::Dark)];

    /// That of a request.
    pub(super) fn of(headers: &HeaderMap) -> Option<Self> {
        Self::parse(cookie_of(headers, THEME)?)
    }

    fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|(known, _)| *known == word).map(|(_, theme)| theme)
    }

    fn word(self) -> &'static str {
        Self::ALL[self as usize].0
    }
}

/// What the templates of all pages need.
#[expect(clippy::struct_excessive_bools, reason = "each decides about one part of the page")]
#[derive(Clone)]
pub(super) struct Layout {
    /// What links begin with.
    pub(super) base: String,
    /// Changes with the files of the page.
    pub(super) version: &'static str,
    /// Which link leads here.
    pub(super) current: &'static str,
    /// The path here, after the base.
    pub(super) here: String,
    /// The word of the theme, if one was chosen.
    pub(super) theme: Option<&'static str>,
    /// The broker that answers.
    pub(super) broker: String,
    /// The stores whose databases cannot be reached, and those that have not answered a call of this visit.
    pub(super) away: Vec<String>,
    pub(super) unanswered: Unanswered,
    /// What there is to say of the read replica of each store that has one.
    pub(super) replicas: Vec<String>,
    /// Whether there is somebody to show links to.
    pub(super) known: bool,
    /// Who that is; empty: nobody in particular.
    pub(super) principal: String,
    /// Whether that person can log out.
    pub(super) session: bool,
    pub(super) reads_only: bool,
    /// Whether that person may read what concerns everything.
    pub(super) reads_all: bool,
    pub(super) admin: bool,
    /// What was done just now.
    pub(super) done: Option<String>,
}

/// How old what is shown may be. With several stores, of which one.
fn replica_words((store, state): (&str, ReplicaState)) -> String {
    let of = if store.is_empty() { String::new() } else { format!(" (store {store})") };
    match state.lag {
        Some(lag) if state.is_read => format!("Read replica {:.1} s behind{of}", lag.as_secs_f64()),
        Some(lag) => format!("Read replica not read: {:.0} s behind, or away{of}", lag.as_secs_f64()),
        None => format!("Read replica not read: away{of}"),
    }
}

impl Layout {
    /// For nobody yet.
    pub(super) fn new(page: &Page, here: &str, theme: Option<Theme>, current: &'static str) -> Self {
        Self {
            base: page.base.clone(),
            version: assets::version(),
            current,
            here: here.to_owned(),
            theme: theme.map(Theme::word),
            broker: page.broker.config().name.clone(),
            away: Vec::new(),
            unanswered: Unanswered::default(),
            replicas: page.local.replicas().into_iter().map(replica_words).collect(),
            known: false,
            principal: String::new(),
            session: false,
            reads_only: page.reads_only,
            reads_all: false,
            admin: false,
            done: None,
        }
    }

    /// Why this is not all: sentences about stores.
    pub(super) fn missing(&self) -> Vec<String> {
        let slow = self.unanswered.names().into_iter().filter(|name| !self.away.contains(name));
        let slow = slow.map(|name| format!("Store {name} has not answered in time: what it has is not shown."));
        let away = self.away.iter().map(|name| {
            format!(
                "The database of store {name} cannot be reached now. Its jobs are not shown, and wait; the other stores are \
                 not concerned."
            )
        });
        away.chain(slow).collect()
    }

    /// The links above: name, path, text.
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
        all.into_iter().filter(|(shown, ..)| *shown).map(|(_, name, path, text)| (name, path, text)).collect()
    }

    /// For this caller.
    pub(super) fn of_caller(self, page: &Page, by: &By) -> Self {
        Self {
            known: true,
            away: page.local.troubled_stores().0.into_iter().map(str::to_owned).collect(),
            unanswered: by.unanswered().clone(),
            principal: by.principal().to_owned(),
            session: !page.auth().is_none(),
            reads_all: by.may_everywhere(Operation::Read),
            admin: by.may_everywhere(Operation::Admin),
            ..self
        }
    }
}

/// The answer with a page.
pub(super) fn answer(status: StatusCode, page: &impl Template) -> Response {
    match page.render() {
        Ok(text) => (status, Html(text)).into_response(),
        Err(error) => {
            tracing::error!(%error, "a page cannot be shown");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

/// The same with 200.
pub(super) fn shown(page: &impl Template) -> Result<Response, Trouble> {
    Ok(answer(StatusCode::OK, page))
}

/// Keeps the choice between light and dark in a cookie.
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
        Err(error) => Trouble::of_stranger(error, &page, "/", None).into_response(),
    }
}
