//! Rust blocks of the pages, written by `just reference`. The test is that they compile.
#![allow(unused_imports, unused_variables, unused_mut, unused_must_use, dead_code, clippy::all, clippy::print_stdout)]

/// README.md
async fn readme_1() -> Result<(), Box<dyn std::error::Error>> {
use howdah_client::*;
let client = Client::connect("http://127.0.0.1:7432").await?;
client.enqueue(NewJob::new("email.send").payload("ann@example.com")).await?;
let worker = client
    .worker()
    .handle("email.send", |job: Job| async move {
        println!("to {}", std::str::from_utf8(&job.payload)?);
        Ok::<_, JobError>(())
    })
    .concurrency(16)
    .build();
worker.run_until(async { drop(tokio::signal::ctrl_c().await) }).await?;
Ok(())
}

/// docs/concepts/failures.md
async fn failures_1() -> Result<(), Box<dyn std::error::Error>> {
use howdah_client::*;
use std::time::Duration;
use howdah_client::{NewJob, RetryPolicy};

let minutes = |n: u64| Duration::from_secs(60 * n);
NewJob::new("report.make").retry_policy(RetryPolicy::exponential(minutes(2), minutes(60 * 24)));
NewJob::new("report.make").retry_policy(RetryPolicy::linear(minutes(5), minutes(60)));
NewJob::new("report.make").retry_policy(RetryPolicy::fixed(minutes(1)));
NewJob::new("report.make").retry_policy(RetryPolicy::list([minutes(1), minutes(10)]));
Ok(())
}

/// docs/concepts/schedules.md
async fn schedules_1(mut client: howdah_client::Client, ) -> Result<(), Box<dyn std::error::Error>> {
use howdah_client::*;
use howdah_client::{Client, NewJob, NewSchedule, Plan, proto::OverlapPolicy};

let job = NewJob::new("report.make").payload("daily");
let nightly = NewSchedule::new("nightly", job, Plan::cron("30 2 * * *", "Europe/Berlin"));
let made = client.create_schedule(nightly.overlap(OverlapPolicy::Skip)).await?;
println!("{:?}", made.next_times);
Ok(())
}

/// docs/concepts/stages.md
async fn stages_1(mut client: howdah_client::Client, ) -> Result<(), Box<dyn std::error::Error>> {
use howdah_client::*;
let names: Vec<String> = (0..100).map(|n| format!("part {n}")).collect();
let parts = names.iter().map(|name| NewJob::new("report.part").payload(name.clone()).local_name(name));
let join = NewJob::new("report.join").after_local(&names);
client.enqueue_all(parts.chain([join])).await?;

let worker = client.worker().handle("report.join", |job: Job| async move {
    let (mut results, mut bytes) = (job.results(), 0);
    while let Some(part) = results.next().await? {
        bytes += part.result.len();
    }
    Ok::<_, JobError>(bytes.to_string())
});
Ok(())
}

/// docs/operate/tls.md
async fn tls_1() -> Result<(), Box<dyn std::error::Error>> {
use howdah_client::*;
use howdah_client::{Client, Tls};

let tls = Tls::new().ca_file("ca.pem")?.client_files("mailer.pem", "mailer.key")?;
let client = Client::builder().endpoint("https://howdah.internal:7432").tls(tls).connect().await?;
Ok(())
}

/// docs/reference/sql.md
async fn sql_1(mut client: tokio_postgres::Client, ) -> Result<(), Box<dyn std::error::Error>> {
use howdah_client::*;
let transaction = client.transaction().await?;
transaction.execute("INSERT INTO orders (id, item) VALUES ($1, $2)", &[&7_i64, &"tea"]).await?;
let payload = serde_json::json!({"id": 7});
let job = transaction.query_one("SELECT howdah.enqueue('order.ship', $1::jsonb)", &[&payload]).await?;
transaction.commit().await?;
Ok(())
}

/// docs/reference/sql.md
async fn sql_2(mut client: tokio_postgres::Client, mut job: howdah_client::Job, ) -> Result<(), Box<dyn std::error::Error>> {
use howdah_client::*;
let transaction = client.transaction().await?;
transaction.execute("UPDATE orders SET shipped = true WHERE id = $1", &[&7_i64]).await?;
transaction.execute("SELECT howdah.complete($1, $2)", &[&job.id, &job.token]).await?;
transaction.commit().await?;
Ok(())
}
