//! `PauseBulk`, `ResumeBulk` and `CancelBulk`: pause, continue or end a bulk operation.

use howdah_core::{
    error::Error,
    job::{BulkState, ClusterSettings, Limits},
};
use howdah_engine::access::{Operation, Rule};
use howdah_proto::{Rpc, v1};

use super::{in_store, of_bulk, own};
use crate::api::{
    render,
    verbs::{Answer, Call, Verb},
};

macro_rules! changes {
    ($($verb:ident: $request:ident -> $response:ident, $to:ident;)*) => {
        $(
            #[doc = concat!("The call `", stringify!($verb), "`.")]
            pub(crate) struct $verb;

            impl Verb for $verb {
                const RPC: Rpc = Rpc::$verb;
                const RULE: Rule = Rule::Types(Operation::Operate);

                type Request = v1::$request;
                type Response = v1::$response;
                type Args = i64;

                fn check(request: v1::$request, _: &ClusterSettings, _: &Limits) -> Result<i64, Error> {
                    Ok(request.id)
                }

                async fn run(call: &mut Call, id: i64) -> Result<v1::$response, Error> {
                    Ok(v1::$response { bulk: change(call, id, BulkState::$to).await? })
                }

                async fn route(call: &Call, request: v1::$request) -> Answer<Self> {
                    let broker = of_bulk(call, request.id).await?;
                    in_store::<Self>(call, broker, request, |answer| &mut answer.bulk).await
                }
            }
        )*
    };
}

changes! {
    PauseBulk: PauseBulkRequest -> PauseBulkResponse, Paused;
    ResumeBulk: ResumeBulkRequest -> ResumeBulkResponse, Running;
    CancelBulk: CancelBulkRequest -> CancelBulkResponse, Cancelled;
}

async fn change(call: &Call, id: i64, to: BulkState) -> Result<Option<v1::Bulk>, Error> {
    let by = call.by()?;
    let bulk = own(call, Operation::Operate, id).await?;
    if let (BulkState::Running, Some(target)) = (to, bulk.spec.change.to_type()) {
        call.caller.check_reroute(&bulk.spec.task_type, target)?;
    }
    Ok(Some(render::bulk(call.broker.operator.change_bulk(&bulk, to, &by).await?)))
}
