//! Stores.

use howdah_proto::v1;

use super::{
    task_type::counts,
    time::{duration, time},
};
use crate::{
    job::StoreNumber,
    operate::stores::StoreView,
    store::ReplicaState,
    stores::moving::{MovePhase, MoveProgress},
};

/// Converts the state of a store; `view` is `None` if the store is unreachable. Its number may be known then, too.
pub(crate) fn store(name: &str, number: Option<StoreNumber>, view: Option<StoreView>) -> v1::Store {
    let known = |number: StoreNumber| u32::from(number.get());
    let Some(view) = view else {
        return v1::Store {
            name: name.to_owned(),
            number: number.map(known).unwrap_or_default(),
            state: v1::StoreState::Unreachable as i32,
            ..v1::Store::default()
        };
    };
    let state = if view.closed.is_some() { v1::StoreState::Closed } else { v1::StoreState::Ready };
    v1::Store {
        name: name.to_owned(),
        number: known(view.number),
        state: state as i32,
        close_time: view.closed.as_ref().map(|closed| time(closed.since)),
        closed_by: view.closed.map(|closed| closed.by).unwrap_or_default(),
        counts: view.counted.map(|(all, _)| counts(all)),
        counts_age: view.counted.map(|(_, age)| duration(age)),
        has_unfinished_jobs: view.has_unfinished,
        read_replica: view.replica.map(replica),
    }
}

fn replica(state: ReplicaState) -> v1::ReadReplica {
    v1::ReadReplica { used: state.is_read, lag: state.lag.map(duration) }
}

/// Converts the progress of moving a type between these stores.
pub(crate) fn move_progress(progress: MoveProgress, from_store: String, to_store: String) -> v1::MoveTypeResponse {
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
