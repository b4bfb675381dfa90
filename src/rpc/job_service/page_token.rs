//! Page tokens. A page ends at the [row](crate::store::JobRecord::row) of a job. Row numbers would tell how many jobs
//! all tenants have created, so a token hides them. It consists of a keyed digest of the row, which proves that the
//! token is genuine, and of the row XOR a keyed digest of that digest.

use sha2::{Digest as _, Sha256};
use tonic::Status;

use crate::rpc::status::invalid_field;

/// The purposes of a digest, so that one cannot replace the other.
const PROOF: [u8; 1] = [0];
const MASK: [u8; 1] = [1];

/// The token of the page after a row; empty if there is none.
pub(super) fn page_token(secret: &[u8], row: Option<i64>) -> String {
    let Some(row) = row.map(i64::cast_unsigned) else { return String::new() };
    let proof = digest(secret, PROOF, row);
    format!("{proof:016x}{:016x}", row ^ digest(secret, MASK, proof))
}

/// The row after which a page continues; `None` for the first page.
pub(super) fn read_page_token(secret: &[u8], token: &str) -> Result<Option<i64>, Status> {
    if token.is_empty() {
        return Ok(None);
    }
    let read = u128::from_str_radix(token, 16).ok().and_then(|token| {
        let (proof, masked) = ((token >> 64) as u64, token as u64);
        let row = masked ^ digest(secret, MASK, proof);
        (digest(secret, PROOF, row) == proof).then_some(row.cast_signed())
    });
    let unreadable = || invalid_field("page_token", "it is not of `next_page_token`; begin with the first page");
    read.map(Some).ok_or_else(unreadable)
}

/// The first 64 bits of a digest with the secret of the store.
fn digest(secret: &[u8], purpose: [u8; 1], number: u64) -> u64 {
    let digest = Sha256::new().chain_update(secret).chain_update(purpose).chain_update(number.to_be_bytes()).finalize();
    digest.iter().take(8).fold(0, |bits, byte| bits << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_leads_to_its_row_and_no_other_text_does() {
        for row in [0, 1, 2, 1_000_000, i64::MAX, i64::MIN] {
            let token = page_token(b"secret", Some(row));
            assert_eq!(read_page_token(b"secret", &token).expect("a token"), Some(row));
            read_page_token(b"another", &token).expect_err("of another store");
            let changed =
                |at: usize| token.replacen(&token[at..=at], if &token[at..=at] == "0" { "1" } else { "0" }, 1);
            for other in [changed(0), changed(20), row.to_string(), token.repeat(2), format!("é{token}")] {
                read_page_token(b"secret", &other).expect_err(&other);
            }
        }
        assert_eq!(page_token(b"secret", None), "");
    }

    /// As a caller that knows some of the numbers of its own jobs would try.
    #[test]
    fn tokens_of_neighbours_tell_nothing_of_their_distance() {
        let tokens: Vec<_> = (1..=64).map(|row| page_token(b"secret", Some(row))).collect();
        for half in [0..16, 16..32] {
            let bits = |pair: &[String]| {
                let [a, b] =
                    [&pair[0], &pair[1]].map(|token| u64::from_str_radix(&token[half.clone()], 16).expect("hex"));
                (a ^ b).count_ones()
            };
            let differ: u32 = tokens.windows(2).map(bits).sum();
            assert!((28 * 63..36 * 63).contains(&differ), "{differ} of {} bits differ", 64 * 63);
        }
    }
}
