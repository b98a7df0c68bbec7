//! Error pages.

use askama::Template;
use axum::{
    http::StatusCode,
    response::{IntoResponse, Redirect, Response},
};
use howdah_core::error::{Error, http_status};
use tonic::{Code, Status};

use super::{
    SharedPage,
    layout::{Layout, Theme, answer},
    params::query,
};

/// Reason why a request gets an error page or another response instead of the view.
pub(super) enum PageError {
    /// A call of the gRPC API failed.
    Failed(Status),
    /// Another response is sent instead of the view, such as a redirect.
    Instead(Box<Response>),
}

#[derive(Template)]
#[template(path = "trouble.html")]
struct View {
    layout: Layout,
    title: &'static str,
    problem: String,
}

impl PageError {
    /// Creates the response for an error before authentication. Redirects to the login page if a login is required.
    pub(super) fn of_stranger(error: Error, page: &SharedPage, here: &str, theme: Option<Theme>) -> Self {
        if matches!(error, Error::Unauthenticated(_)) && !page.auth().is_none() {
            let next = query([("next", if here == "/" { "" } else { here })]);
            let question = if next.is_empty() { "" } else { "?" };
            let login = Redirect::to(&format!("{}/login{question}{next}", page.base));
            return Self::Instead(Box::new(login.into_response()));
        }
        page.stores.authenticator().refusals.note_http(&error, super::PATH);
        Self::Instead(Box::new(Self::from(error).within(Layout::new(page, "/", theme, ""))))
    }

    /// Renders the error page within the page's layout.
    pub(super) fn within(self, layout: Layout) -> Response {
        let status = match self {
            Self::Instead(answer) => return *answer,
            Self::Failed(status) => status,
        };
        let title = match status.code() {
            Code::InvalidArgument | Code::FailedPrecondition | Code::OutOfRange => "Invalid request",
            Code::PermissionDenied => "Not permitted",
            Code::NotFound => "Not found",
            Code::ResourceExhausted => "Limit reached",
            Code::Unavailable | Code::DeadlineExceeded => "Not available now",
            Code::AlreadyExists | Code::Aborted => "Conflict",
            _ => "Something went wrong",
        };
        let code = StatusCode::from_u16(http_status(status.code())).unwrap_or_default();
        answer(code, &View { layout, title, problem: status.message().to_owned() })
    }
}

impl IntoResponse for PageError {
    /// Plain-text response, for errors before the layout of the page is known.
    fn into_response(self) -> Response {
        match self {
            Self::Instead(answer) => *answer,
            Self::Failed(status) => {
                let code = StatusCode::from_u16(http_status(status.code())).unwrap_or_default();
                (code, format!("{}\n", status.message())).into_response()
            }
        }
    }
}

impl From<Status> for PageError {
    fn from(status: Status) -> Self {
        Self::Failed(status)
    }
}

impl From<Error> for PageError {
    fn from(error: Error) -> Self {
        Self::Failed(error.into())
    }
}
