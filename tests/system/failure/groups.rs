//! Tests error groups: errors that differ only in details belong to one group.

use howdah_proto::v1::{JobState, ListErrorGroupsRequest, ListJobsRequest, RetryJobsRequest};

use super::{add_dead_jobs, of_type, retry};
use crate::support::*;

#[tokio::test]
async fn numbers_ids_and_quoted_texts_do_not_split_a_group_and_words_do() {
    let database = database().await;
    let client = database.connect().await;
    for (error, group) in [
        ("no such host (exit status 3)", "no such host (exit status #)"),
        ("user 42 has no \"order\" at 2026-11-22T06:26:13.123Z", "user # has no \"#\" at #-#-#"),
        ("can't open '/var/x/1.txt' and don't care", "can't open '#' and don't care"),
        ("job 550e8400-e29b-41d4-a716-446655440000 took 1500ms", "job # took #ms"),
        ("at 0xdeadBEEF: hash 1234abcd, commit 3fa9c1d", "at #: hash #, commit #"),
        ("order ab12f9 of usr_42 in utf8", "order # of usr_# in utf#"),
        ("connect 10.0.0.1:5432: refused", "connect #: refused"),
        ("Traceback (most recent call last):\n  File \"x.py\", line 3\nKeyError: 'abc12'\n", "KeyError: '#'"),
        ("Traceback (most recent call last):\n  File \"x.py\", line 3\nKeyError: 'user_id'\n", "KeyError: 'user_id'"),
        ("first line 1\nsecond line", "first line #"),
        ("\r\n  a  lot\tof   room ", "a lot of room"),
        ("never \"ended", "never \"#\""),
        ("Größe 5 für \"Ü\"", "Größe # für \"#\""),
        ("\u{1b}[31mred 7", "\u{1b}[#mred #"),
        ("", "(no error text)"),
        ("   ", "(no error text)"),
        ("#", "#"),
    ] {
        let sql = "SELECT howdah.error_group($1), howdah.error_group(howdah.error_group($1))";
        let row = client.query_one(sql, &[&error]).await.unwrap();
        assert_eq!(row.get::<_, String>(0), group, "{error:?}");
        assert_eq!(row.get::<_, String>(1), group, "the group of a group is the group itself");
    }
    let row = client
        .query_one("SELECT howdah.error_group(NULL), char_length(howdah.error_group(repeat('long ', 9999)))", &[]);
    let row = row.await.unwrap();
    assert_eq!((row.get::<_, String>(0).as_str(), row.get::<_, i32>(1)), ("(no error text)", 299));
}

#[tokio::test]
async fn groups_count_dead_jobs_and_those_that_back_off_and_show_an_example() {
    let (a, b) = TestBroker::pair().await;
    let mut worker = a.worker("mail").await;
    // With a backoff of an hour, failed jobs stay scheduled until the test has checked them, even on a slow machine.
    let job = || new_job("mail", "").retry_after_each(HOUR);
    let ids = a.enqueue_all((0..5).map(|_| job())).await;
    let errors = ["no host 17", "no host 4", "no host 250", "out of paper", "no host 1"];
    for (index, error) in errors.iter().enumerate() {
        let job = worker.next().await;
        // The first two jobs fail for good; the other jobs are in backoff.
        let failed = worker.nack(&job, error);
        if index < 2 { failed.no_retry().await } else { failed.await }
    }
    add_dead_jobs(&a.database, "other", 3, "no host #").await;

    let list = |task_type: &str, page_size| ListErrorGroupsRequest { task_type: task_type.into(), page_size };
    let mut jobs = b.jobs();
    let answer = jobs.list_error_groups(list("mail", 0)).await.unwrap().into_inner();
    assert!(!answer.partial);
    let shown: Vec<_> =
        answer.groups.iter().map(|g| (g.error_group.as_str(), g.dead_count, g.backing_off_count)).collect();
    assert_eq!(shown, [("no host #", 2, 2), ("out of paper", 0, 1)]);
    let first = &answer.groups[0];
    assert_eq!((first.example_job_id, first.example_error.as_str()), (ids[4], "no host 1"));
    assert!(
        first.first_failure_time.unwrap().seconds > 0
            && first.last_failure_time.unwrap().seconds >= first.first_failure_time.unwrap().seconds
    );

    let all = jobs.list_error_groups(list("", 0)).await.unwrap().into_inner().groups;
    let shown: Vec<_> = all.iter().map(|g| (g.task_type.as_str(), g.dead_count + g.backing_off_count)).collect();
    assert_eq!(shown, [("mail", 4), ("other", 3), ("mail", 1)], "groups with the most jobs come first");
    assert_eq!(jobs.list_error_groups(list("", 1)).await.unwrap().into_inner().groups.len(), 1);
    assert!(jobs.list_error_groups(list("nobody", 0)).await.unwrap().into_inner().groups.is_empty());

    // A filter finds the dead jobs both by the name of the group and by an error that belongs to the group.
    for error in ["no host #", "no host 99"] {
        let request = ListJobsRequest {
            task_type: "mail".into(),
            state: JobState::Dead as i32,
            error_group: error.into(),
            ..Default::default()
        };
        let listed = jobs.list_jobs(request).await.unwrap().into_inner().jobs;
        assert_eq!(listed.iter().map(|j| j.id).collect::<Vec<_>>(), ids[..2], "{error}");
    }
    // A retry by error group selects only jobs of the group, both dead jobs and jobs in backoff.
    let filter = howdah_proto::v1::JobFilter { error_group: "no host 99".into(), ..of_type("mail") };
    let mut retried = retry(&b, RetryJobsRequest { filter: Some(filter), ..Default::default() }).await.retried_ids;
    retried.sort_unstable();
    assert_eq!(retried, [ids[0], ids[1], ids[2], ids[4]]);
    assert_eq!(a.count("SELECT count(*) FROM howdah.scheduled").await, 1);
}

#[tokio::test]
async fn pages_of_a_group_go_on_where_the_page_before_ended() {
    let broker = TestBroker::start().await;
    add_dead_jobs(&broker.database, "mail", 25, "no host #").await;
    add_dead_jobs(&broker.database, "mail", 25, "out of paper").await;
    let mut jobs = broker.jobs();
    let mut request = ListJobsRequest {
        task_type: "mail".into(),
        state: JobState::Dead as i32,
        error_group: "out of paper".into(),
        page_size: 10,
        ..Default::default()
    };
    let mut found = Vec::new();
    loop {
        let page = jobs.list_jobs(request.clone()).await.unwrap().into_inner();
        found.extend(page.jobs.iter().map(|job| (job.id, job.failures[0].error.clone())));
        if page.next_page_token.is_empty() {
            break;
        }
        request.page_token = page.next_page_token;
    }
    assert_eq!(found.len(), 25);
    assert!(found.is_sorted() && found.iter().all(|(_, error)| error == "out of paper"));
}

#[tokio::test]
async fn a_failure_keeps_its_details_and_equal_errors_at_two_places_are_two_groups() {
    let broker = TestBroker::start().await;
    let first = broker.enqueue("mail").await;
    let mut worker = broker.worker("mail").window(1).await;
    for attempt in 1..=5 {
        let job = worker.next().await;
        let stack = format!("stack {attempt}");
        worker.nack(&job, "KeyError: 'a'").details(&stack, "mail.send").at_once().await;
    }
    let job = worker.next().await;
    worker.nack(&job, "KeyError: 'a'").details("stack 6", "mail.send").no_retry().await;
    let second = broker.enqueue("mail").await;
    let job = worker.next().await;
    worker.nack(&job, "KeyError: 'a'").details("", "mail.render").no_retry().await;
    broker.until_state(second, JobState::Dead).await;
    let failures = broker.job(first).await.failures;
    let details: Vec<&str> = failures.iter().map(|failure| &*failure.details).collect();
    assert_eq!(details, ["", "", "", "stack 4", "stack 5", "stack 6"], "details of the last three failures are kept");
    assert!(failures.iter().all(|failure| failure.place == "mail.send"), "{failures:?}");
    let request = ListJobsRequest { task_type: "mail".into(), state: JobState::Dead.into(), ..Default::default() };
    let listed = broker.jobs().list_jobs(request).await.unwrap().into_inner().jobs;
    assert!(listed.iter().all(|job| job.failures.iter().all(|failure| failure.details.is_empty())), "{listed:?}");
    let request = ListErrorGroupsRequest { task_type: "mail".into(), ..Default::default() };
    let groups = broker.jobs().list_error_groups(request).await.unwrap().into_inner().groups;
    let mut names: Vec<&str> = groups.iter().map(|group| &*group.error_group).collect();
    names.sort_unstable();
    assert_eq!(names, ["KeyError: 'a' at mail.render", "KeyError: 'a' at mail.send"]);
    // A job that backs off is retried by its group, and by no other.
    let third = broker.enqueue("mail").await;
    let job = worker.next().await;
    worker.nack(&job, "KeyError: 'a'").details("", "mail.render\n ").retry_after(HOUR).await;
    broker.until_state(third, JobState::Scheduled).await;
    let of_group = |group: &str| {
        let filter = howdah_proto::v1::JobFilter { error_group: group.into(), ..of_type("mail") };
        let filter = howdah_proto::v1::JobFilter { state: JobState::Scheduled.into(), ..filter };
        retry(&broker, RetryJobsRequest { filter: Some(filter), ..Default::default() })
    };
    for other in ["KeyError: 'a' at mail.send", "KeyError: 'a'"] {
        assert_eq!(of_group(other).await.retried_ids, [0_i64; 0], "{other}");
    }
    assert_eq!(of_group("KeyError: 'a' at mail.render").await.retried_ids, [third]);
    let (_, shown, _) = run(&["job", &first.to_string(), "--server", &broker.grpc], b"").await;
    assert!(shown.contains("at mail.send\n    KeyError: 'a'\n        stack 6"), "{shown}");
    let page = crate::ui::client::Browser::at(&broker).get(&format!("/ui/job?id={}", first)).await;
    page.has(&[
        "KeyError: &#39;a&#39; at mail.send",
        "<details><summary>Details</summary><pre>stack 6</pre></details>",
    ]);
}

#[tokio::test]
async fn an_error_selects_the_group_without_a_place_and_the_names_of_groups_select_the_others() {
    let broker = TestBroker::start().await;
    let mut worker = broker.worker("mail").window(1).await;
    let mut dead = Vec::new();
    for (error, place) in [("no host 17", ""), ("no host 4", "mail.v2.send"), ("no host 5", "mail.v3.send")] {
        dead.push(broker.enqueue("mail").await);
        let job = worker.next().await;
        worker.nack(&job, error).details("", place).no_retry().await;
    }
    let jobs_of = async |group: &str| {
        let request = ListJobsRequest {
            task_type: "mail".into(),
            state: JobState::Dead.into(),
            error_group: group.into(),
            ..Default::default()
        };
        let found = broker.jobs().list_jobs(request).await.expect("a page").into_inner().jobs;
        found.iter().map(|job| job.id).collect::<Vec<_>>()
    };
    for (group, index) in
        [("no host #", 0), ("no host 9", 0), ("no host # at mail.v2.send", 1), ("no host # at mail.v3.send", 2)]
    {
        assert_eq!(jobs_of(group).await, [dead[index]], "{group}");
    }
    let none = ["discard", "--type", "mail", "--error", "no host 4 at mail", "--server", &broker.grpc];
    let (status, _, said) = run(&none, b"").await;
    assert!(!status.success() && said.contains("`howdah errors` lists the groups, with their places"), "{said}");
}
