//! A run of the benchmark: yardstick, workload, yardstick, workload, …, yardstick.

use std::{
    future::Future,
    io::{self, Write as _},
};

use howdah_client::ClientBuilder;

use crate::{
    args::{Args, Workload},
    environment::{Launcher, Setting, SettingOptions},
    error::{Error, Result},
    load::Faults,
    report::{self, Bar, Row},
    workload::Bench,
    yardstick,
};

/// Runs the workloads and prints the results. `servers` are existing brokers to use, and `client` holds the settings to connect to
/// them. The run ends when `stop` resolves; the processes that it started end before this function returns.
///
/// Prints all results, then fails if any workload lost or duplicated a job or got an unexpected one.
pub async fn run(
    args: Args,
    servers: Vec<String>,
    client: ClientBuilder,
    launcher: Launcher,
    stop: impl Future<Output = ()>,
) -> Result<()> {
    let workloads = args.workloads();
    workloads.iter().try_for_each(|workload| workload.check(&servers, args.database_url.as_deref()))?;
    if args.program.is_some() && !servers.is_empty() {
        return Err(Error::Usage(
            "--program starts brokers, but --server names running ones: use only one of them".into(),
        ));
    }
    let (database_url, set, program) = (args.database_url.clone(), args.set.clone(), args.program.clone());
    let max_connections = workloads.iter().filter_map(|workload| workload.max_connections()).max();
    let options = SettingOptions { servers, client, database_url, max_connections, set, program, launcher };
    let mut stop = std::pin::pin!(stop);
    let setting = tokio::select! {
        setting = start(options) => setting?,
        () = &mut stop => return Err(Error::Interrupted),
    };
    let mut bench = Bench::new(args, setting);
    let done = tokio::select! {
        done = measure(&mut bench, &workloads) => done,
        () = &mut stop => Err(Error::Interrupted),
    };
    bench.setting.stop().await;
    done
}

async fn start(options: SettingOptions) -> Result<Setting> {
    let _bar = Bar::spinner("starting");
    Setting::start(options).await
}

async fn measure(bench: &mut Bench, workloads: &[Workload]) -> Result<()> {
    let (mut shown, mut faults) = (Vec::new(), Faults::default());
    let url = bench.setting.database_url().map(str::to_owned);
    let mut before = None;
    if let Some(url) = &url {
        let rows = yardstick::rows(url, bench.args.yardstick_time()).await?;
        before = rows.first().map(|row| row.jobs_per_s);
        show_rows(bench, &rows)?;
        shown.extend(rows);
    }
    for workload in workloads {
        let mut rows = workload.run(bench).await?;
        let after = match &url {
            Some(url) => Some(yardstick::measure(url, yardstick::CYCLE, 2, bench.args.yardstick_time()).await?),
            None => None,
        };
        for row in &mut rows {
            row.yardstick = before.zip(after).map(<[f64; 2]>::from);
            faults += row.faults;
        }
        show_rows(bench, &rows)?;
        shown.extend(rows);
        before = after;
    }
    if !bench.args.json {
        let details: Vec<String> = shown.iter().map(report::detail).collect();
        print(&format!("{}\n\n{}", details.join("\n"), report::table(&shown)))?;
    }
    if let Some(file) = &bench.args.report {
        let failed = |error| Error::Output { operation: format!("cannot write {}", file.display()), error };
        tokio::fs::write(file, report::page(&shown)?).await.map_err(failed)?;
    }
    if faults.none() {
        return Ok(());
    }
    let Faults { lost, duplicated, unexpected } = faults;
    Err(Error::Faults(format!(
        "jobs were lost, duplicated or unexpected: {lost} lost, {duplicated} duplicated, {unexpected} unexpected"
    )))
}

/// Prints rows as JSON lines immediately, so that a long run can be followed and a failed one has printed its first results.
fn show_rows(bench: &Bench, rows: &[Row]) -> Result<()> {
    if !bench.args.json {
        return Ok(());
    }
    rows.iter().try_for_each(|row| print(&row.json().to_string()))
}

fn print(text: &str) -> Result<()> {
    let mut stdout = io::stdout().lock();
    let written = writeln!(stdout, "{text}").and_then(|()| stdout.flush());
    written.map_err(|error| Error::Output { operation: "cannot write to standard output".into(), error })
}
