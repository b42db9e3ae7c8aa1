//! Plays story files on the in-memory coordinator: `cargo run -p tessera-conformance --example play -- FILE...`

use std::process::ExitCode;
use std::{env, fs};

use tessera_conformance::{InMemory, run_story};

fn main() -> ExitCode {
    let paths: Vec<String> = env::args().skip(1).collect();
    let mut code = ExitCode::SUCCESS;
    for path in &paths {
        let name = path.rsplit('/').next().unwrap_or(path).trim_end_matches(".txt");
        let played = fs::read_to_string(path)
            .map_err(|error| format!("{path}: {error}"))
            .and_then(|text| run_story(&InMemory, name, &text).map_err(|failures| failures.to_string()));
        match played {
            Ok(None) => println!("passed   {name}"),
            Ok(Some(need)) => println!("skipped  {name} (it needs {})", need.as_str()),
            Err(problem) => {
                println!("FAILED   {problem}");
                code = ExitCode::FAILURE;
            }
        }
    }
    if paths.is_empty() {
        println!("name the story files to play");
    }
    code
}
