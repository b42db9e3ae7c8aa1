//! One process at a time works on a run that is kept on this machine.
//!
//! The lock is a file beside the run's folder, since the folder itself comes and goes. Its holder is locked in by the operating
//! system, which frees the file when the process ends, however it ends. The file also says which process that is, for people.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use tessera_contracts::RunId;

/// The right to work on a run, until it is dropped.
#[derive(Debug)]
pub struct RunLock {
    file: File,
    path: PathBuf,
}

/// The process that works on a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// Its process id, unless it has only just begun.
    pub pid: Option<u32>,
    /// The lock file.
    pub lock: PathBuf,
}

/// What became of an attempt to lock a run.
#[derive(Debug)]
pub enum LockAttempt {
    /// This process has the lock.
    Locked(RunLock),
    /// Another process has it.
    HeldBy(Holder),
}

/// What became of an attempt to lock one file.
#[derive(Debug)]
enum FileAttempt {
    Is(LockAttempt),
    /// The file was taken away by a holder that retired its run: a lock on it keeps no process out.
    Stale,
}

impl RunLock {
    /// Takes the lock of a run below `state_dir`, or says which process has it.
    pub fn try_acquire(state_dir: &Path, run: RunId) -> io::Result<LockAttempt> {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(state_dir)?;
        let path = path_of(state_dir, run);
        loop {
            let mut options = OpenOptions::new();
            let file = options.read(true).write(true).create(true).truncate(false).mode(0o600).open(&path)?;
            match Self::lock(file, path.clone())? {
                FileAttempt::Is(attempt) => return Ok(attempt),
                FileAttempt::Stale => {}
            }
        }
    }

    fn lock(mut file: File, path: PathBuf) -> io::Result<FileAttempt> {
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut text = String::new();
                // What cannot be read says nothing about the process; it holds the lock all the same.
                let _ = file.read_to_string(&mut text);
                let holder = Holder { pid: text.trim().parse().ok(), lock: path };
                return Ok(FileAttempt::Is(LockAttempt::HeldBy(holder)));
            }
            Err(TryLockError::Error(error)) => return Err(error),
        }
        if !is_same_file(&file, &path)? {
            return Ok(FileAttempt::Stale);
        }
        file.set_len(0)?;
        file.rewind()?;
        writeln!(file, "{}", std::process::id())?;
        Ok(FileAttempt::Is(LockAttempt::Locked(Self { file, path })))
    }

    /// Whether a process has, or had, the lock.
    pub fn exists(state_dir: &Path, run: RunId) -> bool {
        path_of(state_dir, run).exists()
    }

    /// Takes the lock file away: there is nothing left to lock.
    pub fn remove(self) -> io::Result<()> {
        std::fs::remove_file(&self.path)?;
        drop(self.file);
        Ok(())
    }
}

fn path_of(state_dir: &Path, run: RunId) -> PathBuf {
    state_dir.join(format!("{run}.lock"))
}

fn is_same_file(file: &File, path: &Path) -> io::Result<bool> {
    let held = file.metadata()?;
    match std::fs::metadata(path) {
        Ok(named) => Ok((named.dev(), named.ino()) == (held.dev(), held.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: RunId = RunId::new(7);

    fn locked(state_dir: &Path, run: RunId) -> RunLock {
        match RunLock::try_acquire(state_dir, run).unwrap() {
            LockAttempt::Locked(lock) => lock,
            LockAttempt::HeldBy(holder) => panic!("{holder:?} holds it"),
        }
    }

    fn holder(state_dir: &Path, run: RunId) -> Holder {
        match RunLock::try_acquire(state_dir, run).unwrap() {
            LockAttempt::Locked(_) => panic!("no process holds it"),
            LockAttempt::HeldBy(holder) => holder,
        }
    }

    #[test]
    fn one_holds_the_lock_and_others_learn_who_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("made/when/needed");
        let held = locked(&state, RUN);
        let expected = Holder { pid: Some(std::process::id()), lock: state.join("0000000000000007.lock") };
        assert_eq!(holder(&state, RUN), expected);
        locked(&state, RunId::new(8));
        drop(held);
        locked(&state, RUN);
    }

    #[test]
    fn a_lock_on_a_file_that_was_taken_away_keeps_no_process_out() {
        let dir = tempfile::tempdir().unwrap();
        let held = locked(dir.path(), RUN);
        // As a process that opened the file before it was taken away, and locks it now.
        let late = File::open(&held.path).unwrap();
        let path = held.path.clone();
        held.remove().unwrap();
        assert!(matches!(RunLock::lock(late.try_clone().unwrap(), path.clone()).unwrap(), FileAttempt::Stale));
        let next = locked(dir.path(), RUN);
        assert!(matches!(RunLock::lock(late, path).unwrap(), FileAttempt::Stale), "also beside the next holder");
        holder(dir.path(), RUN);
        drop(next);
    }
}
