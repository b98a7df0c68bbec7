//! Tests JSON Web Tokens of external issuers: validity, scopes and expiry.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use howdah_engine::access::Token;
use howdah_proto::v1::{self, GetSettingsRequest, revoke_tokens_request::Selection};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _};
use tonic::{Code, Status};

use super::{
    issuer::{Issuers, claims, now},
    signing::{SigningKey, compact, encoded},
};
use crate::support::*;

/// Makes a call that needs a valid credential and no scope.
async fn call(broker: &Service, token: &str) -> Result<(), Status> {
    with_timeout("an answer", broker.with_token(token).settings().get_settings(GetSettingsRequest {})).await.map(drop)
}

/// Returns the broker's error for an invalid token, and asserts that the error quotes no part of the token.
async fn refusal(broker: &Service, token: &str) -> String {
    let status = call(broker, token).await.expect_err("a refusal");
    assert_eq!(status.code(), Code::Unauthenticated, "{status}");
    let shown = format!("{status:?}");
    assert!(token.split('.').all(|part| part.len() < 8 || !shown.contains(part)), "{shown}");
    status.message().to_owned()
}

fn with(name: &str, value: Value) -> Value {
    let mut claims = claims("ann", "read:*");
    claims[name] = value;
    claims
}

#[tokio::test]
async fn a_token_of_each_algorithm_is_good_and_says_who_calls() {
    let issuers = Issuers::new();
    let broker = issuers.broker().await;
    for key in &issuers.keys {
        let token = key.token(&claims("ann", "openid enqueue:mail.*"));
        call(&broker, &token).await.unwrap();
        let ann = broker.with_token(&token);
        ann.enqueue("mail.welcome").await;
        let refused = ann.enqueue("sms").refused().await;
        assert_eq!(refused.code, Code::PermissionDenied);
        assert!(refused.to_string().contains("\"jwt:corp:ann\" needs the scope enqueue:sms"), "{refused}");
    }
}

#[tokio::test]
async fn a_token_that_its_issuer_did_not_sign_is_refused() {
    let issuers = Issuers::new();
    let broker = issuers.broker().await;
    let [ec, _, rsa] = &issuers.keys;
    let claims = claims("ann", "admin:*");
    let sign = |key: &SigningKey, header: Value| compact(&header, &claims, |text| key.sign(text));
    let stranger = SigningKey::new("ES256", "ec");
    let mut changed: Vec<String> = ec.token(&claims).split('.').map(str::to_owned).collect();
    changed[1] = encoded(with("sub", json!("root")).to_string());
    let n = URL_SAFE_NO_PAD.decode(rsa.jwk()["n"].as_str().unwrap()).unwrap();
    for (token, problem) in [
        (compact(&json!({ "alg": "none" }), &claims, |_| Vec::new()), "algorithm"),
        (compact(&json!({ "alg": "none", "kid": "ec" }), &claims, |text| ec.sign(text)), "algorithm"),
        // Algorithm confusion attack: the token is signed with HMAC, and the public key is the secret.
        (compact(&json!({ "alg": "HS256", "kid": "rsa" }), &claims, |text| hmac(&n, text)), "algorithm"),
        (sign(rsa, json!({ "alg": "RS512", "kid": "rsa" })), "algorithm"),
        (sign(rsa, json!({ "alg": "ES256", "kid": "rsa" })), "kid"),
        (stranger.token(&claims), "wrong signature"),
        (sign(&stranger, json!({ "alg": "ES256", "kid": "new", "jwk": stranger.jwk() })), "kid"),
        (sign(&stranger, json!({ "alg": "ES256", "kid": "ec", "jwk": stranger.jwk() })), "wrong signature"),
        (
            sign(&stranger, json!({ "alg": "ES256", "kid": "ec", "jku": "https://evil.example/keys" })),
            "wrong signature",
        ),
        (sign(ec, json!({ "alg": "ES256", "kid": "ec", "crit": ["exp"] })), "crit"),
        (sign(ec, json!({ "alg": "ES256", "kid": "ec", "typ": "logout+jwt" })), "typ"),
        // Signed by another issuer's key with the same key id.
        (issuers.other.token(&claims), "wrong signature"),
        (changed.join("."), "wrong signature"),
        (format!("{}AA", ec.token(&claims)), "signature"),
        ("a.b".into(), "three parts"),
        (Token::generate().secret().to_owned(), "three parts"),
        (ec.token(&with("x", json!("x".repeat(9_000)))), "at most 8192"),
    ] {
        let error = refusal(&broker, &token).await;
        assert!(error.contains(problem), "{problem}: {error}");
    }
}

fn hmac(secret: &[u8], text: &[u8]) -> Vec<u8> {
    use aws_lc_rs::hmac::{HMAC_SHA256, Key, sign};
    sign(&Key::new(HMAC_SHA256, secret), text).as_ref().to_vec()
}

#[tokio::test]
async fn a_token_with_a_wrong_issuer_audience_subject_scope_or_time_is_refused() {
    let issuers = Issuers::new();
    let broker = issuers.broker().await;
    for (name, values) in [
        ("iss", vec![json!("https://evil.example"), json!(["https://corp.example"]), json!(null)]),
        ("aud", vec![json!("other"), json!(["other"]), json!([]), json!(null)]),
        ("exp", vec![json!(now() - 1), json!((now() + 600).to_string()), json!(null)]),
        ("nbf", vec![json!(now() + 60), json!("0")]),
        ("sub", vec![json!(""), json!(1), json!("x".repeat(200))]),
        ("scope", vec![json!(1)]),
    ] {
        let mut bad: Vec<Value> = values.into_iter().map(|value| with(name, value)).collect();
        if !matches!(name, "nbf" | "scope") {
            let mut without = claims("ann", "read:*");
            without.as_object_mut().unwrap().remove(name);
            bad.push(without);
        }
        for claims in bad {
            refusal(&broker, &issuers.keys[0].token(&claims)).await;
        }
    }
    for good in
        [with("aud", json!(["x", "howdah"])), with("nbf", json!(now())), with("exp", json!(now() as f64 + 60.5))]
    {
        call(&broker, &issuers.keys[0].token(&good)).await.unwrap();
    }
}

#[tokio::test]
async fn scopes_of_a_token_are_limited_by_its_issuer_and_extended_by_grants() {
    let issuers = Issuers::new();
    let broker = issuers.broker().await;
    let ci = broker.with_token(&issuers.token("ci-7", ""));
    ci.enqueue("ci.build").await;
    assert_eq!(ci.enqueue("mail").refused().await.code, Code::PermissionDenied);
    let mut claims = claims("ann", "enqueue:* admin:*");
    claims["iss"] = json!("https://other.example");
    let other = broker.with_token(&issuers.other.token(&claims));
    other.enqueue("other.job").await;
    assert_eq!(other.enqueue("mail").refused().await.code, Code::PermissionDenied);
    let tokens = other.access().list_tokens(v1::ListTokensRequest::default()).await;
    assert_eq!(tokens.expect_err("not an administrator").code(), Code::PermissionDenied);
}

#[tokio::test]
async fn one_request_key_of_two_issuers_is_two_keys() {
    let issuers = Issuers::new();
    let broker = issuers.broker().await;
    let mut claims = claims("ann", "enqueue:other.*");
    let corp = broker.with_token(&issuers.keys[0].token(&claims));
    claims["iss"] = json!("https://other.example");
    let other = broker.with_token(&issuers.other.token(&claims));
    let ids = [corp.enqueue("other.a").request_key("k").await, other.enqueue("other.a").request_key("k").await];
    assert_ne!(ids[0], ids[1]);
}

#[tokio::test]
async fn howdah_tokens_and_jwts_are_accepted_together_and_cannot_share_a_principal_name() {
    let issuers = Issuers::new();
    let token = Token::generate();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), format!("{} admin admin:* enqueue:*", token.secret())).unwrap();
    let broker = TestBroker::start_with(|config| {
        (config.auth.jwt, config.auth.token) = (true, true);
        config.auth_jwt_file = Some(issuers.file().into());
        config.auth_token_file = Some(file.path().to_owned());
    })
    .await;
    let admin = broker.with_token(token.secret());
    admin.enqueue("t").await;
    broker.with_token(&issuers.token("ann", "enqueue:t")).enqueue("t").await;
    assert!(refusal(&broker, Token::generate().secret()).await.contains("unknown"));
    let principal = "jwt:corp:ann".to_owned();
    let request = v1::CreateTokenRequest { principal, scopes: vec!["read:*".into()], lifetime: None };
    let refused = admin.access().create_token(request).await.expect_err("a name of the other kind");
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
}

#[tokio::test]
async fn streams_end_when_their_token_expires() {
    let issuers = Issuers::new();
    let broker = issuers.broker().await;
    let admin = broker.with_token(&issuers.token("admin", "enqueue:* read:*"));
    let id = admin.enqueue("t").await;
    let token = issuers.keys[0].token(&{
        let mut claims = claims("ann", "work:t");
        claims["exp"] = json!(now() + 40);
        claims
    });
    let mut worker = broker.with_token(&token).worker("t").await;
    let job = worker.next().await;
    worker.drained().await;
    worker.ack(&job).await;
    assert_eq!(worker.message().await.expect_err("the end").code(), Code::Unauthenticated);
    assert_eq!(admin.state(id).await, v1::JobState::Succeeded);
    assert!(refusal(&broker, &token).await.contains("expired"));
}

#[tokio::test]
async fn a_token_with_a_longer_lifetime_than_its_issuer_permits_is_refused() {
    let issuers = Issuers::new();
    let broker = issuers.broker().await;
    let (day, key) = (86_400, &issuers.keys[0]);
    call(&broker, &key.token(&with("exp", json!(now() + day - 60)))).await.unwrap();
    let error = refusal(&broker, &key.token(&with("exp", json!(now() + 2 * day)))).await;
    assert!(error.contains("may be valid for 1day") && error.contains("max_lifetime"), "{error}");
    // In a token with an `iat` claim, `max_lifetime` limits the time from `iat` to `exp`, not the time that is left.
    let mut old = with("iat", json!(now() - 2 * day));
    assert!(refusal(&broker, &key.token(&old)).await.contains("max_lifetime"));
    old["iat"] = json!(now() - 60);
    call(&broker, &key.token(&old)).await.unwrap();
}

/// Returns a token of the issuer `corp` with this token id and issue time.
fn issued_token(issuers: &Issuers, subject: &str, jti: &str, issued: u64) -> String {
    let mut claims = claims(subject, "work:t");
    (claims["jti"], claims["iat"]) = (json!(jti), json!(issued));
    issuers.keys[0].token(&claims)
}

#[tokio::test]
async fn a_token_is_revoked_by_its_id_and_all_of_a_subject_by_its_name_at_every_broker() {
    let issuers = Issuers::new();
    let broker = issuers.broker().await;
    let other = broker.another_with(|config| {
        config.auth.jwt = true;
        config.auth_jwt_file = Some(issuers.file().into());
    });
    let other = other.await;
    let admin = broker.with_token(&issuers.token("admin", "admin:* read:*"));
    let [one, two] = ["id-1", "id-2"].map(|jti| issued_token(&issuers, "ann", jti, now()));
    let bob = issued_token(&issuers, "bob", "id-1b", now());
    let mut streams = [other.with_token(&one).worker("t").await, other.with_token(&two).worker("t").await];
    let revoke = async |selection| {
        let request = v1::RevokeTokensRequest { selection: Some(selection) };
        admin.access().revoke_tokens(request).await.map(|answer| answer.into_inner().ids)
    };
    assert_eq!(revoke(Selection::Id("jwt:corp:id-1".into())).await.unwrap(), ["jwt:corp:id-1"]);
    assert!(refusal(&broker, &one).await.contains("was revoked"));
    streams[0].drained().await;
    assert_eq!(streams[0].message().await.expect_err("the end").code(), Code::Unauthenticated);
    call(&broker, &two).await.unwrap();
    streams[1].ping().await;

    assert_eq!(revoke(Selection::Principal("jwt:corp:ann".into())).await.unwrap(), ["jwt:corp:ann"]);
    assert!(refusal(&broker, &two).await.contains("was revoked"));
    streams[1].drained().await;
    assert_eq!(streams[1].message().await.expect_err("the end").code(), Code::Unauthenticated);
    assert!(refusal(&other, &two).await.contains("was revoked"));
    // A token issued before the revocation is refused; a token issued after the revocation is valid.
    assert!(refusal(&broker, &issuers.token("ann", "work:t")).await.contains("was revoked"));
    call(&broker, &issued_token(&issuers, "ann", "id-3", now() + 2)).await.unwrap();
    call(&broker, &bob).await.unwrap();
    let audited = "SELECT count(*) FROM howdah.audit WHERE method = 'RevokeTokens' AND principal = 'jwt:corp:admin'
                   AND ids[1] IN ('jwt:corp:id-1', 'jwt:corp:ann')";
    assert_eq!(broker.count(audited).await, 2);
    // A broker that starts later reads the revocation before it serves.
    let third = broker.another_with(|config| {
        config.auth.jwt = true;
        config.auth_jwt_file = Some(issuers.file().into());
    });
    let third = third.await;
    assert!(refusal(&third, &two).await.contains("was revoked"));
    let unknown = revoke(Selection::Id("jwt:elsewhere:id".into())).await.expect_err("no such issuer");
    assert_eq!(unknown.code(), Code::NotFound, "{unknown}");
}

#[tokio::test]
async fn a_new_issuer_key_is_accepted_and_streams_with_tokens_of_a_removed_key_end() {
    let issuers = Issuers::new();
    let broker = issuers.broker().await;
    let [old, kept, _] = &issuers.keys;
    let token = old.token(&claims("ann", "work:t"));
    let mut worker = broker.with_token(&token).worker("t").await;
    let new = SigningKey::new("ES256", "new");
    issuers.publish(&[kept, &new]);
    let fresh = new.token(&claims("ann", "work:t"));
    eventually("an accepted token of the new key", async || call(&broker, &fresh).await.is_ok()).await;
    worker.drained().await;
    assert_eq!(worker.message().await.expect_err("the end").code(), Code::Unauthenticated);
    assert!(refusal(&broker, &token).await.contains("kid"));
    call(&broker, &kept.token(&claims("ann", "work:t"))).await.unwrap();
}

#[tokio::test]
async fn a_server_of_keys_that_stalls_holds_up_neither_the_start_nor_other_callers() {
    let mut issuers = Issuers::new();
    // A server that accepts connections and never responds.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = silent.local_addr().unwrap().port();
    issuers.also("stalled", &format!("https://localhost:{port}/keys"));
    let broker = issuers.broker().await;
    let mut claims = claims("ann", "read:*");
    claims["iss"] = json!("https://stalled.example");
    let token = issuers.keys[0].token(&claims);
    let stalled = tokio::spawn({
        let broker = Service::clone(&broker);
        async move { call(&broker, &token).await }
    });
    call(&broker, &issuers.token("ann", "read:*")).await.unwrap();
    // Reading the issuer's keys times out, and then the call that waited for the keys fails.
    let status = with_timeout("an answer", stalled).await.unwrap().expect_err("no keys");
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    assert!(status.message().contains("the keys of the issuer stalled could not be read yet"), "{status}");
    call(&broker, &issuers.token("bob", "read:*")).await.unwrap();
}

#[tokio::test]
async fn no_token_is_in_the_log_of_a_broker_that_logs_everything() {
    let issuers = Issuers::new();
    let database = database().await;
    let mut command = tokio::process::Command::new(howdah());
    command.args(["serve", "--database-url", &database.url, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]);
    command.args(["--auth", "jwt", "--auth-jwt-file", &issuers.file(), "--log", "trace", "--log-format", "json"]);
    command.stdin(std::process::Stdio::null()).kill_on_drop(true);
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let mut program = command.spawn().expect("start howdah");
    let mut log = program.stderr.take().expect("stderr");
    let reading = tokio::spawn(async move {
        let mut bytes = Vec::new();
        log.read_to_end(&mut bytes).await.expect("read");
        String::from_utf8_lossy(&bytes).into_owned()
    });
    let mut stdout = tokio::io::BufReader::new(program.stdout.take().expect("stdout")).lines();
    let ready = with_timeout("a ready broker", stdout.next_line()).await.expect("read").expect("a line");
    let address = |name: &str| {
        format!("http://{}", ready.split_whitespace().find_map(|word| word.strip_prefix(name)).expect(&ready))
    };
    let broker = Service::at(address("grpc="), address("http="), database);
    let good = issuers.token("ann", "enqueue:t");
    let bad = issuers.other.token(&claims("ann", "enqueue:t"));
    let expired = issuers.keys[1].token(&with("exp", json!(1)));
    broker.with_token(&good).enqueue("t").await;
    refusal(&broker, &bad).await;
    refusal(&broker, &expired).await;
    let pid = rustix::process::Pid::from_raw(program.id().expect("it runs") as i32).expect("pid");
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("kill");
    with_timeout("the end of the program", program.wait()).await.expect("wait");
    let log = with_timeout("the log", reading).await.expect("no panic");
    assert!(log.lines().any(|line| line.contains("TRACE")), "the broker does not log at trace level");
    for token in [good, bad, expired] {
        let parts: Vec<&str> = token.split('.').collect();
        // The header is the same for all tokens of a key, so only the other parts of a token are secret.
        for secret in &parts[1..] {
            assert_eq!(log.lines().find(|line| line.contains(secret)), None, "a token is in the log");
        }
    }
}
