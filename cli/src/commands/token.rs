//! `howdah token`: creates, lists and revokes tokens.

use std::time::Duration;

use howdah_client::proto::{self, CreateTokenResponse};
use howdah_engine::{
    access::{self, Scope, Token, TokenQuery},
    store::Store,
};

use super::{
    broker_args::{ConfigArgs, DatabaseArgs, with_database},
    context::{Global, block_on, start_logging},
    failure::Failure,
    output::{self, Output, note},
    table::Table,
    text, values,
};

subcommands! { |args, global|
    Create(CreateArgs) => create(&args, global),
    List(ListArgs) => list(&args, global),
    Revoke(RevokeArgs) => revoke(args, global),
    /// Print a new token without storing it, for the file of `howdah serve --auth-token-file`
    #[command(after_help = "\
Each line of that file has a token, the name of its principal, and its scopes:
  echo \"$(howdah token generate) ops admin:* read:* operate:*\" >> tokens")]
    Generate(GenerateArgs) => generate(&args),
}

/// Create a token for a program or person that calls brokers with --auth token
///
/// Prints the token once, on stdout; it cannot be read again. The scopes limit what the token allows. A scope is
/// OPERATION:TYPES. Operations are enqueue, work, read (jobs and counts), payload (payloads and results), operate (cancel,
/// retry, settings) and admin (tokens). TYPES is the name of a task type, or a prefix followed by a star.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  howdah token create mailer --scope 'enqueue:mail.*' > mailer.token
  howdah token create mail-worker --scope 'work:mail.*' --expires 90d > mail-worker.token
  howdah token create ops --scope 'admin:*' --scope 'operate:*' --scope 'read:*' --without-broker   # the first one")]
pub(in crate::commands) struct CreateArgs {
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

fn create(args: &CreateArgs, global: &Global) -> Result<(), Failure> {
    if args.without_broker {
        let settings = with_database(args.config.load(global, args.database.flags())?)?;
        start_logging(&settings.log, "warn")?;
        block_on(async {
            let store = Store::for_command(&settings.broker).map_err(Failure::usage)?;
            store.migrate().await?;
            let query =
                TokenQuery { principal: args.name.clone(), scopes: args.scopes.clone(), lifetime: args.expires };
            access::check_principal(&query.principal).map_err(|problem| Failure::usage(format!("NAME {problem}")))?;
            let by = global.actor("howdah token create");
            let (token, view) =
                access::create_token(&store, &by, &query).await.map_err(|error| Failure::failed(error.to_string()))?;
            let secret = token.secret().to_owned();
            let token = proto::Token {
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

fn print(args: &CreateArgs, made: &CreateTokenResponse) -> Result<(), Failure> {
    output::show(args.json, "CreateTokenResponse", made, || {
        let token = made.token.clone().unwrap_or_default();
        let ends = text::timestamp(token.expire_time.as_ref());
        let ends = ends.map_or("until revoked".to_owned(), |time| format!("until {time}"));
        note(format_args!(
            "created token {} of {} for {}, valid {ends}; it is not shown again",
            token.id,
            token.principal,
            token.scopes.join(" ")
        ));
        made.secret.clone()
    })
}

/// List tokens with their principals, scopes and expiry
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  howdah token list
  howdah token list --all --json | jq 'select(.principal == \"mailer\")'")]
pub(in crate::commands) struct ListArgs {
    /// Include revoked and expired tokens
    #[arg(long)]
    all: bool,
    /// Print one JSON object per token: the message Token
    #[arg(long)]
    json: bool,
}

fn list(args: &ListArgs, global: &Global) -> Result<(), Failure> {
    global.with_client(async |client| {
        let mut tokens = client.list_tokens(args.all).await?;
        tokens.sort_by(|a, b| (&a.principal, &a.id).cmp(&(&b.principal, &b.id)));
        output::list(args.json, "Token", &tokens, || table(&tokens))
    })
}

fn table(tokens: &[proto::Token]) -> Table<'_, proto::Token> {
    let time = |time: Option<&prost_types::Timestamp>| text::timestamp(time).map(text::time);
    let ends = |token: &proto::Token| match (time(token.revoke_time.as_ref()), time(token.expire_time.as_ref())) {
        (Some(time), _) => format!("revoked {time}"),
        (None, Some(time)) => time,
        (None, None) => "never".into(),
    };
    Table::new(tokens)
        .left("ID", |token| &token.id)
        .left("PRINCIPAL", |token| &token.principal)
        .left("SCOPES", |token| token.scopes.join(" "))
        .left("CREATED", |token| time(token.create_time.as_ref()).unwrap_or_default())
        .left("BY", |token| &token.created_by)
        .left("ENDS", ends)
}

/// Revoke a token or all tokens of a principal, including JSON Web Tokens
///
/// All brokers refuse calls with a revoked token within a second. Streams opened with a revoked token are drained and end
/// within 30 seconds; their jobs are not lost.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  howdah token revoke 6f1c0d8a2b3e4f50
  howdah token revoke --principal mailer
  howdah token revoke jwt:corp:9b1deb4d                one JSON Web Token, by its claim jti
  howdah token revoke --principal jwt:corp:ann         all tokens of ann that the issuer has issued so far")]
#[group(required = true, multiple = false)]
pub(in crate::commands) struct RevokeArgs {
    /// Public part of the token, between the first two underscores; for a JSON Web Token jwt:ISSUER:JTI
    #[arg(value_name = "ID")]
    id: Option<String>,
    /// Revoke all tokens of this principal
    #[arg(long, value_name = "NAME")]
    principal: Option<String>,
}

fn revoke(args: RevokeArgs, global: &Global) -> Result<(), Failure> {
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

#[derive(Debug, clap::Args)]
pub(super) struct GenerateArgs {}

fn generate(_: &GenerateArgs) -> Result<(), Failure> {
    let mut output = Output::new();
    output.line(Token::generate().secret())?;
    output.flush()
}
