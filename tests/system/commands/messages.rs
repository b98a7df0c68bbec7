//! Tests messages for wrong values, unknown task types and empty results.

use super::*;

#[tokio::test]
async fn all_commands_report_a_task_type_that_does_not_exist() {
    let broker = TestBroker::start().await;
    broker.enqueue("there").await;
    let commands: [&[&str]; 21] = [
        &["stats", "TYPE"],
        &["stats", "TYPE", "--json"],
        &["workers", "TYPE"],
        &["errors", "TYPE"],
        &["jobs", "TYPE", "--state", "dead"],
        &["search", "TYPE", "--key", "k"],
        &["search", "TYPE", "--text", "x", "--state", "dead"],
        &["types", "TYPE"],
        &["type", "show", "TYPE"],
        &["limit", "list", "TYPE"],
        &["limit", "pause", "TYPE", "k"],
        &["limit", "resume", "TYPE", "k"],
        &["limit", "unset", "TYPE", "k"],
        &["bulk", "preview", "cancel", "--type", "TYPE", "--state", "dead"],
        &["bulk", "list", "TYPE"],
        &["bulk", "start", "cancel", "--type", "TYPE", "--state", "dead", "--yes"],
        &["cancel", "--type", "TYPE", "--state", "dead"],
        &["discard", "--type", "TYPE"],
        &["retry", "--type", "TYPE"],
        &["retry", "--type", "TYPE", "--error", "x"],
        &["reprioritize", "5", "--type", "TYPE"],
    ];
    for command in commands {
        let args = |name: &'static str| {
            command.iter().map(|word| if *word == "TYPE" { name } else { *word }).collect::<Vec<_>>()
        };
        let (status, _, err) = run(&[&args("nope")[..], &server(&broker)].concat(), b"").await;
        assert!(
            status.code() == Some(1) && err.contains("there is no task type \"nope\""),
            "{command:?}: {status}: {err}"
        );
        // If the task type exists, the commands do not call it missing, even if they find nothing.
        let (_, _, err) = run(&[&args("there")[..], &server(&broker)].concat(), b"").await;
        assert!(!err.contains("no task type"), "{command:?}: {err}");
    }
    let none = broker.count("SELECT count(*) FROM howdah.task_type WHERE name = 'nope'").await;
    assert_eq!(none, 0, "a command created the task type");
    let (_, _, err) = run(&[&["workers", "there"], &server(&broker)[..]].concat(), b"").await;
    assert_eq!(
        err,
        "no connected worker takes jobs of type there: start one with `howdah work there --exec COMMAND`\n"
    );
}

#[tokio::test]
async fn errors_of_the_broker_name_the_flag_and_the_value_as_typed() {
    let broker = TestBroker::start().await;
    broker.enqueue("t").await;
    let cancel = ["bulk", "start", "cancel", "--type", "t", "--yes", "--wait"];
    let id = ok(&[&cancel, &server(&broker)[..]].concat(), b"").await.trim().to_owned();
    for (args, message) in [
        (&["workers", "--stuck-after", "100000d"][..], "--stuck-after is 100000d; 1ms to 30 days is allowed"),
        (&["bulk", "preview", "cancel", "--type", "t", "--to", "b"], "--to is for move only; leave it out"),
        (&["bulk", "preview", "undo", id.as_str(), "--state", "dead"], "--state is not for undo, "),
        (&["type", "set", "t", "--rate", "-7"], "--rate is -7"),
        (&["type", "set", "t", "--retry-initial-delay", "5000d"], "--retry-initial-delay is 5000d; "),
        (&["enqueue", "t", "x", "--delay", "9000d"], "--delay is 9000d; "),
        (&["enqueue", "t", "x", "--tag", "ok", "--tag", ""], "--tag is "),
        (&["search", "t", "--header", "=x", "--state", "dead"], "--header "),
        (&["jobs", "no type"], "TYPE \"no type\" has the character "),
    ] {
        let (status, _, err) = run(&[args, &server(&broker)].concat(), b"").await;
        assert!(err.starts_with(&format!("howdah: {message}")), "{args:?}: {status}: {err}");
    }
    let (status, _, err) = run(&[&["stats", "--since", "10000y"], &server(&broker)[..]].concat(), b"").await;
    assert!(
        status.code() == Some(2) && err.contains("'10000y' for '--since <TIME>': the time must be in the years 1970"),
        "{err}"
    );
}

#[tokio::test]
async fn stats_before_the_retention_prints_a_note_and_limits_without_effect_are_refused() {
    let broker = TestBroker::start().await;
    broker.enqueue("t").await;
    let stats = async |args: &[&str]| run(&[&["stats"], args, &server(&broker)].concat(), b"").await;
    let (_, _, err) = stats(&["--by", "minute", "--since", "200d"]).await;
    assert!(err.contains("statistics by minute are kept for 2 hours"), "{err}");
    let (_, _, err) = stats(&["--since", "91d"]).await;
    assert!(err.contains("kept for 90 days"), "{err}");
    let (_, _, err) = stats(&["--since", "90d"]).await;
    assert!(!err.contains("kept"), "{err}");
    for args in [&["stats", "t", "--limit", "5"][..], &["jobs", "t", "--limit", "0"]] {
        let (status, _, err) = run(&[args, &server(&broker)].concat(), b"").await;
        assert!(status.code() == Some(2) && err.contains("--limit"), "{args:?}: {err}");
    }
}

#[tokio::test]
async fn the_pause_of_a_limit_key_says_what_it_holds_up() {
    let broker = TestBroker::start().await;
    ok(&[&["type", "set", "lim", "--key-max-running", "1"], &server(&broker)[..]].concat(), b"").await;
    for _ in 0..3 {
        broker.enqueue(new_job("lim", "").limit_key("a")).await;
    }
    let pause = async |key: &str| run(&[&["limit", "pause", "lim", key], &server(&broker)[..]].concat(), b"").await.2;
    assert_eq!(pause("mistyped").await, "limit key \"mistyped\" of lim is paused: no job has this key now\n");
    let message = pause("a").await;
    assert!(message.starts_with("limit key \"a\" of lim is paused: ") && message.ends_with(" running\n"), "{message}");
    let (status, _, err) = run(&[&["cancel", "999999"], &server(&broker)[..]].concat(), b"").await;
    assert!(status.code() == Some(1) && err.ends_with("howdah: 1 job was not cancelled\n"), "{err}");
}

#[tokio::test]
async fn the_limit_of_a_limit_key_is_set_listed_and_removed() {
    let broker = TestBroker::start().await;
    let limit = async |args: &[&str]| ok(&[&["limit"], args, &server(&broker)[..]].concat(), b"").await;
    limit(&["set", "lim", "a", "--max-running", "3"]).await;
    // With two stores, the line also names the store.
    let listed = limit(&["list", "lim"]).await;
    assert!(listed.starts_with("a: 0 waiting, 0 running, limit 3") && listed.lines().count() == 1, "{listed}");
    limit(&["unset", "lim", "a"]).await;
    assert_eq!(limit(&["list", "lim"]).await, "");
    for args in [&["limit", "set", "lim", "a"][..], &["limit", "set", "lim", "a", "--max-running", "0"]] {
        let (status, _, err) = run(&[args, &server(&broker)].concat(), b"").await;
        assert!(status.code() == Some(2) && err.contains("--max-running"), "{args:?}: {err}");
    }
}
