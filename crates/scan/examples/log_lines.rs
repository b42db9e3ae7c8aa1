//! Sweeps the lines of a log with the workers of a fleet and hands them on: a source that the scanner does not know.
//!
//! Cursors are *Dispatched*: a worker appends lines to its outbox and syncs it, and only then the cursor moves. For a crash
//! this means:
//!
//! - A worker that dies between outbox and cursor leaves lines that its heir hands on once more. The consumer knows a line by
//!   its key, and takes it once.
//! - A receipt that is complete says that each line lies in an outbox, not that the consumer is done with it. No worker hands
//!   on again what the consumer loses: it goes on from the outboxes by itself.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use tessera_contracts::source_family::{SourceError, SourceErrorClass, SourceFamily, SourceItem};
use tessera_contracts::{CursorSemantics, RestoredShardState};
use tessera_scan::findings::Draft;
use tessera_scan::fleet::OpenFleet;
use tessera_scan::plan::{key::path_key, target::Target};
use tessera_scan::source::open::{Connector, Handled, Handler, HandlerError, Paged};

/// A log that only grows.
#[derive(Debug)]
pub struct Log(pub PathBuf);

/// The key of a line, which ends with its offset, and its text.
#[derive(Debug)]
pub struct Line(pub Vec<u8>, pub Vec<u8>);

/// Lines from an offset on.
#[derive(Debug)]
pub struct Lines(BufReader<File>, u64);

/// Where one worker hands lines on, and those that are not there yet.
#[derive(Debug)]
pub struct Outbox(File, Vec<u8>);

fn failed(error: io::Error) -> SourceError {
    SourceError::new(SourceErrorClass::Transient, error.to_string())
}

impl SourceItem for Line {
    fn key(&self) -> &[u8] {
        &self.0
    }

    fn bytes(&self) -> u64 {
        self.1.len() as u64
    }
}

impl Iterator for Lines {
    type Item = Result<Line, SourceError>;

    fn next(&mut self) -> Option<Self::Item> {
        let (key, mut text) = (path_key(0, [self.1.to_be_bytes().as_slice()]), Vec::new());
        let read = self.0.read_until(b'\n', &mut text);
        self.1 += text.len() as u64;
        read.map(|length| (length > 0).then_some(Line(key, text))).map_err(failed).transpose()
    }
}

impl SourceFamily for Log {
    type Item = Line;
    type Pages<'f> = Paged<Lines>;

    fn name(&self) -> &'static str {
        "log lines"
    }

    fn open(&self, state: &RestoredShardState) -> Result<Paged<Lines>, SourceError> {
        let cursor = state.cursor().last_key();
        // The first shard begins with the number of the target alone.
        let offset = cursor.unwrap_or(state.spec().start()).get(4..).and_then(|offset| offset.try_into().ok());
        let offset = offset.map_or(0, u64::from_be_bytes);
        let mut file = BufReader::new(File::open(&self.0).map_err(failed)?);
        file.seek(SeekFrom::Start(offset)).map_err(failed)?;
        let mut lines = Lines(file, offset);
        if cursor.is_some() {
            lines.next().transpose()?; // The cursor's own line is done.
        }
        Ok(Paged::new(lines))
    }
}

impl Connector for Log {
    type Handler = Outbox;

    fn locate(&self, target: &Target) -> Result<(), SourceError> {
        File::open(&target.path)
            .map(drop)
            .map_err(|error| SourceError::new(SourceErrorClass::NotFound, error.to_string()))
    }

    fn handler(&self, dir: &Path) -> io::Result<Outbox> {
        let path = dir.join(format!("{:016x}.outbox", tessera_scan::op_ids::random_u64()));
        let outbox = File::create(path)?;
        // Its name must be as durable as its lines: a cursor that moved over lines in a file that is gone loses them.
        File::open(dir)?.sync_all()?;
        Ok(Outbox(outbox, Vec::new()))
    }
}

impl Handler<Line> for Outbox {
    fn handle(&mut self, Line(key, text): &Line, _: &mut Draft) -> Result<Handled, HandlerError> {
        let text = String::from_utf8_lossy(text);
        writeln!(self.1, "{key:?} {}", text.trim_end()).expect("memory takes it");
        Ok(Handled::Done)
    }

    fn make_durable(&mut self) -> io::Result<()> {
        self.0.write_all(&std::mem::take(&mut self.1))?;
        self.0.sync_data()
    }
}

/// What the consumer finds in the outboxes of a run: keys with their lines, and how often each was handed on.
pub fn handed_on(dir: &Path) -> io::Result<BTreeMap<String, usize>> {
    let mut lines = BTreeMap::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "outbox") {
            for line in fs::read_to_string(path)?.lines() {
                *lines.entry(line.to_owned()).or_default() += 1;
            }
        }
    }
    Ok(lines)
}

/// Hands a log on: how many lines were met, whether the receipt is complete, and how many lines lie in outboxes.
pub fn hand_on(log: &Log) -> Result<(u64, bool, usize), Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    let fleet = OpenFleet::in_memory(dir.path());
    let run = fleet.submit(log, &log.0, CursorSemantics::Dispatched)?;
    fleet.work(log, &AtomicBool::new(false))?;
    let (_, receipt) = fleet.conclude(&run)?;
    Ok((receipt.tally.enumerated(), receipt.is_complete(), handed_on(run.path())?.len()))
}

fn main() -> Result<(), Box<dyn Error>> {
    let log = Log(std::env::args_os().nth(1).ok_or("name a log")?.into());
    let (met, is_complete, handed_on) = hand_on(&log)?;
    println!("{met} lines met, complete: {is_complete}, {handed_on} handed on");
    Ok(())
}
