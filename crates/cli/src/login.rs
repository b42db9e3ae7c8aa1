//! The login of a coordinator: a user in the URL, and a password from a file or the environment.
//!
//! A password in a URL is seen by everybody who lists processes, and stays in the shell's history. It is accepted with a warning,
//! and the program starts itself again without it, with the password in the environment, which only the same user can read.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use tessera_coordination_etcd::config::{Credentials, Secret};
use tessera_scan::fleet::PASSWORD_VARIABLE;
use tessera_scan::source::small_file;

/// The variable that names the file with the password.
const FILE_VARIABLE: &str = "TESSERA_COORDINATOR_PASSWORD_FILE";
const FILE_FLAG: &str = "--coordinator-password-file";

/// A URL of a coordinator in two parts.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Parted {
    /// The URL without a login.
    pub(crate) url: String,
    /// The user, and the password if it is there.
    pub(crate) login: Option<(String, Option<String>)>,
}

/// Takes the login out of a URL.
pub(crate) fn parted(url: &str) -> Parted {
    let Some((scheme, rest)) = url.split_once("://") else { return Parted { url: url.to_owned(), login: None } };
    let (authority, namespace) = rest.split_once('/').map_or((rest, None), |(before, after)| (before, Some(after)));
    let Some((login, hosts)) = authority.rsplit_once('@') else {
        return Parted { url: url.to_owned(), login: None };
    };
    let (user, password) = match login.split_once(':') {
        Some((user, password)) => (user, Some(password.to_owned())),
        None => (login, None),
    };
    let namespace = namespace.map(|namespace| format!("/{namespace}")).unwrap_or_default();
    Parted { url: format!("{scheme}://{hosts}{namespace}"), login: Some((user.to_owned(), password)) }
}

/// The login to use: the user is in the URL, the password in one place.
pub(crate) fn credentials(
    login: Option<(String, Option<String>)>,
    file: Option<&Path>,
) -> Result<Option<Credentials>, String> {
    let variable = std::env::var_os(PASSWORD_VARIABLE).filter(|value| !value.is_empty());
    chosen(login, file, variable)
}

fn chosen(
    login: Option<(String, Option<String>)>,
    file: Option<&Path>,
    variable: Option<OsString>,
) -> Result<Option<Credentials>, String> {
    let Some((user, in_url)) = login else {
        // The variable may be meant for other commands of the same shell.
        return match file {
            Some(_) => {
                Err("--coordinator-password-file is given, and the URL names no user: etcd://USER@HOST:2379".into())
            }
            None => Ok(None),
        };
    };
    let of_variable = |value: OsString| {
        value.into_string().map_err(|_| format!("the password in {PASSWORD_VARIABLE} is no text in UTF-8"))
    };
    let password = match (in_url, file, variable) {
        (Some(_), Some(_), _) => {
            return Err("the password is given twice: in the URL and by --coordinator-password-file".into());
        }
        (Some(password), None, _) => password,
        (None, Some(file), _) => {
            let read = small_file::read_named(file);
            let text = read.map_err(|error| format!("cannot read the password in {}: {error}", file.display()))?;
            text.strip_suffix('\n').map_or(text.as_str(), |line| line.trim_end_matches('\r')).to_owned()
        }
        (None, None, Some(value)) => of_variable(value)?,
        (None, None, None) => {
            return Err(format!(
                "there is no password for {user}: set {PASSWORD_VARIABLE}, or name a file with --coordinator-password-file"
            ));
        }
    };
    Ok(Some(Credentials { user, password: Secret::new(password) }))
}

/// Starts this program again with a password of the command line in the environment instead, where no other user sees it.
pub(crate) fn hide_password() {
    let args: Vec<OsString> = std::env::args_os().collect();
    let names_a_file = std::env::var_os(FILE_VARIABLE).is_some_and(|file| !file.is_empty());
    let Some(hidden) = hidden(&args, names_a_file) else { return };
    tell!(
        "warning: a password in --coordinator is seen in lists of processes and kept by shells; set {PASSWORD_VARIABLE}, or name \
         a file with --coordinator-password-file, and give etcd://USER@HOST"
    );
    let Ok(program) = std::env::current_exe() else { return };
    // Returns only if it fails; the password then stays where the user put it.
    let _ = Command::new(program)
        .arg0(&hidden.args[0])
        .args(&hidden.args[1..])
        .env(PASSWORD_VARIABLE, hidden.password)
        .exec();
}

#[derive(Debug, PartialEq, Eq)]
struct Hidden {
    args: Vec<OsString>,
    password: String,
}

/// The arguments without the password in them, if there is one. Where a file with a password is named too, the password stays: the
/// program ends at once, because it was given two.
fn hidden(args: &[OsString], names_a_file: bool) -> Option<Hidden> {
    const FLAG: &[u8] = b"--coordinator";
    let is_file_flag = |arg: &OsString| arg.as_bytes().starts_with(FILE_FLAG.as_bytes());
    if names_a_file || args.iter().any(is_file_flag) {
        return None;
    }
    let at = args.iter().position(|arg| arg.as_bytes() == FLAG || arg.as_bytes().starts_with(b"--coordinator="))?;
    let (at, prefix): (usize, &[u8]) =
        if args[at].as_bytes() == FLAG { (at + 1, b"") } else { (at, b"--coordinator=") };
    let url = args.get(at)?.as_bytes().strip_prefix(prefix)?;
    let parted = parted(OsStr::from_bytes(url).to_str()?);
    let (user, password) = parted.login?;
    let password = password.filter(|password| !password.is_empty())?;
    let (scheme, rest) = parted.url.split_once("://")?;
    let mut args = args.to_vec();
    args[at] = OsString::from_vec([prefix, format!("{scheme}://{user}@{rest}").as_bytes()].concat());
    Some(Hidden { args, password })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn login(user: &str, password: Option<&str>) -> Option<(String, Option<String>)> {
        Some((user.to_owned(), password.map(str::to_owned)))
    }

    #[test]
    fn a_login_is_taken_out_of_a_url() {
        for (url, rest, taken) in [
            ("etcd://a:1,b:2/fleet/one", "etcd://a:1,b:2/fleet/one", None),
            ("etcd://ann@a:1/x", "etcd://a:1/x", login("ann", None)),
            ("etcds://ann:s3:c@ret@a:1,b:2", "etcds://a:1,b:2", login("ann", Some("s3:c@ret"))),
            ("nonsense", "nonsense", None),
        ] {
            assert_eq!(parted(url), Parted { url: rest.to_owned(), login: taken }, "{url}");
        }
    }

    #[test]
    fn the_password_comes_from_one_place() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("password");
        std::fs::write(&file, "of the file\r\n").unwrap();
        let of = |url: Option<&str>, file: Option<&Path>, variable: Option<&str>| {
            let chosen = chosen(login("ann", url), file, variable.map(OsString::from));
            chosen.map(|credentials| credentials.unwrap().password.expose().to_owned())
        };
        assert_eq!(of(Some("of the url"), None, Some("v")), Ok("of the url".into()));
        assert_eq!(of(None, Some(&file), Some("v")), Ok("of the file".into()));
        assert_eq!(of(None, None, Some("of the variable")), Ok("of the variable".into()));
        assert!(of(Some("x"), Some(&file), None).unwrap_err().contains("twice"));
        assert!(of(None, None, None).unwrap_err().contains(PASSWORD_VARIABLE));
        assert!(of(None, Some(&dir.path().join("gone")), None).unwrap_err().contains("cannot read the password"));
        assert!(chosen(None, None, Some("x".into())).unwrap().is_none(), "meant for another coordinator");
        assert!(chosen(None, Some(&file), None).unwrap_err().contains("names no user"));
    }

    #[test]
    fn arguments_lose_the_password_and_nothing_else() {
        let args = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
        let hide = |words: &[&str]| hidden(&args(words), false);
        let two = hide(&["tessera", "worker", "--coordinator", "etcd://ann:pw@a:1/x", "-q"]).unwrap();
        assert_eq!(two.args, args(&["tessera", "worker", "--coordinator", "etcd://ann@a:1/x", "-q"]));
        let one = hide(&["tessera", "--coordinator=etcds://ann:p:w@a:1"]).unwrap();
        assert_eq!((one.args, one.password.as_str()), (args(&["tessera", "--coordinator=etcds://ann@a:1"]), "p:w"));
        for without in ["etcd://a:1", "etcd://ann@a:1", "etcd://ann:@a:1", "rubbish"] {
            assert_eq!(hide(&["tessera", "--coordinator", without]), None, "{without}");
        }
        assert_eq!(hide(&["tessera", "--coordinator"]), None);
        assert_eq!(hidden(&[], false), None);
    }

    #[test]
    fn a_password_beside_a_file_with_one_is_not_hidden_and_so_refused() {
        let args = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
        let given = ["tessera", "runs", "--coordinator", "etcd://ann:pw@a:1"];
        assert!(hidden(&args(&given), false).is_some());
        assert_eq!(hidden(&args(&given), true), None, "named by the variable");
        for flag in [&["--coordinator-password-file", "f"][..], &["--coordinator-password-file=f"]] {
            assert_eq!(hidden(&args(&[&given, flag].concat()), false), None, "{flag:?}");
        }
    }
}
