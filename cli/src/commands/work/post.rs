//! Flags of the worker that sends each job to a URL.

use std::{path::PathBuf, time::Duration};

use reqwest::{
    Method, Url,
    header::{HeaderMap, HeaderName, HeaderValue},
};

use super::{super::failure::Failure, kind::Kind};
use crate::secrets;
use crate::workers::{
    exec::StopTokens,
    post::{Post, Secret, Target},
};

/// Environment variable with the secret that signs requests.
const SECRET: &str = "HOWDAH_POST_SECRET";

/// Default timeout of an HTTP request, including its answer.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Flags that conflict with --post. All flags of this group list them, because clap does not check `requires` of a flag that
/// conflicts with another one.
const OTHERS: [&str; 3] = ["exec", "argv", "sql"];

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "HTTP")]
pub(super) struct PostArgs {
    /// Send each job to this URL, with its payload as the body
    #[arg(long, value_name = "URL")]
    post: Option<Url>,
    /// Use this HTTP method
    #[arg(long, value_name = "METHOD", default_value = "POST", requires = "post",
          conflicts_with_all = OTHERS)]
    method: Method,
    /// Add this header to each request; repeatable
    #[arg(long, value_name = "NAME: VALUE", requires = "post", conflicts_with_all = OTHERS, value_parser = header)]
    header: Vec<(HeaderName, HeaderValue)>,
    /// Sign each request with the secret in this file, or in the variable HOWDAH_POST_SECRET
    #[arg(long, value_name = "FILE", requires = "post", conflicts_with_all = OTHERS)]
    secret_file: Option<PathBuf>,
    /// Allow private, loopback and link-local addresses
    #[arg(long, requires = "post", conflicts_with_all = OTHERS)]
    allow_private: bool,
}

fn header(text: &str) -> Result<(HeaderName, HeaderValue), String> {
    let (name, value) = text.split_once(':').ok_or("write a header as NAME: VALUE")?;
    let name =
        HeaderName::try_from(name.trim()).map_err(|_| "the header's name has a character that is not allowed")?;
    let mut value =
        HeaderValue::try_from(value.trim()).map_err(|_| "the header's value has a character that is not allowed")?;
    // Marks the header value as sensitive, because it may be a credential.
    value.set_sensitive(true);
    Ok((name, value))
}

impl PostArgs {
    /// Creates the HTTP worker, or returns `None` without `--post`.
    pub(super) fn kind(
        &self,
        stop_tokens: &StopTokens,
        jobs: usize,
        timeout: Option<Duration>,
    ) -> Result<Option<Kind>, Failure> {
        let Some(url) = self.post.clone() else { return Ok(None) };
        let target = Target {
            url,
            method: self.method.clone(),
            headers: self.header.iter().cloned().collect::<HeaderMap>(),
            secret: self.secret()?,
            timeout: timeout.unwrap_or(TIMEOUT),
            allow_private: self.allow_private,
            idle_connections: jobs,
        };
        let post =
            Post::new(target, stop_tokens.clone()).map_err(|problem| Failure::usage(format!("--post {problem}")))?;
        Ok(Some(Kind::Post(Box::new(post))))
    }

    fn secret(&self) -> Result<Option<Secret>, Failure> {
        let (bytes, name) = match &self.secret_file {
            Some(file) => {
                let name = format!("--secret-file {}", file.display());
                let bytes = std::fs::read(file).map_err(|error| Failure::usage(format!("{name}: {error}")))?;
                (bytes, name)
            }
            // An empty variable counts as unset.
            None => match secrets::var(SECRET) {
                Some(value) if !value.is_empty() => (value.into_bytes(), SECRET.to_owned()),
                _ => return Ok(None),
            },
        };
        let secret = Secret::new(bytes);
        secret
            .map(Some)
            .ok_or_else(|| Failure::usage(format!("{name} is empty: set a secret, preferably of 32 random bytes")))
    }
}
