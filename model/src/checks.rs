//! What the statements check, and what can be taken out to see what it is for.

use clap::ValueEnum;

/// What statements compare before they change anything. All true: the protocol as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "each can be taken out by itself")]
pub struct Checks {
    /// Settle, adopt and release compare the token.
    pub token: bool,
    /// The broker releases and fails only leases that are its own.
    pub owner: bool,
    /// Claims and adoptions demand that the broker's own row has not expired.
    pub expiry: bool,
    /// So do rescues.
    pub rescuer_expiry: bool,
    /// An expired row is not renewed; the broker registers again.
    pub renewal_expiry: bool,
    /// Brokers know leases under numbers that they had before as their own.
    pub former: bool,
    /// A broker does not adopt a lease that it is about to end, nor end one that it is about to adopt.
    pub ending: bool,
    /// A broker that registered again takes along only leases that are under its former numbers.
    pub readopt_own: bool,
    /// What a worker lists when it comes back is not released as if it had never arrived.
    pub listed: bool,
}

/// The check that is taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum)]
pub enum Without {
    /// Outcomes, adoptions and releases do not compare the token.
    Token,
    /// Brokers release leases that others have adopted.
    Owner,
    /// Brokers whose own row has expired go on claiming and adopting.
    Expiry,
    /// Brokers whose own row has expired rescue leases of others.
    RescuerExpiry,
    /// Brokers whose row has expired renew it.
    RenewalExpiry,
    /// A broker does not know its own former numbers.
    Former,
    /// A broker adopts a lease that it is about to end.
    Ending,
    /// A broker that registered again takes leases back that other brokers have adopted.
    ReadoptOwn,
    /// What a worker lists and the broker cannot adopt is released, as if it had never arrived.
    Listed,
}

impl Checks {
    /// The protocol as it is.
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

    /// The protocol without one of its checks.
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
