//! The format of a token: `hwd_<id>_<secret>_<check>`, with the three parts in hex. Secret scanners find tokens by the prefix.
//! The id is public and names the token in logs. The checksum distinguishes a mistyped token from an unknown one.

use std::{fmt, time::Duration};

use howdah_core::error::Error;
use sha2::{Digest as _, Sha256};

use super::Scope;
use crate::store::{Actor, MOST_TOKENS, NewToken, Store, TokenView};

const PREFIX: &str = "hwd";
const ID_BYTES: usize = 8;
const SECRET_BYTES: usize = 32;

/// Id of a token, which is its public part.
pub type TokenId = String;

/// A token with its secret. The secret is shown once, when the token is created.
pub struct Token {
    id: TokenId,
    text: String,
}

/// Omits the secret, so that it cannot appear in logs.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token").field("id", &self.id).finish_non_exhaustive()
    }
}

/// The reason why a text is not a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// The text does not have the form of a token.
    #[error("it must have the form hwd_ID_SECRET_CHECK")]
    Shape,
    /// The checksum does not match, or a part has the wrong length or characters.
    #[error("its checksum is wrong, so a character is wrong or missing")]
    Check,
}

impl Token {
    /// Generates a token with 256 random bits from a generator that the operating system seeds.
    pub fn generate() -> Self {
        let id = hex::encode(rand::random::<[u8; ID_BYTES]>());
        let body = format!("{PREFIX}_{id}_{}", hex::encode(rand::random::<[u8; SECRET_BYTES]>()));
        let text = format!("{body}_{}", check(&body));
        Self { id, text }
    }

    /// Whether a text has the prefix of a Howdah token. The token may be invalid.
    pub fn looks_like(text: &str) -> bool {
        text.strip_prefix(PREFIX).is_some_and(|rest| rest.starts_with('_'))
    }

    /// Parses a token and verifies its checksum.
    pub fn parse(text: &str) -> Result<Self, TokenError> {
        let (body, given) = text.rsplit_once('_').ok_or(TokenError::Shape)?;
        let mut parts = body.split('_');
        let (Some(PREFIX), Some(id), Some(secret), None) = (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(TokenError::Shape);
        };
        let is_hex = |text: &str, bytes: usize| {
            text.len() == 2 * bytes && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
        };
        if !is_hex(id, ID_BYTES) || !is_hex(secret, SECRET_BYTES) || given != check(body) {
            return Err(TokenError::Check);
        }
        Ok(Self { id: id.to_owned(), text: text.to_owned() })
    }

    /// Returns the public part of the token.
    pub fn id(&self) -> &TokenId {
        &self.id
    }

    /// Returns the whole token, which is secret.
    pub fn secret(&self) -> &str {
        &self.text
    }

    /// Returns the SHA-256 hash, the only form in which the token is stored.
    pub fn hash(&self) -> [u8; 32] {
        Sha256::digest(&self.text).into()
    }
}

fn check(body: &str) -> String {
    hex::encode(crc32fast::hash(body.as_bytes()).to_be_bytes())
}

/// A token to create.
#[derive(Clone, Debug)]
pub struct TokenQuery {
    /// The principal that the token authenticates.
    pub principal: String,
    pub scopes: Vec<Scope>,
    /// Time until the token expires. `None` for a token that never expires.
    pub lifetime: Option<Duration>,
}

/// Creates a token and stores its hash. `by` is the actor in the audit log.
pub async fn create_token(store: &Store, by: &Actor, query: &TokenQuery) -> Result<(Token, TokenView), Error> {
    let token = Token::generate();
    let scopes: Vec<String> = query.scopes.iter().map(ToString::to_string).collect();
    let new = NewToken {
        id: token.id(),
        hash: &token.hash(),
        principal: &query.principal,
        scopes: &scopes,
        created_by: by.principal.as_deref().unwrap_or_default(),
        lifetime: query.lifetime,
    };
    let view = store.create_token(new, by).await?.ok_or_else(|| {
        Error::TooMany(format!("there are {MOST_TOKENS} tokens already; revoke tokens that are not needed"))
    })?;
    Ok((token, view))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_read_back_and_shows_only_its_id() {
        let token = Token::generate();
        let read = Token::parse(token.secret()).unwrap();
        assert_eq!((read.id(), read.hash()), (token.id(), token.hash()));
        assert_ne!(Token::generate().hash(), token.hash());
        let shown = format!("{token:?}");
        assert!(shown.contains(token.id()) && !shown.contains(&token.secret()[22..30]), "{shown}");
    }

    #[test]
    fn a_token_with_any_character_changed_is_no_token() {
        let token = Token::generate();
        for at in 0..token.secret().len() {
            let mut bytes = token.secret().to_owned().into_bytes();
            bytes[at] = if bytes[at] == b'0' { b'1' } else { b'0' };
            assert!(Token::parse(std::str::from_utf8(&bytes).unwrap()).is_err(), "{at}");
        }
        for text in
            ["", "hwd", "hwd___", "hwd_1_2_3", "Bearer x", &token.secret()[..20], &format!("{} ", token.secret())]
        {
            assert!(Token::parse(text).is_err(), "{text:?}");
        }
    }
}
