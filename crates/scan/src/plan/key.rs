//! Keys of items: which target, and where in it.
//!
//! A run may have many targets, and shards of one run must not overlap, so every key begins with the number of its
//! target, big-endian. What follows is the family's.
//!
//! For paths it is the components below the target, joined by a zero byte. No file name contains one, and it sorts
//! before every byte a name can contain; so comparing keys is comparing paths component by component, and that is the
//! order in which a depth-first walk that sorts each directory meets them. With `/` between them it would not be:
//! `a.b` sorts before `a/b`, but a walk that is in `a` has not come to `a.b` yet.

/// Bytes that name the target in a key.
pub const TARGET_BYTES: usize = 4;

/// The separator of components in a key.
pub const SEPARATOR: u8 = 0;

/// The key of a path of a target; `components` are file names from the target down.
pub fn path_key<'a>(target: u32, components: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut key = target.to_be_bytes().to_vec();
    for (i, component) in components.into_iter().enumerate() {
        if i > 0 {
            key.push(SEPARATOR);
        }
        key.extend_from_slice(component);
    }
    key
}

/// The range of keys of a target: from its first possible key to the first of the next target.
pub fn target_range(target: u32) -> ([u8; TARGET_BYTES], [u8; TARGET_BYTES]) {
    // Plans are bounded far below this many targets.
    let next = target.checked_add(1).expect("the last target number is never used");
    (target.to_be_bytes(), next.to_be_bytes())
}

/// The target and the rest of a key; `None` if it is too short to be one.
pub fn split(key: &[u8]) -> Option<(u32, &[u8])> {
    let (target, rest) = key.split_first_chunk()?;
    Some((u32::from_be_bytes(*target), rest))
}

/// A path as people write it, from the family's part of a path key.
pub fn display_path(rest: &[u8]) -> Vec<u8> {
    rest.iter().map(|&byte| if byte == SEPARATOR { b'/' } else { byte }).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_directory_comes_before_names_that_continue_its_own() {
        let key = |path: &str| path_key(3, path.split('/').map(str::as_bytes));
        let mut paths = ["a.b", "a/z", "a", "b", "a/b/c", "a-b"];
        paths.sort_by_key(|path| key(path));
        assert_eq!(paths, ["a", "a/b/c", "a/z", "a-b", "a.b", "b"]);
    }

    #[test]
    fn keys_of_a_target_lie_in_its_range_and_tell_it() {
        let (start, end) = target_range(7);
        let key = path_key(7, [b"\xff\xff".as_slice()]);
        assert!(start.as_slice() <= key.as_slice() && key.as_slice() < end.as_slice());
        assert_eq!(split(&key), Some((7, b"\xff\xff".as_slice())));
        assert_eq!(split(b"abc"), None);
        assert_eq!(display_path(b"a\0b"), b"a/b");
    }

    proptest! {
        #[test]
        fn keys_compare_as_paths_do_component_by_component(
            a in prop::collection::vec(prop::collection::vec(1_u8..=255, 1..4), 1..4),
            b in prop::collection::vec(prop::collection::vec(1_u8..=255, 1..4), 1..4),
        ) {
            let key = |path: &[Vec<u8>]| path_key(0, path.iter().map(Vec::as_slice));
            prop_assert_eq!(key(&a).cmp(&key(&b)), a.cmp(&b));
        }
    }
}
