//! What must hold in every state, and what must be possible, so that the model is not empty.

use stateright::Property;

use crate::{
    Protocol,
    state::State,
    tables::{Ending, Outcome, Place},
};

/// A job is in exactly one table.
pub const ONE_PLACE: &str = "a job is in exactly one place";
/// One outcome for each lease.
pub const ONE_OUTCOME: &str = "at most one outcome is committed for a lease";
/// OK means committed.
pub const OK_IS_COMMITTED: &str = "an OK means that this outcome is committed";
/// No two leases have one token.
pub const ONE_LEASE: &str = "a job has at most one lease, with a token of its own";
/// A worker's lease ends by its own outcome, or by a rule.
pub const BY_A_RULE: &str = "a worker loses a lease only by its own outcome or by a rule";
/// Attempts are counted as promised.
pub const COUNTED: &str = "attempts are counted as promised";
/// Nothing is stuck.
pub const AT_REST: &str = "when nothing more happens, each job has ended or is ready, and no worker runs any";

/// All of them.
pub fn all() -> Vec<Property<Protocol>> {
    vec![
        Property::always(ONE_PLACE, |_, state: &State| one_place(state)),
        Property::always(ONE_OUTCOME, |_, state: &State| one_outcome(state)),
        Property::always(OK_IS_COMMITTED, |_, state: &State| !state.false_ok),
        Property::always(ONE_LEASE, |_, state: &State| one_lease(state)),
        Property::always(BY_A_RULE, |_, state: &State| by_a_rule(state)),
        Property::always(COUNTED, |_, state: &State| counted(state)),
        Property::always(AT_REST, at_rest),
        Property::sometimes("a job is done", |_, state: &State| {
            state.tables.rows().iter().all(|row| row.place == Place::Finished)
        }),
        Property::sometimes("a job is dead", |_, state: &State| {
            state.tables.rows().iter().any(|row| row.place == Place::Dead)
        }),
        Property::sometimes("a lease is adopted, and acked", |_, state: &State| {
            state.leases.iter().any(|l| l.adoptions > 0 && l.ended == Some(Ending::Settled(Outcome::Ack)))
        }),
        Property::sometimes("a lease is rescued while its worker runs it", |_, state: &State| {
            let mut held = state.workers.iter().flat_map(|w| &w.holds);
            held.any(|h| state.story(h.claim.token).ended == Some(Ending::Rescued))
        }),
    ]
}

/// All that must hold at any time.
pub fn holds(state: &State) -> bool {
    one_place(state) && one_outcome(state) && !state.false_ok && one_lease(state) && by_a_rule(state) && counted(state)
}

fn one_place(state: &State) -> bool {
    // The rows are sorted by job, and no job is ever added.
    let rows = state.tables.rows();
    rows.windows(2).all(|pair| pair[0].job < pair[1].job) && rows.last().is_some_and(|row| row.job == rows.len() as i64)
}

fn one_outcome(state: &State) -> bool {
    state.leases.iter().all(|lease| lease.committed.len() <= 1)
}

fn one_lease(state: &State) -> bool {
    let leased = || state.tables.rows().iter().filter(|row| matches!(row.place, Place::Leased(..)));
    leased().all(|row| match row.place {
        Place::Leased(token, _) => state.story(token).job == row.job && state.story(token).ended.is_none(),
        _ => true,
    })
}

fn by_a_rule(state: &State) -> bool {
    let mut held = state.workers.iter().flat_map(|worker| &worker.holds);
    held.all(|holding| {
        let story = state.story(holding.claim.token);
        // The broker releases only what its worker never received.
        !story.wronged && story.ended != Some(Ending::Released)
    })
}

fn counted(state: &State) -> bool {
    // What was released as never sent was not received.
    let truly = state.leases.iter().all(|lease| lease.ended != Some(Ending::Released) || !lease.received);
    truly
        && state.tables.rows().iter().all(|row| {
            let of_job = state.leases.iter().filter(|lease| lease.job == row.job);
            // A live lease counts until it is known how it ended.
            let counted = of_job.filter(|lease| lease.ended.is_none_or(Ending::counts)).count();
            let at_its_end = row.place != Place::Dead || row.attempt == row.max_attempts;
            counted == row.attempt as usize && row.attempt <= row.max_attempts && at_its_end
        })
}

fn at_rest(protocol: &Protocol, state: &State) -> bool {
    let leased = state.tables.rows().iter().any(|row| matches!(row.place, Place::Leased(..)));
    let held = state.workers.iter().any(|worker| !worker.holds.is_empty());
    if !leased && !held {
        return true;
    }
    protocol.possible(state).into_iter().any(|action| !action.is_fault(state))
}
