//! The calls of the protocol, one file each. Each file has, from top to bottom, the required permission, the checks of the
//! request, the execution in one store, and the routing between several stores.
//!
//! A [`Verb`] has one request and one response; [`Call::run`] runs every verb in the same way. The streams (`StreamEnqueue`,
//! `WaitJobs`, `Work`, `MoveType`) are methods of [`Gateway`] in their own files.

pub(crate) mod access;
pub(crate) mod bulks;
mod call; // the entry point of all calls; the caller and the store of a call
pub(crate) mod jobs;
pub(crate) mod page_token; // positions in lists, signed for one request and caller
mod router; // with several stores: selects the stores of a call, and merges their responses
pub(crate) mod schedules;
mod settings;
mod stores;
pub(crate) mod types;
pub(crate) mod workers;

#[cfg(test)]
mod tests;

use howdah_core::{
    error::Error,
    job::{ClusterSettings, Limits},
};
use howdah_engine::access::{Caller, Operation, Rule};
pub(crate) use howdah_proto::calls::*;
use howdah_proto::{Rpc, Unary};
#[cfg(any(test, feature = "fuzzing"))]
use prost::Message;
use tonic::{Response, Status};

use crate::api::answer;
#[cfg(test)]
pub(crate) use call::REASON_BYTES;
pub(crate) use call::{Call, Gateway};
pub(super) use call::{REASON, not_authenticated};
pub(crate) use jobs::enqueue;
pub(crate) use page_token::PageFields;
pub(crate) use router::{UNANSWERED, store_of_http};

/// Imports of the files of the calls.
mod prelude {
    pub(super) use howdah_core::{
        error::Error,
        job::{ClusterSettings, Limits},
    };
    pub(super) use howdah_engine::access::{Caller, Operation, Rule};
    pub(super) use howdah_proto::{Rpc, calls::*, v1};

    pub(super) use super::{Answer, Call, Merge, Verb, merged, page_token, paged};
    pub(super) use crate::api::{
        answer,
        check::{numbers, optional_task_type, task_type, text, time},
        permit, render,
    };
}

/// A call of the protocol with one request and one response.
pub(crate) trait Verb: Unary + Send + Sync + 'static {
    /// Permission that is checked before the request message is read.
    const RULE: Rule;
    /// Whether a read-only page may make this call.
    const READS: bool = matches!(Self::RULE, Rule::Types(Operation::Read) | Rule::Everything(Operation::Read));
    /// Memory to reserve for the response, in bytes. 0, for small responses, reserves nothing.
    const ANSWER_BYTES: usize = 0;
    /// Memory of an entry of the response, in bytes, in addition to twice its encoded size.
    const ENTRY_BYTES: usize = answer::JOB_BYTES;

    /// Checked request.
    type Args: Send;

    /// Checks every field of the request. An error names the invalid field.
    fn check(request: Self::Request, cluster: &ClusterSettings, limits: &Limits) -> Result<Self::Args, Error>;

    /// Checks the permissions that can be decided from the request alone.
    fn permit(_: &Caller, _: &Self::Args) -> Result<(), Error> {
        Ok(())
    }

    /// Returns the number of bytes to reserve for the response.
    fn answer_bytes(_: &Self::Args, _: &ClusterSettings) -> usize {
        Self::ANSWER_BYTES
    }

    /// Checks the permissions that depend on stored data, and executes the call in the store of `call`.
    fn run(call: &mut Call, args: Self::Args) -> impl Future<Output = Result<Self::Response, Error>> + Send;

    /// Selects the stores that the call concerns, and executes it there. Only used if the broker serves several stores.
    fn route(call: &Call, request: Self::Request) -> impl Future<Output = Answer<Self>> + Send;

    /// Returns the page token and page size of a request, if it is paginated.
    fn page(_: &mut Self::Request) -> Option<PageFields<'_>> {
        None
    }

    /// Returns the field for the next page token. [`run`](Self::run) writes the position to it, and [`Call::run`] signs it.
    fn next_page(_: &mut Self::Response) -> Option<&mut String> {
        None
    }

    /// Returns the number of entries in the response, to compute its memory.
    fn entries(_: &Self::Response) -> usize {
        0
    }
}

/// Result of a call.
pub(crate) type Answer<V> = Result<Response<<V as Unary>::Response>, Status>;

/// A verb whose responses from several stores can be merged.
pub(super) trait Merge: Verb {
    /// Adds the response of the named store to `all`, which is empty at first.
    fn merge(all: &mut Self::Response, part: Self::Response, store: &str);
}

/// Implements the pagination methods of a verb. The arguments are the response field with the entries and, if it exists, the
/// request field with the page size.
macro_rules! paged {
    ($entries:ident $(, $size:ident)?) => {
        fn page(request: &mut Self::Request) -> Option<crate::api::verbs::PageFields<'_>> {
            Some(crate::api::verbs::PageFields {
                token: &mut request.page_token,
                size: paged!(@size request $($size)?),
            })
        }

        fn next_page(response: &mut Self::Response) -> Option<&mut String> {
            Some(&mut response.next_page_token)
        }

        fn entries(response: &Self::Response) -> usize {
            response.$entries.len()
        }
    };
    (@size $request:ident) => { None };
    (@size $request:ident $size:ident) => { Some(&mut $request.$size) };
}
use paged;

/// Implements [`Merge`] for a verb. Adds the entries of these response fields to `all`; `of_store` writes the name of the store
/// to each entry. A verb without fields has nothing to merge.
macro_rules! merged {
    ($verb:ident) => {
        impl Merge for $verb {
            fn merge(_: &mut Self::Response, _: Self::Response, _: &str) {}
        }
    };
    ($verb:ident: of_store $entries:ident) => {
        impl Merge for $verb {
            fn merge(all: &mut Self::Response, part: Self::Response, store: &str) {
                all.$entries.extend(part.$entries.into_iter().map(|mut entry| {
                    store.clone_into(&mut entry.store);
                    entry
                }));
            }
        }
    };
    ($verb:ident: $($entries:ident),+) => {
        impl Merge for $verb {
            fn merge(all: &mut Self::Response, part: Self::Response, _: &str) {
                $(all.$entries.extend(part.$entries);)+
            }
        }
    };
}
use merged;

macro_rules! rpcs {
    (calls { $($verb:ident,)* } streams { $($rpc:ident: $rule:expr,)* }) => {
        /// Returns the permission that a call requires before its request is read.
        pub const fn rule(rpc: Rpc) -> Rule {
            match rpc {
                $(Rpc::$verb => $verb::RULE,)*
                $(Rpc::$rpc => $rule,)*
            }
        }

        /// Decodes the bytes as the request of each call, and checks the request. Returns all errors, for tests and fuzzers.
        #[cfg(any(test, feature = "fuzzing"))]
        fn check_requests(bytes: &[u8]) -> Vec<Error> {
            let mut errors = Vec::new();
            $(errors.extend(check_request::<$verb>(bytes));)*
            errors
        }
    };
}

// Lists every call of the protocol. The generated match on `Rpc` has no default arm, so a missing call is a compile error.
rpcs! {
    calls {
        CancelJobs, DiscardJobs, EndLeases, EnqueueJobs, ExplainJob, GetJob, ListErrorGroups, ListJobs,
        ReprioritizeJobs, RerunJobs, RetryJobs, SearchJobs, ExtendJobs, GetResults, ListWorkers, PullJobs,
        ReportProgress, SettleJobs, GetStats, ListLimitKeys, ListTaskTypes, PauseLimitKey, ResumeLimitKey,
        UpdateLimitKey, UpdateTaskType, CreateSchedule, DeleteSchedule, GetSchedule, ListSchedules,
        PauseSchedule, ResumeSchedule, RunSchedule, UpdateSchedule, CancelBulk, GetBulk, ListBulks, PauseBulk,
        PreviewBulk, ResumeBulk, StartBulk, AdvanceClock, GetSettings, UpdateSettings, CreateToken, ListAudit, ListTokens,
        RevokeTokens, DrainStore, ListStores, OpenStore, ReloadStores,
    }
    streams {
        MoveType: stores::MOVE_TYPE_RULE,
        StreamEnqueue: jobs::stream_enqueue::RULE,
        WaitJobs: jobs::wait::RULE,
        Work: workers::work::RULE,
    }
}

#[cfg(any(test, feature = "fuzzing"))]
fn check_request<V: Verb>(bytes: &[u8]) -> Option<Error> {
    let request = V::Request::decode(bytes).ok()?;
    V::check(request, &ClusterSettings::DEFAULT, &Limits::default()).err()
}

/// Like `check_requests`, but also checks the messages of streams, and requests that are checked in [`Verb::run`] instead of
/// [`Verb::check`].
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn check_all(bytes: &[u8]) -> Vec<Error> {
    use crate::api::check;
    use howdah_proto::v1;

    fn on<M: Message + Default, T>(bytes: &[u8], check: impl Fn(M) -> Result<T, Error>) -> Option<Error> {
        check(M::decode(bytes).ok()?).err()
    }
    let (limits, broker) = (ClusterSettings::DEFAULT, Limits::default());
    let mut errors = check_requests(bytes);
    errors.extend(on(bytes, |m: v1::EnqueueJobsRequest| check::enqueue(m.jobs, m.request_key, &limits)));
    errors.extend(on(bytes, |m: v1::StreamEnqueueRequest| check::enqueue(m.jobs, m.request_key, &limits)));
    errors.extend(on(bytes, |m: v1::NewJob| check::enqueue(vec![m], "k".into(), &limits)));
    errors.extend(on(bytes, |m: v1::WaitJobsRequest| jobs::wait::check(m, &limits)));
    errors.extend(on(bytes, |m: v1::WorkRequest| workers::messages::work_request(m, false, &limits, &broker)));
    errors.extend(on(bytes, |m: v1::Schedule| schedules::definition::check(Some(m), &limits)));
    errors.extend(on(bytes, |m: v1::PreviewBulkRequest| bulks::spec::check(m.spec, &limits)));
    errors.extend(on(bytes, |m: v1::StartBulkRequest| bulks::check(m, &limits)));
    errors
}
