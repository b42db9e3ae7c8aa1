//! Compressed bitmaps as git writes them (EWAH): runs of equal words, and words as they are.

use super::IndexError;

/// A compressed bitmap.
#[derive(Debug)]
pub(super) struct Bitmap<'a> {
    bits: usize,
    words: &'a [u8],
}

const WORD_BYTES: usize = 8;

impl<'a> Bitmap<'a> {
    /// Takes a bitmap off the front of `bytes`.
    pub(super) fn take(bytes: &mut &'a [u8]) -> Result<Self, IndexError> {
        let cut = IndexError::Malformed("a bitmap is cut short");
        let (Some(bits), Some(count)) = (take_u32(bytes), take_u32(bytes)) else { return Err(cut) };
        let Some((words, rest)) = bytes.split_at_checked(count as usize * WORD_BYTES) else { return Err(cut) };
        *bytes = rest;
        // Where the last run begins; only writers need it.
        take_u32(bytes).ok_or(cut)?;
        Ok(Self { bits: bits as usize, words })
    }

    /// The first `count` bits; those it does not have are not set.
    pub(super) fn expand(&self, count: usize) -> Vec<bool> {
        let mut bits = Vec::new();
        let end = count.min(self.bits);
        let mut words =
            self.words.chunks_exact(WORD_BYTES).map(|word| u64::from_be_bytes(word.try_into().expect("8 bytes")));
        while bits.len() < end {
            let Some(run) = words.next() else { break };
            let equal = (run >> 1 & 0xffff_ffff) as usize * 64;
            bits.resize(end.min(bits.len().saturating_add(equal)), run & 1 == 1);
            for word in words.by_ref().take((run >> 33) as usize) {
                bits.extend((0..64).map(|bit| word >> bit & 1 == 1));
            }
        }
        bits.resize(count, false);
        bits
    }
}

fn take_u32(bytes: &mut &[u8]) -> Option<u32> {
    let (head, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(u32::from_be_bytes(*head))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bitmap(bits: u32, words: &[u64]) -> Vec<u8> {
        let mut bytes = [bits.to_be_bytes(), (words.len() as u32).to_be_bytes()].concat();
        words.iter().for_each(|word| bytes.extend_from_slice(&word.to_be_bytes()));
        bytes.extend_from_slice(&[0; 4]);
        bytes
    }

    #[test]
    fn runs_and_plain_words_follow_one_another() {
        // Two words of ones, then one plain word, then one word of zeros.
        let bytes = bitmap(200, &[1 | 2 << 1 | 1 << 33, 0b101, 1 << 1]);
        let mut rest = &bytes[..];
        let bits = Bitmap::take(&mut rest).unwrap().expand(250);
        assert!(rest.is_empty());
        let set: Vec<usize> = (0..250).filter(|&bit| bits[bit]).collect();
        assert_eq!(set, (0..128).chain([128, 130]).collect::<Vec<_>>());
        assert_eq!(Bitmap::take(&mut &bytes[..]).unwrap().expand(3), [true; 3]);
    }

    #[test]
    fn a_run_without_end_and_a_cut_bitmap_do_no_harm() {
        let bytes = bitmap(u32::MAX, &[1 | 0xffff_ffff << 1]);
        assert_eq!(Bitmap::take(&mut &bytes[..]).unwrap().expand(70), [true; 70]);
        for len in 0..bytes.len() {
            assert!(Bitmap::take(&mut &bytes[..len]).is_err(), "cut to {len}");
        }
    }
}
