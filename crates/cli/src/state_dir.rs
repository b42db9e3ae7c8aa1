//! The folder of runs: by the flag, `TESSERA_STATE_DIR`, or the XDG base directories.

use std::path::{Path, PathBuf};

pub(crate) fn of(flag: Option<&Path>) -> Result<PathBuf, String> {
    choose(flag, |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from))
        .ok_or_else(|| "there is no home directory to keep runs in; give one with --state-dir, or --no-resume".into())
}

fn choose(flag: Option<&Path>, variable: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    let of_xdg = || variable("XDG_STATE_HOME").filter(|path| path.is_absolute()).map(|path| path.join("tessera"));
    let of_home = || variable("HOME").map(|home| home.join(".local/state/tessera"));
    flag.map(Path::to_path_buf).or_else(|| variable("TESSERA_STATE_DIR")).or_else(of_xdg).or_else(of_home)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flag_wins_then_our_variable_then_xdg_then_home() {
        let all = |name: &str| Some(PathBuf::from(format!("/{name}")));
        assert_eq!(choose(Some(Path::new("f")), all), Some("f".into()));
        assert_eq!(choose(None, all), Some("/TESSERA_STATE_DIR".into()));
        let without = |hidden: &'static str| move |name: &str| if name == hidden { None } else { all(name) };
        assert_eq!(choose(None, without("TESSERA_STATE_DIR")), Some("/XDG_STATE_HOME/tessera".into()));
        let home = |name: &str| if name == "HOME" { all(name) } else { None };
        assert_eq!(choose(None, home), Some("/HOME/.local/state/tessera".into()));
        assert_eq!(choose(None, |_| None), None);
    }
}
