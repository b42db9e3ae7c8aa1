//! The contents of blobs as git tells them, for repositories that only git can read.
//!
//! One `git cat-file` for each worker is asked for many blobs at once and answers in order. If it dies, it is started again
//! and asked once more for what it did not answer; a blob on which it dies twice is corrupt, and the others are still read.
//! A child that ends is never taken for the end of the blobs.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout};

use super::reader::{BlobRead, BlobReader, Kin};
use super::{GitError, Running, hex_oid};
use crate::read::edited::Quiet;

/// Bytes of a large blob that are offered at a time.
const PIECE_BYTES: usize = 256 << 10;

/// Reads through `git cat-file`.
#[derive(Debug)]
pub struct CatFile {
    repository: PathBuf,
    process: Option<Process>,
    asked: VecDeque<Box<[u8]>>,
    content: Vec<u8>,
}

#[derive(Debug)]
struct Process {
    running: Running,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

/// The child did not answer as it should: it died, or a pipe broke.
struct Died;

impl CatFile {
    /// A reader of this repository; starts git when it is first asked.
    pub fn new(repository: &Path) -> Self {
        Self { repository: repository.to_path_buf(), process: None, asked: VecDeque::new(), content: Vec::new() }
    }

    fn ask(&mut self, oids: &[Box<[u8]>]) -> Result<(), GitError> {
        if self.process.is_none() {
            let mut running = Running::start(&self.repository, "cat-file", &["--batch-command", "--buffer"], true)?;
            let input = running.child.stdin.take().expect("it was piped");
            let output = running.child.stdout.take().expect("it was piped");
            // Fewer, larger pieces mean fewer turns between the two processes. A wish: the default works too.
            let _ = rustix::pipe::fcntl_setpipe_size(&output, 1 << 20);
            self.process = Some(Process { running, input, output: BufReader::with_capacity(1 << 17, output) });
        }
        let process = self.process.as_mut().expect("it was just started");
        let mut commands = String::new();
        for oid in oids {
            commands.push_str("contents ");
            commands.push_str(&hex_oid(oid));
            commands.push('\n');
        }
        commands.push_str("flush\n");
        // If it is gone, reading finds out.
        let _ = process.input.write_all(commands.as_bytes());
        Ok(())
    }

    /// Reads one answer from the child.
    fn answer(&mut self, bytes_max: u64) -> Result<BlobRead, Died> {
        let oid = self.asked.front().ok_or(Died)?;
        let process = self.process.as_mut().ok_or(Died)?;
        let mut header = Vec::new();
        (&mut process.output).take(256).read_until(b'\n', &mut header).map_err(|_| Died)?;
        let header = header.strip_suffix(b"\n").ok_or(Died)?;
        let rest = header.strip_prefix(hex_oid(oid).as_bytes()).ok_or(Died)?;
        if rest == b" missing" {
            return Ok(BlobRead::Missing);
        }
        let mut words = rest.split(|&byte| byte == b' ').skip(1);
        let (kind, size) = (words.next().ok_or(Died)?, words.next().ok_or(Died)?);
        let size: u64 = std::str::from_utf8(size).ok().and_then(|size| size.parse().ok()).ok_or(Died)?;
        let content = &mut self.content;
        content.clear();
        if size > bytes_max || kind != b"blob" {
            let skipped = std::io::copy(&mut (&mut process.output).take(size + 1), &mut std::io::sink());
            return match skipped {
                Ok(read) if read == size + 1 && kind == b"blob" => Ok(BlobRead::TooLarge(size)),
                Ok(read) if read == size + 1 => Ok(BlobRead::Corrupt),
                _ => Err(Died),
            };
        }
        (&mut process.output).take(size + 1).read_to_end(content).map_err(|_| Died)?;
        if content.len() as u64 != size + 1 {
            return Err(Died);
        }
        content.pop();
        Ok(BlobRead::Read)
    }

    /// Starts git anew and asks again for everything that was not answered.
    fn restart(&mut self) -> Result<(), GitError> {
        self.process = None;
        let asked: Vec<Box<[u8]>> = self.asked.iter().cloned().collect();
        self.ask(&asked)
    }
}

impl BlobReader for CatFile {
    fn request(&mut self, oids: &mut dyn Iterator<Item = &[u8]>) -> Result<(), GitError> {
        let oids: Vec<Box<[u8]>> = oids.map(Box::from).collect();
        self.asked.extend(oids.iter().cloned());
        self.ask(&oids)
    }

    fn next(&mut self, bytes_max: u64) -> Result<BlobRead, GitError> {
        let mut answer = self.answer(bytes_max);
        if answer.is_err() {
            self.restart()?;
            answer = self.answer(bytes_max);
        }
        let read = match answer {
            Ok(read) => read,
            Err(Died) => {
                self.content.clear();
                BlobRead::Corrupt
            }
        };
        self.asked.pop_front();
        if answer.is_err() && !self.asked.is_empty() {
            self.restart()?;
        }
        Ok(read)
    }

    fn pieces(&mut self, oid: &[u8], sink: &mut dyn FnMut(&[u8]) -> bool) -> Result<BlobRead, GitError> {
        let mut running = Running::start(&self.repository, "cat-file", &["blob", &hex_oid(oid)], false)?;
        let mut output = running.child.stdout.take().expect("it was piped");
        let mut piece = Vec::with_capacity(PIECE_BYTES);
        loop {
            piece.clear();
            let read = (&mut output).take(PIECE_BYTES as u64).read_to_end(&mut piece);
            read.map_err(GitError::io("reading from git cat-file"))?;
            if piece.is_empty() {
                return Ok(if running.finish().is_ok() { BlobRead::Read } else { BlobRead::Corrupt });
            }
            if !sink(&piece) {
                return Ok(BlobRead::Read);
            }
        }
    }

    fn content(&self) -> &[u8] {
        &self.content
    }

    /// Git does not say how it stores a blob.
    fn kin(&self) -> Option<Kin<'_>> {
        None
    }

    fn remember(&mut self, _: Vec<Quiet>) {}

    fn reset(&mut self) {
        if !self.asked.is_empty() {
            // Its answers are in the pipe: a new child is simpler than reading them all.
            self.process = None;
            self.asked.clear();
        }
    }
}

impl Process {
    /// The process id, so that tests can be cruel to it.
    #[cfg(test)]
    fn id(&self) -> u32 {
        self.running.child.id()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Closing its input would end it too, but only once it has written all its answers.
        let _ = self.running.child.kill();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::git::parse_oid;
    use test_support::Repository;

    #[test]
    fn blobs_come_in_order_and_missing_ones_are_named() {
        let repository = Repository::new();
        let oids: Vec<_> = ["one", "two\n", ""].iter().map(|text| repository.blob(text.as_bytes())).collect();
        let absent = parse_oid(&[b'1'; 40]).unwrap();
        let mut reader = CatFile::new(repository.path());
        let order = [&oids[2], &oids[0], &absent, &oids[1], &oids[0]];
        reader.request(&mut order.into_iter().map(|oid| &**oid)).unwrap();
        let mut read = || {
            let read = reader.next(1_000).unwrap();
            (read, reader.content().to_vec())
        };
        assert_eq!(read(), (BlobRead::Read, b"".to_vec()));
        assert_eq!(read(), (BlobRead::Read, b"one".to_vec()));
        assert_eq!(read().0, BlobRead::Missing);
        assert_eq!(read(), (BlobRead::Read, b"two\n".to_vec()));
        assert_eq!(read(), (BlobRead::Read, b"one".to_vec()));
    }

    #[test]
    fn a_killed_child_is_started_again_and_nothing_is_lost() {
        let repository = Repository::new();
        let texts: Vec<String> = (0..50).map(|i| format!("{i} {}", "x".repeat(20_000))).collect();
        let oids: Vec<_> = texts.iter().map(|text| repository.blob(text.as_bytes())).collect();
        let mut reader = CatFile::new(repository.path());
        reader.request(&mut oids.iter().map(|oid| &**oid)).unwrap();
        for (i, text) in texts.iter().enumerate() {
            if i % 7 == 3 {
                let id = reader.process.as_ref().unwrap().id();
                rustix::process::kill_process(
                    rustix::process::Pid::from_raw(id as i32).unwrap(),
                    rustix::process::Signal::KILL,
                )
                .unwrap();
            }
            assert_eq!(reader.next(1 << 20).unwrap(), BlobRead::Read);
            assert_eq!(reader.content(), text.as_bytes(), "blob {i}");
        }
    }

    #[test]
    fn a_corrupt_blob_is_told_apart_and_the_others_are_read() {
        let repository = Repository::new();
        // Large enough that git learns of the damage only after it has begun to answer.
        let bad: String =
            (0..30_000_u32).map(|i| char::from(b' ' + (i.wrapping_mul(2_654_435_761) >> 25) as u8 % 90)).collect();
        let oids: Vec<_> = ["good", &bad, "fine"].iter().map(|text| repository.blob(text.as_bytes())).collect();
        repository.corrupt(&oids[1]);
        let mut reader = CatFile::new(repository.path());
        reader.request(&mut oids.iter().map(|oid| &**oid)).unwrap();
        let next = |reader: &mut CatFile| (reader.next(1 << 20).unwrap(), reader.content().to_vec());
        assert_eq!(next(&mut reader), (BlobRead::Read, b"good".to_vec()));
        assert_eq!(next(&mut reader).0, BlobRead::Corrupt);
        assert_eq!(next(&mut reader), (BlobRead::Read, b"fine".to_vec()));
    }

    #[test]
    fn a_large_blob_is_passed_over_and_the_next_one_read() {
        let repository = Repository::new();
        let oids: Vec<_> = ["large!", "small"].iter().map(|text| repository.blob(text.as_bytes())).collect();
        let mut reader = CatFile::new(repository.path());
        reader.request(&mut oids.iter().map(|oid| &**oid)).unwrap();
        assert_eq!(reader.next(5).unwrap(), BlobRead::TooLarge(6));
        let mut pieces = Vec::new();
        let read = reader.pieces(&oids[0], &mut |piece| {
            pieces.extend_from_slice(piece);
            true
        });
        assert_eq!((read.unwrap(), &pieces[..]), (BlobRead::Read, &b"large!"[..]));
        assert_eq!(reader.pieces(&[1; 20], &mut |_| true).unwrap(), BlobRead::Corrupt);
        assert_eq!(reader.next(5).unwrap(), BlobRead::Read);
        reader.request(&mut oids.iter().map(|oid| &**oid)).unwrap();
        reader.reset();
        reader.request(&mut std::iter::once(&*oids[1])).unwrap();
        assert_eq!((reader.next(5).unwrap(), reader.content()), (BlobRead::Read, &b"small"[..]));
    }
}
