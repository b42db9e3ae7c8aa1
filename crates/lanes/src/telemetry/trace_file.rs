//! Traces on disk: one JSON object a line, in two files that take turns, so that they never grow beyond their bound.
//!
//! `trace.jsonl` is written; when it has half of the bytes allowed it becomes `trace.1.jsonl`, in place of the one before. The
//! observer's thread writes: lanes hand their events over by ring and never see a disk.

use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::PathBuf;

use crate::telemetry::trace::{TraceEvent, TraceWhat};

/// Where traces are written, and how much.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceFiles {
    /// The folder; made if it is not there.
    pub folder: PathBuf,
    /// Bytes of both files together.
    pub bytes_max: u64,
}

/// The newer file, still written.
pub const TRACE_FILE: &str = "trace.jsonl";
/// The older file.
pub const TRACE_FILE_OLD: &str = "trace.1.jsonl";

#[derive(Debug)]
pub(crate) struct TraceWriter {
    files: TraceFiles,
    file: File,
    len: u64,
    /// Whole lines not yet written.
    lines: String,
}

impl TraceWriter {
    pub(crate) fn open(files: &TraceFiles) -> io::Result<Self> {
        std::fs::create_dir_all(&files.folder)?;
        let file = OpenOptions::new().create(true).append(true).open(files.folder.join(TRACE_FILE))?;
        let len = file.metadata()?.len();
        Ok(Self { files: files.clone(), file, len, lines: String::new() })
    }

    pub(crate) fn push(&mut self, event: &TraceEvent) {
        write_line(&mut self.lines, event);
    }

    /// Writes the events pushed so far.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        for line in self.lines.split_inclusive('\n') {
            if self.len > 0 && self.len + line.len() as u64 > self.files.bytes_max / 2 {
                let (new, old) = (self.files.folder.join(TRACE_FILE), self.files.folder.join(TRACE_FILE_OLD));
                std::fs::rename(&new, old)?;
                self.file = OpenOptions::new().create(true).append(true).open(new)?;
                self.len = 0;
            }
            self.file.write_all(line.as_bytes())?;
            self.len += line.len() as u64;
        }
        self.lines.clear();
        Ok(())
    }
}

fn write_line(out: &mut String, event: &TraceEvent) {
    let (at, lane) = (event.at.0, event.lane.0);
    let _ = write!(out, r#"{{"at_us":{at},"lane":{lane},"#);
    // Writing to a string cannot fail.
    let _ = match event.what {
        TraceWhat::Datagram { bytes } => writeln!(out, r#""event":"datagram","bytes":{bytes}}}"#),
        TraceWhat::Message { class, kind, src, waited } => writeln!(
            out,
            r#""event":"message","class":"{}","kind":{kind},"from":{},"waited_us":{waited}}}"#,
            class.name(),
            src.0
        ),
        TraceWhat::Dropped { class, kind, dst, cause } => writeln!(
            out,
            r#""event":"dropped","class":"{}","kind":{kind},"to":{},"cause":"{}"}}"#,
            class.name(),
            dst.0,
            cause.name()
        ),
    };
}

#[cfg(test)]
mod tests {
    use tessera_contracts::prefix_map::LaneIndex;

    use super::*;
    use crate::class::{Class, DropCause};
    use crate::time::LaneTime;

    fn event(at: u64, what: TraceWhat) -> TraceEvent {
        TraceEvent { at: LaneTime(at), lane: LaneIndex(3), what }
    }

    #[test]
    fn every_event_is_a_line_that_says_all_of_it() {
        let mut lines = String::new();
        let (class, cause) = (Class::Hints, DropCause::Shed);
        write_line(&mut lines, &event(7, TraceWhat::Datagram { bytes: 200 }));
        write_line(&mut lines, &event(8, TraceWhat::Message { class, kind: 9, src: LaneIndex(1), waited: 4 }));
        write_line(&mut lines, &event(9, TraceWhat::Dropped { class, kind: 9, dst: LaneIndex(2), cause }));
        assert_eq!(
            lines,
            concat!(
                r#"{"at_us":7,"lane":3,"event":"datagram","bytes":200}"#,
                "\n",
                r#"{"at_us":8,"lane":3,"event":"message","class":"hints","kind":9,"from":1,"waited_us":4}"#,
                "\n",
                r#"{"at_us":9,"lane":3,"event":"dropped","class":"hints","kind":9,"to":2,"cause":"shed"}"#,
                "\n",
            )
        );
    }

    #[test]
    fn the_files_keep_the_newest_lines_within_their_bound() {
        let folder = std::env::temp_dir().join(format!("tessera-trace-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        let files = TraceFiles { folder: folder.clone(), bytes_max: 1000 };
        for life in 0..3u64 {
            let mut writer = TraceWriter::open(&files).unwrap();
            for at in 0..100 {
                writer.push(&event(life * 1000 + at, TraceWhat::Datagram { bytes: 1 }));
                if at % 7 == 0 {
                    writer.flush().unwrap();
                }
            }
            writer.flush().unwrap();
            let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
            let (old, new) = (read(TRACE_FILE_OLD), read(TRACE_FILE));
            assert!(old.len() + new.len() <= 1000, "{} and {}", old.len(), new.len());
            let at: Vec<u64> =
                (old + &new).lines().map(|line| line.split([':', ',']).nth(1).unwrap().parse().unwrap()).collect();
            assert!(at.len() > 9, "at least half of the allowed events are there: {}", at.len());
            assert!(at.is_sorted() && at.last() == Some(&(life * 1000 + 99)), "the newest, in order: {at:?}");
        }
        std::fs::remove_dir_all(folder).unwrap();
    }
}
