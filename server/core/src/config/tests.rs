mod stores;

use std::{io::Write as _, path::PathBuf, time::Duration};

use super::{settings::ALL, *};
use crate::job::ClusterSettings;

fn flag(flag: &str, key: &str, value: &str) -> Flag {
    Flag { flag: flag.into(), key: key.into(), value: value.into() }
}

fn file(text: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

fn loaded(text: &str, variables: &[(&str, &str)], flags: Vec<Flag>) -> Result<Settings, String> {
    let file = file(text);
    load(Some(file.path().into()), &environment(variables), flags)
        .map_err(|error| error.to_string().replace(&file.path().display().to_string(), "FILE"))
}

fn environment(variables: &[(&str, &str)]) -> Environment {
    variables.iter().copied().collect()
}

fn error(text: &str, variables: &[(&str, &str)], flags: Vec<Flag>) -> String {
    let error = loaded(text, variables, flags).err().expect("it was accepted");
    assert!(!error.contains('\n'), "{error:?}");
    error
}

#[test]
fn flags_override_variables_variables_the_file_and_the_file_the_defaults() {
    let text = "pool_size = 11\nhistory_days = 12\nmax_attempts = 13\n[limits]\nconnections = 14";
    let variables = [("HOWDAH_POOL_SIZE", "21"), ("HOWDAH_HISTORY_DAYS", "22")];
    let settings = loaded(text, &variables, vec![flag("--pool-size", "pool_size", "31")]).unwrap();
    let broker = &settings.broker;
    assert_eq!((broker.pool_size, broker.history_days, broker.max_attempts), (31, 22, 13));
    assert_eq!(broker.limits.connections, 14);
    assert_eq!(broker.schema, "howdah");
}

#[test]
fn the_later_of_two_flags_wins() {
    let flags = vec![flag("--set schema", "schema", "a"), flag("--schema", "schema", "b")];
    assert_eq!(loaded("", &[], flags).unwrap().broker.schema, "b");
}

#[test]
fn without_any_source_the_defaults_hold_and_are_consistent() {
    let settings = load(None, &Environment::default(), Vec::new()).unwrap();
    let default = Config::new("");
    assert_eq!(settings.broker.limits, default.limits);
    assert_eq!(settings.broker.listen, default.listen);
    assert_eq!(settings.broker.database_url, "");
}

#[test]
fn the_file_may_be_named_by_a_variable() {
    let file = file("schema = \"jobs\"");
    let variables = [("HOWDAH_CONFIG", file.path().to_str().unwrap())];
    assert_eq!(load(None, &environment(&variables), Vec::new()).unwrap().broker.schema, "jobs");
}

#[test]
fn an_empty_variable_is_not_set_and_an_unknown_one_is_not_ours() {
    // For a service named `howdah`, Kubernetes sets the variable HOWDAH_PORT in every pod.
    let variables = [("HOWDAH_SCHEMA", ""), ("HOWDAH_PORT", "tcp://10.0.0.1:7432")];
    assert_eq!(loaded("schema = \"jobs\"", &variables, vec![]).unwrap().broker.schema, "jobs");
}

#[test]
fn a_secret_may_be_in_a_file_that_a_variable_names() {
    let secret = file("postgres://u:s3cret@h/d\n");
    let path = secret.path().to_str().unwrap();
    let settings = loaded("", &[("HOWDAH_DATABASE_URL_FILE", path)], vec![]).unwrap();
    assert_eq!(settings.broker.database_url, "postgres://u:s3cret@h/d");
    let both = [("HOWDAH_DATABASE_URL_FILE", path), ("HOWDAH_DATABASE_URL", "postgres://h/d")];
    assert_eq!(
        error("", &both, vec![]),
        "HOWDAH_DATABASE_URL and HOWDAH_DATABASE_URL_FILE are both set; unset one of them"
    );
    let missing = error("", &[("HOWDAH_DATABASE_URL_FILE", "/no/such/file")], vec![]);
    assert!(missing.starts_with("HOWDAH_DATABASE_URL_FILE: /no/such/file: "), "{missing}");
}

#[test]
fn an_invalid_setting_is_reported_with_its_source_and_key() {
    let cases = [
        (
            error("pool_size = 0", &[], vec![]),
            "configuration file FILE: pool_size is \"0\": must be a whole number from 1 to 1000",
        ),
        (
            error("[limits]\nconnections = [1]", &[], vec![]),
            "configuration file FILE: limits.connections must be a single value",
        ),
        (error("limits = 3", &[], vec![]), "configuration file FILE: limits is a table: write [limits]"),
        (
            error("pool_sise = 3", &[], vec![]),
            "configuration file FILE: unknown key \"pool_sise\"; did you mean pool_size?",
        ),
        (
            error("[retry]\ncolour = 3", &[], vec![]),
            "configuration file FILE: unknown key \"retry.colour\"; `howdah config` lists every key",
        ),
        (error("", &[("HOWDAH_WAKE", "sometimes")], vec![]), "HOWDAH_WAKE is \"sometimes\": must be listen or poll"),
        (
            error("", &[], vec![flag("--listen", "listen", "7432")]),
            "--listen is \"7432\": must be an IP address and a port, such as 127.0.0.1:7432, [::1]:7432 or 0.0.0.0:0",
        ),
        (
            error("", &[], vec![flag("--set x", "x", "1")]),
            "--set x: unknown key \"x\"; `howdah config` lists every key",
        ),
        (
            error("poll_interval = 5", &[], vec![]),
            "configuration file FILE: poll_interval is \"5\": must be a duration with its unit, such as 500ms, 15s or 5m, from 10ms to 1h",
        ),
        (
            error("log = \"inof\"", &[], vec![]),
            "configuration file FILE: log is \"inof\": must be off, error, warn, info, debug or trace, or target=level pairs separated by commas",
        ),
    ];
    for (said, expected) in cases {
        assert_eq!(said, expected);
    }
}

#[test]
fn a_limit_of_the_cluster_is_refused_with_what_to_do_wherever_it_is_set() {
    let hint = |name: &str| {
        format!(
            "limits.{name} is a setting of the cluster now, not of a broker; set it with `howdah settings set {name}=...`"
        )
    };
    for name in ClusterSettings::NAMES {
        let in_file = error(&format!("[limits]\n{name} = 5000"), &[], vec![]);
        assert_eq!(in_file, format!("configuration file FILE: {}", hint(name)));
        let key = format!("limits.{name}");
        let by_flag = error("", &[], vec![flag(&format!("--set {key}"), &key, "5000")]);
        assert_eq!(by_flag, format!("--set {key}: {}", hint(name)));
        let variable = format!("HOWDAH_LIMITS_{}", name.to_ascii_uppercase());
        assert_eq!(error("", &[(&variable, "5000")], vec![]), format!("{variable}: {}", hint(name)));
    }
}

#[test]
fn a_broker_whose_limits_are_too_small_for_the_cluster_is_told_which_and_how_large_they_must_be() {
    let (limits, mut cluster) = (Limits::default(), ClusterSettings::DEFAULT);
    assert_eq!(too_small_for(&limits, &cluster), [""; 0]);
    cluster.payload_bytes = 16 << 20;
    let [problem] = &too_small_for(&limits, &cluster)[..] else { panic!("{limits:?}") };
    assert!(
        problem.starts_with(
            "limits.message_bytes of this broker (16 MiB) is too small for payload_bytes (16 MiB) and header_bytes (8 KiB)"
        ) && problem.ends_with("Set limits.message_bytes to 16396 KiB or more"),
        "{problem}"
    );
    let small = Limits { message_bytes: 32 << 20, window_bytes: 1 << 20, ..limits };
    let [problem] = &too_small_for(&small, &cluster)[..] else { panic!("{small:?}") };
    assert!(problem.starts_with("limits.window_bytes of this broker (1 MiB)"), "{problem}");
}

#[test]
fn settings_that_contradict_each_other_are_refused() {
    let cases = [
        ("renew_interval = '8s'", "renew_interval"),
        ("[limits]\ngathered_bytes = '1 MiB'", "limits.gathered_bytes"),
        ("[retry]\ninitial = '2h'", "retry.initial"),
        ("http = '127.0.0.1:7432'", "listen and http"),
        ("tls_cert = 'a.pem'", "tls_cert and tls_key"),
        ("tls_key = 'a.key'", "tls_cert and tls_key"),
        ("tls_client_ca = 'ca.pem'", "tls_client_ca needs tls_cert"),
        ("tls_cert = 'a.pem'\ntls_key = 'a.key'\ntls_client_crl = 'crl.pem'", "tls_client_crl needs tls_client_ca"),
        ("auth = 'jwt'", "auth jwt needs auth_jwt_file"),
        ("auth = 'token,jwt'", "auth jwt needs auth_jwt_file"),
    ];
    for (text, begin) in cases {
        let error = error(text, &[], vec![]);
        assert!(error.starts_with(begin), "{error}");
    }
    assert!(loaded("listen = '127.0.0.1:0'\nhttp = '127.0.0.1:0'", &[], vec![]).is_ok());
}

#[test]
fn an_address_other_than_loopback_needs_authentication_with_tls_or_insecure() {
    let of = |listen: &str, more: &str| {
        let text = format!("listen = '{listen}:7432'\nhttp = '127.0.0.1:0'\n{more}");
        check_addresses(&loaded(&text, &[], vec![]).unwrap().broker)
    };
    let clients = "tls_cert = 'a.pem'\ntls_key = 'a.key'\ntls_client_ca = 'ca.pem'";
    for own in ["127.0.0.1", "127.8.8.8", "[::1]", "[::ffff:127.0.0.1]"] {
        assert_eq!(of(own, ""), Ok(()), "{own}");
    }
    for open in ["0.0.0.0", "[::]", "10.0.0.1", "[fe80::1]", "[::ffff:10.0.0.1]"] {
        assert!(of(open, "").is_err_and(|why| why.starts_with("listen is ") && why.contains("--insecure")), "{open}");
        assert!(of(open, "tls_cert = 'a.pem'\ntls_key = 'a.key'").is_err(), "TLS alone does not authenticate callers");
        let plain = of(open, "auth = 'token'");
        assert!(plain.is_err_and(|why| why.contains("tokens in plain text") && why.contains("--tls-cert")), "{open}");
        let tokens = "auth = 'token'\ntls_cert = 'a.pem'\ntls_key = 'a.key'";
        let jwt = "auth = 'jwt'\nauth_jwt_file = 'i.toml'";
        assert!(of(open, jwt).is_err_and(|why| why.contains("tokens in plain text")), "{open}");
        let others = format!("{jwt}\ntls_cert = 'a.pem'\ntls_key = 'a.key'");
        for good in ["insecure = true", "auth = 'token'\ninsecure = true", tokens, &others, clients] {
            assert_eq!(of(open, good), Ok(()), "{open} {good}");
        }
    }
}

#[test]
fn broken_toml_is_told_with_its_line_and_without_its_text() {
    let error = error("schema = \"a\"\ndatabase_url = \"postgres://u:s3cret@h/d\nx = 1", &[], vec![]);
    assert!(error.starts_with("configuration file FILE: line 2"), "{error}");
    assert!(!error.contains("s3cret"), "{error}");
}

#[test]
fn a_missing_file_is_named() {
    let error = load(Some(PathBuf::from("/no/such.toml")), &Environment::default(), Vec::new()).err().unwrap();
    assert!(error.to_string().starts_with("configuration file /no/such.toml: "), "{error}");
}

#[test]
fn no_error_repeats_a_database_url() {
    let urls = [
        "mysql://u:s3cret@h/d",
        "postgres://u:s3cret@h:99999/d",
        "postgres://u:s3cret@h/d?nonsense=1",
        "postgres://u:s3cret@ss@h/d",
        "postgres://u:s3cret/x@h/d",
        "host=h password=s3cret port=x",
        "host=h password='s3cret",
        "s3cret",
        "postgres://u:s3cret\n@h/d",
    ];
    for url in urls {
        let said = error("", &[("HOWDAH_DATABASE_URL", url)], vec![]);
        assert!(said.starts_with("HOWDAH_DATABASE_URL: "), "{said}");
        assert!(!said.contains("s3cret") && !said.contains("ss@"), "{said}");
    }
}

#[test]
fn database_urls_of_every_form_are_accepted() {
    let urls = [
        "postgres://h/d",
        "postgresql://u:p%40ss@h1:5432,h2:5433/d?sslmode=verify-full&application_name=a@b",
        "postgres://howdah@/db?host=%2Ftmp%2Fx",
        "host=/run/postgresql user=u password='a b' dbname=d",
    ];
    for url in urls {
        let settings = loaded("", &[("HOWDAH_DATABASE_URL", url)], vec![]);
        assert_eq!(settings.map(|settings| settings.broker.database_url), Ok(url.to_owned()));
    }
}

#[test]
fn a_shown_url_has_no_password() {
    let cases = [
        ("postgres://u:s3cret@h:1/d", "postgres://u:***@h:1/d"),
        (
            "postgres://u@h/d?password=s3cret&sslpassword=s3cret&x=1",
            "postgres://u@h/d?password=***&sslpassword=***&x=1",
        ),
        ("postgres://u:s3c@ret@h/d", "postgres://u:***@h/d"),
        ("postgres://u:s3c/re#t@h/d", "postgres://u:***@h/d"),
        ("postgres://u:p@h/d?options=a@b", "postgres://u:***@h/d?options=a@b"),
        // The driver takes all text before the first @ as user and password.
        ("postgres://u?x=1:s3cret@h/d", "postgres://***"),
        ("postgres://u?x=1@h?password=s3cr?et&y=2", "postgres://u?x=1@h?password=***&y=2"),
        ("postgres://u:a?b@?host=x@y&password=s3cret", "postgres://***"),
        ("postgres:///a:b?host=x@y@z&password=s3cret", "postgres://***"),
        ("postgres://u@h/d?p%61ssword=s3cret", "postgres://u@h/d?p%61ssword=***"),
        ("postgresql://h", "postgresql://h"),
        ("host=h password = 's3 cret\\'' user='a b'", "host=h password=*** user='a b'"),
        ("password=s3cret", "password=***"),
        ("s3cret", "***"),
        ("host=h password='s3cret", "***"),
        ("postgres://h/d\n\x1b[2J", "postgres://h/d\\n\\u{1b}[2J"),
    ];
    for (url, expected) in cases {
        assert_eq!(redacted(url), expected);
    }
}

#[test]
fn every_setting_is_shown_with_its_meaning_and_reads_back_as_it_was() {
    let text = "listen_database_url = 'host=h'\nwake = 'poll'\nlog = 'info'\nlog_format = 'json'\nname = 'a\"b\\c'\n\
                [retry]\nmultiplier = 1.5\n[limits]\nmessage_bytes = 1_000_001\nfirst_message = '1500ms'";
    let before = loaded(text, &[("HOWDAH_DATABASE_URL", "postgres://h/d")], vec![]).unwrap();
    let shown = as_toml(&before);
    let after = loaded(&shown, &[], vec![]).unwrap();
    assert_eq!(as_toml(&after), shown);
    assert_eq!(after.broker.limits.message_bytes, 1_000_001);
    assert_eq!(after.broker.limits.first_message, Duration::from_millis(1500));
    assert_eq!(after.broker.name, "a\"b\\c");
    for setting in ALL {
        assert!(shown.contains(&format!("[{}]\n", setting.variable())), "{}", setting.key);
    }
}

#[test]
fn a_shown_database_url_has_no_password_and_is_commented_out() {
    let shown = as_toml(&loaded("database_url = 'postgres://u:s3cret@h/d'", &[], vec![]).unwrap());
    assert!(shown.contains("\n# database_url = \"postgres://u:***@h/d\"\n"), "{shown}");
}

#[test]
fn the_defaults_shown_are_a_file_that_is_accepted() {
    let shown = as_toml(&Settings::default());
    assert!(shown.contains("# database_url =\n"), "{shown}");
    assert_eq!(as_toml(&loaded(&shown, &[], vec![]).unwrap()), shown);
}

#[test]
fn sizes_are_written_with_a_unit_or_without() {
    for (text, bytes) in
        [("65536", 65_536), ("64KiB", 65_536), ("2 MiB", 2 << 20), ("1MB", 1_000_000), ("20_000 B", 20_000)]
    {
        let settings = loaded(&format!("[limits]\nmessage_bytes = '{text}'"), &[], vec![]).unwrap();
        assert_eq!(settings.broker.limits.message_bytes, bytes, "{text}");
    }
    for bad in ["-1", "1.5 MiB", "1 TiB", "MiB", "99999999999999999999"] {
        assert!(loaded(&format!("[limits]\nmessage_bytes = '{bad}'"), &[], vec![]).is_err(), "{bad}");
    }
}

#[test]
fn durations_are_written_as_people_do_and_read_back() {
    let day = Duration::from_secs(86_400);
    for (time, text) in [
        (Duration::ZERO, "0s"),
        (Duration::from_millis(500), "500ms"),
        (Duration::from_secs(90), "1m 30s"),
        (day, "1day"),
        (30 * day, "30days"),
        (3_650 * day, "3650days"),
        (day + Duration::from_millis(3_600_001), "1day 1h 1ms"),
    ] {
        assert_eq!(duration_text(time), text);
        assert_eq!(humantime::parse_duration(text).unwrap(), time);
    }
    let settings = load(None, &Environment::default(), Vec::new()).unwrap();
    assert!(as_toml(&settings).contains("poll_interval = \"1s\""));
}
