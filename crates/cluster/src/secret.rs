//! The secret of a cluster: a process that knows it is a node of the cluster. [`Secret::token`] is
//! its text, which a user carries from one host to the next.

use rekindle_base::checksum::crc32c;
use rekindle_env::Env;

/// The secret of a cluster.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret(pub [u8; 32]);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

/// The first letters of a token.
const PREFIX: &str = "rekindle1-";
/// Keys of other hashes of the secret are made with other words.
const CHECK: &str = "rekindle 2026-11-24 check of a cluster's secret";
const VOUCH: &str = "rekindle 2026-11-24 a node's place";

/// The reason why a text is no token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadToken {
    #[error(
        "a token begins with '{PREFIX}': `rekindle cluster token` on a node of the cluster prints it"
    )]
    NoToken,
    #[error(
        "the token is not complete, or was mistyped: copy all of what `rekindle cluster token` prints"
    )]
    Mistyped,
}

impl Secret {
    /// A new secret.
    #[must_use]
    pub fn new(env: &Env) -> Secret {
        Secret(env.random())
    }

    /// The text of the secret.
    #[must_use]
    pub fn token(&self) -> String {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        format!("{PREFIX}{}{}", hex(&self.0), hex(&crc32c(&self.0).to_be_bytes()))
    }

    /// Reads a token.
    pub fn parse(token: &str) -> Result<Secret, BadToken> {
        let digits = token.trim().strip_prefix(PREFIX).ok_or(BadToken::NoToken)?.as_bytes();
        let mut bytes = [0; 36];
        if digits.len() != 2 * bytes.len() {
            return Err(BadToken::Mistyped);
        }
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
            let pair = std::str::from_utf8(pair).map_err(|_| BadToken::Mistyped)?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_| BadToken::Mistyped)?;
        }
        let (secret, crc) = bytes.split_at(32);
        if crc32c(secret).to_be_bytes() != *crc {
            return Err(BadToken::Mistyped);
        }
        Ok(Secret(secret.try_into().expect("32 bytes")))
    }

    /// The hash by which the store tells a wrong secret from the right one. It tells nothing else.
    #[must_use]
    pub fn check(&self) -> String {
        blake3::Hash::from_bytes(blake3::derive_key(CHECK, &self.0)).to_hex().to_string()
    }

    /// The proof that a node which knows the secret has said `words`.
    #[must_use]
    pub fn vouch(&self, words: &[u8]) -> String {
        let key = blake3::derive_key(VOUCH, &self.0);
        blake3::keyed_hash(&key, words).to_hex().to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_comes_back_and_a_mistyped_one_is_told() {
        let secret = Secret(std::array::from_fn(|at| at as u8 * 7));
        let token = secret.token();
        assert_eq!(Secret::parse(&format!(" {token}\n")), Ok(secret));
        assert_eq!(Secret::parse("hello"), Err(BadToken::NoToken));
        for at in PREFIX.len()..token.len() {
            let mut bad = token.clone().into_bytes();
            bad[at] = if bad[at] == b'0' { b'1' } else { b'0' };
            let bad = String::from_utf8(bad).expect("ASCII");
            assert_eq!(Secret::parse(&bad), Err(BadToken::Mistyped), "{bad}");
            assert!(Secret::parse(&token[..at]).is_err());
        }
        for strange in ["rekindle1-ö", "rekindle1-", "rekindle1-zz"] {
            assert!(Secret::parse(strange).is_err(), "{strange}");
        }
    }

    #[test]
    fn hashes_of_the_secret_are_apart_and_follow_it() {
        let (one, other) = (Secret([1; 32]), Secret([2; 32]));
        assert_ne!(one.check(), other.check());
        assert_ne!(one.vouch(b"a"), one.vouch(b"b"));
        assert_ne!(one.vouch(b"a"), other.vouch(b"a"));
        assert_eq!(one.vouch(b"a"), Secret([1; 32]).vouch(b"a"));
        assert_eq!(format!("{one:?}"), "Secret");
    }
}
