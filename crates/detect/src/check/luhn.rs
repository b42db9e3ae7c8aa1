//! The Luhn checksum of payment card numbers.

/// Whether the digits of `text` (spaces and hyphens are skipped) are 12 to 19 and satisfy Luhn.
pub fn holds(text: &[u8]) -> bool {
    let (mut sum, mut count) = (0u32, 0u32);
    for &byte in text.iter().rev() {
        match byte {
            b'0'..=b'9' => {
                let digit = u32::from(byte - b'0') << (count % 2);
                sum += if digit > 9 { digit - 9 } else { digit };
                count += 1;
            }
            b' ' | b'-' => {}
            _ => return false,
        }
    }
    (12..=19).contains(&count) && sum.is_multiple_of(10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_cards_pass_and_a_changed_digit_does_not() {
        assert!(holds(b"4242424242424242"));
        assert!(holds(b"3782-822463-10005"));
        assert!(!holds(b"4242424242424243"));
        assert!(!holds(b"42424242"));
        assert!(!holds(b"4242x424242424242"));
    }
}
