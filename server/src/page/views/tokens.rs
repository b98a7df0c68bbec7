//! Lists tokens with their principals and scopes.

use askama::Template;
use axum::response::Response;
use howdah_proto::v1;

use crate::{
    api::verbs::ListTokens,
    page::{
        PageError, PageRequest,
        layout::{Layout, render},
        params::query,
        words::When,
    },
};

/// Tokens per page.
const PAGE: i32 = 100;

#[derive(Template)]
#[template(path = "tokens.html")]
struct View {
    layout: Layout,
    ended: bool,
    rows: Vec<Row>,
    next: String,
}

struct Row {
    id: String,
    principal: String,
    scopes: Vec<String>,
    created: Option<When>,
    created_by: String,
    expires: Option<When>,
    revoked: Option<When>,
}

/// List of tokens.
pub(in crate::page) async fn view(req: PageRequest) -> Result<Response, PageError> {
    let ended = req.params.get("ended") == "yes";
    let page_token = req.params.get("page").to_owned();
    let request = v1::ListTokensRequest { show_ended: ended, page_size: PAGE, page_token };
    let answer = req.calls().call::<ListTokens>(&req.by, request).await?.into_inner();
    let token = &*answer.next_page_token;
    let next = if token.is_empty() {
        String::new()
    } else {
        query([("ended", if ended { "yes" } else { "" }), ("page", token)])
    };
    let row = |token: v1::Token| Row {
        id: token.id,
        principal: token.principal,
        scopes: token.scopes,
        created: When::new(token.create_time),
        created_by: token.created_by,
        expires: When::new(token.expire_time),
        revoked: When::new(token.revoke_time),
    };
    render(&View { layout: req.layout("tokens"), ended, rows: answer.tokens.into_iter().map(row).collect(), next })
}
