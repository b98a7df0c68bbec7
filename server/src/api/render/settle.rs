//! Conversion of the results of outcomes, extensions and progress reports.

use howdah_core::{
    error::Error,
    job::{Lease, SettleStatus},
};
use howdah_proto::v1::{self, SettleStatus as Wire};

use crate::api::check::Items;

/// Converts the result of one outcome, extension or progress report.
pub(crate) fn settle_result(lease: Lease, status: SettleStatus) -> v1::SettleResult {
    match status {
        SettleStatus::Ok => result(lease, Wire::Ok, String::new()),
        SettleStatus::LeaseLost => result(
            lease,
            Wire::LeaseLost,
            "the lease has ended or belongs to another attempt; nothing was changed".into(),
        ),
        SettleStatus::Unavailable => {
            result(lease, Wire::Unavailable, "it is unknown whether this took effect; send it again".into())
        }
    }
}

/// Returns the result `INVALID` for an outcome, extension or report with an invalid field.
pub(crate) fn invalid_item(lease: Lease, error: &Error) -> v1::SettleResult {
    invalid_item_text(lease, error.to_string())
}

/// Returns the result `INVALID` with this error text.
pub(crate) fn invalid_item_text(lease: Lease, text: String) -> v1::SettleResult {
    result(lease, Wire::Invalid, text)
}

/// Returns the results of all items of a message, in their order. Merges the results of rejected items with the broker's
/// results for the accepted leases.
pub(crate) fn settle_results(
    refused: Vec<(usize, v1::SettleResult)>,
    leases: Vec<Lease>,
    mut statuses: Vec<SettleStatus>,
) -> Vec<v1::SettleResult> {
    debug_assert_eq!(leases.len(), statuses.len(), "the broker answers each item");
    // Each accepted item gets a result. Without one from the broker, it is unknown whether the item took effect.
    statuses.resize(leases.len(), SettleStatus::Unavailable);
    let accepted = leases.into_iter().zip(statuses).map(|(lease, status)| settle_result(lease, status));
    Items::<()>::answers(refused, accepted)
}

fn result(lease: Lease, status: Wire, message: String) -> v1::SettleResult {
    v1::SettleResult { id: lease.id, token: lease.token, status: status as i32, message }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ok_needs_no_words() {
        let lease = Lease { id: 7, token: -1 };
        let answer = settle_result(lease, SettleStatus::Ok);
        assert_eq!((answer.id, answer.token, answer.status(), answer.message.as_str()), (7, -1, Wire::Ok, ""));
        for status in [SettleStatus::LeaseLost, SettleStatus::Unavailable] {
            assert!(!settle_result(lease, status).message.is_empty());
        }
    }

    #[test]
    fn answers_of_check_and_broker_are_one_list_in_order() {
        let lease = |id| Lease { id, token: 0 };
        let refused = vec![(1, invalid_item(lease(2), &Error::invalid("outcome", "is not set")))];
        let answers =
            settle_results(refused, vec![lease(1), lease(3)], vec![SettleStatus::Ok, SettleStatus::LeaseLost]);
        let seen: Vec<_> = answers.iter().map(|answer| (answer.id, answer.status())).collect();
        assert_eq!(seen, [(1, Wire::Ok), (2, Wire::Invalid), (3, Wire::LeaseLost)]);
    }
}
