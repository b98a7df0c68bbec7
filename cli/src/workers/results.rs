//! Results of the jobs that a job depended on, as a file for its process: one JSON object per line.

use std::{io, sync::Arc};

use howdah_client::{Results, proto::DependencyResult};
use howdah_core::job::JobState;
use serde::Serialize;
use tempfile::{NamedTempFile, TempPath};
use tokio::io::{AsyncWriteExt as _, BufWriter};

use super::lines::as_text;

/// Path of a file with results, which only this user can read. The last clone deletes the file.
#[derive(Clone, Debug)]
pub struct ResultsFile(Arc<TempPath>);

impl ResultsFile {
    /// Writes all results of a job's dependencies to a new file in the directory for temporary files. Returns `None` if the
    /// job has no dependencies.
    pub async fn write(mut results: Results) -> Result<Option<Self>, String> {
        let next = async |results: &mut Results| results.next().await.map_err(|error| error.to_string());
        let Some(mut result) = next(&mut results).await? else { return Ok(None) };
        let failed = |error: io::Error| format!("a temporary file: {error}");
        let (file, path) = NamedTempFile::with_prefix("howdah-results-").map_err(failed)?.into_parts();
        let mut file = BufWriter::new(tokio::fs::File::from_std(file));
        loop {
            file.write_all(&line(&result)).await.map_err(failed)?;
            match next(&mut results).await? {
                Some(other) => result = other,
                None => break,
            }
        }
        file.flush().await.map_err(failed)?;
        Ok(Some(Self(Arc::new(path))))
    }

    /// Path of the file.
    pub fn path(&self) -> &std::path::Path {
        &self.0
    }
}

#[derive(Serialize)]
struct ResultLine<'a> {
    id: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result_base64: Option<String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    missing: bool,
}

fn line(dependency: &DependencyResult) -> Vec<u8> {
    let DependencyResult { id, missing, .. } = *dependency;
    let (result, result_base64) = if missing { (None, None) } else { as_text(&dependency.result) };
    let state = JobState::from_proto(dependency.state).map(JobState::name);
    let mut line = serde_json::to_vec(&ResultLine { id, state, result, result_base64, missing }).unwrap_or_default();
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use howdah_client::proto::JobState as ProtoState;

    use super::*;

    #[test]
    fn a_result_is_a_text_or_base64_or_missing() {
        let of = |result: &'static [u8], missing| {
            let state = if missing { ProtoState::Unspecified } else { ProtoState::Succeeded };
            let dependency =
                DependencyResult { id: 7, state: state as i32, result: result.into(), truncated: false, missing };
            String::from_utf8(line(&dependency)).unwrap()
        };
        assert_eq!(of(b"a\nb", false), "{\"id\":7,\"state\":\"succeeded\",\"result\":\"a\\nb\"}\n");
        assert_eq!(of(b"\xff", false), "{\"id\":7,\"state\":\"succeeded\",\"result_base64\":\"/w==\"}\n");
        assert_eq!(of(b"", true), "{\"id\":7,\"missing\":true}\n");
    }
}
