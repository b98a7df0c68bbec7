//! Invariants of every state, and situations that some run must reach, so that the model is known to explore real runs.

use stateright::Property;

use crate::{
    Protocol,
    state::State,
    tables::{Ending, JobState, Outcome},
};

/// Each job is in exactly one table.
pub const ONE_TABLE: &str = "a job is in exactly one table";
/// Each lease has at most one outcome.
pub const ONE_OUTCOME: &str = "at most one outcome is committed for a lease";
/// A worker gets OK for an outcome only if the outcome is committed.
pub const OK_IS_COMMITTED: &str = "an OK means that this outcome is committed";
/// A leased job has exactly one lease, and no other lease has its token.
pub const ONE_LEASE: &str = "a job has at most one lease, with a unique token";
/// A lease ends only by its worker's outcome or by a rule, such as its deadline or the loss of its worker or broker.
pub const BY_A_RULE: &str = "a worker loses a lease only by its own outcome or by a rule";
/// The column `attempt` of each job is the number of its leases that count as attempts, and at most `max_attempts`.
pub const COUNTED: &str = "attempts are counted as promised";
/// When only faults remain possible, no job is leased and no worker holds a job.
pub const AT_REST: &str = "when no step remains, each job has ended or is ready, and no worker runs one";

pub fn all() -> Vec<Property<Protocol>> {
    vec![
        Property::always(ONE_TABLE, |_, state: &State| one_table(state)),
        Property::always(ONE_OUTCOME, |_, state: &State| one_outcome(state)),
        Property::always(OK_IS_COMMITTED, |_, state: &State| !state.false_ok),
        Property::always(ONE_LEASE, |_, state: &State| one_lease(state)),
        Property::always(BY_A_RULE, |_, state: &State| by_a_rule(state)),
        Property::always(COUNTED, |_, state: &State| counted(state)),
        Property::always(AT_REST, at_rest),
        Property::sometimes("a job is done", |_, state: &State| {
            state.tables.rows().iter().all(|row| row.state == JobState::Finished)
        }),
        Property::sometimes("a job is dead", |_, state: &State| {
            state.tables.rows().iter().any(|row| row.state == JobState::Dead)
        }),
        Property::sometimes("a lease is adopted, and acked", |_, state: &State| {
            state.leases.iter().any(|l| l.adoptions > 0 && l.ended == Some(Ending::Settled(Outcome::Ack)))
        }),
        Property::sometimes("a lease is rescued while its worker runs it", |_, state: &State| {
            let mut held = state.workers.iter().flat_map(|w| &w.holds);
            held.any(|h| state.lease_history(h.claim.token).ended == Some(Ending::Rescued))
        }),
    ]
}

/// Whether all invariants hold in this state, except [`AT_REST`].
pub fn holds(state: &State) -> bool {
    one_table(state) && one_outcome(state) && !state.false_ok && one_lease(state) && by_a_rule(state) && counted(state)
}

fn one_table(state: &State) -> bool {
    // Rows are sorted by job, and the model never adds jobs after the start.
    let rows = state.tables.rows();
    rows.windows(2).all(|pair| pair[0].job < pair[1].job) && rows.last().is_some_and(|row| row.job == rows.len() as i64)
}

fn one_outcome(state: &State) -> bool {
    state.leases.iter().all(|lease| lease.committed.len() <= 1)
}

fn one_lease(state: &State) -> bool {
    let leased = || state.tables.rows().iter().filter(|row| matches!(row.state, JobState::Leased(..)));
    leased().all(|row| match row.state {
        JobState::Leased(token, _) => {
            state.lease_history(token).job == row.job && state.lease_history(token).ended.is_none()
        }
        _ => true,
    })
}

fn by_a_rule(state: &State) -> bool {
    let mut held = state.workers.iter().flat_map(|worker| &worker.holds);
    held.all(|holding| {
        let history = state.lease_history(holding.claim.token);
        // A worker holds only jobs that it received, and brokers release only leases whose job no worker received.
        !history.wronged && history.ended != Some(Ending::Released)
    })
}

fn counted(state: &State) -> bool {
    // A broker has released no lease whose job a worker received.
    let truly = state.leases.iter().all(|lease| lease.ended != Some(Ending::Released) || !lease.received);
    truly
        && state.tables.rows().iter().all(|row| {
            let of_job = state.leases.iter().filter(|lease| lease.job == row.job);
            // A lease that has not ended counts as an attempt too.
            let counted = of_job.filter(|lease| lease.ended.is_none_or(Ending::counts)).count();
            let at_its_end = row.state != JobState::Dead || row.attempt == row.max_attempts;
            counted == row.attempt as usize && row.attempt <= row.max_attempts && at_its_end
        })
}

fn at_rest(protocol: &Protocol, state: &State) -> bool {
    let leased = state.tables.rows().iter().any(|row| matches!(row.state, JobState::Leased(..)));
    let held = state.workers.iter().any(|worker| !worker.holds.is_empty());
    if !leased && !held {
        return true;
    }
    protocol.possible(state).into_iter().any(|action| !action.is_fault(state))
}
