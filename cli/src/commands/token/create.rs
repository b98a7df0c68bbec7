//! `howdah token create`: creates an API token.

use std::time::Duration;

use howdah_client::proto::{CreateTokenResponse, Token};
use howdah_engine::{
    access::{self, Scope, TokenQuery},
    store::{Actor, Store},
};

use super::super::{
    broker_args::{ConfigArgs, DatabaseArgs, with_database},
    context::{Global, block_on, start_logging},
    failure::Failure,
    output::{Output, note},
    text, values,
};

/// Create a token for a program or person that calls brokers with --auth token
///
/// Prints the token once, on stdout; it cannot be read again. Its scopes limit what it allows. A scope is OPERATION:TYPES.
/// Operations are enqueue, work, read (jobs and counts), payload (payloads and results), operate (cancel, retry, settings) and
/// admin (tokens). TYPES is the name of a task type, or a prefix followed by a star.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  howdah token create mailer --scope 'enqueue:mail.*' > mailer.token
  howdah token create mail-worker --scope 'work:mail.*' --expires 90d > mail-worker.token
  howdah token create ops --scope 'admin:*' --scope 'operate:*' --scope 'read:*' --without-broker   # the first one")]
pub(in crate::commands) struct Args {
    /// Principal of the token: a program or a person; a principal may have several tokens
    #[arg(value_name = "NAME")]
    name: String,
    /// Scope, such as enqueue:mail.* or read:*; repeatable
    #[arg(long = "scope", value_name = "SCOPE", required = true, value_parser = Scope::parse)]
    scopes: Vec<Scope>,
    /// Lifetime, such as 90d [default: until revoked]
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    expires: Option<Duration>,
    /// Write directly to the database (--database-url, HOWDAH_DATABASE_URL) instead of through a broker, for the first token
    #[arg(long)]
    without_broker: bool,
    /// Print one JSON object: the message CreateTokenResponse
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    database: DatabaseArgs,
    #[command(flatten)]
    config: ConfigArgs,
}

pub(super) fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    if args.without_broker {
        let settings = with_database(args.config.load(global, args.database.flags())?)?;
        start_logging(&settings.log, "warn")?;
        block_on(async {
            let store = Store::new(&settings.broker).map_err(Failure::usage)?;
            store.migrate().await?;
            let query =
                TokenQuery { principal: args.name.clone(), scopes: args.scopes.clone(), lifetime: args.expires };
            access::check_principal(&query.principal).map_err(|problem| Failure::usage(format!("NAME {problem}")))?;
            let reason = global.reason.clone().unwrap_or_default();
            let by = Actor { reason, ..Actor::of_session("howdah token create") };
            let (token, view) =
                access::create_token(&store, &by, &query).await.map_err(|error| Failure::failed(error.to_string()))?;
            let secret = token.secret().to_owned();
            let token = Token {
                id: view.id,
                principal: view.principal,
                scopes: view.scopes,
                created_by: view.created_by,
                create_time: Some(view.created.into()),
                expire_time: view.expires.map(Into::into),
                revoke_time: None,
            };
            print(args, &CreateTokenResponse { secret, token: Some(token) })
        })
    } else {
        global.with_client(async |client| {
            let scopes = args.scopes.iter().map(ToString::to_string);
            print(args, &client.create_token(&args.name, scopes, args.expires).await?)
        })
    }
}

fn print(args: &Args, made: &CreateTokenResponse) -> Result<(), Failure> {
    let mut output = Output::new();
    if args.json {
        output.message("CreateTokenResponse", made)?;
    } else {
        let token = made.token.clone().unwrap_or_default();
        let ends = text::timestamp(token.expire_time.as_ref());
        let ends = ends.map_or("until revoked".to_owned(), |time| format!("until {time}"));
        note(format_args!(
            "created token {} of {} for {}, valid {ends}; it is not shown again",
            token.id,
            token.principal,
            token.scopes.join(" ")
        ));
        output.line(&made.secret)?;
    }
    output.flush()
}
