//! Tar: blocks of 512 bytes, a header and then content, until a block of zeros.

use std::io::{self, Read};

use super::{Stop, Walk, inside};

const BLOCK: usize = 512;
/// Longest name that an extension header may give.
const NAME_BYTES_MAX: u64 = 64 << 10;

pub(super) fn walk(input: &mut dyn Read, path: &[u8], depth: u32, walk: &mut Walk<'_>) -> Result<(), Stop> {
    let mut long_name: Option<Vec<u8>> = None;
    loop {
        let mut header = [0; BLOCK];
        input.read_exact(&mut header)?;
        if header.iter().all(|&byte| byte == 0) {
            return Ok(());
        }
        if checksum(&header) != number(&header[148..156]).ok_or(Stop::Broken)? {
            return Err(Stop::Broken);
        }
        let size = number(&header[124..136]).ok_or(Stop::Broken)?;
        let padding = (BLOCK as u64 - size % BLOCK as u64) % BLOCK as u64;
        let mut content = input.take(size);
        match header[156] {
            // GNU: the name of the next member is the content of this one.
            b'L' => {
                let mut name = Vec::new();
                (&mut content).take(NAME_BYTES_MAX).read_to_end(&mut name)?;
                long_name = Some(until_zero(&name).to_vec());
            }
            // POSIX: records that say more about the next member, its path among them.
            b'x' => {
                let mut records = Vec::new();
                (&mut content).take(NAME_BYTES_MAX).read_to_end(&mut records)?;
                long_name = path_in(&records).map(<[u8]>::to_vec).or(long_name);
            }
            b'0' | 0 | b'7' => {
                let name = long_name.take().unwrap_or_else(|| name_of(&header));
                walk.member(&inside(path, &name), &mut content, depth + 1)?;
            }
            // Directories, links, devices, and what is said of the whole archive: nothing to search.
            _ => long_name = None,
        }
        // What was not taken of it is passed over; less than it promised means that the archive was cut.
        io::copy(&mut content, &mut io::sink())?;
        if content.limit() > 0 || io::copy(&mut input.take(padding), &mut io::sink())? < padding {
            return Err(Stop::Broken);
        }
    }
}

fn name_of(header: &[u8; BLOCK]) -> Vec<u8> {
    let (name, prefix) = (until_zero(&header[..100]), until_zero(&header[345..500]));
    let is_posix = &header[257..263] == b"ustar\0";
    if is_posix && !prefix.is_empty() { [prefix, b"/", name].concat() } else { name.to_vec() }
}

fn until_zero(bytes: &[u8]) -> &[u8] {
    bytes.split(|&byte| byte == 0).next().unwrap_or_default()
}

/// Octal digits, or the large binary form of GNU.
fn number(field: &[u8]) -> Option<u64> {
    if field[0] & 0x80 != 0 {
        let first = u64::from(field[0] & 0x7f);
        return field[1..].iter().try_fold(first, |sum, &byte| sum.checked_mul(256)?.checked_add(u64::from(byte)));
    }
    let text = std::str::from_utf8(field).ok()?;
    u64::from_str_radix(text.trim_matches(|char| char == ' ' || char == '\0'), 8).ok()
}

/// All bytes added up, as if the field of the sum were blank.
fn checksum(header: &[u8; BLOCK]) -> u64 {
    header.iter().enumerate().map(|(at, &byte)| u64::from(if (148..156).contains(&at) { b' ' } else { byte })).sum()
}

/// The `path` record: `LENGTH path=VALUE\n`.
fn path_in(records: &[u8]) -> Option<&[u8]> {
    let mut rest = records;
    while let Some(space) = memchr::memchr(b' ', rest) {
        let len: usize = std::str::from_utf8(&rest[..space]).ok()?.parse().ok()?;
        let record = rest.get(space + 1..len)?;
        if let Some(path) = record.strip_prefix(b"path=") {
            return path.strip_suffix(b"\n");
        }
        rest = &rest[len..];
    }
    None
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::read::archive) fn entry(kind: u8, name: &str, content: &[u8]) -> Vec<u8> {
        let mut header = [0; BLOCK];
        header[..name.len()].copy_from_slice(name.as_bytes());
        header[124..135].copy_from_slice(format!("{:011o}", content.len()).as_bytes());
        header[156] = kind;
        header[257..263].copy_from_slice(b"ustar\0");
        let sum = checksum(&header);
        header[148..154].copy_from_slice(format!("{sum:06o}").as_bytes());
        let mut bytes = header.to_vec();
        bytes.extend_from_slice(content);
        bytes.resize(bytes.len().next_multiple_of(BLOCK), 0);
        bytes
    }

    pub(in crate::read::archive) fn tar(members: &[(&str, &[u8])]) -> Vec<u8> {
        let mut bytes: Vec<u8> = members.iter().flat_map(|(name, content)| entry(b'0', name, content)).collect();
        bytes.resize(bytes.len() + 2 * BLOCK, 0);
        bytes
    }

    #[test]
    fn numbers_are_octal_or_binary() {
        assert_eq!(number(b"00000000017\0"), Some(15));
        assert_eq!(number(b"     17 "), Some(15));
        assert_eq!(number(&[0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2]), Some(258));
        assert_eq!((number(b"00000000089\0"), number(&[0xff; 12])), (None, None));
        assert_eq!(number(&[0x80; 8]), Some(0x80_8080_8080_8080), "also in a short field");
    }

    #[test]
    fn long_paths_of_both_kinds_are_read() {
        assert_eq!(path_in(b"12 mtime=1\n\n17 path=some/name\n"), None, "a length that lies is not followed");
        assert_eq!(path_in(b"11 mtime=1\n18 path=some/name\n"), Some(&b"some/name"[..]));
        assert_eq!((path_in(b""), path_in(b"99 path=x\n")), (None, None));
    }
}
