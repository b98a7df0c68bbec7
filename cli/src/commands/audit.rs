//! `howdah audit`: lists changes by people and programs.

use howdah_client::proto::{AuditEntry, ListAuditRequest};
use jiff::Timestamp;

use super::{context::Global, failure::Failure, output, table::Table, text, values};

/// List changes by people and programs: who, when, by which call, and why
///
/// Brokers and SQL functions record each transaction that cancels, retries, discards or reprioritizes jobs, or changes settings,
/// limit keys, schedules or tokens. Lists the newest entries first.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  howdah audit --since 24h
  howdah audit --principal ann --method CancelJobs
  howdah audit --type order.ship --since 7d
  howdah audit --id 17 --json")]
pub(super) struct Args {
    /// List only entries from this time or later, such as 2027-01-01T03:00:00Z, or at most this old, such as 90m or 7d
    #[arg(long, value_name = "TIME", value_parser = values::time_or_ago)]
    since: Option<Timestamp>,
    /// List only entries before this time, or older than this
    #[arg(long, value_name = "TIME", value_parser = values::time_or_ago)]
    until: Option<Timestamp>,
    /// List only changes by this principal; the principal of an SQL role is sql:ROLE
    #[arg(long, value_name = "NAME")]
    principal: Option<String>,
    /// List only changes by this call, such as CancelJobs, or by this SQL function, such as howdah.cancel
    #[arg(long, value_name = "CALL")]
    method: Option<String>,
    /// List only changes of this job, token, schedule or limit key; each entry records only the first 10
    #[arg(long, value_name = "ID")]
    id: Option<String>,
    /// List only changes of this task type, or of its jobs, schedules or limit keys; each entry records only the first 10 types
    #[arg(long = "type", value_name = "TYPE")]
    task_type: Option<String>,
    /// List at most this many entries, 1 to 100000
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    limit: u32,
    /// Print one JSON object per entry: the message AuditEntry
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    let request = ListAuditRequest {
        since: args.since.map(values::wire),
        until: args.until.map(values::wire),
        principal: args.principal.clone().unwrap_or_default(),
        method: args.method.clone().unwrap_or_default(),
        id: args.id.clone().unwrap_or_default(),
        task_type: args.task_type.clone().unwrap_or_default(),
        ..ListAuditRequest::default()
    };
    global.with_client(async |client| {
        let entries = client.list_audit(request, args.limit as usize).await?;
        output::list(args.json, "AuditEntry", &entries, || table(&entries))
    })
}

fn table(entries: &[AuditEntry]) -> Table<'_, AuditEntry> {
    Table::new(entries)
        .store(|entry| &entry.store)
        .left("TIME", |entry| text::timestamp(entry.time.as_ref()).map(text::time).unwrap_or_default())
        .left("PRINCIPAL", |entry| &entry.principal)
        .left("PEER", |entry| &entry.peer)
        .left("METHOD", |entry| &entry.method)
        .left("TYPES", |entry| entry.task_types.join(" "))
        .right("COUNT", |entry| entry.count)
        .left("IDS", |entry| entry.ids.join(" "))
        .left("REASON", |entry| &entry.reason)
        .left("CHANGES", |entry| entry.changes.join(", "))
}
