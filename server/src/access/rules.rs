//! What each call needs. The match has no default: a call that is added to the protocol does not compile without a rule.

use howdah_proto::Rpc;

use super::Operation::{self, Admin, Enqueue, Operate, Read, Work};

/// What a call needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// The operation on the task types that the request names, or on those of the jobs that it names. The call itself checks
    /// each; without the operation on any task type it is refused before it is read.
    Types(Operation),
    /// The operation on every task type.
    Everything(Operation),
    /// Nothing but a credential.
    Anyone,
}

/// The rule of a call.
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
        // Limits that a client must know to keep them.
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
