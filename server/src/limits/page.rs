//! Limits of the page for operators.

use super::{Limit, bytes, fixed, time};
use crate::{config::Config, page::bounds};

pub(super) fn limits(_: &Config) -> Vec<Limit> {
    vec![
        fixed(
            "browsers that look at live figures; for how long, then they ask again; how often the figures change",
            format!(
                "{}, then 503, and a principal no more than streams; {}; every {}",
                bounds::MOST_LIVE,
                time(bounds::LIVE),
                time(bounds::LIVE_PERIOD)
            ),
        ),
        fixed(
            "parameters of a request; bytes of a form; jobs chosen in it",
            format!("{}; {}; {}", bounds::PARAMS, bytes(bounds::FORM_BYTES), bounds::MOST_IDS),
        ),
        fixed(
            "what is shown of a payload or result as JSON or text; in hex",
            format!("the first {}; the first {}", bytes(bounds::TEXT), bytes(bounds::HEX)),
        ),
        fixed(
            "a session, by a token that somebody signed in with; bytes of that token",
            format!("{}; {}", time(bounds::SESSION), bounds::TOKEN_BYTES),
        ),
    ]
}
