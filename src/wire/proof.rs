//! Proofs of knowing a token, for the conversations before READs over verbs and before requests over TCP.
//!
//! A proof is the HMAC-SHA-256, under the token, of the prover's role, both sides' numbers and the message. The numbers
//! are used once, so no proof can be replayed. The roles differ, so no proof can be sent back to its sender. A message
//! cannot be changed on the way. The token itself never travels.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::sync::Arc;
use std::{fmt, io};

/// A secret that server and clients share. Whoever has it may connect over verbs, or over TCP. It is never
/// printed.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Token(Arc<[u8]>);

impl Token {
    /// Makes a token of these bytes. They may have any length. The empty token keeps nobody out.
    ///
    /// Zero bytes at the end of a token of at most 64 bytes do not count. So a token of zero bytes is the empty one.
    pub fn new(secret: impl AsRef<[u8]>) -> Token {
        let secret = secret.as_ref();
        Token(significant(secret).into())
    }

    /// Whether the token is empty and keeps nobody out.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_empty() { "Token(empty)" } else { "Token(...)" })
    }
}

/// A random number that is used once.
pub(crate) type Nonce = [u8; 32];
/// A proof of knowing the token.
pub(crate) type TokenProof = [u8; 32];

/// A fresh nonce.
pub(crate) fn nonce() -> io::Result<Nonce> {
    let mut nonce = [0; 32];
    rustix::rand::getrandom(&mut nonce, rustix::rand::GetRandomFlags::empty())?;
    Ok(nonce)
}

/// The statement that is proven: the prover's role, both sides' numbers, and the message.
#[derive(Clone, Copy)]
pub(crate) struct Statement<'a> {
    pub role: &'static [u8],
    pub server: &'a Nonce,
    pub client: &'a Nonce,
    pub message: &'a [u8],
}

impl Statement<'_> {
    fn mac(&self, token: &Token) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(token.bytes()).expect("any length is a key");
        [self.role, self.server, self.client, self.message].iter().for_each(|part| mac.update(part));
        mac
    }

    /// Makes the proof.
    pub fn prove(&self, token: &Token) -> TokenProof {
        self.mac(token).finalize().into_bytes().into()
    }

    /// Whether this is a proof of the statement. The time that this takes does not depend on what is wrong.
    pub fn is_proven(&self, token: &Token, proof: &TokenProof) -> bool {
        self.mac(token).verify_slice(proof).is_ok()
    }
}

/// The bytes of a secret on which a proof depends. HMAC fills a key that is shorter than a block of its hash with zero
/// bytes.
pub fn significant(secret: &[u8]) -> &[u8] {
    const BLOCK: usize = 64;
    let zeros = secret.iter().rev().take_while(|byte| **byte == 0).count();
    if secret.len() <= BLOCK { &secret[..secret.len() - zeros] } else { secret }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_never_shown() {
        assert_eq!(format!("{:?}", Token::new("secret")), "Token(...)");
    }

    /// The proof depends on every input.
    #[test]
    fn proofs_depend_on_every_input() {
        let (server, client, other) = ([1; 32], [2; 32], [3; 32]);
        let said = Statement { role: b"client", server: &server, client: &client, message: b"hello" };
        let (token, proof) = (Token::new("secret"), said.prove(&Token::new("secret")));
        assert!(said.is_proven(&token, &proof));
        assert!(!said.is_proven(&Token::new("secreT"), &proof));
        for changed in [
            Statement { role: b"server", ..said },
            Statement { server: &other, ..said },
            Statement { client: &other, ..said },
            Statement { message: b"hellp", ..said },
        ] {
            assert!(!changed.is_proven(&token, &proof));
        }
        for bit in 0..8 * proof.len() {
            let mut wrong = proof;
            wrong[bit / 8] ^= 1 << (bit % 8);
            assert!(!said.is_proven(&token, &wrong), "bit {bit}");
        }
        assert!(!said.is_proven(&token, &TokenProof::default()));
    }

    /// What two secrets have in common that are equal to a proof: they are one token. Of zero bytes alone, it is the empty one.
    #[test]
    fn tokens_are_what_proofs_make_of_them() {
        let zeros = |len: usize| vec![0; len];
        let secrets =
            [vec![], zeros(1), zeros(64), zeros(65), b"a".to_vec(), b"a\0".to_vec(), b"\0a".to_vec()];
        let long =
            [vec![1; 63], vec![1; 64], [vec![1; 63], zeros(1)].concat(), [vec![1; 64], zeros(1)].concat()];
        let said = Statement { role: b"client", server: &[1; 32], client: &[2; 32], message: b"" };
        let all: Vec<Vec<u8>> = secrets.into_iter().chain(long).collect();
        for (one, other) in all.iter().flat_map(|one| all.iter().map(move |other| (one, other))) {
            let (token, known) = (Token::new(one), Token::new(other));
            assert_eq!(said.is_proven(&token, &said.prove(&known)), token == known, "{one:?} {other:?}");
        }
        assert_eq!(all.iter().map(|one| Token::new(one).is_empty()).filter(|is_empty| *is_empty).count(), 3);
    }

    /// A nonce is used once, so that no proof can be replayed.
    #[test]
    fn nonces_differ() {
        let nonces: std::collections::HashSet<_> = (0..100).map(|_| nonce().unwrap()).collect();
        assert_eq!(nonces.len(), 100);
    }
}
