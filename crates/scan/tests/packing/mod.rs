//! Archives and documents, made byte by byte, so that what is in them is known.
#![allow(dead_code, reason = "each test program uses a part")]

use std::io::Write;

fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = flate2::Crc::new();
    crc.update(bytes);
    crc.sum()
}

pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

pub(crate) fn bzip2(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// One frame of one raw block.
pub(crate) fn zstd(bytes: &[u8]) -> Vec<u8> {
    let len = u32::try_from(bytes.len()).unwrap();
    let block_header = (len << 3 | 1).to_le_bytes();
    [b"\x28\xb5\x2f\xfd\xa0", &len.to_le_bytes()[..], &block_header[..3], bytes].concat()
}

/// One block of one piece that is not compressed.
pub(crate) fn xz(bytes: &[u8]) -> Vec<u8> {
    let with_crc = |part: Vec<u8>| [&part[..], &crc32(&part).to_le_bytes()].concat();
    let padded = |mut part: Vec<u8>| {
        part.resize(part.len().next_multiple_of(4), 0);
        part
    };
    let varint = |mut number: usize| {
        let mut out = Vec::new();
        while number > 0x7f {
            out.push(number as u8 | 0x80);
            number >>= 7;
        }
        out.push(number as u8);
        out
    };
    // Check 1: CRC32.
    let flags = [0, 1];
    let block_header = with_crc(vec![2, 0, 0x21, 1, 0, 0, 0, 0]);
    let chunk_len = u16::try_from(bytes.len() - 1).unwrap().to_be_bytes();
    let content = [&[1][..], &chunk_len, bytes, &[0]].concat();
    let unpadded = block_header.len() + content.len() + 4;
    let index = with_crc(padded([&[0, 1][..], &varint(unpadded), &varint(bytes.len())].concat()));
    let backward = (u32::try_from(index.len() / 4).unwrap() - 1).to_le_bytes();
    let footer = [&backward[..], &flags].concat();
    [
        b"\xfd7zXZ\0",
        &with_crc(flags.to_vec())[..],
        &block_header,
        &padded(content),
        &crc32(bytes).to_le_bytes(),
        &index,
        &crc32(&footer).to_le_bytes(),
        &footer,
        b"YZ",
    ]
    .concat()
}

/// A zip of these members, as they are.
pub(crate) fn zip(members: &[(&str, &[u8])]) -> Vec<u8> {
    let (mut file, mut directory) = (Vec::new(), Vec::new());
    for (name, content) in members {
        let mut common = vec![20, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        for number in [crc32(content), content.len() as u32, content.len() as u32] {
            common.extend_from_slice(&number.to_le_bytes());
        }
        common.extend_from_slice(&(name.len() as u16).to_le_bytes());
        common.extend_from_slice(&[0, 0]);
        directory.extend_from_slice(b"PK\x01\x02\x14\0");
        directory.extend_from_slice(&common);
        directory.extend_from_slice(&[0; 10]);
        directory.extend_from_slice(&(file.len() as u32).to_le_bytes());
        directory.extend_from_slice(name.as_bytes());
        file.extend_from_slice(b"PK\x03\x04");
        file.extend_from_slice(&common);
        file.extend_from_slice(name.as_bytes());
        file.extend_from_slice(content);
    }
    let count = (members.len() as u16).to_le_bytes();
    let (directory_len, offset) = ((directory.len() as u32).to_le_bytes(), (file.len() as u32).to_le_bytes());
    [&file[..], &directory, b"PK\x05\x06\0\0\0\0", &count, &count, &directory_len, &offset, &[0, 0]].concat()
}

/// A 7z of one file, as it is.
pub(crate) fn seven_zip(name: &str, content: &[u8]) -> Vec<u8> {
    // Numbers below 2^14.
    let number = |value: usize| vec![0x80 | (value >> 8) as u8, value as u8];
    let (size, crc) = (number(content.len()), crc32(content).to_le_bytes());
    let name: Vec<u8> = name.encode_utf16().chain([0]).flat_map(u16::to_le_bytes).collect();
    let header = [
        // The packed stream, at the beginning.
        &[1, 4, 6, 0, 1, 9][..],
        &size,
        // One folder with one coder: a copy.
        &[0, 7, 0x0b, 1, 0, 1, 1, 0, 0x0c],
        &size,
        &[0, 8, 0x0a, 1],
        &crc,
        &[0, 0],
        // One file with a name.
        &[5, 1, 0x11],
        &number(name.len() + 1),
        &[0],
        &name,
        &[0, 0],
    ]
    .concat();
    let place = [
        &(content.len() as u64).to_le_bytes()[..],
        &(header.len() as u64).to_le_bytes(),
        &crc32(&header).to_le_bytes(),
    ]
    .concat();
    [b"7z\xbc\xaf\x27\x1c\0\x04", &crc32(&place).to_le_bytes()[..], &place, content, &header].concat()
}

/// A database of two pages, with one row of one value in the second.
pub(crate) fn sqlite(value: &[u8]) -> Vec<u8> {
    const PAGE: usize = 512;
    let mut first = vec![0; PAGE];
    first[..16].copy_from_slice(b"SQLite format 3\0");
    first[16..24].copy_from_slice(&[2, 0, 1, 1, 0, 64, 32, 32]);
    first[31] = 2;
    first[47] = 4;
    first[59] = 1;
    first[100] = 0x0d;
    first[105..107].copy_from_slice(&(PAGE as u16).to_be_bytes());
    let kind = 13 + 2 * value.len();
    let kind = [0x80 | (kind >> 7) as u8, (kind & 0x7f) as u8];
    let payload = [&[3][..], &kind, value].concat();
    let cell = [&[u8::try_from(payload.len()).unwrap(), 1][..], &payload].concat();
    assert!(payload.len() < 0x80, "a length of one byte");
    let at = PAGE - cell.len();
    let mut second = vec![0; PAGE];
    second[0] = 0x0d;
    second[4] = 1;
    second[5..7].copy_from_slice(&(at as u16).to_be_bytes());
    second[8..10].copy_from_slice(&(at as u16).to_be_bytes());
    second[at..].copy_from_slice(&cell);
    [first, second].concat()
}
