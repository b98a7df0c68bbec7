//! Lists tokens with their principals and scopes.

use askama::Template;
use axum::response::Response;
use howdah_proto::v1;

use crate::{
    api::verbs::ListTokens,
    page::{
        PageError, PageRequest,
        layout::{Layout, render},
        params::next_page,
        words,
    },
};

/// Tokens per page.
const PAGE: i32 = 100;

#[derive(Template)]
#[template(path = "tokens.html")]
struct View {
    layout: Layout,
    ended: bool,
    tokens: Vec<v1::Token>,
    next: String,
}

/// List of tokens.
pub(in crate::page) async fn view(req: PageRequest) -> Result<Response, PageError> {
    let ended = req.params.get("ended") == "yes";
    let page_token = req.params.get("page").to_owned();
    let request = v1::ListTokensRequest { show_ended: ended, page_size: PAGE, page_token };
    let answer = req.calls().call::<ListTokens>(&req.by, request).await?.into_inner();
    let next = next_page([("ended", if ended { "yes" } else { "" })], &answer.next_page_token);
    render(&View { layout: req.layout("tokens"), ended, tokens: answer.tokens, next })
}
