//! Shannon entropy of a byte string, in bits a byte.
//!
//! `core` has no logarithm, and the platform's would not give every machine of a fleet the same last digit. The
//! logarithm here uses only multiplication and is exact to 2^-20, so a threshold decides alike everywhere.

/// Shannon entropy of `bytes`, from 0 (one symbol) to 8 (all symbols alike).
pub fn shannon(bytes: &[u8]) -> f32 {
    if bytes.is_empty() {
        return 0.0;
    }
    let mut counts = [0u32; 256];
    for &byte in bytes {
        counts[usize::from(byte)] += 1;
    }
    let weighted: f64 = counts.iter().filter(|&&count| count > 1).map(|&count| f64::from(count) * log2(count)).sum();
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    ((log2(length) - weighted / f64::from(length)).max(0.0)) as f32
}

/// Binary logarithm of `n > 0`, by repeated squaring.
pub(crate) fn log2(n: u32) -> f64 {
    let whole = 31 - n.leading_zeros();
    let mut rest = f64::from(n) / f64::from(1u32 << whole);
    let (mut result, mut bit) = (f64::from(whole), 0.5);
    for _ in 0..20 {
        rest *= rest;
        if rest >= 2.0 {
            rest /= 2.0;
            result += bit;
        }
        bit /= 2.0;
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entropy_of_known_strings() {
        for (text, bits) in
            [("", 0.0), ("aaaa", 0.0), ("ab", 1.0), ("abcd", 2.0), ("aab", 0.918_296), ("0123456789abcdef", 4.0)]
        {
            assert!((shannon(text.as_bytes()) - bits).abs() < 1e-4, "{text}: {}", shannon(text.as_bytes()));
        }
        let all: alloc::vec::Vec<u8> = (0..=255).collect();
        assert!((shannon(&all) - 8.0).abs() < 1e-4);
    }

    #[test]
    fn logarithm_agrees_with_the_platform() {
        for n in (1..5_000).chain([u32::MAX]) {
            assert!((log2(n) - f64::from(n).log2()).abs() < 2e-6, "{n}");
        }
    }
}
