//! Plans of schedules. The planned times depend only on the plan and a start time. Times are in µs after 1970.

use std::sync::LazyLock;

use croner::{
    Cron,
    parser::{CronParser, Seconds, Year},
};
use jiff::{
    Timestamp, ToSpan as _,
    civil::{DateTime, date},
    tz::{AmbiguousOffset, Offset, TimeZone, TimeZoneDatabase},
};

/// Maximum length of a cron expression, in bytes.
pub const EXPRESSION: usize = 200;
/// Last µs of the year 9999.
const LATEST: i64 = 253_402_300_799_999_999;
/// Maximum length of a time zone name, in bytes.
pub const ZONE: usize = 100;
/// Maximum number of search steps for the next fixed time of the day. An hour that occurs twice can take 3,600 steps,
/// one per second.
const LOOKS: usize = 100_000;

/// Time zone database that is compiled into the program.
static BUNDLED: LazyLock<TimeZoneDatabase> = LazyLock::new(TimeZoneDatabase::bundled);

/// Plan of a schedule, as defined and stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlanText {
    /// A period in ms.
    Period(i64),
    /// A calendar.
    Cron {
        /// Five or six cron fields, or a nickname such as `@daily`.
        expression: String,
        /// Name in the IANA time zone database.
        time_zone: String,
    },
}

/// A parsed plan.
#[derive(Clone, Debug)]
pub enum Plan {
    /// A period in µs.
    Period(i64),
    /// A calendar.
    Cron(Box<Calendar>),
}

/// A cron expression in a time zone.
#[derive(Clone, Debug)]
pub struct Calendar {
    cron: Cron,
    zone: TimeZone,
    /// Whether the calendar repeats within the day, at equal intervals of elapsed time. Otherwise it fires at fixed
    /// times of the day.
    repeats: bool,
}

/// Describes a cron expression in words; `None` if it is invalid.
pub fn cron_in_words(expression: &str) -> Option<String> {
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
    /// First planned time after `after`; periods count from `anchor`. `None` if it is after the year 9999, which the
    /// protocol cannot express.
    pub fn next_after(&self, anchor: i64, after: i64) -> Option<i64> {
        let next = match self {
            Self::Period(_) if after < anchor => Some(anchor),
            Self::Period(period) => anchor.checked_add(((after - anchor) / period + 1).checked_mul(*period)?),
            Self::Cron(calendar) => calendar.next_after(after.max(anchor - 1)),
        };
        next.filter(|next| *next <= LATEST)
    }

    /// Offset of the plan's time zone from UTC at this time, in seconds; `None` for a period.
    pub(crate) fn offset_at(&self, time: i64) -> Option<i32> {
        let Self::Cron(calendar) = self else { return None };
        let time = Timestamp::from_microsecond(time).ok()?;
        Some(calendar.zone.to_offset(time).seconds())
    }

    /// Recomputes a time that was planned with another offset of the time zone. Fixed times of the day keep their wall
    /// clock time; a plan that repeats within the day continues at its intervals.
    pub(crate) fn planned_anew(&self, anchor: i64, planned: i64, offset: i32, now: i64) -> Option<i64> {
        match self {
            Self::Cron(calendar) if !calendar.repeats => {
                let planned = Timestamp::from_microsecond(planned).ok()?;
                let wall = Offset::from_seconds(offset).ok()?.to_datetime(planned);
                moment(&calendar.zone, wall).map(Timestamp::as_microsecond)
            }
            _ => self.next_after(anchor, now.min(planned - 1)),
        }
    }

    /// Whether the plan is a calendar with fixed times of the day.
    pub(crate) fn has_fixed_times(&self) -> bool {
        matches!(self, Self::Cron(calendar) if !calendar.repeats)
    }
}

impl Calendar {
    fn next_after(&self, after: i64) -> Option<i64> {
        // The search starts at a whole second, because planned times are whole seconds.
        let after = Timestamp::from_second(after.div_euclid(1_000_000)).ok()?;
        let local = after.to_zoned(self.zone.clone());
        if self.repeats {
            let next = self.cron.find_next_occurrence(&local, false).ok()?;
            return Some(next.timestamp().as_microsecond());
        }
        // Each wall clock time maps to one moment, even when the clocks change, so no time is skipped and none repeats.
        // After an hour that occurs twice, the next moments may still be before `after`.
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

#[cfg(test)]
impl Calendar {
    /// Returns the same expression with other time zone rules, for tests.
    pub(super) fn in_zone(self, zone: TimeZone) -> Self {
        Self { zone, ..self }
    }
}

/// Moment of a wall clock time: the first one if it occurs twice, or the end of the gap if the clocks skip it.
fn moment(zone: &TimeZone, wall: DateTime) -> Option<Timestamp> {
    let there = zone.to_ambiguous_timestamp(wall);
    match there.offset() {
        AmbiguousOffset::Gap { after, .. } => {
            // In a gap, the later offset gives a moment just before the clocks change.
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
    // Rejects names of files that some machines have in the zone directory and that are not zones: the local time zone,
    // or a placeholder.
    let lower = name.to_ascii_lowercase();
    let local = ["localtime", "posixrules", "factory"].contains(&&*lower)
        || ["posix/", "right/"].iter().any(|folder| lower.starts_with(folder));
    if local || name.len() > ZONE || !name.chars().all(allowed) {
        return Err(
            "is not the name of a time zone; write one of the IANA database, such as Europe/Berlin or UTC".into()
        );
    }
    // The operating system may lack recent zones, or all of them.
    match TimeZone::get(name).or_else(|_| BUNDLED.get(name)) {
        Ok(zone) if !zone.is_unknown() => Ok(zone),
        _ => Err(format!("is {name:?}, which is not in the IANA database; write for example Europe/Berlin or UTC")),
    }
}

/// Cron nicknames, and their five fields.
const NICKNAMES: [(&str, &str); 7] = [
    ("@yearly", "0 0 1 1 *"),
    ("@annually", "0 0 1 1 *"),
    ("@monthly", "0 0 1 * *"),
    ("@weekly", "0 0 * * 0"),
    ("@daily", "0 0 * * *"),
    ("@midnight", "0 0 * * *"),
    ("@hourly", "0 * * * *"),
];

/// Returns the fields of a cron expression, with a nickname replaced by its fields.
fn spelled_out(expression: &str) -> Result<&str, String> {
    let trimmed = expression.trim();
    if !trimmed.starts_with('@') {
        return Ok(expression);
    }
    if let Some((_, fields)) = NICKNAMES.iter().find(|(name, _)| name.eq_ignore_ascii_case(trimmed)) {
        return Ok(fields);
    }
    if trimmed.eq_ignore_ascii_case("@reboot") {
        return Err("is @reboot, which names no time; enqueue the job where the program starts instead".into());
    }
    let names = NICKNAMES.map(|(name, _)| name).join(", ");
    Err(format!(
        "is {expression:?}, which cron does not know; write one of {names}, or five fields, or set a period instead of cron"
    ))
}

/// Parses a cron expression; also returns whether it repeats within the day.
fn cron(expression: &str) -> Result<(Cron, bool), String> {
    const HELP: &str = "write five fields, minute hour day month weekday, such as 30 2 * * MON-FRI";
    if expression.len() > EXPRESSION {
        return Err(format!("has {} bytes; at most {EXPRESSION} are allowed", expression.len()));
    }
    let allowed = |c: char| c.is_ascii_alphanumeric() || " *,-/?#+@".contains(c);
    if !expression.chars().all(allowed) {
        return Err(format!("has a character that cron does not know; {HELP}"));
    }
    let fields: Vec<&str> = spelled_out(expression)?.split_whitespace().collect();
    // Rejects a list with an empty element. croner accepts such a list, and it never matches.
    if fields.iter().any(|field| field.split(',').any(str::is_empty)) {
        return Err(format!("has a comma with nothing before or after it; {HELP}"));
    }
    // Vixie's rule: if one day field starts with `*`, such as `*/2`, both day fields must match. croner applies it to a single `*`
    // only.
    let stars = |field: &&str| field.starts_with(['*', '?']);
    let both = matches!(fields[..], [.., day, _, weekday] if stars(&day) || stars(&weekday));
    let parser = CronParser::builder().seconds(Seconds::Optional).year(Year::Disallowed).dom_and_dow(both).build();
    let cron = parser.parse(&fields.join(" ")).map_err(|error| {
        let error = error.to_string();
        format!("is {expression:?}, which cron does not understand ({}); {HELP}", error.trim_end_matches('.'))
    })?;
    if let [.., day, month, weekday] = fields[..]
        && !has_a_day(parser, &format!("* * {day} {month} {weekday}"))
    {
        return Err(format!("is {expression:?}, which no date matches; name a day that exists"));
    }
    let within_the_day = if fields.len() == 6 { 3 } else { 2 };
    let repeats = fields.len() >= 5 && fields[..within_the_day].iter().any(|field| field.contains('*'));
    Ok((cron, repeats))
}

/// Whether a cron expression matches any day. croner would search thousands of years for one.
fn has_a_day(parser: CronParser, each_minute: &str) -> bool {
    let Ok(cron) = parser.parse(each_minute) else { return true };
    // Leap years and weekdays repeat after 28 years.
    let days = date(2000, 1, 1).series(1.day()).take_while(|day| day.year() < 2028);
    days.into_iter().any(|day| cron.is_time_matching(&day.at(12, 0, 0, 0)).unwrap_or(true))
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
