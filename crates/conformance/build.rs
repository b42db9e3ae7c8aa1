//! Lists the stories: a file added under `stories/` is a test without being named anywhere else.

use std::path::Path;
use std::{env, fs};

fn main() {
    let folder = Path::new(&env::var("CARGO_MANIFEST_DIR").expect("cargo sets it")).join("stories");
    println!("cargo::rerun-if-changed={}", folder.display());
    let mut paths: Vec<_> = fs::read_dir(&folder)
        .expect("the stories are part of this crate")
        .map(|entry| entry.expect("a listed file can be named").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "txt"))
        .collect();
    paths.sort();
    let mut list = String::from("&[\n");
    for path in paths {
        let name = path.file_stem().expect("a listed file has a name").to_string_lossy().into_owned();
        list.push_str(&format!("    ({name:?}, include_str!({:?})),\n", path.display().to_string()));
    }
    list.push_str("]\n");
    let out = Path::new(&env::var("OUT_DIR").expect("cargo sets it")).join("stories.rs");
    fs::write(out, list).expect("the build folder is writable");
}
