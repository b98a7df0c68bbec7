//! `howdah token revoke`: revokes tokens.

use super::super::{context::Global, failure::Failure, output::Output};

/// Revoke a token or all tokens of a principal, including JSON Web Tokens
///
/// All brokers refuse calls with a revoked token within a second. Streams opened with it are drained and end within 30 seconds;
/// jobs that they hold are not lost.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  howdah token revoke 6f1c0d8a2b3e4f50
  howdah token revoke --principal mailer
  howdah token revoke jwt:corp:9b1deb4d                one JSON Web Token, by its claim jti
  howdah token revoke --principal jwt:corp:ann         all tokens of ann that the issuer has issued so far")]
#[group(required = true, multiple = false)]
pub(in crate::commands) struct Args {
    /// Public part of the token, between the first two underscores; for a JSON Web Token jwt:ISSUER:JTI
    #[arg(value_name = "ID")]
    id: Option<String>,
    /// Revoke all tokens of this principal
    #[arg(long, value_name = "NAME")]
    principal: Option<String>,
}

pub(super) fn run(args: Args, global: &Global) -> Result<(), Failure> {
    global.with_client(async |client| {
        let ids = match (args.id, args.principal) {
            (Some(id), _) => client.revoke_token(id).await?,
            (None, principal) => client.revoke_tokens_of(principal.unwrap_or_default()).await?,
        };
        let mut output = Output::new();
        for id in ids {
            output.line(format_args!("revoked {id}"))?;
        }
        output.flush()
    })
}
