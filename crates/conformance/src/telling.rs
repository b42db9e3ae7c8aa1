//! A story from commands alone: the in-memory coordinator gives the expected answers.

use crate::Failures;
use crate::backend::{BackendFactory, InMemory};
use crate::parse::Story;
use crate::world::World;

/// Plays the commands of a story on the in-memory coordinator and puts its answers behind them, in place of
/// earlier expectations: a story that the in-memory coordinator passes. Commands that mean nothing to it, such as one
/// with a lease that no worker was given, are left out.
///
/// ```
/// use tessera_conformance::{InMemory, run_story, told};
///
/// let story = told("split", "# A tale.\nat 1 start run 1 shards 1=[a,m)\nw1 acquires 1\nw2 renews 1\n").unwrap();
/// assert!(story.contains("at 1 w1 acquires 1 -> granted, shard 1") && story.contains(", fence 2"));
/// assert!(!story.contains("w2 renews"));
/// run_story(&InMemory, "split", &story).unwrap();
/// ```
pub fn told(name: &str, text: &str) -> Result<String, Failures> {
    let story = Story::parse(name, text).map_err(|error| Failures(vec![error.to_string()]))?;
    let mut world = World::new(InMemory.create(&story.config));
    let mut steps = story.steps.iter().peekable();
    let mut lines: Vec<String> = Vec::new();
    for (line, written) in (1..).zip(text.lines()) {
        match steps.next_if(|step| step.line == line) {
            Some(step) => {
                let Ok(answers) = world.play(step.at, &step.tenant, &step.command) else { continue };
                let answer = answers.first().map_or_else(String::new, |answer| answer.to_string());
                lines.push(format!("at {} {} -> {answer}", step.at, step.command));
            }
            // Expected rows and events go with the command they belonged to.
            None if written.trim_start().starts_with(['|', '!']) => {}
            None => lines.push(written.to_string()),
        }
    }
    Ok(lines.join("\n") + "\n")
}
