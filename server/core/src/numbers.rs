//! Numbers as text for people, in commands and on the page.

/// Formats a number with thousands separators: `100,000`.
pub fn grouped(number: i64) -> String {
    let digits = number.unsigned_abs().to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if number < 0 { format!("−{text}") } else { text }
}

/// Groups the digits of each long number in a text: `1 to 1000000` becomes `1 to 1,000,000`.
pub fn grouped_in(text: &str) -> String {
    let mut grouped = String::new();
    for (index, c) in text.char_indices() {
        let follow = text[index..].chars().take_while(char::is_ascii_digit).count();
        let inside = text[..index].ends_with(|c: char| c.is_ascii_digit());
        if inside && follow > 0 && follow % 3 == 0 {
            grouped.push(',');
        }
        grouped.push(c);
    }
    grouped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_numbers_in_a_text_are_grouped() {
        assert_eq!(grouped_in("-1000 to 1000000, 365 days, 36500days"), "-1,000 to 1,000,000, 365 days, 36,500days");
    }
}
