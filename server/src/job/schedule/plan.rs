//! When a schedule fires. The planned times depend only on the plan and a time. Times are µs after 1970.

use croner::{
    Cron,
    parser::{CronParser, Seconds, Year},
};
use jiff::{
    Timestamp, ToSpan as _,
    civil::{DateTime, date},
    tz::{AmbiguousOffset, TimeZone},
};

/// Longest cron expression, in bytes.
pub(crate) const EXPRESSION: usize = 200;
/// The last µs of the year 9999.
const LATEST: i64 = 253_402_300_799_999_999;
/// Longest name of a time zone, in bytes.
pub(crate) const ZONE: usize = 100;
/// Steps of the search for a fixed time of the day: an hour that comes twice has 3,600 seconds.
const LOOKS: usize = 100_000;

/// A plan as it is defined and stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlanText {
    /// A period in ms.
    Period(i64),
    /// By the calendar.
    Cron {
        /// Five or six fields, or a nickname.
        expression: String,
        /// A name of the IANA database.
        time_zone: String,
    },
}

/// A parsed plan.
#[derive(Clone, Debug)]
pub enum Plan {
    /// A period in µs.
    Period(i64),
    /// By the calendar.
    Cron(Box<Calendar>),
}

/// Cron in a time zone.
#[derive(Clone, Debug)]
pub struct Calendar {
    cron: Cron,
    zone: TimeZone,
    /// Whether it repeats within the day, at even distances in real time. Otherwise it fires at set times of the day.
    repeats: bool,
}

/// A cron expression in words; `None`: it is none.
pub(crate) fn cron_in_words(expression: &str) -> Option<String> {
    cron(expression).ok().map(|(cron, _)| cron.describe())
}

impl PlanText {
    /// Parses the plan. An error names the field and the problem.
    pub fn parse(&self) -> Result<Plan, (&'static str, String)> {
        match self {
            Self::Period(ms) => Ok(Plan::Period(ms.saturating_mul(1000).max(1))),
            Self::Cron { expression, time_zone } => {
                let zone = zone(time_zone).map_err(|problem| ("cron.time_zone", problem))?;
                let (cron, repeats) = cron(expression).map_err(|problem| ("cron.expression", problem))?;
                Ok(Plan::Cron(Box::new(Calendar { cron, zone, repeats })))
            }
        }
    }
}

impl Plan {
    /// The first planned time after `after`; periods count from `anchor`. `None`: there is no more, or not before the
    /// year 10000, which no protocol can say.
    pub fn next_after(&self, anchor: i64, after: i64) -> Option<i64> {
        let next = match self {
            Self::Period(_) if after < anchor => Some(anchor),
            Self::Period(period) => anchor.checked_add(((after - anchor) / period + 1).checked_mul(*period)?),
            Self::Cron(calendar) => calendar.next_after(after.max(anchor - 1)),
        };
        next.filter(|next| *next <= LATEST)
    }
}

impl Calendar {
    fn next_after(&self, after: i64) -> Option<i64> {
        // Planned times are whole seconds.
        let after = Timestamp::from_second(after.div_euclid(1_000_000)).ok()?;
        let local = after.to_zoned(self.zone.clone());
        if self.repeats {
            let next = self.cron.find_next_occurrence(&local, false).ok()?;
            return Some(next.timestamp().as_microsecond());
        }
        // Each time of the wall clock is one moment, also when the clocks change, so none is skipped and none comes twice.
        // After an hour that comes twice, the next times may still be before `after`.
        let mut wall = local.datetime();
        for _ in 0..LOOKS {
            wall = self.cron.find_next_occurrence(&wall, false).ok()?;
            let at = moment(&self.zone, wall)?;
            if at > after {
                return Some(at.as_microsecond());
            }
        }
        None
    }
}

/// When the wall clock shows this time: the first of two moments, or the end of the gap if there is none.
fn moment(zone: &TimeZone, wall: DateTime) -> Option<Timestamp> {
    let there = zone.to_ambiguous_timestamp(wall);
    match there.offset() {
        AmbiguousOffset::Gap { after, .. } => {
            // Read with the later offset, it is just before the clocks are changed.
            let before = after.to_timestamp(wall).ok()?;
            zone.following(before).next().map(|change| change.timestamp())
        }
        _ => there.earlier().ok(),
    }
}

fn zone(name: &str) -> Result<TimeZone, String> {
    if name.is_empty() {
        return Err("is empty; name one, such as Europe/Berlin or UTC".into());
    }
    let allowed = |c: char| c.is_ascii_alphanumeric() || "_+-/".contains(c);
    // Files of a machine that are in the same place: the zone of whoever looks, or of nobody.
    let lower = name.to_ascii_lowercase();
    let local = ["localtime", "posixrules", "factory"].contains(&&*lower)
        || ["posix/", "right/"].iter().any(|folder| lower.starts_with(folder));
    if local || name.len() > ZONE || !name.chars().all(allowed) {
        return Err(
            "is not the name of a time zone; write one of the IANA database, such as Europe/Berlin or UTC".into()
        );
    }
    match TimeZone::get(name) {
        Ok(zone) if !zone.is_unknown() => Ok(zone),
        _ => Err(format!("is {name:?}, which is not in the IANA database; write for example Europe/Berlin or UTC")),
    }
}

/// The expression, and whether it repeats within the day.
fn cron(expression: &str) -> Result<(Cron, bool), String> {
    const HELP: &str = "write five fields, minute hour day month weekday, such as 30 2 * * MON-FRI";
    if expression.len() > EXPRESSION {
        return Err(format!("has {} bytes; at most {EXPRESSION} are allowed", expression.len()));
    }
    let allowed = |c: char| c.is_ascii_alphanumeric() || " *,-/?#+@".contains(c);
    if !expression.chars().all(allowed) {
        return Err(format!("has a character that cron does not know; {HELP}"));
    }
    // croner takes such a list for one that never fits.
    if expression.split_whitespace().any(|field| field.split(',').any(str::is_empty)) {
        return Err(format!("has a comma with nothing before or after it; {HELP}"));
    }
    let parser = CronParser::builder().seconds(Seconds::Optional).year(Year::Disallowed).build();
    let cron = parser.parse(expression).map_err(|error| {
        let error = error.to_string();
        format!("is {expression:?}, which cron does not understand ({}); {HELP}", error.trim_end_matches('.'))
    })?;
    let fields: Vec<&str> = expression.split_whitespace().collect();
    if let [.., day, month, weekday] = fields[..]
        && !has_a_day(parser, &format!("* * {day} {month} {weekday}"))
    {
        return Err(format!("is {expression:?}, which no date matches; name a day that exists"));
    }
    let within_the_day = if fields.len() == 6 { 3 } else { 2 };
    let hourly = fields.first().is_some_and(|first| first.eq_ignore_ascii_case("@hourly"));
    let repeats = hourly || (fields.len() >= 5 && fields[..within_the_day].iter().any(|field| field.contains('*')));
    Ok((cron, repeats))
}

/// Whether an expression fits any day: croner looks for one through thousands of years.
fn has_a_day(parser: CronParser, each_minute: &str) -> bool {
    let Ok(cron) = parser.parse(each_minute) else { return true };
    // After 28 years, leap years and weekdays come again as they were.
    let days = date(2000, 1, 1).series(1.day()).take_while(|day| day.year() < 2028);
    days.into_iter().any(|day| cron.is_time_matching(&day.at(12, 0, 0, 0)).unwrap_or(true))
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
