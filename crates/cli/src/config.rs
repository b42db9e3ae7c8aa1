//! `tessera.toml`: flags that need not be typed.
//!
//! A table named like a subcommand holds its long flags, and `[fleet]` those that say which fleet is meant:
//!
//! ```toml
//! [scan]
//! exclude = ["vendor/**"]
//! max-file-size = "20M"
//!
//! [fleet]
//! tenant = "team-a"
//! ```
//!
//! The command line wins over the environment, and the environment over the file. A key that is no flag is refused, since a
//! misspelt one would silently do nothing.
//!
//! The file is `--config FILE`, or `tessera.toml` in the current directory. The latter may come with a repository of
//! strangers, so it may set targets and rules, but neither where anything is written or sent to nor that secrets are
//! shown. For the same reason it says nothing about nodes: all of their settings are of that kind, and stand in a file that
//! `tessera node --config` names.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::builder::Resettable;
use clap::error::{ContextKind, ContextValue};
use clap::parser::ValueSource;
use clap::{ArgMatches, Command, CommandFactory, FromArgMatches};
use serde_json::json;
use tessera_scan::source::small_file;
use toml::de::{DeTable, DeValue};

use crate::Cli;
use crate::tell::{clean, print};

/// The file that is looked for where none is named.
const FILE: &str = "tessera.toml";

/// Flags that only a file the user names may set: places, and flags that would put secrets into a log that others read or hide that
/// there are any.
const NAMED_ONLY: [&str; 14] = [
    "output",
    "exit-code",
    "redact",
    "template",
    "state-dir",
    "id-key",
    "coordinator",
    "findings",
    "coordinator-password-file",
    "coordinator-ca",
    "coordinator-cert",
    "coordinator-key",
    "config",
    "show-secrets",
];

/// Reads the command line, completed by the file. Ends the program if either is wrong, as clap does.
pub(crate) fn parse() -> Cli {
    let args: Vec<OsString> = std::env::args_os().collect();
    if steers_a_node(&args) {
        let matches = without_variables_of_a_node().get_matches_from(&args);
        return Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    }
    let typed = Cli::command().try_get_matches_from(&args).unwrap_or_else(|error| exit(&error, &args));
    let completed = file_of(&typed).and_then(|file| match file {
        Some(file) => file.complete(&typed, args.clone()),
        None => Ok(args.clone()),
    });
    let args = completed.unwrap_or_else(|error| {
        // It may have keys of a stranger's file in it.
        tell!("error: {}", clean(&error));
        std::process::exit(2);
    });
    let matches = Cli::command().get_matches_from(&args);
    Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
}

/// Whether it is a command to a running node. Such a command ignores the environment's settings for starting a node, but clap would
/// check them all the same.
fn steers_a_node(args: &[OsString]) -> bool {
    let typed = without_variables_of_a_node().try_get_matches_from(args);
    typed.is_ok_and(|typed| typed.subcommand().is_some_and(|(verb, of)| verb == "node" && of.subcommand().is_some()))
}

fn without_variables_of_a_node() -> Command {
    Cli::command().mut_subcommand("node", |node| node.mut_args(|arg| arg.env(Resettable::Reset)))
}

/// As clap does. If the fault is in the environment, it also names the variable: a user who typed no flag would look for it in vain.
fn exit(error: &clap::Error, args: &[OsString]) -> ! {
    let _ = error.print();
    if let Some(variable) = variable_of(error, args).filter(|variable| std::env::var_os(variable).is_some()) {
        tell!("Unless it was typed, it stands in the environment, as {}.", variable.display());
    }
    if error.use_stderr() && wants_json(args) {
        let text = error.render().to_string();
        let why = text.split("\n\n").next().unwrap_or_default().trim_start_matches("error: ").trim_end();
        let answer = json!({ "error": why, "kind": "bad_request", "explain": null });
        let _ = print(format!("{answer}\n"));
    }
    std::process::exit(error.exit_code());
}

/// Whether it is a program that reads the answer, and so the refusal.
fn wants_json(args: &[OsString]) -> bool {
    let flags = args.iter().take_while(|arg| *arg != "--");
    args.get(1).is_some_and(|verb| verb == "dht") && flags.into_iter().any(|arg| arg == "--json")
}

/// The variable that says the same as the flag whose value is wrong.
fn variable_of(error: &clap::Error, args: &[OsString]) -> Option<OsString> {
    let Some(ContextValue::String(flag)) = error.get(ContextKind::InvalidArg) else { return None };
    let mut cli = Cli::command();
    cli.build();
    let command = cli.find_subcommand(args.get(1)?)?;
    command.get_arguments().find(|arg| arg.to_string() == *flag)?.get_env().map(ToOwned::to_owned)
}

/// Reads the words of a command that another one gives, completed by the file as if they had been typed.
pub(crate) fn parse_words(args: &[OsString]) -> Result<Cli, String> {
    let read = |args: &[OsString]| Cli::command().try_get_matches_from(args).map_err(|error| error.to_string());
    let typed = read(args)?;
    let args = match file_of(&typed)? {
        Some(file) => file.complete(&typed, args.to_vec())?,
        None => args.to_vec(),
    };
    Cli::from_arg_matches(&read(&args)?).map_err(|error| error.to_string())
}

struct File {
    path: PathBuf,
    text: String,
    is_named: bool,
}

fn file_of(typed: &ArgMatches) -> Result<Option<File>, String> {
    let Some((verb, typed)) = typed.subcommand() else { return Ok(None) };
    if matches!(verb, "node" | "dht" | "completions") {
        return Ok(None);
    }
    let named = typed.try_get_one::<PathBuf>("config").ok().flatten();
    let path = named.cloned().unwrap_or_else(|| FILE.into());
    let text = if named.is_some() { small_file::read_named(&path) } else { small_file::read_found(&path) };
    match text {
        Ok(text) => Ok(Some(File { path, text, is_named: named.is_some() })),
        Err(error) if named.is_none() && error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(format!("cannot read {}: {error}", path.display())),
    }
}

impl File {
    /// The command line with the flags of the file added.
    fn complete(&self, typed: &ArgMatches, mut args: Vec<OsString>) -> Result<Vec<OsString>, String> {
        let path = self.path.display();
        let line_of = |at: usize| 1 + self.text[..at.min(self.text.len())].matches('\n').count();
        let table = DeTable::parse(&self.text).map_err(|error| {
            let line = error.span().map_or(0, |span| line_of(span.start));
            format!("{path}:{line}: {}", error.message())
        })?;
        let (verb, typed) = typed.subcommand().map_or(("", typed), |(verb, typed)| (verb, typed));
        let cli = Cli::command();
        let mut added = Vec::new();
        for (name, value) in table.get_ref() {
            let at = |what: String| format!("{path}:{}: {what}", line_of(name.span().start));
            let name = name.get_ref().as_ref();
            let owner = if name == "fleet" { "worker" } else { name };
            let Some(command) = cli.find_subcommand(owner) else {
                return Err(at(format!("[{name}] is no subcommand; write [scan] or [fleet], for instance")));
            };
            if matches!(name, "node" | "dht") {
                return Err(at(format!(
                    "[{name}] does nothing here; the settings of a node stand in a file of their own, which `tessera node --config` names"
                )));
            }
            let Some(keys) = value.get_ref().as_table() else {
                return Err(at(format!("{name} is no flag but a subcommand; write its flags below [{name}]")));
            };
            for (key, value) in keys {
                let at = |what: String| format!("{path}:{}: {what}", line_of(key.span().start));
                let key = key.get_ref().as_ref();
                let Some(arg) = long_flag(command, key) else {
                    return Err(at(format!(
                        "{key} is no flag of `tessera {owner}`; `tessera {owner} --help` names them"
                    )));
                };
                if !self.is_named && NAMED_ONLY.contains(&key) {
                    return Err(at(format!(
                        "{key} is set only by a file that --config names, since this one may be a stranger's"
                    )));
                }
                let applies = name == verb || (name == "fleet" && has_long_flag(&cli, verb, key));
                if applies && !is_set(typed, arg) {
                    added.extend(flags_of(key, value.get_ref()).map_err(at)?);
                }
            }
        }
        // Every argument behind `--` is a path.
        let end = args.iter().position(|arg| arg == "--").unwrap_or(args.len());
        args.splice(end..end, added);
        Ok(args)
    }
}

fn long_flag<'c>(command: &'c Command, key: &str) -> Option<&'c clap::Arg> {
    command.get_arguments().find(|arg| arg.get_long() == Some(key))
}

fn has_long_flag(cli: &Command, verb: &str, key: &str) -> bool {
    cli.find_subcommand(verb).is_some_and(|command| long_flag(command, key).is_some())
}

/// Whether the command line or the environment says it.
fn is_set(typed: &ArgMatches, arg: &clap::Arg) -> bool {
    // A flag that this subcommand does not have is not set by it.
    let source =
        typed.try_contains_id(arg.get_id().as_str()).ok().and_then(|_| typed.value_source(arg.get_id().as_str()));
    matches!(source, Some(ValueSource::CommandLine | ValueSource::EnvVariable))
}

/// `key = value` as it would be typed.
fn flags_of(key: &str, value: &DeValue<'_>) -> Result<Vec<OsString>, String> {
    let one = |value: &DeValue<'_>| match value {
        DeValue::String(text) => Ok(OsString::from(format!("--{key}={text}"))),
        // As a number and not as it is written, which may be `0x10`.
        DeValue::Integer(number) => match i64::from_str_radix(number.as_str(), number.radix()) {
            Ok(number) => Ok(OsString::from(format!("--{key}={number}"))),
            Err(_) => Err(format!("{key} is too large a number")),
        },
        _ => Err(format!("{key} must be a text, a number, true or false, or an array of texts")),
    };
    match value {
        DeValue::Boolean(true) => Ok(vec![format!("--{key}").into()]),
        DeValue::Boolean(false) => Ok(Vec::new()),
        DeValue::Array(values) => values.iter().map(|value| one(value.get_ref())).collect(),
        value => Ok(vec![one(value)?]),
    }
}

/// The file that was used: a user who runs the program in a stranger's folder should know.
pub(crate) fn found_beside() -> Option<&'static Path> {
    Path::new(FILE).exists().then_some(Path::new(FILE))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complete(text: &str, is_named: bool, typed: &[&str]) -> Result<Vec<String>, String> {
        let args: Vec<OsString> = typed.iter().map(OsString::from).collect();
        let matches = Cli::command().get_matches_from(&args);
        let file = File { path: "t.toml".into(), text: text.into(), is_named };
        let args = file.complete(&matches, args)?;
        Ok(args[typed.len()..].iter().map(|arg| arg.to_str().unwrap().to_owned()).collect())
    }

    #[test]
    fn the_file_adds_what_was_not_typed() {
        let text = "[scan]\nexclude = ['a', 'b']\nmax-file-size = '2M'\nno-ignore = true\nbinary = false\njobs = 3\n";
        let added = complete(text, false, &["tessera", "scan", "--jobs", "7"]).unwrap();
        assert_eq!(added, ["--exclude=a", "--exclude=b", "--max-file-size=2M", "--no-ignore"]);
        assert!(complete(text, false, &["tessera", "rules", "list"]).unwrap().is_empty(), "another subcommand's");
        let fleet = "[fleet]\ntenant = 'x'\n";
        for verb in [&["tessera", "scan"][..], &["tessera", "worker"], &["tessera", "runs"]] {
            assert_eq!(complete(fleet, false, verb).unwrap(), ["--tenant=x"], "{verb:?}");
        }
        assert!(complete(fleet, false, &["tessera", "rules", "list"]).unwrap().is_empty());
        let numbers = "[scan]\njobs = 0x10\n";
        assert_eq!(complete(numbers, false, &["tessera", "scan"]).unwrap(), ["--jobs=16"], "however it is written");
    }

    #[test]
    fn settings_of_the_file_are_not_read_as_paths_though_the_command_line_ends_with_paths() {
        let typed = ["tessera", "scan", "--", "--odd"].map(OsString::from);
        let matches = Cli::command().get_matches_from(&typed);
        let file = File { path: "t.toml".into(), text: "[scan]\nbinary = true\n".into(), is_named: false };
        let args = file.complete(&matches, typed.to_vec()).unwrap();
        assert_eq!(args, ["tessera", "scan", "--binary", "--", "--odd"]);
    }

    #[test]
    fn unknown_keys_and_tables_are_refused_with_their_line() {
        let wrong = |text: &str| complete(text, true, &["tessera", "scan"]).unwrap_err();
        assert!(
            wrong("\n[scan]\nexlude = ['a']\n").starts_with("t.toml:3: exlude is no flag"),
            "{}",
            wrong("\n[scan]\nexlude = ['a']\n")
        );
        assert!(wrong("[scna]\n").starts_with("t.toml:1: [scna] is no subcommand"));
        assert!(wrong("jobs = 3\n").contains("[jobs] is no subcommand"));
        assert!(wrong("scan = 3\n").starts_with("t.toml:1: scan is no flag but a subcommand"));
        assert!(wrong("[scan]\njobs = 99999999999999999999\n").contains("too large"));
        assert!(wrong("[scan\n").starts_with("t.toml:1: "));
        assert!(wrong("[scan]\njobs = 1.5\n").contains("must be"));
        assert!(wrong("[node]\nlanes = 1\n").starts_with("t.toml:1: [node] does nothing here"));
        // Also in the table of another subcommand: it is wrong, whichever runs.
        assert!(wrong("[worker]\nx = 1\n").contains("no flag of `tessera worker`"));
    }

    #[test]
    fn a_file_that_was_not_named_says_nothing_about_places_and_shows_no_secrets() {
        let show = "[scan]\nshow-secrets = true\n";
        for text in [
            show,
            "[scan]\nredact = 0\n",
            "[scan]\noutput = 'x'\n",
            "[fleet]\ncoordinator = 'etcd://h:1'\n",
            "[scan]\nid-key = 'x'\n",
        ] {
            assert!(complete(text, false, &["tessera", "scan"]).unwrap_err().contains("stranger"), "{text}");
            assert_eq!(complete(text, true, &["tessera", "scan"]).unwrap().len(), 1, "{text}");
        }
    }
}
