use std::time::Duration;

use tokio_postgres::config::{Host, SslMode, SslNegotiation};

use super::{
    dsn::{Dsn, TlsVersion, Verify},
    libpq::LibpqEnvironment,
};

fn parsed(text: &str) -> Dsn {
    parsed_in(text, &LibpqEnvironment::default())
}

fn parsed_in(text: &str, environment: &LibpqEnvironment) -> Dsn {
    Dsn::parse_in(text, environment, false).unwrap_or_else(|error| panic!("{text}: {error}"))
}

#[test]
fn several_hosts_may_stand_in_the_options_of_a_url() {
    let dsn = parsed("postgres://u@/app?host=%2Frun%2Fa,/run/b,c.example&port=5432,5433,5434");
    let unix = |path: &str| Host::Unix(path.into());
    assert_eq!(dsn.config.get_hosts(), [unix("/run/a"), unix("/run/b"), Host::Tcp("c.example".into())]);
    assert_eq!(dsn.config.get_ports(), [5432, 5433, 5434]);
}

#[test]
fn each_server_of_several_has_a_connection_string_that_differs_in_nothing_else() {
    let options = "user=u password=p dbname=d options='-c a=b' application_name=n connect_timeout=7 \
                   channel_binding=require sslmode=verify-full";
    let each = parsed(&format!("host=a,/run/b port=1,2 {options}")).each_host().unwrap();
    let [a, b] = &each[..] else { panic!("{}", each.len()) };
    for (one, text) in [(a, format!("host=a port=1 {options}")), (b, format!("host=/run/b port=2 {options}"))] {
        assert_eq!((&one.config, one.verify), (&parsed(&text).each_host().unwrap()[0].config, Verify::Full));
    }
    assert_eq!((a.server(), b.server()), ("a:1".into(), "/run/b".into()));
    let of = |text: &str| parsed(text).each_host().unwrap().iter().map(Dsn::server).collect::<Vec<_>>();
    assert_eq!(of("postgres://a,b:7/d"), ["a:5432", "b:7"]);
    assert_eq!(of("host=a,b port=9"), ["a:9", "b:9"]);
    assert_eq!(of("hostaddr=10.0.0.1,10.0.0.2"), ["10.0.0.1:5432", "10.0.0.2:5432"]);
    assert_eq!(of("postgres://h/d"), ["h:5432"]);
}

#[test]
fn a_list_of_urls_is_refused() {
    for text in ["postgres://a/x,postgres://b/y", "postgres://a,postgresql://b/y"] {
        assert!(Dsn::parse(text).is_err_and(|error| error.contains("one database")), "{text}");
    }
    assert_eq!(parsed("postgres://a,b/x").config.get_hosts().len(), 2);
}

#[test]
fn libpq_tls_options_are_understood_in_a_url() {
    let dsn =
        parsed("postgres://u:p%40@db.example:5433/app?sslmode=verify-full&sslrootcert=%2Fca.pem&gssencmode=disable");
    assert_eq!(dsn.verify, Verify::Full);
    assert_eq!(dsn.root_cert, Some("/ca.pem".into()));
    assert_eq!(dsn.config.get_ssl_mode(), SslMode::Require);
    assert_eq!(dsn.config.get_password(), Some("p@".as_bytes()));
    assert_eq!(dsn.config.get_hosts(), [Host::Tcp("db.example".into())]);
}

#[test]
fn libpq_tls_options_are_understood_in_pairs() {
    let dsn = parsed("host = h dbname=a sslmode = 'verify-ca' password='a b' sslrootcert=/x");
    assert_eq!(dsn.verify, Verify::Authority);
    assert_eq!(dsn.config.get_password(), Some("a b".as_bytes()));
    assert_eq!(dsn.config.get_dbname(), Some("a"));
}

#[test]
fn sslrootcert_system_requires_verify_full() {
    for text in ["postgres://h/d?sslrootcert=system", "host=h sslmode=verify-full sslrootcert=system"] {
        let dsn = parsed(text);
        assert_eq!((dsn.verify, dsn.config.get_ssl_mode()), (Verify::Full, SslMode::Require), "{text}");
        assert_eq!(dsn.root_cert, None);
    }
    for mode in ["disable", "allow", "prefer", "require", "verify-ca"] {
        let error = Dsn::parse_in(
            &format!("postgres://u:s3cret@h/d?sslmode={mode}&sslrootcert=system"),
            &LibpqEnvironment::default(),
            false,
        )
        .err();
        let error = error.unwrap_or_default();
        assert!(error.contains(mode) && error.contains("verify-full") && !error.contains("s3cret"), "{mode}: {error}");
    }
}

#[test]
fn an_unknown_mode_or_option_is_refused_without_the_password() {
    for text in ["postgres://u:s3cret@h/d?sslmode=maybe", "postgres://u:s3cret@h/d?nonsense=1"] {
        let error = Dsn::parse(text).err().unwrap_or_default();
        assert!(!error.is_empty() && !error.contains("s3cret"), "{error}");
    }
}

#[test]
fn a_socket_directory_can_be_given() {
    let dsn = parsed("postgres://howdah@/db?host=%2Ftmp%2Fx");
    assert_eq!(dsn.config.get_hosts(), [Host::Unix("/tmp/x".into())]);
}

#[test]
fn parameters_missing_in_the_url_come_from_the_variables_of_libpq() {
    let variables = [
        ("PGHOST", "db"),
        ("PGPORT", "7"),
        ("PGUSER", "u"),
        ("PGPASSWORD", "p"),
        ("PGDATABASE", "d"),
        ("PGSSLMODE", "require"),
        ("PGAPPNAME", "a"),
        ("PGSSLMINPROTOCOLVERSION", "TLSv1.3"),
        ("HOME", "/nowhere"),
    ];
    let environment = LibpqEnvironment::from_iter(variables);
    let dsn = parsed_in("postgres://", &environment);
    let (config, server) = (&dsn.config, dsn.server());
    assert_eq!(
        (config.get_user(), config.get_password(), config.get_dbname()),
        (Some("u"), Some("p".as_bytes()), Some("d"))
    );
    assert_eq!(
        (server.as_str(), config.get_ssl_mode(), config.get_application_name()),
        ("db:7", SslMode::Require, Some("a"))
    );
    assert_eq!(dsn.tls_versions, (TlsVersion::V13, TlsVersion::V13));
    let dsn = parsed_in("postgres://me:mine@h:1/e?sslmode=disable", &environment);
    assert_eq!(
        (dsn.server().as_str(), dsn.config.get_user(), dsn.config.get_ssl_mode()),
        ("h:1", Some("me"), SslMode::Disable)
    );
    let refused = Dsn::parse_in("postgres://h/d", &LibpqEnvironment::from_iter([("PGSERVICE", "x")]), false).err();
    assert!(refused.is_some_and(|error| error.contains("PGSERVICE")));
}

#[test]
fn every_option_of_libpq_is_obeyed_or_refused_by_its_name() {
    let dsn = parsed(
        "host=h keepalives_idle=60 keepalives_interval=9 keepalives_count=8 tcp_user_timeout=1000 connect_timeout=20 \
                      sslsni=0 ssl_max_protocol_version=TLSv1.2 sslcrl=/x fallback_application_name=f keepalives=0 gssencmode=disable \
                      client_encoding=UTF8 load_balance_hosts=random sslcompression=0 target_session_attrs=primary",
    );
    let config = &dsn.config;
    assert_eq!(
        (config.get_keepalives_idle(), config.get_keepalives_retries(), config.get_keepalives()),
        (Duration::from_secs(60), Some(8), false)
    );
    assert_eq!(config.get_tcp_user_timeout(), Some(&Duration::from_secs(1)));
    assert_eq!(config.get_connect_timeout(), Some(&Duration::from_secs(20)));
    assert_eq!(
        (dsn.sends_name, dsn.tls_versions.1, config.get_application_name()),
        (false, TlsVersion::V12, Some("f"))
    );
    let refused = [
        "sslpassword=x",
        "sslcrldir=/x",
        "requirepeer=u",
        "require_auth=scram-sha-256",
        "service=s",
        "gssencmode=require",
        "krbsrvname=k",
        "sslcertmode=require",
        "client_encoding=LATIN1",
        "sslcompression=1",
        "target_session_attrs=standby",
        "ssl_max_protocol_version=TLSv1.1",
        "sslnegotiation=direct",
        "sslnegotiation=later",
        "replication=database",
        "channel_binding=maybe",
        "keepalives_idle=soon",
        "hostaddr=h",
        "port=0",
        "port=1,2",
        "sslcert=/x",
        "sslkeylogfile=/x",
    ];
    for option in refused {
        let (name, _) = option.split_once('=').unwrap();
        let error =
            Dsn::parse_in(&format!("host=h {option}"), &LibpqEnvironment::default(), false).err().unwrap_or_default();
        assert!(error.contains(name), "{option}: {error}");
    }
    assert_eq!(
        parsed("host=h sslnegotiation=direct sslmode=require").config.get_ssl_negotiation(),
        SslNegotiation::Direct
    );
}

#[test]
fn a_unix_socket_uses_no_tls_whatever_sslmode_says() {
    let each = parsed("host=/run/a,b sslmode=verify-full").each_host().unwrap();
    let modes: Vec<SslMode> = each.iter().map(|dsn| dsn.config.get_ssl_mode()).collect();
    assert_eq!(modes, [SslMode::Disable, SslMode::Require]);
}
