//! Password files with lines `host:port:database:user:password`.

use std::{fs, os::unix::fs::PermissionsExt as _, path::PathBuf};

use tokio_postgres::config::Host;

use super::libpq::{LibpqEnvironment, Options};

/// A password file.
#[derive(Clone)]
pub(super) struct Passfile {
    path: PathBuf,
    /// Whether the configuration names the password file. Problems with the default file only cause a warning.
    is_named: bool,
}

impl Passfile {
    /// Returns the password file that the option `passfile` names, or else `~/.pgpass` if it exists.
    pub(super) fn find(options: &mut Options, environment: &LibpqEnvironment) -> Result<Option<Self>, String> {
        let named = options.take("passfile").map(|path| Self { path: path.into(), is_named: true });
        if let Some(file) = &named {
            file.read()?;
        }
        let at_home = || environment.file_at_home(".pgpass").map(|path| Self { path, is_named: false });
        Ok(named.or_else(at_home))
    }

    fn read(&self) -> Result<String, String> {
        let wrong = |why: &dyn std::fmt::Display| format!("passfile {}: {why}", self.path.display());
        let mode = fs::metadata(&self.path).map_err(|error| wrong(&error))?.permissions().mode();
        // As in libpq, a password file that other users may read is not used.
        if mode & 0o077 != 0 {
            return Err(wrong(&format_args!("other users may read it (mode {:o}): run chmod 600", mode & 0o777)));
        }
        fs::read_to_string(&self.path).map_err(|error| wrong(&error))
    }

    /// Returns the password for this server, if the file has one.
    pub(super) fn password(&self, config: &tokio_postgres::Config) -> Result<Option<String>, String> {
        let text = match self.read() {
            Ok(text) => text,
            Err(problem) if self.is_named => return Err(problem),
            Err(problem) => {
                tracing::warn!(problem, "ignoring a password file");
                return Ok(None);
            }
        };
        let host = match (config.get_hosts().first(), config.get_hostaddrs().first()) {
            (Some(Host::Tcp(host)), _) => host.clone(),
            #[cfg(unix)]
            (Some(Host::Unix(path)), _)
                if ["/tmp", "/var/run/postgresql", "/run/postgresql"]
                    .iter()
                    .any(|usual| path.as_os_str() == *usual) =>
            {
                "localhost".into()
            }
            #[cfg(unix)]
            (Some(Host::Unix(path)), _) => path.display().to_string(),
            (None, Some(address)) => address.to_string(),
            (None, None) => return Ok(None),
        };
        let port = config.get_ports().first().copied().unwrap_or(5432).to_string();
        let user = config.get_user().map_or_else(user_of_process, str::to_owned);
        let dbname = config.get_dbname().unwrap_or(&user);
        Ok(find(&text, [&host, &port, dbname, &user]))
    }
}

/// Returns the operating system user of this process. libpq connects as this user by default.
fn user_of_process() -> String {
    std::env::var("USER").unwrap_or_default()
}

fn find(text: &str, wanted: [&str; 4]) -> Option<String> {
    text.lines().filter(|line| !line.starts_with('#')).find_map(|line| {
        let mut fields = fields(line).into_iter();
        let fits =
            wanted.iter().all(|wanted| fields.next().is_some_and(|field| field == "*" || unescaped(field) == **wanted));
        fits.then(|| fields.next().map(unescaped)).flatten().filter(|password| !password.is_empty())
    })
}

/// Splits a line at colons that no backslash escapes.
fn fields(line: &str) -> Vec<&str> {
    let (mut fields, mut begin, mut escaped) = (Vec::new(), 0, false);
    for (at, c) in line.char_indices() {
        if c == ':' && !escaped {
            fields.push(&line[begin..at]);
            begin = at + 1;
        }
        escaped = c == '\\' && !escaped;
    }
    fields.push(&line[begin..]);
    fields
}

fn unescaped(field: &str) -> String {
    let mut text = String::new();
    let mut letters = field.chars();
    while let Some(c) = letters.next() {
        text.push(if c == '\\' { letters.next().unwrap_or(c) } else { c });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_that_fits_has_the_password() {
        let text = "# host:port:database:user:password\nother:*:*:*:wrong\nh:5432:d:u:p\\:w\\\\\n*:*:*:u:any\n";
        let of = |host, dbname, user| find(text, [host, "5432", dbname, user]);
        assert_eq!(of("h", "d", "u").as_deref(), Some("p:w\\"));
        assert_eq!(of("h", "e", "u").as_deref(), Some("any"));
        assert_eq!(of("h", "e", "v"), None);
        assert_eq!(find("::::\n\n:", ["", "", "", ""]), None);
    }
}
