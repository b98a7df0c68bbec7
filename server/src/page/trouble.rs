//! Errors as pages.

use askama::Template;
use axum::{
    http::StatusCode,
    response::{IntoResponse, Redirect, Response},
};
use tonic::{Code, Status};

use super::{
    SharedPage,
    layout::{Layout, Theme, answer},
    params::query,
    words::plain,
};
use crate::error::{Error, http_status};

/// Why a view is not shown.
pub(super) enum Trouble {
    /// A call failed.
    Failed(Status),
    /// The answer is another one.
    Instead(Box<Response>),
}

#[derive(Template)]
#[template(path = "trouble.html")]
struct View {
    layout: Layout,
    title: &'static str,
    problem: String,
}

impl Trouble {
    /// For somebody of whom nothing else is known. Who is not logged in is asked to.
    pub(super) fn of_stranger(error: Error, page: &SharedPage, here: &str, theme: Option<Theme>) -> Self {
        if matches!(error, Error::Unauthenticated(_)) && !page.auth().is_none() {
            let next = query([("next", if here == "/" { "" } else { here })]);
            let question = if next.is_empty() { "" } else { "?" };
            let login = Redirect::to(&format!("{}/login{question}{next}", page.base));
            return Self::Instead(Box::new(login.into_response()));
        }
        page.broker.access.refusals.note_http(&error, super::PATH);
        Self::Instead(Box::new(Self::from(error).within(Layout::new(page, "/", theme, ""))))
    }

    /// The page that says so.
    pub(super) fn within(self, layout: Layout) -> Response {
        let status = match self {
            Self::Instead(answer) => return *answer,
            Self::Failed(status) => status,
        };
        let title = match status.code() {
            Code::InvalidArgument | Code::FailedPrecondition | Code::OutOfRange => "This cannot be asked for",
            Code::PermissionDenied => "Not permitted",
            Code::NotFound => "Not found",
            Code::ResourceExhausted => "Too much at once",
            Code::Unavailable | Code::DeadlineExceeded => "Not available now",
            Code::AlreadyExists | Code::Aborted => "Something else is in the way",
            _ => "Something went wrong",
        };
        let code = StatusCode::from_u16(http_status(status.code())).unwrap_or_default();
        answer(code, &View { layout, title, problem: plain(status.message()) })
    }
}

impl IntoResponse for Trouble {
    /// As it is answered to whom no page is shown.
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

impl From<Status> for Trouble {
    fn from(status: Status) -> Self {
        Self::Failed(status)
    }
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Self::Failed(error.into())
    }
}
