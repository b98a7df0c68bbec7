//! `MoveType`: moves the jobs and schedules of a task type to another store, and streams its progress.

use howdah_core::error::Error;
use howdah_engine::access::{Operation, Rule};
use howdah_proto::{Rpc, v1};
use tokio::sync::mpsc;
use tonic::{Request, Response, Status, codegen::BoxStream};

use crate::{
    api::{
        authenticate::counted,
        check::task_type,
        verbs::{Call, Gateway},
    },
    stores::moving::{Move, MovePhase, MoveProgress},
};

pub(in crate::api::verbs) const RULE: Rule = Rule::Everything(Operation::Admin);

impl Gateway {
    pub(in crate::api::verbs) async fn move_type(
        &self,
        request: Request<v1::MoveTypeRequest>,
    ) -> Result<Response<BoxStream<v1::MoveTypeResponse>>, Status> {
        let (call, message) = Call::open(self, Rpc::MoveType, request)?;
        let by = call.by()?;
        let v1::MoveTypeRequest { task_type: name, to_store, from_store } = message;
        let name = task_type("task_type", &name)?;
        if to_store.is_empty() {
            return Err(Error::invalid("to_store", "is empty; name the store that the type goes to").into());
        }
        let moving = Move::check(&call.stores, name, (&from_store, &to_store), by).await?;
        let open = call.caller.open_stream()?;
        let (from, to) = moving.stores();
        let (progress, reports) = mpsc::channel(1);
        // When the client closes the stream, the move stops after its current step, so that another broker can resume it at
        // once.
        tokio::spawn(moving.run(progress, (*call.stopping).clone()));
        let answers = futures::stream::unfold(reports, move |mut reports| {
            let (from, to) = (from.clone(), to.clone());
            async move {
                let report = reports.recv().await?;
                let answer = report.map(|report| move_progress(report, from, to)).map_err(Status::from);
                Some((answer, reports))
            }
        });
        Ok(Response::new(counted(answers, open)))
    }
}

/// Converts the progress of moving a task type from one store to another.
fn move_progress(progress: MoveProgress, from_store: String, to_store: String) -> v1::MoveTypeResponse {
    let phase = match progress.phase {
        MovePhase::Pausing => v1::MovePhase::Pausing,
        MovePhase::Moving => v1::MovePhase::Moving,
        MovePhase::Following => v1::MovePhase::Following,
        MovePhase::Done => v1::MovePhase::Done,
    };
    let count = |count: usize| i32::try_from(count).unwrap_or(i32::MAX);
    v1::MoveTypeResponse {
        phase: phase as i32,
        from_store,
        to_store,
        moved_count: progress.moved,
        running_count: progress.left.running,
        staying_count: progress.left.staying,
        staying_ids: progress.left.first_staying,
        moved_schedule_count: count(progress.schedules),
        staying_schedule_count: count(progress.staying_schedules),
        problem: progress.problem,
    }
}
