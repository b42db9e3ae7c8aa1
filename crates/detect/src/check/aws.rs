//! AWS access key ids carry their account number.
//!
//! After the four-letter prefix an id is base32; bits 1 to 40 of the decoded bytes are the twelve-digit account
//! number (ids made since 2019). Characters outside base32, or a number above twelve digits, are no AWS id.

/// The account number inside an access key id, or `None` if it cannot be one.
pub fn account_of(key_id: &[u8]) -> Option<u64> {
    let digits = key_id.get(4..20).filter(|_| key_id.len() == 20)?;
    let mut bits = 0u128;
    for &digit in digits {
        let value = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'2'..=b'7' => digit - b'2' + 26,
            _ => return None,
        };
        bits = bits << 5 | u128::from(value);
    }
    // Eighty bits: the first is a flag, the next forty the account.
    let account = u64::try_from((bits >> 39) & ((1 << 40) - 1)).ok()?;
    (account <= 999_999_999_999).then_some(account)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key_id_of(account: u64) -> alloc::vec::Vec<u8> {
        let bits = (1u128 << 79) | u128::from(account) << 39;
        let mut id = b"AKIA".to_vec();
        id.extend((0..16).rev().map(|place| {
            let value = ((bits >> (5 * place)) & 31) as u8;
            if value < 26 { b'A' + value } else { b'2' + value - 26 }
        }));
        id
    }

    #[test]
    fn account_number_reads_back() {
        for account in [0, 1, 123_456_789_012, 999_999_999_999] {
            assert_eq!(account_of(&key_id_of(account)), Some(account));
        }
    }

    #[test]
    fn thirteen_digits_are_no_account() {
        assert_eq!(account_of(&key_id_of(1_000_000_000_000)), None);
    }

    #[test]
    fn digits_outside_base32_and_wrong_lengths_are_refused() {
        assert_eq!(account_of(b"AKIA0123456789ABCDEF"), None);
        assert_eq!(account_of(b"AKIAABCDEFGHIJKLMNO"), None);
        assert_eq!(account_of(b""), None);
    }
}
