//! Tests conditions of the database that operators meet. Under each condition, every operation works, waits for a named reason,
//! or fails with an error that says why. The test data is also the source of `docs/operate/conditions.md`.

mod arena; // a broker with jobs in every state
mod clock; // the database's clock
mod collation; // a changed collation
mod condition; // a condition: its section of the page, and its test
mod copies; // restored and replicated databases
mod locks; // locks of other sessions
mod logins; // refused connections
mod newer; // conditions that need Postgres 17
mod operation; // the twenty operations

use arena::Arena;
use condition::{Condition, Doctor, Exception, Reason, page};

use crate::support::*;

const CONDITIONS: &[&Condition] = &[
    &clock::BACK,
    &clock::AHEAD,
    &collation::CHANGED,
    &PUBLICATION,
    &copies::RESTORED,
    &copies::DEFAULT_PRIVILEGES,
    &copies::SEQUENCES,
    &DEFAULT_PARTITION,
    &PARTITIONS,
    &WRITES_REFUSED,
    &newer::FULL_QUEUE,
    &newer::TRANSACTION_TIMEOUT,
    &logins::NO_LISTENER,
    &logins::FEW_CONNECTIONS,
    &logins::PASSWORD,
    &logins::CERTIFICATE,
    &locks::ROWS_LOCKED,
];

const PUBLICATION: Condition = Condition {
    name: "A publication of all tables",
    cause: "`CREATE PUBLICATION … FOR ALL TABLES`, which Debezium creates by default.",
    remedy: "Nothing needs to be done: each table has a primary key or a replica identity.",
    doctor: Doctor::Nothing,
    probe: "retention",
    exceptions: &[],
};

#[tokio::test]
async fn a_publication_of_all_tables_stops_nothing() {
    let arena = Arena::start().await;
    arena.broker.sql("CREATE PUBLICATION everything FOR ALL TABLES").await;
    PUBLICATION.hold(&arena, async || arena.broker.sql("DROP PUBLICATION everything").await).await;
}

const DEFAULT_PARTITION: Condition = Condition {
    name: "History in the default partition",
    cause: "No broker ran for days while applications enqueued and completed jobs in SQL, so no partition of those days exists.",
    remedy: "Nothing needs to be done: brokers make the partitions and move the rows in small steps.",
    doctor: Doctor::Nothing,
    probe: "second broker",
    exceptions: &[],
};

#[tokio::test]
async fn a_full_default_partition_stops_nothing() {
    let arena = Arena::start().await;
    let finished = "
        INSERT INTO howdah.history (id, created, finished, type_id, outcome, attempt, max_attempts, priority, payload)
            SELECT nextval('howdah.job_id'), now(), now() + (20 + n % 5) * interval '1 day', t.id, 'succeeded', 1, 1, 0, ''
            FROM howdah.task_type t, generate_series(1, 100000) n WHERE t.name = 'plain'";
    arena.broker.enqueue("plain").await;
    arena.broker.sql(finished).await;
    DEFAULT_PARTITION.hold(&arena, async || {}).await;
}

const PARTITIONS: Condition = Condition {
    name: "A thousand day partitions",
    cause: "`history_days` of three years.",
    remedy: "Raise `max_locks_per_transaction` if `howdah doctor` says so, or keep fewer days.",
    doctor: Doctor::Nothing,
    probe: "list",
    exceptions: &[],
};

#[tokio::test]
async fn many_day_partitions_stop_nothing() {
    let arena = Arena::start().await;
    let last = sized(80, 339);
    for year in 0..3 {
        let days = format!(
            "SELECT howdah.make_day_partition('history', 'finished', (now() AT TIME ZONE 'UTC')::date + 10 + {year} * 340 + n)
             FROM generate_series(0, {last}) n"
        );
        arena.broker.sql(&days).await;
    }
    PARTITIONS.hold(&arena, async || {}).await;
}

const WRITES_REFUSED: Condition = Condition {
    name: "Writes refused by the server",
    cause: "Postgres refuses each write with an error such as a corrupted index (XX001), a limit (54000) or a timeout (25P04).",
    remedy: "Mend what the SQLSTATE in the broker's log names. Enqueues are repeated by their callers, outcomes by their workers.",
    doctor: Doctor::Finds("writes"),
    probe: "enqueue",
    exceptions: &[
        Exception {
            operations: &[
                "enqueue",
                "enqueue with a key",
                "enqueue with a request key",
                "ack",
                "nack",
                "snooze",
                "release",
                "extend",
                "wait",
                "cancel",
                "retry",
                "bulk",
            ],
            reason: Reason::Refused("Unavailable"),
        },
        Exception { operations: &["enqueue by SQL"], reason: Reason::Refused("refused by the test") },
        Exception {
            operations: &["claim", "schedule", "statistics"],
            reason: Reason::Waits("writes to work again; `/readyz` names the SQLSTATE"),
        },
        Exception { operations: &["retention", "second broker"], reason: Reason::Refused("SQLSTATE") },
    ],
};

#[tokio::test]
async fn calls_are_unavailable_while_postgres_refuses_writes_and_work_again_afterwards() {
    for code in ["54000", "25P04", "XX001"] {
        let arena = Arena::start().await;
        let refuse = format!(
            "CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS
                 $$ BEGIN RAISE EXCEPTION 'refused by the test' USING ERRCODE = '{code}'; END $$;
             DO $$ DECLARE t regclass; BEGIN
                 FOR t IN SELECT oid FROM pg_class
                          WHERE relnamespace = 'howdah'::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition LOOP
                     EXECUTE format('CREATE TRIGGER refuse BEFORE INSERT OR UPDATE OR DELETE ON %s
                                     FOR EACH STATEMENT EXECUTE FUNCTION public.refuse()', t);
                 END LOOP;
             END $$"
        );
        arena.broker.sql(&refuse).await;
        WRITES_REFUSED.hold(&arena, async || arena.broker.sql("DROP FUNCTION public.refuse() CASCADE").await).await;
    }
}

#[test]
fn the_page_of_conditions_says_what_is_tried() {
    let path = root().join("docs/operate/conditions.md");
    let made = page(CONDITIONS);
    if std::env::var_os("HOWDAH_REFERENCE").is_some_and(|value| value == "write") {
        std::fs::write(&path, &made).expect("the page");
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(written, made, "run `just reference`");
}
