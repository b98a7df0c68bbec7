//! A token becomes a session, and a session ends.

use askama::Template;
use axum::{
    body::Body,
    extract::{Request, State},
    http::{StatusCode, header},
    response::{IntoResponse as _, Redirect, Response},
};

use super::{
    SharedPage,
    layout::{Layout, Theme, answer},
    params::Params,
    same_site,
    session::{self, TOKEN_BYTES},
    trouble::Trouble,
    visit::within,
};
use crate::{
    api::local::{By, Client},
    error::Error,
};

#[derive(Template)]
#[template(path = "login.html")]
struct View {
    layout: Layout,
    next: String,
    problem: String,
    jwt: bool,
}

impl View {
    fn of(page: &SharedPage, theme: Option<Theme>, next: &str, problem: String) -> Self {
        let layout = Layout::new(page, "/", theme, "login");
        Self { layout, next: within(next).to_owned(), problem, jwt: page.auth().jwt }
    }
}

/// The form that asks for a token.
pub(super) async fn form(State(page): State<SharedPage>, request: Request) -> Response {
    if page.auth().is_none() {
        return Redirect::to(&format!("{}/", page.base)).into_response();
    }
    let theme = Theme::of(request.headers());
    match Params::of(request.uri().query().unwrap_or_default()) {
        Ok(params) => answer(StatusCode::OK, &View::of(&page, theme, params.get("next"), String::new())),
        Err(error) => Trouble::of_stranger(error, &page, "/", theme).into_response(),
    }
}

/// Begins a session, if the token holds.
pub(super) async fn log_in(State(page): State<SharedPage>, request: Request<Body>) -> Response {
    let (parts, body) = request.into_parts();
    let theme = Theme::of(&parts.headers);
    let params = async {
        same_site::check(&parts.headers, &page.hosts)?;
        Params::of_form(body).await
    };
    let params = match params.await {
        Ok(params) => params,
        Err(error) => return Trouble::of_stranger(error, &page, "/", theme).into_response(),
    };
    let begun = async {
        let token = params.get("token");
        if token.len() > TOKEN_BYTES {
            let problem = format!("has more than {TOKEN_BYTES} bytes, which no cookie holds; use a shorter one");
            return Err(Error::invalid("the token", problem));
        }
        let client = parts.extensions.get::<Client>().ok_or_else(|| Error::Internal("the client is unknown".into()))?;
        let credential = format!("Bearer {token}");
        By::of(&page.broker.access, Some(credential.as_bytes()), client, true).await?;
        let is_private = same_site::is_private(&parts.headers);
        if !is_private && !page.broker.config().insecure {
            let problem = "this connection is in plain text, where others may read the token: use https, or give the broker --insecure";
            return Err(Error::Denied(problem.into()));
        }
        page.sessions.begin(token, is_private).ok_or_else(|| Error::Internal("the session cannot be made".into()))
    };
    match begun.await {
        Ok(cookie) => {
            let next = format!("{}{}", page.base, within(params.get("next")));
            ([(header::SET_COOKIE, cookie)], Redirect::to(&next)).into_response()
        }
        Err(error) => {
            page.broker.access.refusals.note_http(&error, super::PATH);
            let status = StatusCode::from_u16(crate::error::http_status(error.code().0)).unwrap_or_default();
            let problem = match &error {
                Error::Unauthenticated(problem) => format!("This token does not hold: {problem}"),
                other => other.to_string(),
            };
            answer(status, &View::of(&page, theme, params.get("next"), problem))
        }
    }
}

/// Ends a session in this browser.
pub(super) async fn log_out(State(page): State<SharedPage>, request: Request<Body>) -> Response {
    if let Err(error) = same_site::check(request.headers(), &page.hosts) {
        return Trouble::of_stranger(error, &page, "/", None).into_response();
    }
    let mut answer = Redirect::to(&format!("{}/login", page.base)).into_response();
    for cookie in session::end() {
        answer.headers_mut().append(header::SET_COOKIE, cookie);
    }
    answer
}
