//! Names of files and folders: plain ones that patterns match, and ones that programs get wrong.

use super::random::Random;

const PLAIN: [&[u8]; 14] = [
    b"a",
    b"b",
    b"c",
    b"src",
    b"build",
    b"tests",
    b"x.log",
    b"keep.log",
    b"y.env",
    b"z.env",
    b"main.rs",
    b"a.b",
    b"lib",
    b"doc",
];
const ODD: [&[u8]; 14] = [
    b"a b",
    b" lead",
    b"trail ",
    b"#hash",
    b"!bang",
    b"[x]",
    b"star*",
    b"back\\slash",
    b"tab\there",
    b"new\nline",
    b"\xff\xfe.log",
    b"\xc3\xa4.env",
    b"quote\"d",
    b"-dash",
];

/// A name of one file or folder.
pub(crate) fn name(random: &mut Random) -> Vec<u8> {
    if random.percent(12) { random.pick(&ODD).to_vec() } else { random.pick(&PLAIN).to_vec() }
}

/// A path of one to four names.
pub(crate) fn path(random: &mut Random) -> Vec<u8> {
    let mut path = name(random);
    for _ in 0..*random.pick(&[0, 0, 1, 1, 1, 2, 3]) {
        path.push(b'/');
        path.extend(name(random));
    }
    path
}
