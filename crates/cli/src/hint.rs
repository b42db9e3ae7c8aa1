//! Hints that can be pasted: whole commands, with the flags that say where, quoted for a shell, and without a password.

use std::path::Path;

/// A command for the same place.
pub(crate) fn command(words: &[&str], place: &[String]) -> String {
    let words = words.iter().copied().chain(place.iter().map(String::as_str));
    let quoted: Vec<String> = std::iter::once("tessera").chain(words).map(quoted).collect();
    format!("`{}`", quoted.join(" "))
}

/// A flag with a path, from the root: a hint may be pasted in another directory, or on another machine.
pub(crate) fn path_flag(flag: &str, path: Option<&Path>) -> Vec<String> {
    let whole = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    path.map_or_else(Vec::new, |path| vec![flag.to_owned(), whole(path).to_string_lossy().into_owned()])
}

/// The address of a coordinator with `PASSWORD` in the place of the password.
pub(crate) fn without_password(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    // The last `@`, also behind a `/`: a password that is not as it should be is left out all the same.
    match rest.rsplit_once('@') {
        Some((login, place)) => match login.split_once(':') {
            Some((user, _)) => format!("{scheme}://{user}:PASSWORD@{place}"),
            None => format!("{scheme}://{login}@{place}"),
        },
        None => format!("{scheme}://{rest}"),
    }
}

/// A word as a shell reads it back.
fn quoted(word: &str) -> String {
    let is_plain = |char: char| char.is_ascii_alphanumeric() || "_@%+=:,./-".contains(char);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_reads_back_what_was_quoted() {
        for word in ["plain-1.2/x", "", "a b", "it's", "$HOME", "`id`", "a\"b", "*", "a\nb", "\u{e4}"] {
            let script = format!("printf %s {}", quoted(word));
            let output = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
            assert_eq!(String::from_utf8(output.stdout).unwrap(), word, "{script}");
        }
    }

    #[test]
    fn a_password_is_left_out_wherever_it_stands() {
        for (url, hint) in [
            ("etcd://h:2379/fleet", "etcd://h:2379/fleet"),
            ("etcd://h:2379,i:2379", "etcd://h:2379,i:2379"),
            ("etcds://me@h:2379/fleet", "etcds://me@h:2379/fleet"),
            ("etcds://me:secret@h:2379/fleet", "etcds://me:PASSWORD@h:2379/fleet"),
            ("etcd://me:sec@ret:secret@h:2379", "etcd://me:PASSWORD@h:2379"),
            ("etcd://me:secret/x@h:2379", "etcd://me:PASSWORD@h:2379"),
        ] {
            assert_eq!(without_password(url), hint);
        }
    }

    #[test]
    fn a_path_means_the_same_in_every_directory() {
        let here = std::env::current_dir().unwrap();
        let whole = here.join("my scans").to_str().unwrap().to_owned();
        assert_eq!(path_flag("--findings", Some(Path::new("my scans"))), ["--findings", &whole]);
        assert_eq!(path_flag("--findings", Some(Path::new("/mnt/scans"))), ["--findings", "/mnt/scans"]);
        assert!(path_flag("--findings", None).is_empty());
    }

    #[test]
    fn a_command_is_whole() {
        let place = ["--findings".to_owned(), "/mnt/my scans".to_owned()];
        assert_eq!(command(&["runs", "cancel", "0a"], &place), "`tessera runs cancel 0a --findings '/mnt/my scans'`");
    }
}
