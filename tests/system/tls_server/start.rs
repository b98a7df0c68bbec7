//! Tests the checks of TLS settings at the start of a broker.

use super::*;

/// Runs `howdah serve` with these flags, which must fail, and returns its error.
async fn refused(flags: &[&str]) -> String {
    let args = ["serve", "--database-url", "postgres://nobody@127.0.0.1:1/none", "--log", "off"];
    let (status, _, errors) = run(&[&args, flags].concat(), b"").await;
    assert_eq!(status.code(), Some(2), "{flags:?}: {errors}");
    errors.trim_end().to_owned()
}

#[tokio::test]
async fn an_address_that_others_can_reach_needs_authentication() {
    let authority = Authority::new("own");
    let files = authority.broker("server");
    let problem = "which other machines may reach, and callers are not authenticated: require client certificates (--tls-cert, \
                --tls-key, --tls-client-ca) or tokens (--tls-cert, --tls-key, --auth token), listen on 127.0.0.1, or \
                serve every caller with --insecure";
    let (own, any) = ("127.0.0.1:0", "0.0.0.0:0");
    assert_eq!(refused(&["--listen", any, "--http", own]).await, format!("howdah: listen is {any}, {problem}"));
    assert_eq!(refused(&["--listen", own, "--http", "[::]:0"]).await, format!("howdah: http is [::]:0, {problem}"));
    let tls = ["--tls-cert", files.cert(), "--tls-key", files.key()];
    let only_tls = [&["--listen", any, "--http", own], &tls[..]].concat();
    assert!(refused(&only_tls).await.contains(problem), "TLS alone does not authenticate callers");
    let tokens = refused(&["--listen", own, "--http", any, "--auth", "token"]).await;
    assert!(tokens.starts_with("howdah: http is 0.0.0.0:0, ") && tokens.contains("use TLS (--tls-cert"), "{tokens}");
    let ca = authority.ca().display().to_string();
    let database = database().await;
    let ways = [
        vec!["--insecure"],
        vec!["--auth", "token", "--insecure"],
        [&tls[..], &["--auth", "token"]].concat(),
        [&tls[..], &["--tls-client-ca", &ca]].concat(),
    ];
    for good in &ways {
        let open = ["serve", "--database-url", &database.url, "--listen", any, "--http", any];
        assert!(Program::start(&[&open, &good[..]].concat()).line().await.starts_with("ready grpc=0.0.0.0:"));
    }
}

#[tokio::test]
async fn howdah_dev_refuses_addresses_other_than_loopback() {
    let args = ["dev", "--ephemeral", "--listen", "0.0.0.0:0", "--http", "127.0.0.1:0", "--log", "off"];
    let (status, _, errors) = run(&args, b"").await;
    assert!(status.code() == Some(2) && errors.contains("callers are not authenticated"), "{errors}");
}

#[tokio::test]
async fn serve_refuses_unusable_tls_files_and_names_the_flag() {
    let authority = Authority::new("own");
    let (files, other) = (authority.broker("server"), authority.broker("other"));
    let cases = [
        (vec!["--tls-cert", files.cert()], "howdah: tls_cert and tls_key go together"),
        (vec!["--tls-client-ca", files.cert()], "howdah: tls_client_ca needs tls_cert and tls_key"),
        (
            vec!["--tls-cert", "/no/such.pem", "--tls-key", files.key()],
            "howdah: --tls-cert /no/such.pem: cannot be read",
        ),
        (
            vec!["--tls-cert", files.cert(), "--tls-key", other.key()],
            "does not belong to the certificate of --tls-cert",
        ),
    ];
    for (flags, expected) in cases {
        let error = refused(&[&["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"], &flags[..]].concat()).await;
        assert!(error.contains(expected), "{error}");
    }
}
