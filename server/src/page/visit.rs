//! One request: who looks, at what.

use std::sync::Arc;

use axum::{
    body::Body,
    extract::Request,
    http::{HeaderMap, header, request::Parts},
};
use tokio::sync::Semaphore;
use tonic::Code;

use super::{
    SharedPage,
    action::done_sentence,
    layout::{Layout, Theme},
    params::Params,
    same_site,
    trouble::Trouble,
};
use crate::{
    access::Operation,
    api::local::{By, Client, Local},
    error::Error,
};

/// A request that is answered with a page.
pub(super) struct Visit {
    page: SharedPage,
    /// Who looks.
    pub(super) by: By,
    /// The parameters of the query, or of the form.
    pub(super) params: Params,
    /// The path and the query, after the base.
    here: String,
    theme: Option<Theme>,
}

impl Visit {
    /// A request to look at something.
    pub(super) async fn of(page: SharedPage, parts: Parts) -> Result<Self, Trouble> {
        let here = here(&page, &parts);
        let theme = Theme::of(&parts.headers);
        let visit = async {
            let by = caller(&page, &parts).await?;
            Ok((by, Params::of(parts.uri.query().unwrap_or_default())?))
        };
        match visit.await {
            Ok((by, params)) => Ok(Self { page, by, params, here, theme }),
            Err(error) => Err(Trouble::of_stranger(error, &page, &here, theme)),
        }
    }

    /// A request to change something.
    pub(super) async fn of_change(page: SharedPage, request: Request<Body>) -> Result<Self, Trouble> {
        let (parts, body) = request.into_parts();
        let theme = Theme::of(&parts.headers);
        let visit = async {
            same_site::check(&parts.headers, &page.hosts)?;
            let by = caller(&page, &parts).await?;
            Ok((by, Params::of_form(body).await?))
        };
        match visit.await {
            Ok((by, params)) => {
                let by = by.because(params.get("reason"));
                Ok(Self { page, by, params, here: "/".into(), theme })
            }
            Err(error) => Err(Trouble::of_stranger(error, &page, "/", theme)),
        }
    }

    /// The calls.
    pub(super) fn calls(&self) -> &Local {
        &self.page.local
    }

    /// What every page has. `current`: which of the links above leads here.
    pub(super) fn layout(&self, current: &'static str) -> Layout {
        let layout = Layout::new(&self.page, &self.here, self.theme, current).of_caller(&self.page, &self.by);
        Layout { done: done_sentence(&self.params), ..layout }
    }

    /// A link within the page.
    pub(super) fn link(&self, path: &str, query: &str) -> String {
        let question = if query.is_empty() { "" } else { "?" };
        format!("{}{path}{question}{query}", self.page.base)
    }

    /// Where to go after a change: somewhere in the page.
    pub(super) fn back(&self) -> String {
        format!("{}{}", self.page.base, within(self.params.get("back")))
    }

    /// Whether there is no task type of this name, as far as the person who looks may know: a mistyped name is told from a type
    /// without jobs.
    pub(super) async fn is_unknown(&self, task_type: &str) -> bool {
        self.by.may(Operation::Read, task_type)
            && self.calls().counted_type(&self.by, task_type).await.is_err_and(|it| it.code() == Code::NotFound)
    }

    /// Places for browsers that look at live figures.
    pub(super) fn live_places(&self) -> &Arc<Semaphore> {
        &self.page.live
    }

    /// Whether the broker is stopping.
    pub(super) fn is_draining(&self) -> bool {
        self.page.broker.is_draining()
    }

    /// Why the broker is not ready, if it is not.
    pub(super) async fn readiness(&self) -> Result<(), &'static str> {
        self.page.broker.operator.readiness().await
    }
}

/// A path of the page; anything else becomes its first view.
pub(super) fn within(path: &str) -> &str {
    let is_plain = path.bytes().all(|b| b.is_ascii_graphic() && b != b'\\');
    if path.len() <= 4_000 && is_plain && path.starts_with('/') && !path.starts_with("//") { path } else { "/" }
}

fn here(page: &SharedPage, parts: &Parts) -> String {
    let whole = parts.uri.path_and_query().map_or("/", |whole| whole.as_str());
    let rest = whole.strip_prefix(&page.base).or_else(|| whole.strip_prefix(super::PATH)).unwrap_or("/");
    without_done(within(rest))
}

/// The path without what was done before.
fn without_done(path: &str) -> String {
    let Some((path, query)) = path.split_once('?') else { return path.to_owned() };
    let kept: Vec<&str> =
        query.split('&').filter(|pair| !pair.starts_with("done=") && !pair.starts_with("n=")).collect();
    if kept.is_empty() { path.to_owned() } else { format!("{path}?{}", kept.join("&")) }
}

/// Whose credential is sent: that of a program in its header, or that of a browser in its cookie.
async fn caller(page: &SharedPage, parts: &Parts) -> Result<By, Error> {
    let client =
        parts.extensions.get::<Client>().ok_or_else(|| Error::Internal("where it came from is unknown".into()))?;
    let credential = credential(page, &parts.headers);
    if credential.is_none() && !page.auth().is_none() {
        return Err(Error::Unauthenticated("log in first".into()));
    }
    let credential = credential.as_deref().map(str::as_bytes);
    By::of(&page.broker.access, credential, client, page.reads_only).await
}

fn credential(page: &SharedPage, headers: &HeaderMap) -> Option<String> {
    if let Some(given) = headers.get(header::AUTHORIZATION) {
        return Some(String::from_utf8_lossy(given.as_bytes()).into_owned());
    }
    let token = page.sessions.token(headers, page.broker.config().insecure)?;
    Some(format!("Bearer {token}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_paths_of_the_page_are_gone_back_to() {
        for good in ["/", "/jobs?type=a&state=dead", "/job?id=1#payload"] {
            assert_eq!(within(good), good);
        }
        for bad in [
            "",
            "jobs",
            "//evil.example",
            "https://evil.example",
            "/\\evil.example",
            "/a b",
            "/a\r\nSet-Cookie: x",
            &format!("/{}", "x".repeat(5_000)),
        ] {
            assert_eq!(within(bad), "/", "{bad}");
        }
    }
}
