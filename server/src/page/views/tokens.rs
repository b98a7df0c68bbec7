//! Whose tokens hold, and what they allow.

use askama::Template;
use axum::response::Response;
use howdah_proto::v1;

use crate::page::{
    Trouble, Visit,
    layout::{Layout, shown},
    params::query,
    words::When,
};

/// Tokens on a page.
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

/// The list.
pub(in crate::page) async fn view(visit: Visit) -> Result<Response, Trouble> {
    let ended = visit.params.get("ended") == "yes";
    let page_token = visit.params.get("page").to_owned();
    let request = v1::ListTokensRequest { show_ended: ended, page_size: PAGE, page_token };
    let answer = visit.calls().list_tokens(&visit.by, request).await?.into_inner();
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
        created: When::of(token.create_time),
        created_by: token.created_by,
        expires: When::of(token.expire_time),
        revoked: When::of(token.revoke_time),
    };
    shown(&View { layout: visit.layout("tokens"), ended, rows: answer.tokens.into_iter().map(row).collect(), next })
}
