//! Login with a token, and logout.

use askama::Template;
use axum::{
    body::Body,
    extract::{Request, State},
    http::{StatusCode, header},
    response::{IntoResponse as _, Redirect, Response},
};
use howdah_core::error::Error;

use super::{
    SharedPage,
    error_page::PageError,
    layout::{Layout, Theme, answer},
    page_request::within,
    params::Params,
    same_site,
    session::{self, TOKEN_BYTES},
};
use crate::api::local::{By, Client};

#[derive(Template)]
#[template(path = "login.html")]
struct View {
    layout: Layout,
    next: String,
    problem: String,
    jwt: bool,
}

impl View {
    fn new(page: &SharedPage, theme: Option<Theme>, next: &str, problem: String) -> Self {
        let layout = Layout::new(page, "/", theme, "login");
        Self { layout, next: within(next).to_owned(), problem, jwt: page.auth().jwt }
    }
}

/// Renders the login form.
pub(super) async fn form(State(page): State<SharedPage>, request: Request) -> Response {
    if page.auth().is_none() {
        return Redirect::to(&format!("{}/", page.base)).into_response();
    }
    let theme = Theme::from_headers(request.headers());
    match Params::parse(request.uri().query().unwrap_or_default()) {
        Ok(params) => answer(StatusCode::OK, &View::new(&page, theme, params.get("next"), String::new())),
        Err(error) => PageError::of_stranger(error, &page, "/", theme).into_response(),
    }
}

/// Handles the login form: starts a session if the token is valid.
pub(super) async fn log_in(State(page): State<SharedPage>, request: Request<Body>) -> Response {
    let (parts, body) = request.into_parts();
    let theme = Theme::from_headers(&parts.headers);
    let params = async {
        same_site::check(&parts.headers, &page.hosts)?;
        Params::of_form(body).await
    };
    let params = match params.await {
        Ok(params) => params,
        Err(error) => return PageError::of_stranger(error, &page, "/", theme).into_response(),
    };
    let begun = async {
        let token = params.get("token");
        if token.len() > TOKEN_BYTES {
            let problem =
                format!("has more than {TOKEN_BYTES} bytes, which is too long for a cookie; use a shorter token");
            return Err(Error::invalid("the token", problem));
        }
        let client =
            parts.extensions.get::<Client>().ok_or_else(|| Error::Internal("bug: no client address".into()))?;
        let credential = format!("Bearer {token}");
        By::from_request(page.stores.authenticator(), Some(credential.as_bytes()), client, true).await?;
        let is_private = same_site::is_private(&parts.headers);
        if !is_private && !page.broker.config().insecure {
            let problem = "this connection is in plain text, where others may read the token: use https, or give the broker --insecure";
            return Err(Error::Denied(problem.into()));
        }
        page.sessions.begin(token, is_private).ok_or_else(|| Error::Internal("bug: cannot encrypt the cookie".into()))
    };
    match begun.await {
        Ok(cookie) => {
            let next = format!("{}{}", page.base, within(params.get("next")));
            ([(header::SET_COOKIE, cookie)], Redirect::to(&next)).into_response()
        }
        Err(error) => {
            page.stores.authenticator().refusals.note_http(&error, super::PATH);
            let status = StatusCode::from_u16(howdah_core::error::http_status(error.code().0)).unwrap_or_default();
            let problem = match &error {
                Error::Unauthenticated(problem) => format!("This token is not valid: {problem}"),
                other => other.to_string(),
            };
            answer(status, &View::new(&page, theme, params.get("next"), problem))
        }
    }
}

/// Logs out: deletes the session cookie in this browser, and invalidates all copies of it.
pub(super) async fn log_out(State(page): State<SharedPage>, request: Request<Body>) -> Response {
    if let Err(error) = same_site::check(request.headers(), &page.hosts) {
        return PageError::of_stranger(error, &page, "/", None).into_response();
    }
    if let Some(ended) = page.sessions.find(request.headers(), page.broker.config().insecure)
        && let Err(error) = page.stores.authenticator().end_session(&ended.hash, session::LASTS).await
    {
        return PageError::of_stranger(error.into(), &page, "/", None).into_response();
    }
    let mut answer = Redirect::to(&format!("{}/login", page.base)).into_response();
    for cookie in session::end() {
        answer.headers_mut().append(header::SET_COOKIE, cookie);
    }
    answer
}
