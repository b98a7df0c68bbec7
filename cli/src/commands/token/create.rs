//! `howdah token create`: creates an API token.

use std::time::Duration;

use howdah_client::proto;
use howdah_server::{
    access::{self, Scope, TokenQuery},
    store::{Actor, Store},
};

use super::super::{
    broker_args::{ConfigArgs, DatabaseArgs, with_database},
    context::{Global, block_on, start_logging},
    failure::Failure,
    output::{Output, note},
    values,
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
    /// Print one JSON object: token, id, principal, scopes, expires
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    database: DatabaseArgs,
    #[command(flatten)]
    config: ConfigArgs,
}

/// A created token.
struct Made {
    secret: String,
    id: String,
    expires: Option<String>,
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
            let expires = view.expires.and_then(|time| jiff::Timestamp::try_from(time).ok());
            print(
                args,
                &Made { secret: token.secret().to_owned(), id: view.id, expires: expires.map(|time| time.to_string()) },
            )
        })
    } else {
        global.with_client(async |client| {
            let made =
                client.create_token(&args.name, args.scopes.iter().map(ToString::to_string), args.expires).await?;
            let proto::Token { id, expire_time, .. } = made.token.unwrap_or_default();
            let expires = super::super::text::timestamp(expire_time.as_ref()).map(|time| time.to_string());
            print(args, &Made { secret: made.secret, id, expires })
        })
    }
}

fn print(args: &Args, made: &Made) -> Result<(), Failure> {
    let scopes: Vec<String> = args.scopes.iter().map(ToString::to_string).collect();
    let mut output = Output::new();
    if args.json {
        output.json(&serde_json::json!({
            "token": made.secret, "id": made.id, "principal": args.name, "scopes": scopes, "expires": made.expires,
        }))?;
    } else {
        let ends = made.expires.as_ref().map_or("until revoked".to_owned(), |time| format!("until {time}"));
        note(format_args!(
            "created token {} of {} for {}, valid {ends}; it is not shown again",
            made.id,
            args.name,
            scopes.join(" ")
        ));
        output.line(&made.secret)?;
    }
    output.flush()
}
