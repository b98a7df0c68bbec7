//! The permission that each call requires. The match has no default, so that a call added to the protocol does not compile
//! without a rule.

use howdah_proto::Rpc;

use super::Operation::{self, Admin, Enqueue, Operate, Read, Work};

/// The permission that a call requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// The caller needs the operation on each task type that the request names, directly or through jobs; the call
    /// checks each of them. A caller without the operation on any task type is refused before the request is read.
    Types(Operation),
    /// The caller needs the operation on every task type.
    Everything(Operation),
    /// A valid credential is enough.
    Anyone,
}

/// Returns the rule of a call.
pub fn rule(rpc: Rpc) -> Rule {
    match rpc {
        Rpc::EnqueueJobs
        | Rpc::StreamEnqueue
        | Rpc::CreateSchedule
        | Rpc::UpdateSchedule
        | Rpc::DeleteSchedule
        | Rpc::PauseSchedule
        | Rpc::ResumeSchedule
        | Rpc::RunSchedule => Rule::Types(Enqueue),
        Rpc::Work | Rpc::PullJobs | Rpc::SettleJobs | Rpc::ExtendJobs | Rpc::ReportProgress => Rule::Types(Work),
        Rpc::GetJob
        | Rpc::ExplainJob
        | Rpc::ListJobs
        | Rpc::SearchJobs
        | Rpc::WaitJobs
        | Rpc::ListErrorGroups
        | Rpc::ListTaskTypes
        | Rpc::ListWorkers
        | Rpc::ListLimitKeys
        | Rpc::GetStats
        | Rpc::GetBulk
        | Rpc::ListBulks
        | Rpc::GetSchedule
        | Rpc::ListSchedules => Rule::Types(Read),
        Rpc::CancelJobs
        | Rpc::RetryJobs
        | Rpc::EndLeases
        | Rpc::DiscardJobs
        | Rpc::ReprioritizeJobs
        | Rpc::PreviewBulk
        | Rpc::StartBulk
        | Rpc::PauseBulk
        | Rpc::ResumeBulk
        | Rpc::CancelBulk
        | Rpc::UpdateTaskType
        | Rpc::PauseLimitKey
        | Rpc::ResumeLimitKey => Rule::Types(Operate),
        Rpc::UpdateSettings => Rule::Everything(Operate),
        Rpc::ListStores => Rule::Everything(Read),
        // Every client must know the limits to stay within them.
        Rpc::GetSettings => Rule::Anyone,
        Rpc::CreateToken
        | Rpc::ListTokens
        | Rpc::RevokeTokens
        | Rpc::ListAudit
        | Rpc::DrainStore
        | Rpc::OpenStore
        | Rpc::MoveType => Rule::Everything(Admin),
    }
}
