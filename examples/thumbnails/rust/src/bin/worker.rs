//! Makes thumbnails until SIGTERM or Ctrl-C.

use std::path::PathBuf;

use howdah_client::{Client, Job, JobError, Outcome, Result, shutdown_signal};
use image::{ImageReader, imageops::FilterType};
use serde::Deserialize;
use serde_json::json;
use tokio::task::spawn_blocking;

#[derive(Deserialize)]
struct Thumbnail {
    source: PathBuf,
    target: PathBuf,
    width: u32,
}

async fn make(order: Thumbnail, job: Job) -> Result<Outcome, JobError> {
    if let Some(size) = job.last_checkpoint() {
        return Ok(Outcome::ack(size.clone())); // An earlier attempt made the thumbnail, but its ack was lost.
    }
    // A missing file fails the attempt, and the job is retried. A file that is not an image fails the job for good.
    let file = ImageReader::open(&order.source)?.with_guessed_format()?;
    let picture = spawn_blocking(|| file.decode()).await?.map_err(JobError::fatal)?;
    job.progress(0.5, "decoded").await?;
    let height = (picture.height() * order.width / picture.width()).max(1);
    spawn_blocking(move || picture.resize_exact(order.width, height, FilterType::Lanczos3).save(order.target))
        .await??;
    let size = serde_json::to_vec(&json!({"width": order.width, "height": height}))?;
    job.checkpoint(size.clone()).await?;
    Ok(Outcome::ack(size))
}

#[tokio::main]
async fn main() -> Result<()> {
    let worker = Client::from_env().await?.worker().handle_json("thumbnail.make", make).build();
    worker.run_until(shutdown_signal()).await.map(drop)
}
