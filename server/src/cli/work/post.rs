//! The worker that sends each job to a URL.

use std::{path::PathBuf, time::Duration};

use reqwest::{
    Method, Url,
    header::{HeaderMap, HeaderName, HeaderValue},
};

use super::{super::failure::Failure, kind::Kind};
use crate::workers::{
    exec::Ends,
    post::{Post, Secret, Target},
};

/// The secret, for those who have no file.
const SECRET: &str = "HOWDAH_POST_SECRET";

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "HTTP")]
pub(super) struct PostArgs {
    /// Send each job to this URL, its payload as the body
    #[arg(long, value_name = "URL")]
    post: Option<Url>,
    /// The method
    #[arg(long, value_name = "METHOD", default_value = "POST", requires = "post")]
    method: Method,
    /// A header for each request; repeatable
    #[arg(long, value_name = "NAME: VALUE", requires = "post", value_parser = header)]
    header: Vec<(HeaderName, HeaderValue)>,
    /// Sign each request with the secret in this file; or with the variable HOWDAH_POST_SECRET
    #[arg(long, value_name = "FILE", requires = "post")]
    secret_file: Option<PathBuf>,
    /// For a whole request, its answer included
    #[arg(long, value_name = "DURATION", default_value = "30s", requires = "post",
          value_parser = humantime::parse_duration)]
    timeout: Duration,
    /// Allow private, loopback and link-local addresses
    #[arg(long, requires = "post")]
    allow_private: bool,
}

fn header(text: &str) -> Result<(HeaderName, HeaderValue), String> {
    let (name, value) = text.split_once(':').ok_or("a header is NAME: VALUE")?;
    let name = HeaderName::try_from(name.trim()).map_err(|_| "the name of the header has a bad character")?;
    let mut value = HeaderValue::try_from(value.trim()).map_err(|_| "the value of the header has a bad character")?;
    // It may be a password.
    value.set_sensitive(true);
    Ok((name, value))
}

impl PostArgs {
    /// The worker, if it is of this kind.
    pub(super) fn kind(&self, ends: &Ends, jobs: usize) -> Result<Option<Kind>, Failure> {
        let Some(url) = self.post.clone() else { return Ok(None) };
        let target = Target {
            url,
            method: self.method.clone(),
            headers: self.header.iter().cloned().collect::<HeaderMap>(),
            secret: self.secret()?,
            timeout: self.timeout,
            allow_private: self.allow_private,
            idle_connections: jobs,
        };
        let post = Post::new(target, ends.clone()).map_err(|problem| Failure::usage(format!("--post {problem}")))?;
        Ok(Some(Kind::Post(Box::new(post))))
    }

    fn secret(&self) -> Result<Option<Secret>, Failure> {
        let (bytes, name) = match &self.secret_file {
            Some(file) => {
                let name = format!("--secret-file {}", file.display());
                let bytes = std::fs::read(file).map_err(|error| Failure::usage(format!("{name}: {error}")))?;
                (bytes, name)
            }
            // An empty variable is one that is not set.
            None => match std::env::var(SECRET) {
                Ok(value) if !value.is_empty() => (value.into_bytes(), SECRET.to_owned()),
                _ => return Ok(None),
            },
        };
        let secret = Secret::new(bytes);
        secret
            .map(Some)
            .ok_or_else(|| Failure::usage(format!("{name} is empty; a secret is any bytes, best 32 random ones")))
    }
}
