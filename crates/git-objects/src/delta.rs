//! An object told as changes to another one: stretches copied from it, and new bytes between.

/// A stretch that an object has in common with its base.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Copied {
    /// Where it stands in the object.
    pub at: usize,
    /// Where it stands in the base.
    pub from: usize,
    /// How long it is.
    pub len: usize,
}

/// The delta contradicts itself or its base.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Nonsense;

/// How long the base and the result of a delta are, and where its instructions begin.
pub(crate) fn sizes(delta: &[u8]) -> Result<(u64, u64, usize), Nonsense> {
    let mut at = 0;
    let mut size = || -> Result<u64, Nonsense> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = *delta.get(at).ok_or(Nonsense)?;
            at += 1;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Nonsense)
    };
    let (base, result) = (size()?, size()?);
    Ok((base, result, at))
}

/// Applies `delta` to `base`. `result` becomes the object, `copied` what it has from the base, in the object's order.
/// The caller has looked at the [`sizes`] and accepts them.
pub(crate) fn apply(base: &[u8], delta: &[u8], result: &mut Vec<u8>, copied: &mut Vec<Copied>) -> Result<(), Nonsense> {
    let (base_len, len, at) = sizes(delta)?;
    let len = usize::try_from(len).map_err(|_| Nonsense)?;
    if base_len != base.len() as u64 {
        return Err(Nonsense);
    }
    result.clear();
    copied.clear();
    // One instruction copies at most 16 MiB: a delta cannot promise more than that for each of its bytes.
    if len as u64 > (delta.len() as u64) << 24 {
        return Err(Nonsense);
    }
    result.reserve_exact(len);
    let mut rest = &delta[at..];
    while let Some((&instruction, after)) = rest.split_first() {
        rest = after;
        if instruction & 0x80 == 0 {
            let count = usize::from(instruction);
            if count == 0 || count > rest.len() || result.len() + count > len {
                return Err(Nonsense);
            }
            result.extend_from_slice(&rest[..count]);
            rest = &rest[count..];
            continue;
        }
        let mut number = |bits: u8| -> Result<usize, Nonsense> {
            let mut value = 0;
            for bit in (0..8).filter(|bit| bits >> bit & 1 == 1) {
                let (&byte, after) = rest.split_first().ok_or(Nonsense)?;
                rest = after;
                value |= usize::from(byte) << (8 * bit);
            }
            Ok(value)
        };
        let from = number(instruction & 0x0f)?;
        let count = match number(instruction >> 4 & 0x07)? {
            0 => 0x1_0000,
            count => count,
        };
        let source = from.checked_add(count).and_then(|end| base.get(from..end)).ok_or(Nonsense)?;
        if result.len() + count > len {
            return Err(Nonsense);
        }
        match copied.last_mut() {
            // A long stretch comes in pieces.
            Some(last) if last.from + last.len == from && last.at + last.len == result.len() => last.len += count,
            _ => copied.push(Copied { at: result.len(), from, len: count }),
        }
        result.extend_from_slice(source);
    }
    if result.len() == len { Ok(()) } else { Err(Nonsense) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn applied(base: &[u8], delta: &[u8]) -> Result<(Vec<u8>, Vec<Copied>), Nonsense> {
        let (mut result, mut copied) = (Vec::new(), Vec::new());
        apply(base, delta, &mut result, &mut copied).map(|()| (result, copied))
    }

    #[test]
    fn copies_and_new_bytes_make_the_object() {
        let delta = [9, 8, 0x91, 2, 3, 2, b'x', b'y', 0x90, 3];
        let (result, copied) = applied(b"012345678", &delta).unwrap();
        assert_eq!(result, b"234xy012");
        assert_eq!(copied, [Copied { at: 0, from: 2, len: 3 }, Copied { at: 5, from: 0, len: 3 }]);
    }

    #[test]
    fn adjacent_pieces_of_one_stretch_are_one() {
        let (result, copied) = applied(b"abcd", &[4, 4, 0x90, 2, 0x91, 2, 2]).unwrap();
        assert_eq!((&result[..], copied), (&b"abcd"[..], vec![Copied { at: 0, from: 0, len: 4 }]));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        for (base, delta) in [
            (&b"abc"[..], &[4, 1, 1, b'x'][..]),                         // another base
            (b"abc", &[3, 2, 1, b'x']),                                  // too short
            (b"abc", &[3, 1, 2, b'x', b'y']),                            // too long
            (b"abc", &[3, 4, 0x90, 4]),                                  // beyond the base
            (b"abc", &[3, 1, 0, b'x']),                                  // an instruction that does nothing
            (b"abc", &[3, 1, 1]),                                        // ends within an instruction
            (b"abc", &[3, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f, 1, b'x']), // promises more than it can hold
            (b"abc", &[0x80]),
        ] {
            assert_eq!(applied(base, delta), Err(Nonsense), "{delta:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_applied_or_refused(delta in prop::collection::vec(any::<u8>(), 0..60)) {
            let mut delta = delta;
            delta.splice(0..0, [16, 40]);
            if let Ok((result, copied)) = applied(&[7; 16], &delta) {
                for one in copied {
                    prop_assert_eq!(&result[one.at..][..one.len], &[7; 16][one.from..][..one.len]);
                }
            }
        }
    }
}
