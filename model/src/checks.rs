//! The checks of the statements, each of which can be disabled to show its purpose.

use clap::ValueEnum;

/// Conditions that statements and brokers check before they change a lease. The real protocol has all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "each can be disabled separately")]
pub struct Checks {
    /// Settle, adopt and release compare the token.
    pub token: bool,
    /// A broker releases and fails only its own leases.
    pub owner: bool,
    /// Claims and adoptions require that the broker's own row has not expired.
    pub expiry: bool,
    /// Rescues require that the rescuing broker's own row has not expired.
    pub rescuer_expiry: bool,
    /// A broker whose row has expired registers again instead of renewing it.
    pub renewal_expiry: bool,
    /// A broker treats leases under its former numbers as its own.
    pub former: bool,
    /// A broker does not adopt a lease that it is about to end, or end one that it is about to adopt.
    pub ending: bool,
    /// A broker that registered again readopts only leases under its former numbers.
    pub readopt_own: bool,
    /// A lease that a worker lists on reconnect is not released as undelivered.
    pub listed: bool,
}

/// The check to disable.
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
    /// The real protocol: all checks are enabled.
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

    /// The protocol with one check disabled.
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
