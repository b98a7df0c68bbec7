//! The principal name of a JSON Web Token's subject: `jwt:ISSUER:SUBJECT`.
//!
//! Sessions and request keys belong to principals, so two subjects must never have the same name. Principals of Howdah tokens
//! cannot begin with `jwt:` (`howdah_engine::access::check_principal`). The issuer's name comes from the file and has no
//! colon, so the second colon ends it. The escaping of subjects is unambiguous.

use howdah_engine::access::{JWT_PRINCIPAL, PRINCIPAL_BYTES};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

/// Characters that are escaped in subjects: those that a principal cannot contain, and the escape character `%`.
const WRITTEN: &AsciiSet = &CONTROLS.add(b' ').add(b'%');

/// Returns the name of a principal. Refuses a subject that is too long: a shortened name could belong to another subject.
pub(super) fn name(issuer: &str, subject: &str) -> Result<String, String> {
    let name = format!("{JWT_PRINCIPAL}{issuer}:{}", utf8_percent_encode(subject, WRITTEN));
    if name.len() > PRINCIPAL_BYTES {
        return Err(format!(
            "has a subject that is too long: as a principal it has {} bytes; {PRINCIPAL_BYTES} are allowed",
            name.len()
        ));
    }
    Ok(name)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_name_has_the_issuer_and_the_subject() {
        assert_eq!(name("corp", "ann").unwrap(), "jwt:corp:ann");
        assert_eq!(name("k8s", "system:serviceaccount:ci:runner").unwrap(), "jwt:k8s:system:serviceaccount:ci:runner");
        assert_eq!(name("corp", "a b%20\u{e9}\n").unwrap(), "jwt:corp:a%20b%2520%C3%A9%0A");
        assert!(name("corp", &"x".repeat(192)).unwrap_err().contains("201 bytes"));
        assert!(name("corp", &"x".repeat(191)).is_ok());
    }

    proptest! {
        #[test]
        fn two_holders_never_have_one_name(
            one in ("[a-c-]{1,3}", "[a:%0-2 \u{e9}\n]{1,6}"),
            other in ("[a-c-]{1,3}", "[a:%0-2 \u{e9}\n]{1,6}"),
        ) {
            let named = |(issuer, subject): &(String, String)| name(issuer, subject).unwrap();
            prop_assert_eq!(named(&one) == named(&other), one == other);
            prop_assert!(named(&one).chars().all(|c| c.is_ascii_graphic()));
        }
    }
}
