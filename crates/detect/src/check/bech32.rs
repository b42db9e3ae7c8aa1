//! Bech32: a name, `1`, and characters of five bits of which the last six are a checksum. Secret keys of age are written so.

const DIGITS: &[u8; 32] = b"qpzry9x8gf2tvdw0s3jn54khce6mua7l";

/// Whether the checksum of a text in one case is right.
pub fn holds(text: &[u8]) -> bool {
    let Some(one) = text.iter().rposition(|&byte| byte == b'1') else { return false };
    let (name, data) = (&text[..one], &text[one + 1..]);
    let values = data.iter().map(|byte| DIGITS.iter().position(|digit| digit == &byte.to_ascii_lowercase()));
    let mut state = name_state(name);
    for value in values {
        let Some(value) = value else { return false };
        state = step(state, value as u32);
    }
    !name.is_empty() && data.len() >= 6 && state == 1
}

/// The six characters behind `data`, which are numbers below 32.
pub fn checksum(name: &[u8], data: &[u8]) -> [u8; 6] {
    let state = data.iter().fold(name_state(name), |state, &value| step(state, u32::from(value)));
    let state = (0..6).fold(state, |state, _| step(state, 0)) ^ 1;
    core::array::from_fn(|i| digit((state >> (5 * (5 - i)) & 31) as u8))
}

/// The character of a number below 32.
pub fn digit(value: u8) -> u8 {
    DIGITS[usize::from(value & 31)]
}

fn name_state(name: &[u8]) -> u32 {
    let high = name.iter().fold(1, |state, byte| step(state, u32::from(byte.to_ascii_lowercase() >> 5)));
    name.iter().fold(step(high, 0), |state, byte| step(state, u32::from(byte.to_ascii_lowercase() & 31)))
}

fn step(state: u32, value: u32) -> u32 {
    const FACTORS: [u32; 5] = [0x3b6a_57b2, 0x2650_8e6d, 0x1ea1_19fa, 0x3d42_33dd, 0x2a14_62b3];
    let top = state >> 25;
    let shifted = (state & 0x01ff_ffff) << 5 ^ value;
    FACTORS.iter().enumerate().filter(|(i, _)| top >> i & 1 != 0).fold(shifted, |state, (_, factor)| state ^ factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_vectors_of_bip_173_hold() {
        for valid in [
            "A12UEL5L",
            "an83characterlonghumanreadablepartthatcontainsthenumber1andtheexcludedcharactersbio1tt5tgs",
            "split1checkupstagehandshakeupstreamerranterredcaperred2y9e3w",
        ] {
            assert!(holds(valid.as_bytes()), "{valid}");
        }
        for wrong in
            ["", "1", "A12UEL5M", "split1checkupstagehandshakeupstreamerranterredcaperred2y9e3x", "10a06t8", "A1G7SGD8"]
        {
            assert!(!holds(wrong.as_bytes()), "{wrong}");
        }
    }

    #[test]
    fn a_made_key_of_age_holds() {
        let key = crate::template::expand("<<age>>", &mut crate::template::Seed::new(5)).unwrap();
        assert!(key.starts_with("AGE-SECRET-KEY-1") && key.len() == 74 && holds(key.as_bytes()), "{key}");
    }
}
