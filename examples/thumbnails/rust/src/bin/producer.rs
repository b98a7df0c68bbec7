//! Enqueues a thumbnail job for each PNG file of a directory, and prints the results: `producer PICTURES THUMBNAILS`

#![allow(clippy::print_stdout, reason = "a command-line program")]

use std::{collections::HashMap, env, error::Error, fs, path::PathBuf, time::Duration};

use howdah_client::{Client, NewJob, proto::JobState};
use serde_json::{Value, json};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut directories = env::args().skip(1).map(PathBuf::from);
    let (Some(pictures), Some(thumbnails)) = (directories.next(), directories.next()) else {
        return Err("usage: producer PICTURES THUMBNAILS".into());
    };
    fs::create_dir_all(&thumbnails)?;
    let (pictures, thumbnails) = (pictures.canonicalize()?, thumbnails.canonicalize()?);
    let paths = fs::read_dir(pictures)?.filter_map(|entry| Some(entry.ok()?.path()));
    let sources: Vec<PathBuf> = paths.filter(|path| path.extension().is_some_and(|end| end == "png")).collect();
    let names: Vec<_> = sources.iter().filter_map(|source| Some(source.file_name()?.to_str()?.to_owned())).collect();
    let jobs = sources.iter().zip(&names).map(|(source, name)| {
        // While a job with this key is unfinished, the picture is not enqueued again.
        let order = json!({"source": source, "target": thumbnails.join(name), "width": 128});
        NewJob::new("thumbnail.make").key(source.to_string_lossy()).json(&order)
    });
    let client = Client::from_env().await?;
    let enqueued = client.enqueue_all(jobs.collect::<Result<Vec<_>, _>>()?).await?;
    let names: HashMap<i64, String> = enqueued.iter().map(|job| job.id).zip(names).collect();
    let mut ended = client.wait_jobs(names.keys().copied(), Duration::from_mins(1)).await?;
    while let Some(job) = ended.next().await? {
        match (job.state(), job.failures.last()) {
            (JobState::Succeeded, _) => {
                let size: Value = serde_json::from_slice(&job.result)?;
                println!("{} {}x{}", names[&job.id], size["width"], size["height"]);
            }
            (_, failure) => println!("{} failed: {}", names[&job.id], failure.map_or("", |failure| &failure.error)),
        }
    }
    Ok(())
}
