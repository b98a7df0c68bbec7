//! `howdah token list`: lists tokens.

use howdah_core::logging::escaped;

use super::super::{
    context::Global,
    failure::Failure,
    output::Output,
    table::{Align, Table},
    text,
};

/// List tokens with their principals, scopes and expiry
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  howdah token list
  howdah token list --all --json | jq 'select(.principal == \"mailer\")'")]
pub(in crate::commands) struct Args {
    /// Include revoked and expired tokens
    #[arg(long)]
    all: bool,
    /// Print one JSON object per token: the message Token
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    global.with_client(async |client| {
        let mut tokens = client.list_tokens(args.all).await?;
        tokens.sort_by(|a, b| (&a.principal, &a.id).cmp(&(&b.principal, &b.id)));
        let mut output = Output::new();
        if args.json {
            output.messages("Token", &tokens)?;
            return output.flush();
        }
        let columns = ["ID", "PRINCIPAL", "SCOPES", "CREATED", "BY", "ENDS"].map(|heading| (heading, Align::Left));
        let mut table = Table::new(columns);
        for token in &tokens {
            let time = |time: Option<&prost_types::Timestamp>| text::timestamp(time).map(text::time);
            let ends = match (time(token.revoke_time.as_ref()), time(token.expire_time.as_ref())) {
                (Some(time), _) => format!("revoked {time}"),
                (None, Some(time)) => time,
                (None, None) => "never".into(),
            };
            table.row([
                escaped(&token.id).to_string(),
                escaped(&token.principal).to_string(),
                escaped(&token.scopes.join(" ")).to_string(),
                time(token.create_time.as_ref()).unwrap_or_default(),
                escaped(&token.created_by).to_string(),
                ends,
            ]);
        }
        output.line(table)?;
        output.flush()
    })
}
