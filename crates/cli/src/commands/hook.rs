//! `tessera hook`: git asks before a commit, a push, or what others push is accepted.
//!
//! An installed hook is a script of one line that calls `tessera hook run`. What it does when it fails is refuse: a hook that lets pass
//! what it could not read would be none.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use tessera_scan::fleet::PASSWORD_VARIABLE;

use super::scan;
use crate::piped::PrivateFolder;
use crate::tell::{clean, print};
use crate::{Command as Verb, config};

/// Have git look for secrets before a commit, a push, or what others push is accepted
#[derive(Debug, clap::Args)]
#[command(after_help = "EXAMPLES
  tessera hook install                          before each commit of this repository
  tessera hook install pre-push                 before each push, of what the remote does not have
  tessera hook install pre-receive --repository /srv/git/app.git
                                                on a server: a push with a secret is refused
  tessera hook install -- --severity high       with flags of `tessera scan`
  tessera hook uninstall")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: HookCommand,
}

#[derive(Debug, clap::Subcommand)]
enum HookCommand {
    /// Write the hook where git looks for it
    Install {
        /// When git asks
        #[arg(value_enum, default_value_t = Kind::Commit)]
        kind: Kind,
        /// The repository; the one you are in if it is not given
        #[arg(long, value_name = "DIR", default_value = ".")]
        repository: PathBuf,
        /// Flags of `tessera scan` that the hook uses
        #[arg(last = true)]
        flags: Vec<String>,
    },
    /// Remove the hook again
    Uninstall {
        /// When git asks
        #[arg(value_enum, default_value_t = Kind::Commit)]
        kind: Kind,
        /// The repository; the one you are in if it is not given
        #[arg(long, value_name = "DIR", default_value = ".")]
        repository: PathBuf,
    },
    /// What an installed hook calls
    Run {
        /// When git asks
        #[arg(value_enum)]
        kind: Kind,
        /// What git tells the hook
        told: Vec<String>,
        /// Flags of `tessera scan`
        #[arg(last = true)]
        flags: Vec<String>,
    },
}

/// When git asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Kind {
    /// Before a commit: what is staged
    #[value(name = "pre-commit")]
    Commit,
    /// Before a push: commits that the remote does not have
    #[value(name = "pre-push")]
    Push,
    /// On a server, before it takes what is pushed: commits that none of its refs leads to
    #[value(name = "pre-receive")]
    Receive,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Commit => "pre-commit",
            Self::Push => "pre-push",
            Self::Receive => "pre-receive",
        }
    }
}

/// The line by which a hook of ours is known.
const MARK: &str = "# Written by `tessera hook install`; `tessera hook uninstall` removes it.";

pub(crate) fn run(args: &Args) -> ExitCode {
    let done = match &args.command {
        HookCommand::Install { kind, repository, flags } => install(*kind, repository, flags),
        HookCommand::Uninstall { kind, repository } => uninstall(*kind, repository),
        HookCommand::Run { kind, told, flags } => match judge(*kind, told, flags) {
            Ok(code) => return code,
            Err(error) => Err(error),
        },
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tell!("error: {}", clean(&error));
            ExitCode::from(2)
        }
    }
}

fn install(kind: Kind, repository: &Path, flags: &[String]) -> Result<(), String> {
    // Refused now, and not at the first commit.
    scan_with(flags)?;
    let program = std::env::current_exe().map_err(|error| format!("cannot tell where this program is: {error}"))?;
    let program = program.to_str().ok_or("the path of this program is no text, so a script cannot name it")?;
    let (name, path) = (kind.name(), path_of(kind, repository)?);
    let flags: String = flags.iter().map(|flag| format!(" {}", quoted(flag))).collect();
    let script = format!("#!/bin/sh\n{MARK}\nexec {} hook run {name} \"$@\" --{flags}\n", quoted(program));
    let failed = |error: io::Error| format!("cannot write {}: {error}", path.display());
    if !is_ours_or_absent(&path)? {
        return Err(format!(
            "{} is a hook of your own; add to it the line: {} hook run {name} \"$@\" --{flags}",
            path.display(),
            quoted(program)
        ));
    }
    fs::create_dir_all(path.parent().unwrap_or(Path::new("."))).map_err(failed)?;
    fs::write(&path, script).map_err(failed)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).map_err(failed)?;
    print(format!("{} looks for secrets from now on\n", path.display()))
}

fn uninstall(kind: Kind, repository: &Path) -> Result<(), String> {
    let path = path_of(kind, repository)?;
    if !path.exists() {
        return Err(format!("there is no hook {}", path.display()));
    }
    if !is_ours_or_absent(&path)? {
        return Err(format!("{} is a hook of your own, and stays", path.display()));
    }
    fs::remove_file(&path).map_err(|error| format!("cannot remove {}: {error}", path.display()))?;
    print(format!("{} is removed\n", path.display()))
}

/// Where git looks for the hook.
fn path_of(kind: Kind, repository: &Path) -> Result<PathBuf, String> {
    let asked = git(repository).args(["rev-parse", "--git-path", "hooks"]).stderr(Stdio::piped()).output();
    let output = asked.map_err(|error| format!("cannot run git: {error}"))?;
    if !output.status.success() {
        return Err(format!(
            "{} is no repository: {}",
            repository.display(),
            String::from_utf8_lossy(&output.stderr).trim()
        ));
    }
    let hooks = OsStr::from_bytes(output.stdout.trim_ascii_end());
    Ok(repository.join(hooks).join(kind.name()))
}

fn is_ours_or_absent(path: &Path) -> Result<bool, String> {
    match fs::read(path) {
        Ok(text) => Ok(String::from_utf8_lossy(&text).lines().nth(1) == Some(MARK)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(path.symlink_metadata().is_err()),
        Err(error) => Err(format!("cannot read {}: {error}", path.display())),
    }
}

/// A word of a shell.
fn quoted(word: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-_.=:,+@%".contains(&byte);
    if !word.is_empty() && word.bytes().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// A scan with these flags, and without a trace on the disk.
fn scan_with(flags: &[String]) -> Result<Box<scan::Args>, String> {
    let fixed = ["tessera", "scan", "--quiet", "--no-resume"];
    let words: Vec<OsString> = fixed.into_iter().map(OsString::from).chain(flags.iter().map(OsString::from)).collect();
    match config::parse_words(&words)?.command {
        Verb::Scan(args) => Ok(args),
        _ => Err("a hook takes flags of `tessera scan`".into()),
    }
}

fn judge(kind: Kind, told: &[String], flags: &[String]) -> Result<ExitCode, String> {
    let mut args = match kind {
        Kind::Commit => {
            let flags: Vec<String> = std::iter::once("--staged".to_owned()).chain(flags.iter().cloned()).collect();
            return Ok(scan::run(&*scan_with(&flags)?));
        }
        Kind::Push | Kind::Receive => scan_with(flags)?,
    };
    let mut lines = String::new();
    io::stdin().read_to_string(&mut lines).map_err(|error| format!("cannot read what git tells: {error}"))?;
    let updates: Vec<Vec<&str>> = lines.lines().map(|line| line.split(' ').collect()).collect();
    // `<local ref> <local object> <remote ref> <remote object>`, and on a server `<old object> <new object> <ref>`.
    let new: BTreeSet<&str> =
        updates.iter().filter_map(|update| update.get(1)).copied().filter(|oid| is_object(oid)).collect();
    if new.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    let here = std::env::current_dir().map_err(|error| format!("cannot tell where this is: {error}"))?;
    let remote = told.first().filter(|_| kind == Kind::Push).map(|remote| format!("refs/remotes/{remote}"));
    let mut known = refs_of(&here, remote.as_deref())?;
    if kind == Kind::Push {
        let theirs = updates.iter().filter_map(|update| update.get(3)).copied().filter(|oid| is_object(oid));
        known.extend(theirs.filter(|oid| has_object(&here, oid)).map(str::to_owned));
    }
    let revisions = new.iter().map(|&oid| oid.to_owned()).chain(known.iter().map(|oid| format!("^{oid}")));
    args.pushed = Some(revisions.collect());
    args.shown_as = Some(here.clone());
    // What is pushed lies apart until it is accepted, and only the environment says where.
    let apart = Apart::of(&here)?;
    args.scan_at(apart.as_ref().map_or(&here, |apart| apart.folder.path()));
    Ok(scan::run(&args))
}

/// Whether a word names an object and not the absence of one.
fn is_object(word: &str) -> bool {
    word.len() >= 40 && word.bytes().all(|byte| byte.is_ascii_hexdigit()) && word.bytes().any(|byte| byte != b'0')
}

/// Git in a repository, as a hook finds it.
fn git(repository: &Path) -> Command {
    let mut command = Command::new("git");
    command
        .arg("-C")
        .arg(repository)
        .env_remove(PASSWORD_VARIABLE)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    command
}

fn has_object(repository: &Path, oid: &str) -> bool {
    git(repository).args(["cat-file", "-e", oid]).status().is_ok_and(|status| status.success())
}

/// Commits that refs point at.
fn refs_of(repository: &Path, pattern: Option<&str>) -> Result<BTreeSet<String>, String> {
    let mut command = git(repository);
    command.args(["for-each-ref", "--format=%(objectname)"]).args(pattern);
    let output = command.output().map_err(|error| format!("cannot run git: {error}"))?;
    if !output.status.success() {
        return Err("git cannot list the refs of this repository".into());
    }
    Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
}

/// A repository without refs that borrows the objects which were pushed and those that were there before.
struct Apart {
    folder: PrivateFolder,
}

impl Apart {
    fn of(repository: &Path) -> Result<Option<Self>, String> {
        let Some(pushed) = std::env::var_os("GIT_OBJECT_DIRECTORY") else { return Ok(None) };
        let others = std::env::var_os("GIT_ALTERNATE_OBJECT_DIRECTORIES").unwrap_or_default();
        let lenders = std::iter::once(PathBuf::from(pushed)).chain(std::env::split_paths(&others));
        let format = git(repository).args(["rev-parse", "--show-object-format"]).output();
        let is_newer = format.is_ok_and(|output| output.stdout.trim_ascii() == b"sha256");
        let made = || -> io::Result<Self> {
            let folder = PrivateFolder::new("hook")?;
            let path = folder.path();
            fs::create_dir_all(path.join("objects/info"))?;
            fs::create_dir(path.join("refs"))?;
            fs::write(path.join("HEAD"), "ref: refs/heads/none\n")?;
            let version = if is_newer { "1\n[extensions]\n\tobjectformat = sha256" } else { "0" };
            fs::write(path.join("config"), format!("[core]\n\tbare = true\n\trepositoryformatversion = {version}\n"))?;
            let mut lines = fs::File::create(path.join("objects/info/alternates"))?;
            for lender in lenders.filter(|path| !path.as_os_str().is_empty()) {
                lines.write_all(repository.join(lender).canonicalize()?.as_os_str().as_bytes())?;
                lines.write_all(b"\n")?;
            }
            Ok(Self { folder })
        };
        made().map(Some).map_err(|error| format!("cannot look at what was pushed: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_reach_the_hook_as_they_were_typed() {
        assert_eq!(quoted("--severity=high"), "--severity=high");
        assert_eq!(quoted("a b'c$d"), r"'a b'\''c$d'");
        assert_eq!(quoted(""), "''");
    }

    #[test]
    fn an_object_of_zeros_is_none() {
        assert!(is_object(&"a1".repeat(20)) && is_object(&"a1".repeat(32)));
        assert!(!is_object(&"0".repeat(40)) && !is_object("HEAD") && !is_object(""));
    }
}
