//! Enqueues jobs: one, several together, and many as fast as they go.
//!
//! `HOWDAH_SERVER=http://127.0.0.1:7432 cargo run -p howdah-client --example producer -- 100000`

#![allow(clippy::print_stdout, reason = "the example prints for its user")]

use std::{env, time::Instant};

use howdah_client::{Client, NewJob, Result};

#[tokio::main]
async fn main() -> Result<()> {
    let server = env::var("HOWDAH_SERVER").unwrap_or_else(|_| "http://127.0.0.1:7432".into());
    let count = env::args().nth(1).and_then(|count| count.parse().ok()).unwrap_or(1000);
    let client = Client::connect(server).await?;

    let one = client.enqueue(NewJob::new("email.send").payload("ann@example.com")).await?;
    println!("job {}", one.id);

    // Stores all of the jobs or none. Because of the key, a repeated run of this program does not add a second report job
    // while the first is unfinished.
    let jobs = [
        NewJob::new("email.send").payload("bob@example.com").priority(-10),
        NewJob::new("report.build").key("daily").max_attempts(3),
    ];
    for job in client.enqueue_all(jobs).await? {
        println!("job {}{}", job.id, if job.is_new { "" } else { ", there already" });
    }

    // While requests are in flight, the producer gathers submitted jobs, so that each request has many of them.
    let producer = client.producer();
    let begun = Instant::now();
    let mut receipts = Vec::new();
    for number in 0..count {
        let job = NewJob::new("email.send").payload(format!("user{number}@example.com"));
        receipts.push(producer.submit(job).await?);
    }
    for receipt in receipts {
        receipt.await?;
    }
    let rate = f64::from(count) / begun.elapsed().as_secs_f64();
    println!("{count} jobs, {rate:.0} a second");
    Ok(())
}
