//! Files on which a process dies by real means: a library, loaded before all others, kills the process that opens them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// Opening a file whose path has this in it ends the process.
pub(crate) const MARK: &str = "killer";

const SOURCE: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

static void judge(const char *path, int flags) {
    if (path && !(flags & O_DIRECTORY) && strstr(path, "killer")) kill(getpid(), SIGKILL);
}

#define OPEN(name) \
int name(const char *path, int flags, ...) { \
    va_list args; va_start(args, flags); int mode = va_arg(args, int); va_end(args); \
    judge(path, flags); \
    int (*real)(const char *, int, ...) = dlsym(RTLD_NEXT, #name); \
    return real(path, flags, mode); \
}
OPEN(open)
OPEN(open64)

#define OPENAT(name) \
int name(int dir, const char *path, int flags, ...) { \
    va_list args; va_start(args, flags); int mode = va_arg(args, int); va_end(args); \
    judge(path, flags); \
    int (*real)(int, const char *, int, ...) = dlsym(RTLD_NEXT, #name); \
    return real(dir, path, flags, mode); \
}
OPENAT(openat)
OPENAT(openat64)
"#;

/// Builds the library in `dir`.
pub(crate) fn library(dir: &Path) -> PathBuf {
    let (source, library) = (dir.join("poison.c"), dir.join("poison.so"));
    std::fs::write(&source, SOURCE).unwrap();
    let output =
        Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).arg("-ldl").output().unwrap();
    assert!(output.status.success(), "cc: {}", String::from_utf8_lossy(&output.stderr));
    library
}

/// A tree of `files` files in 23 folders, one in ten with a secret. Returns the paths of those with one.
pub(crate) fn tree(root: &Path, files: u64) -> BTreeSet<String> {
    let mut places = BTreeSet::new();
    for number in 0..files {
        let path = format!("d{:02}/f{number:04}", number % 23);
        let file = root.join(&path);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        let mut text = "fn main() { println!(\"hello, world\"); }\n".repeat(100);
        if number % 10 == 0 {
            text += &secret(number);
            places.insert(path);
        }
        std::fs::write(file, text).unwrap();
    }
    places
}

/// A file that ends the process that opens it.
pub(crate) fn killer(root: &Path, path: &str) -> String {
    assert!(path.contains(MARK));
    std::fs::write(root.join(path), secret(1_000_000)).unwrap();
    path.to_owned()
}

fn secret(number: u64) -> String {
    let mut seed = tessera_detect::template::Seed::new(number);
    tessera_detect::template::expand("token: ghp_<<github 30>>\n", &mut seed).unwrap()
}

/// Paths with findings.
pub(crate) fn places(report: &Value) -> BTreeSet<String> {
    let findings = report["findings"].as_array().unwrap().iter();
    let locations = findings.flat_map(|finding| finding["locations"].as_array().unwrap());
    locations.map(|place| place["path"].as_str().unwrap().to_owned()).collect()
}

/// Paths that the report names because the scanner failed on them.
pub(crate) fn named(report: &Value) -> BTreeSet<String> {
    let examples = report["receipt"]["unreadable_examples"].as_array().unwrap().iter();
    let poisonous = examples.filter(|note| note["reason"] == "scanner failed on it");
    poisonous.map(|note| note["path"].as_str().unwrap().to_owned()).collect()
}
