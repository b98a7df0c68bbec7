//! Compares the output that a documentation page shows with the actual output. Times and durations may differ; all else must be
//! equal.

/// Succeeds if the shown and the actual output are equal. The error shows where they begin to differ.
pub(super) fn same(shown: &str, came: &str) -> Result<(), String> {
    if shown.trim().is_empty() {
        return Ok(());
    }
    let (shown, came) = (normal(shown), normal(came));
    let mut pieces = shown.split('…');
    let first = pieces.next().unwrap_or_default();
    let Some(mut rest) = came.strip_prefix(first) else {
        let same = first.bytes().zip(came.bytes()).take_while(|(a, b)| a == b).count();
        let from = (0..=same).rev().find(|at| first.is_char_boundary(*at) && came.is_char_boundary(*at)).unwrap_or(0);
        return Err(format!("{:?} is shown, {:?} came", excerpt(&first[from..]), excerpt(&came[from..])));
    };
    let mut pieces = pieces.peekable();
    if pieces.peek().is_none() && !rest.is_empty() {
        return Err(format!("{:?} came, and is not shown", excerpt(rest)));
    }
    while let Some(piece) = pieces.next() {
        let piece = piece.trim();
        let at = if pieces.peek().is_none() {
            rest.ends_with(piece).then(|| rest.len() - piece.len())
        } else {
            rest.find(piece)
        };
        let at = at.ok_or_else(|| format!("{:?} is shown, and did not come", excerpt(piece)))?;
        rest = &rest[at + piece.len()..];
    }
    Ok(())
}

fn excerpt(text: &str) -> String {
    text.chars().take(60).collect()
}

/// Returns the words of a text, separated by one space, with `<time>` in place of every duration and point in time.
fn normal(text: &str) -> String {
    let mut words: Vec<String> = Vec::new();
    for line in text.lines() {
        // Ignores the holder of the oldest snapshot, and the numbers of dead rows and history rows, because they depend on
        // vacuum and on the time of day.
        let line = if line.starts_with("oldest snapshot") { "oldest snapshot <holder>" } else { line };
        let vague = line.starts_with("dead rows") || line.starts_with("history");
        for word in line.split_whitespace() {
            // Shortens the rule below a table's heading, because its length depends on values such as times.
            let is_rule = word.len() > 3 && word.bytes().all(|b| b == b'-' || b == b'+');
            let word = if is_rule { "---" } else { word };
            let bare = word.trim_matches(['(', ')', ',', '"']);
            let word = if is_time(bare) { word.replace(bare, "<time>") } else { word.to_owned() };
            let word = if vague && bare.bytes().all(|b| b.is_ascii_digit()) { word.replace(bare, "<n>") } else { word };
            // Counts two durations in a row, such as `1h 5m`, as one.
            match words.last_mut() {
                Some(last) if last.ends_with("<time>") && word.starts_with("<time>") => last.push_str(&word[6..]),
                _ => words.push(word),
            }
        }
    }
    words.join(" ")
}

/// Whether a word is a time or a duration, such as `109ms`, `1.5s`, `0m10.028s`, `2026-11-22T18:14:09.823Z`.
fn is_time(word: &str) -> bool {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    let duration =
        ["ms", "µs", "us", "s", "m", "h", "d"].into_iter().any(|unit| word.strip_suffix(unit).is_some_and(digits));
    let of_shell =
        word.strip_suffix('s').and_then(|word| word.split_once('m')).is_some_and(|(m, s)| digits(m) && digits(s));
    let bytes = word.as_bytes();
    let point = bytes.len() > 18 && bytes[4] == b'-' && bytes[10] == b'T' && bytes[13] == b':';
    duration || of_shell || point
}

#[test]
fn shown_and_real_output_may_differ_only_in_times_and_at_an_ellipsis() {
    let shown = "job 1 a: succeeded\n  created  2026-11-22T18:14:09.823Z  (1h 5m ago)\n  …\n  result  2 bytes\n";
    let came = "job 1 a: succeeded\n created 2027-01-02T00:00:00.000Z (3ms ago)\n x y\n result 2 bytes\n";
    assert_eq!(same(shown, came), Ok(()));
    assert_eq!(same("", "anything"), Ok(()));
    let shown = "oldest snapshot  none older than 1s\nhistory  5 partitions";
    let came = "oldest snapshot  2s, 7 transactions: pid 4711, ann@app, active\nhistory  6 partitions";
    assert_eq!(same(shown, came), Ok(()));
    for (shown, came) in [("job 1", "job 2"), ("a", "a b"), ("a … c", "a b"), ("5 rows", "6 rows"), ("1s", "now")] {
        assert!(same(shown, came).is_err(), "{shown} and {came}");
    }
}
