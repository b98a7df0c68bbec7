//! `howdah audit`: lists changes by people and programs.

use howdah_client::proto::ListAuditRequest;
use howdah_core::logging::escaped;
use jiff::Timestamp;

use super::{
    context::Global,
    failure::Failure,
    output::Output,
    table::{Align, Table},
    text, values,
};

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
    let time = |time: Option<Timestamp>| time.map(|time| std::time::SystemTime::from(time).into());
    let request = ListAuditRequest {
        since: time(args.since),
        until: time(args.until),
        principal: args.principal.clone().unwrap_or_default(),
        method: args.method.clone().unwrap_or_default(),
        id: args.id.clone().unwrap_or_default(),
        task_type: args.task_type.clone().unwrap_or_default(),
        ..ListAuditRequest::default()
    };
    global.with_client(async |client| {
        let entries = client.list_audit(request, args.limit as usize).await?;
        let mut output = Output::new();
        if args.json {
            output.messages("AuditEntry", &entries)?;
            return output.flush();
        }
        let columns = [
            ("TIME", Align::Left),
            ("PRINCIPAL", Align::Left),
            ("PEER", Align::Left),
            ("METHOD", Align::Left),
            ("TYPES", Align::Left),
            ("COUNT", Align::Right),
            ("IDS", Align::Left),
            ("REASON", Align::Left),
            ("CHANGES", Align::Left),
        ];
        let mut table = Table::new(columns);
        for entry in &entries {
            table.row_of_store(
                [
                    text::timestamp(entry.time.as_ref()).map(text::time).unwrap_or_default(),
                    escaped(&entry.principal).to_string(),
                    escaped(&entry.peer).to_string(),
                    escaped(&entry.method).to_string(),
                    escaped(&entry.task_types.join(" ")).to_string(),
                    entry.count.to_string(),
                    escaped(&entry.ids.join(" ")).to_string(),
                    escaped(&entry.reason).to_string(),
                    escaped(&entry.changes.join(", ")).to_string(),
                ],
                &entry.store,
            );
        }
        output.line(table)?;
        output.flush()
    })
}
