//! Client certificates.

use howdah_client::{NewJob, proto::ListJobsRequest};

use super::*;

/// Starts a broker that accepts only clients of this authority, except for the revoked serial number 666.
async fn guarded(authority: &Authority) -> TestBroker {
    let (ca, crl) = (authority.ca(), authority.revocations(&[666]));
    broker_with(&authority.broker("server"), |config| {
        config.tls.client_ca = Some(ca);
        config.tls.client_crl = Some(crl);
    })
    .await
}

/// Enqueues a job as a client with these TLS options. Returns the error if enqueueing fails.
async fn try_connect(broker: &Service, tls: Tls) -> Result<(), String> {
    let client = connect(broker, tls).await.map_err(|error| error.to_string())?;
    client.enqueue(NewJob::new("t")).await.map(drop).map_err(|error| error.to_string())
}

#[tokio::test]
async fn only_clients_with_a_good_certificate_get_in_and_the_others_learn_why_not() {
    let (authority, foreign) = (Authority::new("own"), Authority::new("foreign"));
    let broker = guarded(&authority).await;
    let show = |files: &Files| with_certificate(&authority, files);
    assert_eq!(try_connect(&broker, show(&authority.client("spiffe://example.org/mailer"))).await, Ok(()));
    let cases = [
        (trust(&authority), "the broker asks for a client certificate, and none was shown"),
        (
            show(&foreign.client("urn:foreign")),
            "the broker refused the client certificate: none of its authorities has signed it",
        ),
        (show(&authority.expired_client()), "the broker refused the client certificate: it has expired"),
        (show(&authority.revoked_client(666)), "the broker refused the client certificate: it is revoked"),
    ];
    for (tls, why) in cases {
        assert_eq!(try_connect(&broker, tls).await, Err(format!("{}: {why}", https(&broker))));
    }
    assert_eq!(
        try_connect(&broker, show(&authority.revoked_client(667))).await,
        Ok(()),
        "a certificate that is not revoked"
    );
    assert_eq!(broker.count("SELECT count(*) FROM howdah.ready").await, 2);
}

#[tokio::test]
async fn a_certificate_without_a_name_is_refused() {
    let authority = Authority::new("own");
    let broker = guarded(&authority).await;
    let nameless = authority.client_with("urn:nameless", |params| params.subject_alt_names.clear());
    let config = raw::config(&authority, Some("h2"), Some(&nameless));
    // For the client, the handshake may be complete before the broker has checked the client's certificate.
    if let Ok(mut stream) = raw::connect(broker.address(), config).await {
        raw::until_closed(&mut stream).await;
    }
    let named = raw::config(&authority, Some("http/1.1"), Some(&authority.client("urn:named")));
    let http = broker.http.trim_start_matches("http://");
    let counted = "howdah_tls_handshake_failures_total{reason=\"client_certificate\"} 1";
    eventually(counted, async || {
        stores::own_metrics(&raw::get(http, "/metrics", named.clone()).await).contains(counted)
    })
    .await;
}

#[tokio::test]
async fn probes_need_no_certificate_and_everything_else_on_the_http_port_does() {
    let authority = Authority::new("own");
    let broker = guarded(&authority).await;
    let http = broker.http.trim_start_matches("http://");
    let (nobody, client) = (
        raw::config(&authority, Some("http/1.1"), None),
        raw::config(&authority, Some("http/1.1"), Some(&authority.client("urn:scraper"))),
    );
    for path in ["/healthz", "/readyz"] {
        assert!(raw::get(http, path, nobody.clone()).await.starts_with("HTTP/1.1 200"), "{path}");
    }
    for path in ["/metrics", "/v1/jobs", "/no/such"] {
        assert!(raw::get(http, path, nobody.clone()).await.starts_with("HTTP/1.1 403"), "{path}");
    }
    assert!(raw::get(http, "/metrics", client).await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn a_ticket_of_the_http_port_does_not_open_the_grpc_port() {
    let authority = Authority::new("own");
    let broker = guarded(&authority).await;
    // Both connections use the same TLS session store and server name, so the second connection offers the session ticket of
    // the first.
    let mut config = (*raw::config(&authority, Some("http/1.1"), None)).clone();
    let http = broker.http.trim_start_matches("http://");
    assert!(raw::get(http, "/healthz", config.clone().into()).await.starts_with("HTTP/1.1 200"));
    config.alpn_protocols = vec![b"h2".to_vec()];
    if let Ok(mut stream) = raw::connect(broker.address(), config.into()).await {
        raw::until_closed(&mut stream).await;
    }
    let error = try_connect(&broker, trust(&authority)).await.expect_err("no certificate");
    assert!(error.ends_with("none was shown"), "{error}");
}

#[tokio::test]
async fn without_tokens_a_certificate_is_the_principal_of_request_keys() {
    let authority = Authority::new("own");
    let broker = guarded(&authority).await;
    let (shop, blog) = (authority.client("spiffe://example.org/shop"), authority.client("spiffe://example.org/blog"));
    let id = async |files: &Files| {
        let client = connect(&broker, with_certificate(&authority, files)).await.expect("a connection");
        client.enqueue_all_with_key([NewJob::new("t")], "k").await.expect("a job")[0].id
    };
    let first = id(&shop).await;
    assert_eq!(id(&shop).await, first, "the same request of the same principal");
    assert_ne!(id(&blog).await, first, "the same request key of another principal");
    let renewed = authority.client_with("spiffe://example.org/shop", |_| {});
    assert_eq!(id(&renewed).await, first, "a renewed certificate of the same principal");
}

#[tokio::test]
async fn one_client_certificate_has_at_most_its_share_of_the_connections() {
    let authority = Authority::new("own");
    let (ca, files) = (authority.ca(), authority.broker("server"));
    let broker = broker_with(&files, |config| {
        config.tls.client_ca = Some(ca);
        config.limits.principal_connections = Some(1);
    })
    .await;
    let (shop, blog) = (authority.client("urn:shop"), authority.client("urn:blog"));
    let shop = with_certificate(&authority, &shop);
    let open = connect(&broker, shop.clone()).await.expect("a connection");
    open.enqueue(NewJob::new("t")).await.expect("a job");
    let second = connect(&broker, shop).await.expect("a connection");
    // Calls the generated stub, because the client library would repeat a refused call.
    let list = second.jobs().list_jobs(ListJobsRequest::default()).await;
    let refused = list.expect_err("a second connection");
    assert!(refused.message().contains("limits.principal_connections"), "{refused}");
    assert_eq!(
        try_connect(&broker, with_certificate(&authority, &blog)).await,
        Ok(()),
        "a connection of another principal"
    );
}
