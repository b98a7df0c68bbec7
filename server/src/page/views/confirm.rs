//! Asks before anything is done: how many, three examples, what is set, what follows.

mod about; // what the question is about
mod numbers; // how many jobs

use askama::Template;
use axum::response::Response;

use super::parts::JobRow;
use crate::page::{
    Trouble, Visit,
    action::Action,
    layout::{Layout, answer, shown},
    visit::within,
    what::What,
    words::number,
};
use about::About;

#[derive(Template)]
#[template(path = "confirm.html")]
struct View {
    layout: Layout,
    title: String,
    /// What follows, in sentences.
    effect: String,
    call: &'static str,
    button: &'static str,
    is_final: bool,
    /// Whether there is nothing to do it to.
    nothing: bool,
    /// All that was asked for.
    facts: Vec<(&'static str, String)>,
    examples: Vec<JobRow>,
    /// Names and values of the form.
    hidden: Vec<(&'static str, String)>,
    back: String,
}

/// The question.
pub(in crate::page) async fn view(visit: Visit) -> Result<Response, Trouble> {
    let action = Action::of(&visit.params)?;
    let about = About::of(&visit, &action).await?;
    let words = action.what.words();
    let title = match &about.nothing {
        Some(nothing) => format!("{}: {nothing}", words.button),
        None => format!("{} {}{}?", action.what.question(), about.name, ending(&action)),
    };
    let effect = match about.nothing {
        Some(_) => "There is nothing to do.".to_owned(),
        None => [words.effect.to_owned()].into_iter().chain(about.notes).collect::<Vec<_>>().join(" "),
    };
    let back = within(visit.params.get("back")).to_owned();
    let view = View {
        layout: visit.layout(""),
        title,
        effect,
        call: words.call,
        button: words.button,
        is_final: words.is_final,
        nothing: about.nothing.is_some(),
        facts: about.facts,
        examples: about.examples,
        hidden: hidden(&action, &back, ""),
        back,
    };
    shown(&view)
}

/// What the question says after the jobs.
fn ending(action: &Action) -> String {
    match (action.what, action.priority) {
        (What::Release, _) => " from the worker".into(),
        (What::BulkMove, _) => format!(" to {}", action.wanted.to),
        (What::Reprioritize | What::BulkReprioritize, Some(priority)) => format!(" to {priority}"),
        _ => String::new(),
    }
}

/// The names and values of the form that goes on with an action.
fn hidden(action: &Action, back: &str, page: &str) -> Vec<(&'static str, String)> {
    let mut hidden = action.pairs();
    hidden.extend([("back", back.to_owned()), ("page", page.to_owned()), ("sure", "yes".to_owned())]);
    if action.what.is_once() {
        hidden.push(("once", format!("page:{:032x}", rand::random::<u128>())));
    }
    hidden.retain(|(_, value)| !value.is_empty());
    hidden
}

/// The page that asks whether to go on: one call does a part of many jobs.
pub(super) fn go_on(visit: &Visit, action: &Action, done: usize, page: &str) -> Response {
    let words = action.what.words();
    let back = within(visit.params.get("back")).to_owned();
    let view = View {
        layout: visit.layout(""),
        title: format!("{} jobs were {}. There are more: go on?", number(done as i64), words.done),
        effect: words.effect.into(),
        call: words.call,
        button: "Go on",
        is_final: words.is_final,
        nothing: false,
        facts: about::facts(action),
        examples: Vec::new(),
        hidden: hidden(action, &back, page),
        back,
    };
    answer(axum::http::StatusCode::OK, &view)
}
