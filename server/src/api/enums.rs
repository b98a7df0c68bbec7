//! Enums of the engine that are also enums of the protocol.

use howdah_core::{
    error::Error,
    job::{
        BulkState, HistoryMode, HolderFailure, RetryKind, StagePayload, StatsPeriod,
        schedule::{Drift, Overlap},
    },
};
use howdah_engine::{doctor::Level, session::CancelReason, store::HolderKind};
use howdah_proto::v1;

use crate::stores::moving::MovePhase;

/// An enum of the engine whose values are also in the protocol.
pub(crate) trait WireEnum: Sized {
    /// Returns the number of the value in the protocol.
    fn number(self) -> i32;

    /// Returns the value of a field of a request. `None` for the unspecified value.
    fn from_number(field: &str, number: i32) -> Result<Option<Self>, Error>;
}

macro_rules! wire_enums {
    ($($own:ident: $wire:ident { $($value:ident),* })*) => {
        $(impl WireEnum for $own {
            fn number(self) -> i32 {
                match self { $(Self::$value => v1::$wire::$value as i32,)* }
            }

            fn from_number(field: &str, number: i32) -> Result<Option<Self>, Error> {
                match v1::$wire::try_from(number) {
                    Ok(v1::$wire::Unspecified) => Ok(None),
                    $(Ok(v1::$wire::$value) => Ok(Some(Self::$value)),)*
                    Err(_) => Err(Error::invalid(field, format!("is the unknown value {number}"))),
                }
            }
        })*
    };
}

wire_enums! {
    BulkState: BulkState { Running, Paused, Completed, Cancelled }
    CancelReason: CancelReason { Cancelled, Timeout, LeaseLost }
    Drift: Drift { Plan, End }
    HistoryMode: HistoryMode { Full, Failures, None, WithoutEmpty }
    HolderFailure: HolderFailure { Supersede, Retry }
    HolderKind: SnapshotHolderKind { Session, PreparedTransaction, ReplicationSlot }
    Level: FindingLevel { Problem, Advice }
    MovePhase: MovePhase { Pausing, Moving, Following, Done }
    Overlap: OverlapPolicy { Allow, Skip, OneWaiting }
    RetryKind: RetryPolicyKind { Exponential, Linear, Fixed, List }
    StagePayload: StagePayload { Result, Unchanged }
    StatsPeriod: StatsPeriod { Minute, Hour, Day }
}
