//! With all checks enabled, all properties hold. Without any one check a property is violated, except for two checks that only
//! save work.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;

use howdah_model::{AT_REST, BY_A_RULE, COUNTED, Checks, ONE_OUTCOME, Sizes, Without, check};

#[test]
fn all_properties_hold_in_every_order_of_steps() {
    let mut possible = BTreeSet::new();
    for size in Sizes::Small.all() {
        let checked = check(size, Checks::ALL, 2);
        if let Some((property, steps)) = checked.violated {
            panic!("{}: violated: {property}\n{steps}", size.name);
        }
        assert!(checked.states > 50, "{}: {} states", size.name, checked.states);
        possible.extend(checked.possible);
    }
    // All four `sometimes` properties are reachable, so the model explores real runs.
    assert_eq!(possible.len(), 4, "{possible:?}");
}

/// Checks the model with one check disabled. Returns the first violated property, with the run that violates it.
fn without(check_out: Without) -> Option<(&'static str, String)> {
    Sizes::Small.all().into_iter().find_map(|size| check(size, Checks::without(Some(check_out)), 1).violated)
}

#[test]
fn without_the_token_check_a_late_outcome_ends_the_lease_of_another_worker() {
    let (property, steps) = without(Without::Token).expect("a violation");
    assert!([BY_A_RULE, ONE_OUTCOME, COUNTED].contains(&property), "{property}\n{steps}");
    assert!(steps.contains("token 2"), "{steps}");
}

#[test]
fn without_the_owner_check_a_broker_ends_a_lease_that_its_worker_took_to_another() {
    let (property, steps) = without(Without::Owner).expect("a violation");
    assert_eq!(property, BY_A_RULE, "{steps}");
    assert!(steps.contains("committed: adopt") && steps.contains("as Lost"), "{steps}");
}

#[test]
fn without_its_own_expiry_a_broker_hands_out_leases_that_are_rescued_at_once() {
    let (property, steps) = without(Without::Expiry).expect("a violation");
    assert_eq!(property, BY_A_RULE, "{steps}");
    assert!(steps.contains("expires") && steps.contains("rescues"), "{steps}");
}

#[test]
fn without_the_readoption_check_a_broker_takes_back_leases_that_others_have_adopted() {
    let (property, steps) = without(Without::ReadoptOwn).expect("a violation");
    assert_eq!(property, BY_A_RULE, "{steps}");
    assert!(steps.contains("put all leases under number 3"), "{steps}");
}

#[test]
fn without_its_former_numbers_a_broker_breaks_a_rule() {
    let (property, steps) = without(Without::Former).expect("a violation");
    assert!([BY_A_RULE, COUNTED, AT_REST].contains(&property), "{property}\n{steps}");
}

#[test]
fn without_the_ending_check_a_broker_adopts_a_lease_that_it_is_about_to_end() {
    let (property, steps) = without(Without::Ending).expect("a violation");
    assert_eq!(property, BY_A_RULE, "{steps}");
}

#[test]
fn without_the_list_of_the_worker_a_held_lease_is_released_as_undelivered() {
    let (property, steps) = without(Without::Listed).expect("a violation");
    assert!([BY_A_RULE, COUNTED].contains(&property), "{property}\n{steps}");
}

/// The expiry checks of a rescuing broker and of a renewing broker only save work and attempts. Without these checks no
/// property is violated.
#[test]
fn rescues_and_renewals_of_expired_brokers_break_no_rule() {
    assert_eq!(without(Without::RescuerExpiry), None);
    assert_eq!(without(Without::RenewalExpiry), None);
}
