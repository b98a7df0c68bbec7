//! Tests several stores of a cluster: their store numbers, and job ids, which begin with the store number.

pub mod unavailable; // a store that cannot be reached
pub mod calls; // routing of calls and merging of results
mod counts; // counts of a type that several stores have
mod closed; // a store that is closed to new jobs
mod killed; // a broker killed during a move
mod moving; // moving a task type to another store
mod moving_load; // moving a task type under load
mod reload; // stores that are added and removed while a broker runs
mod replica; // a store with a read replica
mod settings; // settings of a type that several stores have
mod streams; // a worker's stream over several stores

use howdah_core::job::{IDS_OF_A_STORE, StoreNumber};
use howdah_proto::v1::{
    GetJobRequest, JobState, ListJobsRequest, SearchJobsRequest, SettleStatus, search_jobs_request::Query,
};

use crate::support::{JobOptions as _, Program, TestBroker, TestDatabase, database, run, secs, with_timeout};

/// Creates an empty database. Databases of other tests share one identity, so two of them cannot be stores of one
/// cluster.
async fn empty(suffix: &str) -> TestDatabase {
    database().await.empty(suffix, "").await
}

async fn number(database: &TestDatabase) -> i64 {
    database.count("SELECT howdah.store_number()::bigint").await
}

fn store(name: &str, database: &TestDatabase) -> String {
    format!("{name}={}", database.url)
}

/// Runs a command that must fail, and returns its exit status and error.
async fn refused(args: &[&str]) -> (Option<i32>, String) {
    let (status, _, stderr) = run(args, b"").await;
    assert!(!status.success(), "{args:?}");
    (status.code(), stderr)
}

async fn done(args: &[&str]) -> String {
    let (status, stdout, stderr) = run(args, b"").await;
    assert!(status.success(), "{args:?}: {stderr}");
    stdout
}

/// Creates a store with this number, and starts a broker on it.
async fn numbered(number: u16) -> TestBroker {
    let database = empty("numbered").await;
    let output = done(&["migrate", "--database-url", &database.url, "--store-number", &number.to_string()]).await;
    assert!(output.starts_with(&format!("store default has the number {number}\ncreated schema")), "{output}");
    TestBroker::on(&database).await
}

#[tokio::test]
async fn job_ids_begin_with_the_number_of_their_store_by_grpc_and_by_sql() {
    let broker = numbered(89).await;
    let first = broker.enqueue("t").await;
    assert_eq!(first, 89 * IDS_OF_A_STORE + 1);
    let mut ids = vec![
        first,
        broker.enqueue("t").key("k").await,
        broker.enqueue("t").limit_key("l").await,
        broker.count("SELECT howdah.enqueue('t')").await,
        broker.count("SELECT howdah.enqueue('t', 'x'::text, priority => 3::smallint)").await,
        broker.count("SELECT min(id) FROM howdah.enqueue_many('t', ARRAY['a']) id").await,
    ];
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 6);
    let of_store = |id: &i64| StoreNumber::of_id(*id).map(StoreNumber::get) == Some(89);
    assert!(ids.iter().all(of_store), "{ids:?}");
    assert_eq!(broker.count(&format!("SELECT howdah.store_of({first})::bigint")).await, 89);
    assert_eq!(broker.count("SELECT howdah.ids_of_a_store()").await, IDS_OF_A_STORE);
    // A role that may read jobs may also call the functions that return store numbers.
    broker.sql("SELECT howdah.create_roles()").await;
    let sql = "SET ROLE howdah_reader; SELECT howdah.store_number(), howdah.store_of(1)";
    broker.database.connect().await.batch_execute(sql).await.unwrap();
}

#[tokio::test]
async fn jobs_with_the_longest_ids_are_worked_on_found_listed_and_ended() {
    let broker = numbered(89).await;
    let mut worker = broker.worker("t").await;
    let id = broker.enqueue("t").await;
    let job = worker.next().await;
    assert_eq!(job.id, id);
    assert_eq!(worker.ack(&job).status().await, SettleStatus::Ok);
    assert_eq!(broker.state(id).await, JobState::Succeeded);
    let later = broker.enqueue("later").delay(secs(600)).await;
    let request =
        ListJobsRequest { task_type: "later".into(), state: JobState::Scheduled as i32, ..ListJobsRequest::default() };
    let listed = with_timeout("a list", broker.jobs().list_jobs(request)).await.unwrap().into_inner();
    assert_eq!(listed.jobs.iter().map(|job| job.id).collect::<Vec<_>>(), [later]);
    let request = SearchJobsRequest { query: Some(Query::Id(later)), ..SearchJobsRequest::default() };
    let found = with_timeout("a search", broker.jobs().search_jobs(request)).await.unwrap().into_inner();
    assert_eq!(found.jobs.len(), 1);
    assert_eq!(broker.cancel(&[later]).await, [later]);
    // A job id of another store does not exist in this store.
    let other = with_timeout("an answer", broker.jobs().get_job(GetJobRequest { id: 1 })).await.unwrap_err();
    assert_eq!(other.code(), tonic::Code::NotFound);
}

#[tokio::test]
async fn new_stores_get_numbers_that_are_free_and_keep_them() {
    let (shop, mail) = (empty("shop").await, empty("mail").await);
    let pairs = [store("shop", &shop), store("mail", &mail)];
    let args = ["migrate", "--store", &pairs[0], "--store", &pairs[1]];
    let output = done(&args).await;
    assert!(
        output.contains("store shop has the number 0\n") && output.contains("store mail has the number 1\n"),
        "{output}"
    );
    let output = done(&[&args[..], &["--json"]].concat()).await;
    let numbers: Vec<_> = output.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()).collect();
    assert_eq!(numbers.iter().map(|line| line["store_number"].as_i64().unwrap()).collect::<Vec<_>>(), [0, 1]);
    // Repeats the migration with the stores in the other order, without --store-number, after a job was enqueued. The stores
    // must keep their numbers.
    mail.sql("SELECT howdah.enqueue('t')").await;
    done(&["migrate", "--store", &pairs[1], "--store", &pairs[0]]).await;
    assert_eq!((number(&shop).await, number(&mail).await), (0, 1));
    let audited = "SELECT count(*) FROM howdah.audit WHERE method = 'howdah migrate' AND ids = ARRAY['1']";
    assert_eq!(mail.count(audited).await, 1);
}

#[tokio::test]
async fn a_database_that_was_never_numbered_is_store_0_without_any_step() {
    // Selects the id sequence if it has the bounds that it had before a broker could serve several stores.
    let before = "SELECT count(*) FROM pg_sequences WHERE schemaname = 'howdah' AND sequencename = 'job_id'
                  AND min_value = 1 AND max_value = 9223372036854775807";
    let old = empty("old").await;
    done(&["migrate", "--database-url", &old.url]).await;
    assert_eq!((old.count(before).await, number(&old).await), (1, 0));
    let broker = TestBroker::on(&old).await;
    assert_eq!(broker.enqueue("t").await, 1);
    broker.stop().await;
    // Adding another store does not change the id sequence.
    let new = empty("new").await;
    done(&["migrate", "--store", &store("new", &new), "--store", &store("old", &old)]).await;
    assert_eq!((old.count(before).await, number(&old).await, number(&new).await), (1, 0, 1));
}

#[tokio::test]
async fn a_number_stays_with_a_store_that_has_given_out_an_id() {
    let database = empty("used").await;
    done(&["migrate", "--database-url", &database.url, "--store-number", "5"]).await;
    // The rolled back transaction has used an id, so the store must keep the number in that id.
    database.connect().await.batch_execute("BEGIN; SELECT howdah.enqueue('t'); ROLLBACK").await.unwrap();
    let (code, err) = refused(&["migrate", "--database-url", &database.url, "--store-number", "6"]).await;
    assert_eq!(code, Some(2), "{err}");
    assert!(err.contains("cannot have the number 6: its jobs have ids of number 5"), "{err}");
    let error = database.connect().await.batch_execute("SELECT howdah.set_store_number(6)").await.unwrap_err();
    assert!(error.as_db_error().unwrap().message().contains("has given out ids as number 5"), "{error:?}");
    assert_eq!(number(&database).await, 5);
}

#[tokio::test]
async fn a_store_gets_no_other_number_while_a_broker_runs_on_it() {
    let database = empty("running").await;
    let broker = TestBroker::on(&database).await;
    let args = ["migrate", "--database-url", &database.url, "--store-number", "5"];
    let (_, err) = refused(&args).await;
    assert!(err.contains("brokers run on this store, and know it as number 0: stop them first"), "{err}");
    broker.stop().await;
    done(&args).await;
    assert_eq!(number(&database).await, 5);
    for bad in ["-1", "4096"] {
        let error = database.connect().await.query(&format!("SELECT howdah.set_store_number({bad})"), &[]).await;
        assert_eq!(error.unwrap_err().code().unwrap().code(), "22023", "{bad}");
    }
}

#[tokio::test]
async fn two_stores_with_one_number_and_one_store_under_two_names_are_refused() {
    let (a, b) = (empty("a").await, empty("b").await);
    for database in [&a, &b] {
        done(&["migrate", "--database-url", &database.url]).await;
        database.sql("SELECT howdah.enqueue('t')").await;
    }
    let pairs = [store("a", &a), store("b", &b), store("again", &a)];
    let (code, err) = refused(&["migrate", "--store", &pairs[0], "--store", &pairs[1]]).await;
    assert_eq!(code, Some(2), "{err}");
    assert!(err.contains("stores a and b both have the number 0"), "{err}");
    // Configures one database twice, by two forms of its URL.
    let again = pairs[2].replacen("postgres://", "postgresql://", 1);
    assert_ne!(again, pairs[2]);
    let (code, err) = refused(&["migrate", "--store", &pairs[0], "--store", &again]).await;
    assert_eq!(code, Some(2), "{err}");
    assert!(err.contains("stores a and again are one database and schema"), "{err}");
}

#[tokio::test]
async fn a_broker_checks_the_number_of_its_store_when_it_starts() {
    let database = empty("checked").await;
    done(&["migrate", "--database-url", &database.url, "--store-number", "3"]).await;
    database.sql("SELECT howdah.enqueue('t')").await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("howdah.toml");
    let write = |number: u16| {
        let url = &database.url;
        let text = format!(
            "listen = '127.0.0.1:0'\nhttp = '127.0.0.1:0'\n[[stores]]\nname = 'shop'\nnumber = {number}\ndatabase_url = '{url}'\n"
        );
        std::fs::write(&file, text).unwrap();
    };
    let serve = ["serve", "--config", file.to_str().unwrap()];
    write(2);
    let (code, err) = refused(&serve).await;
    assert_eq!(code, Some(2), "{err}");
    assert!(err.contains("store shop cannot have the number 2") && err.contains("set number = 3"), "{err}");
    write(3);
    let mut program = Program::start(&serve);
    assert!(program.line().await.starts_with("ready grpc="));
    // A store without ids gets the number from the configuration, except from a broker that must not change the schema.
    let fresh = empty("fresh").await;
    let pair = format!("[[stores]]\nname = 'new'\nnumber = 9\ndatabase_url = '{}'\n", fresh.url);
    std::fs::write(&file, format!("listen = '127.0.0.1:0'\nhttp = '127.0.0.1:0'\n{pair}")).unwrap();
    done(&["migrate", "--database-url", &fresh.url]).await;
    let (code, err) = refused(&[&serve[..], &["--no-migrate"]].concat()).await;
    assert_eq!(code, Some(2), "{err}");
    assert!(err.contains("store new must get the number 9 first: howdah migrate --store-number 9"), "{err}");
    done(&["migrate", "--config", file.to_str().unwrap()]).await;
    assert_eq!(number(&fresh).await, 9);
}

#[tokio::test]
async fn commands_for_one_store_are_refused_when_several_are_configured() {
    let pairs = ["a=host=h dbname=a", "b=host=h dbname=b"];
    for command in [["migrate", "--store-number", "1"].as_slice(), &["migrate", "--new-identity"]] {
        let args = [command, &["--store", pairs[0], "--store", pairs[1]]].concat();
        let (code, err) = refused(&args).await;
        assert_eq!(code, Some(2), "{err}");
        assert!(err.contains("works on one store, and 2 are configured (a, b)"), "{err}");
    }
}
