//! The seal: the last lines of a record, which vouch for its bytes.
//!
//! The checksum covers every byte before its own line, exactly as stored, and the bytes after it
//! are fixed. So no byte of a record can change unnoticed. The proof covers every byte before *its*
//! line; making one takes the secret of the store.

use crate::secret::Secret;

/// The protection of a record's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seal {
    /// No checksum: the record is older than checksums.
    None,
    /// A checksum, which matches.
    Sum,
    /// A checksum, which matches, and a proof; verifying the proof takes the secret.
    Proof,
}

const PROOF: &[u8] = b",\n  \"proof\": \"";
const SUM: &[u8] = b",\n  \"sum\": \"";
const END: &[u8] = b"\"\n}\n";
const DIGITS: usize = 64;
/// The context from which the key of proofs is derived.
const CONTEXT: &str =
    "rekindle 2026-11-22 proof that a record was written by who knows the secret of the store";

/// Adds the seal to a record: `bytes` is pretty JSON, an object that is not empty.
pub(super) fn close(mut bytes: Vec<u8>, secret: Option<&Secret>) -> Vec<u8> {
    bytes.truncate(bytes.strip_suffix(b"\n}").map_or(bytes.len(), <[u8]>::len));
    let line = |bytes: &mut Vec<u8>, name: &[u8], hash: blake3::Hash| {
        bytes.extend_from_slice(name);
        bytes.extend_from_slice(hash.to_hex().as_bytes());
    };
    if let Some(secret) = secret {
        let proof = prove(secret, &bytes);
        line(&mut bytes, PROOF, proof);
        bytes.push(b'"');
    }
    let sum = blake3::hash(&bytes);
    line(&mut bytes, SUM, sum);
    bytes.extend_from_slice(END);
    bytes
}

/// Verifies the seal of a record and returns its kind; verifies the proof only when the secret is
/// known. The error names the fault.
pub(super) fn open(bytes: &[u8], secret: Option<&Secret>) -> Result<Seal, String> {
    let Some(covered) = last(bytes, SUM) else { return Ok(Seal::None) };
    let rest = &bytes[covered + SUM.len()..];
    let sum = rest.split_at_checked(DIGITS).filter(|(_, end)| *end == END);
    if sum.is_none_or(|(digits, _)| digits != hex(blake3::hash(&bytes[..covered]))) {
        return Err("its checksum does not match: some of its bytes have changed".to_owned());
    }
    let bytes = &bytes[..covered];
    // The proof, if there is one, ends where the line of the sum begins.
    let start = bytes.len().checked_sub(PROOF.len() + DIGITS + 1);
    let Some(covered) = start.filter(|start| bytes[*start..].starts_with(PROOF)) else {
        return Ok(Seal::Sum);
    };
    let digits = &bytes[covered + PROOF.len()..bytes.len() - 1];
    if secret.is_some_and(|secret| digits != hex(prove(secret, &bytes[..covered]))) {
        return Err("its proof was not made with the secret of this store: it belongs to another store, or the \
                    secret in rekindle.json has changed"
            .to_owned());
    }
    Ok(Seal::Proof)
}

fn prove(secret: &Secret, bytes: &[u8]) -> blake3::Hash {
    blake3::keyed_hash(&blake3::derive_key(CONTEXT, &secret.0), bytes)
}

fn hex(hash: blake3::Hash) -> [u8; DIGITS] {
    let mut digits = [0; DIGITS];
    digits.copy_from_slice(hash.to_hex().as_bytes());
    digits
}

/// Finds the start of the last line of this name. Line breaks within values are escaped, so the
/// match is not inside a value.
fn last(bytes: &[u8], name: &[u8]) -> Option<usize> {
    bytes.windows(name.len()).rposition(|window| window == name)
}
