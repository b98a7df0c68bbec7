//! `ListTokens`: lists the tokens, without their secret parts.

use howdah_core::{
    error::Error,
    job::{ClusterSettings, Limits},
};
use howdah_engine::access::{Operation, Rule};
use howdah_proto::{Rpc, v1};

use super::token;
use crate::api::{
    check::numbers,
    page_token,
    verbs::{Answer, Call, Verb, paged},
};

const PAGE: usize = 100;
const MAX_PAGE: usize = 1000;

/// The call `ListTokens`.
pub(crate) struct ListTokens;

impl Verb for ListTokens {
    const RPC: Rpc = Rpc::ListTokens;
    const RULE: Rule = Rule::Everything(Operation::Admin);
    const READS: bool = true;

    type Request = v1::ListTokensRequest;
    type Response = v1::ListTokensResponse;
    /// Checked request: the last id of the previous page, whether to list ended tokens, and the page size.
    type Args = (String, bool, usize);

    paged!(tokens, page_size);

    fn check(request: v1::ListTokensRequest, _: &ClusterSettings, _: &Limits) -> Result<Self::Args, Error> {
        let after = page_token::token_id(&request.page_token)?;
        Ok((after, request.show_ended, numbers::page_size(request.page_size, PAGE, MAX_PAGE)?))
    }

    async fn run(call: &mut Call, (after, show_ended, size): Self::Args) -> Result<v1::ListTokensResponse, Error> {
        let tokens = call.broker.operator.list_tokens(&after, show_ended, size).await?;
        let last = tokens.last().filter(|_| tokens.len() >= size);
        Ok(v1::ListTokensResponse {
            next_page_token: last.map(|last| page_token::encode_token_id(&last.id)).unwrap_or_default(),
            tokens: tokens.into_iter().map(token).collect(),
        })
    }

    async fn route(call: &Call, request: v1::ListTokensRequest) -> Answer<Self> {
        call.primary::<Self>(request).await
    }
}
