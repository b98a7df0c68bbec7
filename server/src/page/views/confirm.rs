//! Confirmation page of an action: number of jobs, three examples, parameters and effect.

mod about; // subject of the question

use askama::Template;
use axum::response::Response;

use super::parts::JobRow;
use crate::page::{
    PageError, PageRequest,
    action::Action,
    action::ActionKind,
    layout::{Layout, answer, render},
    page_request::within,
    words::number,
};
use about::About;

#[derive(Template)]
#[template(path = "confirm.html")]
struct View {
    layout: Layout,
    title: String,
    /// Effect of the action, in sentences.
    effect: String,
    call: &'static str,
    button: &'static str,
    is_final: bool,
    /// Whether there is nothing to change, such as a retry without dead jobs. The page then omits the form.
    nothing: bool,
    /// Names and values of the action's parameters.
    facts: Vec<(&'static str, String)>,
    examples: Vec<JobRow>,
    /// Hidden form fields.
    hidden: Vec<(&'static str, String)>,
    back: String,
}

/// The confirmation page.
pub(in crate::page) async fn view(req: PageRequest) -> Result<Response, PageError> {
    let mut action = Action::from_params(&req.params)?;
    let about = About::load(&req, &action).await?;
    action.given = about.given;
    let words = action.kind.words();
    let title = match &about.nothing {
        Some(nothing) => format!("{}: {nothing}", words.button),
        None => format!("{} {}{}?", action.kind.question(), about.name, ending(&action)),
    };
    let effect = match about.nothing {
        Some(_) => "There is nothing to do.".to_owned(),
        None => [words.effect.to_owned()].into_iter().chain(about.notes).collect::<Vec<_>>().join(" "),
    };
    let back = within(req.params.get("back")).to_owned();
    let view = View {
        layout: req.layout(""),
        title,
        effect,
        call: words.call,
        button: words.button,
        is_final: action.kind.is_final(),
        nothing: about.nothing.is_some(),
        facts: about.facts,
        examples: about.examples,
        hidden: hidden(&action, &back, ""),
        back,
    };
    render(&view)
}

/// Returns the end of the question, such as " to 5" for a priority. It follows the jobs.
fn ending(action: &Action) -> String {
    match (action.kind, action.priority) {
        (ActionKind::Release, _) => " from the worker".into(),
        (ActionKind::BulkMove, _) => format!(" to {}", action.wanted.to),
        (ActionKind::Reprioritize | ActionKind::BulkReprioritize, Some(priority)) => format!(" to {priority}"),
        _ => String::new(),
    }
}

/// Returns hidden form fields that encode the action again.
fn hidden(action: &Action, back: &str, page: &str) -> Vec<(&'static str, String)> {
    let mut hidden = action.pairs();
    hidden.extend([("back", back.to_owned()), ("page", page.to_owned()), ("sure", "yes".to_owned())]);
    if action.kind.is_once() {
        hidden.push(("once", format!("page:{:032x}", rand::random::<u128>())));
    }
    // An empty value of a setting returns the setting to its default. Other empty values mean nothing.
    hidden.retain(|(name, value)| !value.is_empty() || action.given.has(name));
    hidden
}

/// Renders a page that reports the jobs changed so far and asks whether to continue. One call changes only a limited
/// number of jobs.
pub(super) fn go_on(req: &PageRequest, action: &Action, done: usize, page: &str) -> Response {
    let words = action.kind.words();
    let back = within(req.params.get("back")).to_owned();
    let view = View {
        layout: req.layout(""),
        title: format!("{} jobs were {}. There are more. Continue?", number(done as i64), words.done),
        effect: words.effect.into(),
        call: words.call,
        button: "Go on",
        is_final: action.kind.is_final(),
        nothing: false,
        facts: about::facts(action),
        examples: Vec::new(),
        hidden: hidden(action, &back, page),
        back,
    };
    answer(axum::http::StatusCode::OK, &view)
}
