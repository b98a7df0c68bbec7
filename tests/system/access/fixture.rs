//! A broker with token authentication, and callers whose tokens have scopes.

use std::io::Write as _;

use howdah_core::config::Config;
use howdah_engine::access::Token;
use howdah_proto::v1::CreateTokenRequest;

use crate::support::{Service, TestBroker, TestDatabase, database, with_timeout};

/// A broker with `auth = token`, and an administrator.
pub struct Guarded {
    pub broker: TestBroker,
    /// A caller whose token has all scopes.
    pub admin: Service,
    file: tempfile::NamedTempFile,
}

/// The scopes of an administrator.
const ALL: &str = "enqueue:* work:* read:* payload:* operate:* admin:*";

impl Guarded {
    pub async fn start() -> Self {
        Self::start_with(|_| {}).await
    }

    /// Starts a broker with token authentication, after `change` has changed its settings.
    pub async fn start_with(change: impl FnOnce(&mut Config)) -> Self {
        Self::start_on_with(&database().await, change).await
    }

    /// Starts a broker with token authentication on an existing database.
    pub async fn start_on(database: &TestDatabase) -> Self {
        Self::start_on_with(database, |_| {}).await
    }

    async fn start_on_with(database: &TestDatabase, change: impl FnOnce(&mut Config)) -> Self {
        let token = Token::generate().secret().to_owned();
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        writeln!(file, "# the first\n{token} admin {ALL}").expect("write");
        let path = file.path().to_owned();
        let broker = TestBroker::on_with(database, |config| {
            config.auth.token = true;
            config.auth_token_file = Some(path);
            change(config);
        })
        .await;
        let admin = broker.with_token(&token);
        Self { broker, admin, file }
    }

    /// Starts another broker on the same database with the same token file.
    pub async fn another(&self) -> TestBroker {
        let path = self.file.path().to_owned();
        let configure = |config: &mut Config| {
            config.auth.token = true;
            config.auth_token_file = Some(path);
        };
        self.broker.another_with(configure).await
    }

    /// Creates a token for a principal with these scopes, and returns the token.
    pub async fn token(&self, principal: &str, scopes: &[&str]) -> String {
        let request = CreateTokenRequest {
            principal: principal.into(),
            scopes: scopes.iter().map(ToString::to_string).collect(),
            lifetime: None,
        };
        let mut access = self.admin.access();
        with_timeout("a token", access.create_token(request)).await.expect("create").into_inner().secret
    }

    /// Returns a caller with a new token of this principal and these scopes.
    pub async fn caller(&self, principal: &str, scopes: &[&str]) -> Service {
        self.broker.with_token(&self.token(principal, scopes).await)
    }
}
