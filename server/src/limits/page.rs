//! Limits of the page for operators.

use howdah_core::config::Config;

use super::{Limit, bytes, fixed, time};
use crate::page::bounds;

pub(super) fn limits(_: &Config) -> Vec<Limit> {
    vec![
        fixed(
            "browsers with live figures; time until they reconnect; update interval",
            format!(
                "{}, then 503, and a principal at most its streams; {}; every {}",
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
            "part of a payload or result shown as JSON or text; in hex",
            format!("the first {}; the first {}", bytes(bounds::TEXT), bytes(bounds::HEX)),
        ),
        fixed(
            "session of an operator who signed in with a token; bytes of the token",
            format!("{}; {}", time(bounds::SESSION), bounds::TOKEN_BYTES),
        ),
    ]
}
