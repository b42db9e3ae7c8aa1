//! Streams that are compressed: gzip, bzip2, xz and zstd, each of any number of parts, with their checksums.
//!
//! Memory is that of the window which the stream asks for; one that asks for more than the limit is not read.

use std::io::{self, BufRead, Read};

use bzip2::bufread::MultiBzDecoder;
use flate2::bufread::MultiGzDecoder;
use lzma_rust2::XzReader;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

use super::Packing;

impl Packing {
    /// What the content of a file of this name is called.
    pub(super) fn name_inside(self, name: &[u8]) -> Vec<u8> {
        let (endings, of_tars): (&[&[u8]], &[&[u8]]) = match self {
            Self::Gzip => (&[b".gz"], &[b".tgz"]),
            Self::Bzip2 => (&[b".bz2"], &[b".tbz2", b".tbz"]),
            Self::Xz => (&[b".xz"], &[b".txz"]),
            Self::Zstd => (&[b".zst"], &[b".tzst"]),
        };
        let stem = |endings: &[&[u8]]| endings.iter().find_map(|ending| name.strip_suffix(*ending));
        match (stem(of_tars), stem(endings)) {
            (Some(stem), _) => [stem, b".tar"].concat(),
            (None, Some(stem)) => stem.to_vec(),
            (None, None) => b"content".to_vec(),
        }
    }
}

/// What comes out of a compressed stream.
pub(super) enum Unpacked<'p> {
    Gzip(Box<MultiGzDecoder<&'p mut dyn BufRead>>),
    Bzip2(MultiBzDecoder<&'p mut dyn BufRead>),
    Xz { reader: Box<XzReader<&'p mut dyn BufRead>>, asks_too_much: bool },
    Zstd(Box<Zstd<'p>>),
}

pub(super) fn unpacked(packing: Packing, packed: &mut dyn BufRead, window_bytes_max: u64) -> Unpacked<'_> {
    match packing {
        Packing::Gzip => Unpacked::Gzip(Box::new(MultiGzDecoder::new(packed))),
        Packing::Bzip2 => Unpacked::Bzip2(MultiBzDecoder::new(packed)),
        Packing::Xz => {
            // The decoder needs some hundred kilobytes beside its window.
            let kilobytes = u32::try_from(window_bytes_max / 1_024 + 1_024).unwrap_or(u32::MAX);
            let reader = Box::new(XzReader::new_mem_limit(packed, true, kilobytes));
            Unpacked::Xz { reader, asks_too_much: false }
        }
        Packing::Zstd => {
            let mut decoder = FrameDecoder::new();
            decoder.set_max_window_size(window_bytes_max);
            Unpacked::Zstd(Box::new(Zstd { packed, decoder, is_in_frame: false, asks_too_much: false }))
        }
    }
}

impl Unpacked<'_> {
    /// Whether the stream could not be read because its window is too large.
    pub(super) fn asks_too_much(&self) -> bool {
        match self {
            Self::Gzip(_) | Self::Bzip2(_) => false,
            Self::Xz { asks_too_much, .. } => *asks_too_much,
            Self::Zstd(zstd) => zstd.asks_too_much,
        }
    }
}

impl Read for Unpacked<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Gzip(reader) => reader.read(buffer),
            Self::Bzip2(reader) => reader.read(buffer),
            Self::Xz { reader, asks_too_much } => reader.read(buffer).inspect_err(|error| {
                *asks_too_much |= error.kind() == io::ErrorKind::OutOfMemory;
            }),
            Self::Zstd(zstd) => zstd.read(buffer),
        }
    }
}

/// Frames of Zstandard, one after the other.
pub(super) struct Zstd<'p> {
    packed: &'p mut dyn BufRead,
    decoder: FrameDecoder,
    is_in_frame: bool,
    asks_too_much: bool,
}

impl Zstd<'_> {
    /// Begins the next frame; false at the end of all.
    fn begin(&mut self) -> io::Result<bool> {
        loop {
            if self.packed.fill_buf()?.is_empty() {
                return Ok(false);
            }
            match self.decoder.init(&mut self.packed) {
                Ok(()) => {
                    self.is_in_frame = true;
                    return Ok(true);
                }
                // A frame of another program: it says how long it is.
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame { length, .. })) => {
                    let length = u64::from(length);
                    if io::copy(&mut (&mut self.packed).take(length), &mut io::sink())? < length {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                Err(error) => {
                    self.asks_too_much |= matches!(error, FrameDecoderError::WindowSizeTooBig { .. });
                    return Err(io::Error::other(error));
                }
            }
        }
    }
}

impl Read for Zstd<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if !self.is_in_frame && !self.begin()? {
                return Ok(0);
            }
            while self.decoder.can_collect() == 0 && !self.decoder.is_finished() {
                let one = BlockDecodingStrategy::UptoBlocks(1);
                self.decoder.decode_blocks(&mut self.packed, one).map_err(io::Error::other)?;
            }
            let read = self.decoder.read(buffer)?;
            if read > 0 || buffer.is_empty() {
                return Ok(read);
            }
            let told = self.decoder.get_checksum_from_data();
            if told.is_some() && told != self.decoder.get_calculated_checksum() {
                return Err(io::Error::other("the checksum of a frame is wrong"));
            }
            self.is_in_frame = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read::archive::{Kind, kind_of};

    /// What programs of the system make of `hello hello hello\n`.
    const XZ: &str = "fd377a585a000004e6d6b4460200210116000000742fe5a3e00011000c5d00341949ee8de94f7e2121b000001f01d9c887c143c800012812c96a628e1fb6f37d010000000004595a";
    const BZIP2: &str =
        "425a6839314159265359e5b5f3090000045100001040000244a00021b5180c029069c2a30bb9229c284872daf98480";
    const ZSTD: &str = "28b52ffd24126d00003868656c6c6f200a0100314a11a3aa74ce";
    const TEXT: &[u8] = b"hello hello hello\n";

    fn bytes(hex: &str) -> Vec<u8> {
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
    }

    fn read(packing: Packing, packed: &[u8]) -> io::Result<Vec<u8>> {
        let (mut packed, mut text) = (packed, Vec::new());
        unpacked(packing, &mut packed, 64 << 20).read_to_end(&mut text)?;
        Ok(text)
    }

    #[test]
    fn each_format_is_known_by_its_beginning_and_read_with_all_its_parts() {
        for (packing, hex) in [(Packing::Xz, XZ), (Packing::Bzip2, BZIP2), (Packing::Zstd, ZSTD)] {
            let packed = bytes(hex);
            assert_eq!(kind_of(&packed), Some(Kind::Stream(packing)));
            assert_eq!(read(packing, &packed).unwrap(), TEXT, "{packing:?}");
            assert_eq!(read(packing, &[&packed[..], &packed].concat()).unwrap(), [TEXT, TEXT].concat(), "{packing:?}");
            for cut in 1..packed.len() {
                assert!(read(packing, &packed[..cut]).is_err(), "{packing:?} cut at {cut}");
            }
        }
        let skipped = [b"\x50\x2a\x4d\x18\x03\0\0\0abc", &bytes(ZSTD)[..]].concat();
        assert_eq!(read(Packing::Zstd, &skipped).unwrap(), TEXT);
    }

    #[test]
    fn damage_is_noticed() {
        for (packing, hex) in [(Packing::Xz, XZ), (Packing::Bzip2, BZIP2), (Packing::Zstd, ZSTD)] {
            let whole = bytes(hex);
            for at in 0..whole.len() {
                let mut damaged = whole.clone();
                damaged[at] ^= 0x10;
                // Some bits say nothing about the content.
                assert!(read(packing, &damaged).map_or(true, |text| text == TEXT), "{packing:?} byte {at}");
            }
        }
    }

    #[test]
    fn a_window_beyond_the_limit_is_asked_for_in_vain() {
        for (packing, hex) in [(Packing::Xz, XZ), (Packing::Zstd, ZSTD_LARGE)] {
            let packed = bytes(hex);
            let (mut rest, mut text) = (&packed[..], Vec::new());
            let mut unpacked = unpacked(packing, &mut rest, 1 << 10);
            assert!(unpacked.read_to_end(&mut text).is_err() && unpacked.asks_too_much(), "{packing:?}");
        }
    }

    /// As [`ZSTD`], with a window of megabytes.
    const ZSTD_LARGE: &str = "28b52ffd04586d00003868656c6c6f200a0100314a11a3aa74ce";

    #[test]
    fn content_is_called_by_the_name_without_the_ending() {
        let name = |packing: Packing, name: &str| String::from_utf8(packing.name_inside(name.as_bytes())).unwrap();
        assert_eq!(name(Packing::Xz, "a.sql.xz"), "a.sql");
        assert_eq!(name(Packing::Bzip2, "a.tbz2"), "a.tar");
        assert_eq!(name(Packing::Zstd, "a.zst"), "a");
        assert_eq!(name(Packing::Gzip, "odd"), "content");
    }
}
