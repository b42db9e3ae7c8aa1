//! Ids as text: six bits a character, as many characters for every id of a kind, and in the order of the numbers.
//!
//! Every request carries the whole path of every key that it compares, writes or reads, and the server writes the request
//! to its log as it came. Hexadecimal would take half as many characters again.

use core::fmt;

use tessera_contracts::TenantId;

/// What stands for 0 to 63: letters and digits, `-` and `_`, in the order of their bytes.
const ALPHABET: &[u8; 64] = b"-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz";
/// Characters of a 64-bit number; the first has four bits.
pub(super) const NUMBER: usize = 11;
/// Characters of a tenant; the last has four bits.
const TENANT: usize = 43;

/// So many characters.
pub(super) struct Digits<const N: usize>([u8; N]);

impl<const N: usize> fmt::Display for Digits<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(core::str::from_utf8(&self.0).map_err(|_| fmt::Error)?)
    }
}

/// A 64-bit number.
pub(super) fn number(value: u64) -> Digits<NUMBER> {
    digits(value)
}

/// A point of the circle over which the shards of a run are spread.
pub(super) fn point(value: u32) -> Digits<3> {
    digits(u64::from(value))
}

fn digits<const N: usize>(value: u64) -> Digits<N> {
    Digits(core::array::from_fn(|at| ALPHABET[(value >> (6 * (N - 1 - at)) & 63) as usize]))
}

/// A tenant.
pub(super) fn tenant(tenant: TenantId) -> Digits<TENANT> {
    let mut digits = [ALPHABET[0]; TENANT];
    let (mut at, mut bits, mut held) = (0, 0u32, 0);
    for byte in tenant.as_bytes() {
        bits = bits << 8 & 0xffff | u32::from(*byte);
        held += 8;
        while held >= 6 {
            held -= 6;
            digits[at] = ALPHABET[(bits >> held & 63) as usize];
            at += 1;
        }
    }
    digits[at] = ALPHABET[(bits << (6 - held) & 63) as usize];
    Digits(digits)
}

/// The number that is written so; `None` for anything that [`number`] does not write.
pub(super) fn read_number(text: &[u8]) -> Option<u64> {
    if text.len() != NUMBER {
        return None;
    }
    let value = text.iter().try_fold(0u128, |value, digit| Some(value << 6 | u128::from(value_of(*digit)?)))?;
    u64::try_from(value).ok()
}

/// The tenant that is written so; `None` for anything that [`tenant`] does not write.
pub(super) fn read_tenant(text: &[u8]) -> Option<TenantId> {
    if text.len() != TENANT {
        return None;
    }
    let mut bytes = [0u8; 32];
    let (mut at, mut bits, mut held) = (0, 0u32, 0);
    for digit in text {
        bits = bits << 6 & 0xffff | u32::from(value_of(*digit)?);
        held += 6;
        if held >= 8 {
            held -= 8;
            bytes[at] = (bits >> held & 0xff) as u8;
            at += 1;
        }
    }
    // The last character has two bits more than the tenant.
    (bits & 3 == 0).then(|| TenantId::from_bytes(bytes))
}

fn value_of(digit: u8) -> Option<u8> {
    let value = VALUES[usize::from(digit)];
    (value < 64).then_some(value)
}

/// What each byte stands for; 255 for those that stand for nothing.
const VALUES: [u8; 256] = {
    let (mut values, mut value) = ([255; 256], 0);
    while value < ALPHABET.len() {
        values[ALPHABET[value] as usize] = value as u8;
        value += 1;
    }
    values
};

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_smallest_and_the_largest_are_written_as_such() {
        assert_eq!(
            [0, 1, 63, 64].map(|value| number(value).to_string()),
            ["-----------", "----------0", "----------z", "---------0-"]
        );
        assert_eq!(number(u64::MAX).to_string(), "Ezzzzzzzzzz");
        assert_eq!(tenant(TenantId::from_bytes([255; 32])).to_string(), format!("{}w", "z".repeat(42)));
        assert_eq!(point(65_536).to_string(), "F--");
    }

    #[test]
    fn what_nobody_writes_is_not_read() {
        assert_eq!(read_number(b"Ezzzzzzzzzz"), Some(u64::MAX));
        for wrong in [&b"F----------"[..], b"-----------0", b"----------", b"----------/", b"----------+"] {
            assert_eq!(read_number(wrong), None, "{wrong:?}");
        }
        let last = |digit: char| read_tenant(format!("{}{digit}", "-".repeat(42)).as_bytes());
        assert!(last('3').is_some() && last('0').is_none() && last('.').is_none());
    }

    proptest! {
        #[test]
        fn text_order_is_the_order_of_ids_and_each_is_read_back(a: u64, b: u64, one: [u8; 32], other: [u8; 32]) {
            prop_assert_eq!(number(a).0.cmp(&number(b).0), a.cmp(&b));
            prop_assert_eq!(read_number(&number(a).0), Some(a));
            let (one, other) = (TenantId::from_bytes(one), TenantId::from_bytes(other));
            prop_assert_eq!(tenant(one).0.cmp(&tenant(other).0), one.cmp(&other));
            prop_assert_eq!(read_tenant(&tenant(one).0), Some(one));
        }
    }
}
