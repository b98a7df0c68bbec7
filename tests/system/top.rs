//! Tests `howdah top`: rendering of a real broker's responses, keys and their actions, and the program in a terminal.

#[path = "top/terminal.rs"]
mod terminal;

use std::time::Instant;

use howdah_cli::commands::top::{Effect, Reader, Top, View, perform};
use howdah_client::Client;
use howdah_proto::v1::{JobState, ListTaskTypesRequest, TaskType, TaskTypeSettings};
use ratatui::{
    Terminal as Screen,
    backend::TestBackend,
    crossterm::event::{Event, KeyCode},
};

use self::terminal::Terminal;
use crate::{
    access::Guarded,
    stores::calls::{enqueue_at, two},
    support::*,
};

/// The state and screen of `howdah top`, without a terminal.
struct Operator {
    client: Client,
    reader: Reader,
    top: Top,
}

impl Operator {
    async fn at(broker: &Service) -> Self {
        Self::with(broker.client().await)
    }

    fn with(client: Client) -> Self {
        Self { reader: Reader::new(client.clone()), client, top: Top::new("here".into(), secs(2)) }
    }

    async fn refresh(&mut self) {
        let view = self.top.view().clone();
        let figures = with_timeout("the figures of a view", self.reader.read(&view)).await.expect("figures");
        self.top.update(figures, Instant::now());
    }

    /// Presses keys one after the other and performs their actions.
    async fn press(&mut self, keys: &str) {
        for key in keys.chars() {
            let code = match key {
                '\n' => KeyCode::Enter,
                '\x1b' => KeyCode::Esc,
                key => KeyCode::Char(key),
            };
            match self.top.event(&Event::Key(code.into())) {
                Effect::Do(change) => {
                    let done = with_timeout("the change", perform(&self.client, change)).await;
                    self.top.done(done);
                }
                Effect::Read => self.refresh().await,
                Effect::Nothing | Effect::Quit => {}
            }
        }
    }

    fn picture(&self, width: u16, height: u16) -> String {
        let mut screen = Screen::new(TestBackend::new(width, height)).expect("a screen");
        screen.draw(|frame| self.top.draw(frame, Instant::now())).expect("a picture");
        screen.backend().to_string()
    }

    /// Returns the line of the screen with these words, its columns separated by one space.
    fn line(&self, words: &str) -> String {
        let picture = self.picture(160, 30);
        let line = picture.lines().find(|line| line.contains(words)).unwrap_or_else(|| panic!("{words}: {picture}"));
        line.trim_matches('"').split_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// Refreshes until the screen contains these words, because brokers count periodically.
    async fn until(&mut self, words: &str) {
        eventually(words, async || {
            self.refresh().await;
            self.picture(160, 30).contains(words)
        })
        .await;
    }
}

/// Creates dead jobs of a type with this error.
async fn dead(broker: &Service, task_type: &str, count: usize, error: &str) -> Vec<i64> {
    let ids = broker.enqueue_all((0..count).map(|_| task_type)).await;
    let mut worker = broker.worker(task_type).window(10).await;
    for _ in 0..count {
        let job = worker.next().await;
        worker.nack(&job, error).no_retry().await;
    }
    ids
}

async fn found(broker: &Service, request: ListTaskTypesRequest) -> Vec<TaskType> {
    let answer = with_timeout("types", broker.task_types().list_task_types(request)).await.expect("types").into_inner();
    assert!(answer.storage.is_none());
    answer.task_types
}

#[tokio::test]
async fn the_last_count_has_current_settings_and_says_how_old_it_is() {
    let broker = TestBroker::start().await;
    broker.enqueue_all(["b", "a", "c"]).await;
    let request = ListTaskTypesRequest { last_count: true, page_size: 2, ..Default::default() };
    let first = async || {
        with_timeout("types", broker.task_types().list_task_types(request.clone())).await.unwrap().into_inner()
    };
    eventually("three types", async || {
        let page = first().await;
        !page.next_page_token.is_empty() && page.task_types.iter().all(|t| t.counts.unwrap().ready == 1)
    })
    .await;
    let page = first().await;
    assert!(page.count_age.is_some() && page.storage.is_none(), "{page:?}");
    assert_eq!(page.task_types.iter().map(|t| t.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    let next = ListTaskTypesRequest { page_token: page.next_page_token, ..request };
    assert_eq!(found(&broker, next).await[0].name, "c");

    broker.set("c", TaskTypeSettings { paused: true, ..Default::default() }).await;
    // `howdah top` lists a new type before brokers have counted its jobs.
    broker.enqueue("new").await;
    for (name, is_paused) in [("c", true), ("new", false)] {
        let one = ListTaskTypesRequest { last_count: true, task_type: name.into(), ..Default::default() };
        let one = &found(&broker, one).await[0];
        assert_eq!((one.settings.as_ref().unwrap().paused, one.counts.unwrap().ready), (is_paused, 1));
    }
    let none = ListTaskTypesRequest { last_count: true, task_type: "none".into(), ..Default::default() };
    assert!(found(&broker, none).await.is_empty());
}

#[tokio::test]
async fn types_are_shown_with_their_jobs_their_rates_and_their_times() {
    let broker = TestBroker::start().await;
    let mut operator = Operator::at(&broker).await;
    operator.refresh().await;
    assert!(operator.picture(80, 24).contains("no task types yet"));
    broker.set("report", TaskTypeSettings { paused: true, ..Default::default() }).await;
    dead(&broker, "mail.send", 2, "no route").await;
    broker.enqueue("mail.send").await;
    operator.until("1 ready  0 leased  2 dead").await;
    assert!(operator.line("mail.send").starts_with("mail.send 1 0 2 0 0"), "{}", operator.line("mail.send"));
    assert!(operator.line("report").starts_with("[paused] report 0 0 0"), "{}", operator.line("report"));
    // Refreshes until the times appear, because brokers aggregate statistics in the background.
    eventually("the times of attempts", async || {
        operator.refresh().await;
        operator.line("mail.send").split(' ').next_back() != Some("-")
    })
    .await;
    let picture = operator.picture(80, 24);
    assert!(picture.contains("counted ") && picture.contains("every 2s"), "{picture}");
    assert!(picture.contains("WAITING"), "the column of waiting jobs is missing: {picture}");
    let picture = operator.picture(110, 24);
    assert!(picture.contains("WAITING") && picture.contains("SCHEDULED"), "{picture}");
}

#[tokio::test]
async fn a_type_is_paused_and_resumed_after_a_question_and_keeps_its_other_settings() {
    let broker = TestBroker::start().await;
    broker.set("mail.send", TaskTypeSettings { max_attempts: 7, ..Default::default() }).await;
    let mut operator = Operator::at(&broker).await;
    operator.until("mail.send").await;
    operator.press("p").await;
    assert!(operator.picture(80, 24).contains("Pause mail.send (0 jobs ready)?"));
    operator.press("x").await;
    assert!(operator.picture(80, 24).contains("other keys do nothing"));
    operator.press("n").await;
    let settings = async || {
        let one = ListTaskTypesRequest { task_type: "mail.send".into(), ..Default::default() };
        found(&broker, one).await[0].settings.clone().expect("settings")
    };
    assert!(!settings().await.paused, "neither x nor n is yes");
    operator.press("py").await;
    assert!(operator.picture(80, 24).contains("mail.send is paused"));
    assert_eq!((settings().await.paused, settings().await.max_attempts), (true, 7));
    operator.refresh().await;
    assert!(operator.line("mail.send").starts_with("[paused]"));
    operator.press("py").await;
    assert_eq!((settings().await.paused, settings().await.max_attempts), (false, 7));
}

#[tokio::test]
async fn a_type_that_several_stores_have_is_one_row_with_all_of_its_jobs() {
    let (_shop, _mail, broker) = two().await;
    for store in ["shop", "mail", "mail"] {
        enqueue_at(&broker, store, "mail.send").await;
    }
    let mut operator = Operator::at(&broker).await;
    operator.until("mail.send").await;
    eventually("one row", async || {
        operator.refresh().await;
        operator.line("mail.send").starts_with("mail.send 3 ")
    })
    .await;
    assert_eq!(operator.picture(160, 30).matches("mail.send").count(), 1);
}

#[tokio::test]
async fn dead_jobs_are_retried_after_a_question_with_their_number_and_examples() {
    let broker = TestBroker::start().await;
    let ids = dead(&broker, "mail.send", 5, "no route \x1b[2J to host").await;
    let mut operator = Operator::at(&broker).await;
    operator.until("5 dead").await;
    operator.press("r").await;
    let picture = operator.picture(80, 24);
    for words in ["Retry the dead jobs of mail.send (about 5 jobs)?", "no route \\u{1b}[2J to host", "y  yes"] {
        assert!(picture.contains(words), "{words}: {picture}");
    }
    let small = operator.picture(80, 8);
    assert!(small.matches("to host").count() == 3 && small.contains("y  yes"), "{small}");
    operator.press("n").await;
    assert_eq!(broker.state(ids[0]).await, JobState::Dead);
    operator.press("ry").await;
    assert!(operator.picture(80, 24).contains("5 jobs of mail.send retried"), "{}", operator.picture(80, 24));
    for id in ids {
        assert_eq!(broker.state(id).await, JobState::Ready);
    }
    operator.press("r").await;
    assert!(operator.picture(80, 24).contains("mail.send has no dead jobs"));
}

#[tokio::test]
async fn a_job_is_found_by_its_type_and_its_state_explained_and_retried() {
    let broker = TestBroker::start().await;
    let dead = dead(&broker, "mail.send", 1, "no route").await[0];
    broker.enqueue("mail.send").await;
    let mut operator = Operator::at(&broker).await;
    operator.until("mail.send").await;
    operator.press("\n").await;
    assert!(operator.picture(120, 24).contains("jobs in all states"), "{}", operator.picture(120, 24));
    // The key `s` steps through the states ready, leased, scheduled, waiting and dead.
    operator.press("sssss").await;
    let line = operator.line("no route");
    assert!(line.starts_with(&format!("{dead} dead 0 1/")), "{line}");
    operator.press("\n").await;
    let picture = operator.picture(80, 24);
    for words in [&format!("job {dead} mail.send: dead"), "howdah retry", "attempt 1 failed"] {
        assert!(picture.contains(words), "{words}: {picture}");
    }
    operator.press("ry").await;
    assert!(operator.picture(80, 24).contains("retried job"));
    assert_eq!(broker.state(dead).await, JobState::Ready);
    operator.press("\x1b\x1b").await;
    assert_eq!(operator.top.view(), &View::Types);
}

#[tokio::test]
async fn workers_are_shown_with_what_they_hold() {
    let broker = TestBroker::start().await;
    let mut operator = Operator::at(&broker).await;
    operator.press("2").await;
    assert!(operator.picture(80, 24).contains("no workers are connected"));
    let mut worker = broker.worker("mail.send").window(3).await;
    broker.enqueue("mail.send").await;
    worker.next().await;
    operator.refresh().await;
    let line = operator.line("mail.send 1/3");
    assert!(line.contains(" working 1 0 "), "{line}");
}

#[tokio::test]
async fn figures_of_a_broker_that_is_gone_are_called_stale_until_it_answers() {
    let broker = TestBroker::start().await;
    broker.enqueue("mail.send").await;
    let mut operator = Operator::at(&broker).await;
    operator.until("mail.send").await;
    let good = operator.reader.read(&View::Types).await.expect("figures");
    broker.stop().await;
    let error = with_timeout("an error", operator.reader.read(&View::Types)).await.expect_err("no broker");
    operator.top.failed(&error, Instant::now(), secs(4));
    let picture = operator.picture(80, 24);
    for words in ["no answer from the broker for 1s", "figures are stale", "next try in", "mail.send"] {
        assert!(picture.contains(words), "{words}: {picture}");
    }
    operator.top.update(good, Instant::now());
    assert!(!operator.picture(80, 24).contains("no answer"));
}

#[tokio::test]
async fn a_token_for_some_types_shows_only_those_and_a_refused_call_is_not_repeated() {
    let guarded = Guarded::start().await;
    guarded.admin.enqueue_all(["mail.send", "other"]).await;
    let token = guarded.token("ann", &["read:mail.*"]).await;
    let client = Client::builder()
        .endpoint(&guarded.broker.grpc)
        .token(&token)
        .unwrap()
        .connect_timeout(PATIENCE)
        .connect()
        .await
        .unwrap();
    let mut operator = Operator::with(client);
    operator.until("mail.send").await;
    let picture = operator.picture(120, 24);
    assert!(picture.contains("rates need the scope read:*") && !picture.contains("other"), "{picture}");
    // Refused calls are counted and logged, so `howdah top` must not repeat a refused call at each refresh.
    let refused = async || {
        let metrics = guarded.admin.metrics().await;
        let lines = metrics.lines().filter(|line| line.contains("GetStats") && line.contains("PermissionDenied"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let before = refused().await;
    operator.refresh().await;
    assert_eq!(refused().await, before);
    operator.press("py").await;
    assert!(operator.picture(120, 24).contains("not done: "), "{}", operator.picture(120, 24));
}

#[tokio::test]
async fn every_view_is_drawn_in_a_terminal_of_any_size() {
    let broker = TestBroker::start().await;
    dead(&broker, "mail.send", 3, "no route to a host with quite a long name").await;
    let _worker = broker.worker("other").window(3).await;
    let mut operator = Operator::at(&broker).await;
    operator.until("3 dead").await;
    // The keys of each entry lead to another view: types, a filter, help, a confirmation, workers, jobs, a job.
    for keys in ["", "/m", "\x1b?", "?r", "n2", "1\n", "\n"] {
        operator.press(keys).await;
        for (width, height) in
            [1, 2, 5, 10, 19, 40, 61, 80, 100].into_iter().flat_map(|width| [1, 2, 3, 5, 9, 24].map(|h| (width, h)))
        {
            operator.picture(width, height);
        }
        let narrow = operator.picture(40, 10);
        // In a narrow terminal, a long confirmation question replaces the header.
        assert!(narrow.contains("howdah top") || narrow.contains(" sure? "), "{keys}: {narrow}");
    }
}

#[tokio::test]
async fn in_a_terminal_a_type_is_seen_paused_and_the_terminal_given_back() {
    let broker = TestBroker::start().await;
    broker.enqueue("mail.send").await;
    let mut terminal = Terminal::start(&["top", "--server", &broker.grpc, "--reason", "too many"]);
    terminal.shows("mail.send").await;
    terminal.types("p");
    terminal.shows("Pause").await;
    terminal.types("y");
    terminal.shows("[paused]").await;
    broker.until("paused", "SELECT paused FROM howdah.task_type WHERE name = 'mail.send'").await;
    assert_eq!(broker.count("SELECT count(*) FROM howdah.audit WHERE reason = 'too many'").await, 1);
    terminal.types("q");
    assert_eq!(terminal.ended().await.code(), Some(0));
}

#[tokio::test]
async fn a_signal_gives_the_terminal_back() {
    let broker = TestBroker::start().await;
    broker.enqueue("mail.send").await;
    let mut terminal = Terminal::start(&["top", "--server", &broker.grpc]);
    terminal.shows("mail.send").await;
    let pid = rustix::process::Pid::from_raw(terminal.child.id().unwrap() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert_eq!(terminal.ended().await.code(), Some(143));
}

#[tokio::test]
async fn howdah_top_without_a_terminal_names_the_commands_to_use_instead() {
    let (status, _, error) = run(&["top"], b"").await;
    assert_eq!(status.code(), Some(2));
    assert!(error.contains("howdah types") && error.contains("howdah stats"), "{error}");
}
