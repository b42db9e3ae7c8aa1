//! How TLC is started.

use std::path::{Path, PathBuf};

use crate::command::Run;
use crate::repo::Repo;
use crate::report::Failure;
use crate::setup::Tools;

/// How long a run will be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Length {
    /// Seconds: over before Java's second compiler would have earned its cost, which is half of the whole run.
    Short,
    /// Minutes and more.
    Long,
}

/// TLC with its files in `scratch`, with modules of `library` beside those of its folder; what to check is yet to be said.
pub(crate) fn tlc(
    repo: &Repo,
    log: &str,
    length: Length,
    scratch: &Path,
    library: Option<&Path>,
) -> Result<Run, Failure> {
    let tools = Tools::found(repo);
    let (Some(java), Some(jar)) = (&tools.java, &tools.tla_jar) else {
        return Err("TLC needs java and tla2tools.jar: run `cargo xtask setup`".to_string().into());
    };
    let compilers: &[&str] = match length {
        Length::Short => &["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"],
        Length::Long => &["-XX:+UseParallelGC"],
    };
    // TLC unpacks its standard modules to the temporary folder; another run of it must not find half of them there.
    let temporary = format!("-Djava.io.tmpdir={}", scratch.display());
    let library = library.map(|folder| format!("-DTLA-Library={}", folder.display()));
    Ok(Run::new(java, log)
        .args(compilers)
        .args([temporary])
        .args(library)
        .args([PathBuf::from("-cp"), jar.clone()])
        .args(["tlc2.TLC", "-cleanup", "-metadir"])
        .args([scratch.join("states")]))
}
