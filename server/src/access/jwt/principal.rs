//! The name that the holder of a JSON Web Token has as a principal: `jwt:ISSUER:SUBJECT`.
//!
//! Sessions and request keys belong to principals, so two holders must never have one name. `jwt:` cannot begin the name
//! of a token's principal ([`crate::access::check_principal`]). The name of the issuer is that of the file, without a
//! colon, so that the second colon ends it. The subject is written so that no two are written alike.

use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

use crate::access::PRINCIPAL_BYTES;

/// How the names of these principals begin.
pub(crate) const BEGIN: &str = "jwt:";

/// What a principal cannot have, and what writes it.
const WRITTEN: &AsciiSet = &CONTROLS.add(b' ').add(b'%');

/// The name of a principal. A subject that is too long is refused: a shorter name could be somebody else's.
pub(super) fn name(issuer: &str, subject: &str) -> Result<String, String> {
    let name = format!("{BEGIN}{issuer}:{}", utf8_percent_encode(subject, WRITTEN));
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
