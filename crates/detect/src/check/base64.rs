//! Base64 in both alphabets, padded or not.

/// Value of one base64 digit of either alphabet; 255 for any other byte.
pub(crate) const VALUE: [u8; 256] = {
    let mut table = [255u8; 256];
    let mut i = 0;
    while i < 26 {
        table[b'A' as usize + i] = i as u8;
        table[b'a' as usize + i] = 26 + i as u8;
        i += 1;
    }
    let mut i = 0;
    while i < 10 {
        table[b'0' as usize + i] = 52 + i as u8;
        i += 1;
    }
    table[b'+' as usize] = 62;
    table[b'-' as usize] = 62;
    table[b'/' as usize] = 63;
    table[b'_' as usize] = 63;
    table
};

/// Decodes from the start until `out` is full, the input ends or a byte is no digit; returns the bytes written.
pub(crate) fn decode_into(text: &[u8], out: &mut [u8]) -> usize {
    let (mut word, mut bits, mut written) = (0u32, 0u32, 0usize);
    for &byte in text {
        let value = VALUE[usize::from(byte)];
        if value == 255 {
            break;
        }
        word = word << 6 | u32::from(value);
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            let Some(place) = out.get_mut(written) else { break };
            *place = (word >> bits) as u8;
            written += 1;
        }
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decodes_both_alphabets_with_and_without_padding() {
        let mut out = [0; 16];
        assert_eq!(decode_into(b"Zm9vYmE=", &mut out), 5);
        assert_eq!(&out[..5], b"fooba");
        assert_eq!(decode_into(b"_-8", &mut out), 2);
        assert_eq!(&out[..2], &[0xff, 0xef]);
        assert_eq!(decode_into(b"/+8", &mut out), 2);
        assert_eq!(&out[..2], &[0xff, 0xef]);
    }

    #[test]
    fn stops_when_the_output_is_full() {
        let mut out = [0; 2];
        assert_eq!(decode_into(b"Zm9vYmFy", &mut out), 2);
    }
}
