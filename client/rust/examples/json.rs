//! Payloads as JSON: enqueues three orders, works on them, and reads the results.
//!
//! `HOWDAH_SERVER=http://127.0.0.1:7432 cargo run -p howdah-client --example json`

#![allow(clippy::print_stdout, reason = "the example prints for its user")]

use std::env;

use howdah_client::{Client, Job, JobError, NewJob, Outcome, Result};
use serde::{Deserialize, Serialize};

#[derive(Debug, Serialize, Deserialize)]
struct Order {
    item: String,
    pieces: u32,
    cents: u32,
}

#[derive(Debug, Serialize, Deserialize)]
struct Bill {
    cents: u32,
}

async fn bill(order: Order, _job: Job) -> Result<Outcome, JobError> {
    let cents = order.pieces.checked_mul(order.cents).ok_or_else(|| JobError::fatal("the amount is too large"))?;
    Outcome::json(&Bill { cents })
}

#[tokio::main]
async fn main() -> Result<()> {
    let server = env::var("HOWDAH_SERVER").unwrap_or_else(|_| "http://127.0.0.1:7432".into());
    let client = Client::connect(server).await?;
    let mut ids = Vec::new();
    for (item, pieces, cents) in [("saddle", 1, 25_000), ("bell", 12, 499), ("moon", 9, u32::MAX)] {
        let item = item.to_owned();
        let order = Order { item, pieces, cents };
        ids.push(client.enqueue(NewJob::new("order.bill").json(&order)?).await?.id);
    }

    // Stops after running all enqueued jobs.
    let worker = client.worker().handle_json::<Order, _, _>("order.bill", bill).max_jobs(ids.len() as u64).build();
    worker.run().await?;

    for id in ids {
        let Some(job) = client.get_job(id).await? else {
            continue;
        };
        match serde_json::from_slice::<Bill>(&job.result) {
            Ok(bill) => println!("job {id}: {} cents", bill.cents),
            Err(_) => println!("job {id}: {:?}, {:?}", job.state(), job.failures),
        }
    }
    Ok(())
}
