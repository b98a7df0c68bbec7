//! Tests the command `howdah bulk`.

use super::*;

#[derive(Debug)]
struct Came {
    code: i32,
    stdout: String,
    stderr: String,
}

#[tokio::test]
async fn the_commands_preview_start_follow_pause_resume_cancel_and_list() {
    let broker = TestBroker::start().await;
    let server = ["--server", broker.grpc.as_str()];
    let howdah = async |args: &[&str]| {
        let (status, stdout, stderr) = run(&[&server[..], &["bulk"], args].concat(), b"").await;
        Came { code: status.code().expect("no signal"), stdout, stderr }
    };
    dead(&broker, "c", &["no host 1", "no host 2"]).await;

    let preview = howdah(&["preview", "retry", "--type", "c", "--error", "no host 7"]).await;
    assert!(preview.stdout.starts_with("retry c, error \"no host 7\": 2 jobs\n"), "{preview:?}");
    assert_eq!(preview.stdout.matches(" dead, attempt 1 of 1, priority 0: no host").count(), 2, "{preview:?}");

    // Standard input is not a terminal, so the command cannot ask for confirmation.
    let unasked = howdah(&["start", "retry", "--type", "c"]).await;
    assert_eq!(unasked.code, 2, "{unasked:?}");
    assert!(unasked.stderr.contains("--yes"), "{unasked:?}");
    assert_eq!(broker.count("SELECT count(*) FROM howdah.dead").await, 2);

    let started = howdah(&["start", "retry", "--type", "c", "--yes", "--wait", "--reason", "ticket 1"]).await;
    assert_eq!(started.code, 0, "{started:?}");
    assert!(started.stderr.contains("is completed: 2 of 2 jobs done"), "{started:?}");
    let id = started.stdout.trim().to_owned();

    let show = howdah(&["show", &id]).await;
    assert!(show.stdout.contains("reason: ticket 1") && show.stdout.contains("what: retry c"), "{show:?}");

    broker.enqueue_all(vec!["c"; 600]).await;
    let started = howdah(&["start", "cancel", "--type", "c", "--rate", "1", "--yes", "--json"]).await;
    let json: serde_json::Value = serde_json::from_str(&started.stdout).expect("JSON");
    let spec = serde_json::json!({"operation": "BULK_OPERATION_CANCEL", "task_type": "c", "max_jobs_per_second": 1});
    assert_eq!(json["spec"], spec);
    broker.begun_bulk(id_of(&json)).await;
    let id = id_of(&json).to_string();
    for (act, state) in [("pause", "paused"), ("resume", "running"), ("cancel", "cancelled")] {
        let acted = howdah(&[act, &id]).await;
        assert!(acted.code == 0 && acted.stderr.contains(&format!(" is {state}: ")), "{acted:?}");
    }
    let mut worker = broker.worker("c").window(2).await;
    worker.take(2).await;
    let preview = howdah(&["preview", "cancel", "--type", "c"]).await;
    assert!(preview.stdout.contains("Of these, 2 run now: their workers are told to stop.\n"), "{preview:?}");
    assert!(preview.stdout.ends_with("Expected duration: less than a second.\n"), "{preview:?}");
    let preview = howdah(&["preview", "retry", "--type", "c"]).await;
    assert!(
        !preview.stdout.contains("run now") && preview.stdout.ends_with("Nothing would be changed.\n"),
        "{preview:?}"
    );
    worker.vanish();
    let waited = howdah(&["show", &id, "--wait"]).await;
    assert_eq!(waited.code, 1, "{waited:?}");
    let preview = howdah(&["preview", "undo", &id]).await;
    assert!(preview.stdout.starts_with(&format!("undo bulk operation {id}: ")), "{preview:?}");
    assert!(preview.stdout.contains("are not undone"), "{preview:?}");
    let undone = howdah(&["start", "undo", &id, "--yes", "--wait"]).await;
    assert!(undone.code == 0 && undone.stderr.contains("is completed"), "{undone:?}");
    let again = howdah(&["preview", "undo", &id]).await;
    assert_eq!(again.stdout, format!("undo bulk operation {id}: 0 jobs\nNothing is left to undo.\n"));
    let again = howdah(&["start", "undo", &id, "--yes"]).await;
    assert!(again.code == 1 && again.stderr.contains("nothing is left to undo of bulk operation"), "{again:?}");
    let shown = howdah(&["show", undone.stdout.trim()]).await;
    assert!(shown.stdout.contains(&format!("what: undo bulk operation {id}, c\n")), "{shown:?}");
    for wrong in [
        &["start", "undo", "--yes"][..],
        &["start", "undo", &id, "--type", "c", "--yes"],
        &["start", "cancel", "--yes"],
    ] {
        assert_eq!(howdah(wrong).await.code, 2, "{wrong:?}");
    }
    let list = howdah(&["list", "c"]).await;
    let lines: Vec<&str> = list.stdout.lines().collect();
    assert!(lines.len() == 4 && lines[2].contains("cancelled") && lines[3].contains("completed"), "{list:?}");
    assert_eq!(howdah(&["start", "reprioritize", "--type", "c", "--yes"]).await.code, 2, "no priority");
}

#[tokio::test]
async fn the_commands_move_jobs_and_set_their_fields() {
    let broker = TestBroker::start().await;
    let server = ["--server", broker.grpc.as_str()];
    let howdah = async |args: &[&str]| {
        let (status, stdout, stderr) = run(&[&server[..], &["bulk"], args].concat(), b"").await;
        Came { code: status.code().expect("no signal"), stdout, stderr }
    };
    let ids = broker.enqueue_all(vec!["c"; 2]).await;
    let preview = howdah(&["preview", "move", "--type", "c", "--to", "d"]).await;
    assert!(preview.stdout.starts_with("move c to d: 2 jobs\n") && preview.stdout.contains("Skipped: "), "{preview:?}");
    assert!(preview.stdout.contains("The task type d does not exist yet, and is created.\n"), "{preview:?}");
    let moved = howdah(&["start", "move", "--type", "c", "--to", "d", "--yes", "--wait"]).await;
    assert!(moved.code == 0 && moved.stderr.contains("is completed: 2 of 2 jobs done"), "{moved:?}");
    let fields = ["--max-attempts", "20", "--timeout", "90s", "--delay", "2h", "--add-tag", "x", "--remove-tag=-y"];
    let preview = howdah(&[&["preview", "set", "--type", "d"][..], &fields].concat()).await;
    let expected = "set d, max attempts 20, timeout 1m 30s, start in 2h, with tag x, without tag -y: 2 jobs\n";
    assert!(preview.stdout.starts_with(expected), "{preview:?}");
    let set = howdah(&[&["start", "set", "--type", "d", "--yes", "--wait", "--json"][..], &fields].concat()).await;
    let json: serde_json::Value = serde_json::from_str(&set.stdout).expect("JSON");
    let fields = &json["spec"]["fields"];
    assert_eq!((&json["done_count"], &fields["timeout"]), (&"2".into(), &"90s".into()), "{set:?}");
    assert!(fields["run_at"].is_string() && fields["delay"].is_null(), "{set:?}");
    let job = broker.job(ids[0]).await;
    assert_eq!((job.state(), &*job.task_type, job.max_attempts), (JobState::Scheduled, "d", 20));
    for wrong in [
        &["start", "move", "--type", "d", "--yes"][..],
        &["start", "set", "--type", "d", "--yes"],
        &["start", "cancel", "--type", "d", "--max-attempts", "3", "--yes"],
        &["start", "set", "--type", "d", "--delay", "1h", "--run-at", "2030-01-01T00:00:00Z", "--yes"],
        &["start", "set", "--type", "d", "--max-attempts", "1001", "--yes"],
    ] {
        assert_eq!(howdah(wrong).await.code, 2, "{wrong:?}");
    }
}
