//! `howdah token revoke`.

use super::super::{context::Global, failure::Failure, output::Output};

/// Revoke a token, or all tokens of a principal; also JSON Web Tokens
///
/// Calls with it are refused within a second, at every broker. Streams that were opened with it are told to
/// drain and end within 30 seconds; jobs that they hold are not lost.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  howdah token revoke 6f1c0d8a2b3e4f50
  howdah token revoke --principal mailer
  howdah token revoke jwt:corp:9b1deb4d                one JSON Web Token, by its claim jti
  howdah token revoke --principal jwt:corp:ann         all of ann that the issuer has made until now")]
#[group(required = true, multiple = false)]
pub(in crate::commands) struct Args {
    /// The public part of the token, which is between the first two underscores; of a JSON Web Token jwt:ISSUER:JTI
    #[arg(value_name = "ID")]
    id: Option<String>,
    /// All tokens of this principal
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
