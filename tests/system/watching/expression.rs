//! Parses metrics and labels of a Prometheus expression. It supports the syntax that the rules and panels of this repository
//! use, not the whole language.

use std::collections::BTreeSet;

/// A metric in an expression, with the labels that select its series.
#[derive(Debug, PartialEq, Eq)]
pub struct Selected {
    pub metric: String,
    pub labels: BTreeSet<String>,
}

/// Returns all Howdah metrics in an expression.
pub fn metrics(expression: &str) -> Vec<Selected> {
    let mut found = Vec::new();
    for (start, word) in words(expression).filter(|(_, word)| word.starts_with("howdah_")) {
        let rest = &expression[start + word.len()..];
        let selector = rest.strip_prefix('{').and_then(|rest| rest.split_once('}')).map_or("", |(inside, _)| inside);
        // A comma within a label's value would be parsed as a separator, but no rule has one.
        let names = selector.split(',').filter_map(|matcher| matcher.split(['=', '!']).next());
        let labels = names.map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).collect();
        found.push(Selected { metric: word.to_owned(), labels });
    }
    found
}

/// Returns the labels by which the expression groups or matches.
pub fn groupings(expression: &str) -> BTreeSet<String> {
    let mut labels = BTreeSet::new();
    for (start, word) in words(expression).filter(|(_, word)| ["by", "on", "without", "ignoring"].contains(word)) {
        let rest = expression[start + word.len()..].trim_start();
        if let Some((inside, _)) = rest.strip_prefix('(').and_then(|rest| rest.split_once(')')) {
            labels.extend(inside.split(',').map(|label| label.trim().to_owned()));
        }
    }
    labels
}

/// Returns the identifiers in an expression, with their positions.
fn words(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let letter = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let begins = move |at: usize| !text[..at].ends_with(letter);
    text.char_indices().filter(move |&(at, c)| letter(c) && begins(at)).map(move |(at, _)| {
        let end = text[at..].find(|c| !letter(c)).map_or(text.len(), |length| at + length);
        (at, &text[at..end])
    })
}

#[test]
fn metrics_labels_and_groupings_of_an_expression_are_found() {
    let expression = r#"sum by (le, state) (rate(howdah_a_bucket{le="1", task_type=~"$t"}[5m])) / on(x) howdah_b > 1"#;
    let labels = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
    let selected = |metric: &str, names: &[&str]| Selected { metric: metric.to_owned(), labels: labels(names) };
    assert_eq!(metrics(expression), [selected("howdah_a_bucket", &["le", "task_type"]), selected("howdah_b", &[])]);
    assert_eq!(groupings(expression), labels(&["le", "state", "x"]));
}
