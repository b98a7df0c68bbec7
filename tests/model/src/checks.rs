//! The checks in the protocol's statements. Each check can be disabled to show its purpose.

use clap::ValueEnum;

/// Conditions that statements and brokers check before they change a lease. The real protocol has all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "each can be disabled separately")]
pub struct Checks {
    /// Statements that settle, adopt or release a lease compare its token.
    pub token: bool,
    /// A broker releases and fails only its own leases.
    pub owner: bool,
    /// A broker can claim and adopt only while its own row has not expired.
    pub expiry: bool,
    /// A broker can rescue leases only while its own row has not expired.
    pub rescuer_expiry: bool,
    /// A broker whose row has expired registers again instead of renewing it.
    pub renewal_expiry: bool,
    /// A broker treats leases under its former numbers (ids in `howdah.broker`) as its own.
    pub former: bool,
    /// A broker does not adopt a lease that it is about to end, and does not end a lease that it is about to adopt.
    pub ending: bool,
    /// A broker that registered again moves only leases under its former numbers to its new number.
    pub readopt_own: bool,
    /// A lease that a worker lists on reconnect is not released as undelivered.
    pub listed: bool,
}

/// Name of the check to disable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum)]
pub enum Without {
    /// Outcomes, adoptions and releases do not compare the token.
    Token,
    /// Brokers release leases that other brokers have adopted.
    Owner,
    /// Brokers whose own row has expired keep claiming and adopting.
    Expiry,
    /// Brokers whose own row has expired rescue leases of other brokers.
    RescuerExpiry,
    /// Brokers renew their expired row.
    RenewalExpiry,
    /// A broker does not recognize its own former numbers.
    Former,
    /// A broker adopts a lease that it is about to end.
    Ending,
    /// A broker that registered again takes back leases that other brokers have adopted.
    ReadoptOwn,
    /// A lease that a worker lists and the broker cannot adopt is released as undelivered.
    Listed,
}

impl Checks {
    /// All checks are enabled, as in the real protocol.
    pub const ALL: Self = Self {
        token: true,
        owner: true,
        expiry: true,
        rescuer_expiry: true,
        renewal_expiry: true,
        former: true,
        ending: true,
        readopt_own: true,
        listed: true,
    };

    /// Returns all checks except the given one.
    pub fn without(without: Option<Without>) -> Self {
        let mut checks = Self::ALL;
        match without {
            None => {}
            Some(Without::Token) => checks.token = false,
            Some(Without::Owner) => checks.owner = false,
            Some(Without::Expiry) => checks.expiry = false,
            Some(Without::RescuerExpiry) => checks.rescuer_expiry = false,
            Some(Without::RenewalExpiry) => checks.renewal_expiry = false,
            Some(Without::Former) => checks.former = false,
            Some(Without::Ending) => checks.ending = false,
            Some(Without::ReadoptOwn) => checks.readopt_own = false,
            Some(Without::Listed) => checks.listed = false,
        }
        checks
    }
}
