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

/// For a whole request, unless told otherwise.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Each flag refuses them by itself: what a flag requires is not looked for when it is in conflict with what is given.
const OTHERS: [&str; 3] = ["exec", "argv", "sql"];

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "HTTP")]
pub(super) struct PostArgs {
    /// Send each job to this URL, its payload as the body
    #[arg(long, value_name = "URL")]
    post: Option<Url>,
    /// The method
    #[arg(long, value_name = "METHOD", default_value = "POST", requires = "post",
          conflicts_with_all = OTHERS)]
    method: Method,
    /// A header for each request; repeatable
    #[arg(long, value_name = "NAME: VALUE", requires = "post", conflicts_with_all = OTHERS, value_parser = header)]
    header: Vec<(HeaderName, HeaderValue)>,
    /// Sign each request with the secret in this file; or with the variable HOWDAH_POST_SECRET
    #[arg(long, value_name = "FILE", requires = "post", conflicts_with_all = OTHERS)]
    secret_file: Option<PathBuf>,
    /// Allow private, loopback and link-local addresses
    #[arg(long, requires = "post", conflicts_with_all = OTHERS)]
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
    pub(super) fn kind(&self, ends: &Ends, jobs: usize, timeout: Option<Duration>) -> Result<Option<Kind>, Failure> {
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
