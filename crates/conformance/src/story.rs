//! Plays a story on a backend and compares the answers with those of the story.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::backend::{BackendFactory, Need};
use crate::command::Command;
use crate::line::{Answer, Line};
use crate::parse::{Step, Story};
use crate::watch::{Played, Watch};
use crate::world::World;

/// The stories of this crate, by name.
pub(crate) const STORIES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/stories.rs"));

/// The outcome of a story.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    /// It went as told; these are the operations it met and how they were answered.
    Passed(Vec<(&'static str, String)>),
    /// The backend does not meet this need.
    Skipped(Need),
}

/// Plays one story on a fresh backend.
pub(crate) fn play<F: BackendFactory>(factory: &F, story: &Story) -> Result<Outcome, String> {
    if let Some(need) = story.needs.iter().find(|need| !factory.offers(**need)) {
        return Ok(Outcome::Skipped(*need));
    }
    let played = catch_unwind(AssertUnwindSafe(|| play_to_the_end(factory, story)));
    let seen = played.unwrap_or_else(|panic| Err(format!("the backend panicked: {}", panic_text(&*panic))));
    seen.map(Outcome::Passed).map_err(|problem| format!("story {} ({}): {problem}", story.name, story.title))
}

fn play_to_the_end<F: BackendFactory>(factory: &F, story: &Story) -> Result<Vec<(&'static str, String)>, String> {
    let mut world = World::new(factory.create(&story.config));
    let mut watch = Watch::new(story.config);
    let mut seen = Vec::new();
    for step in &story.steps {
        let place = |problem: String| {
            format!("stories/{}.txt:{}: at {} {}\n  {problem}", story.name, step.line, step.at, step.command)
        };
        let answers = if let Command::LoseSession { worker } = step.command {
            factory.lose_session(&mut world.backend, tessera_contracts::WorkerId::new(worker));
            watch.session_lost(worker);
            vec![Answer::from(Line::new("lost"))]
        } else {
            world.play(step.at, &step.tenant, &step.command).map_err(place)?
        };
        for answer in &answers {
            seen.push((step.command.operation(), answer.line.verdict().to_owned()));
            seen.extend(answer.rows.iter().map(|row| (step.command.operation(), row.verdict().to_owned())));
            seen.extend(answer.events.iter().map(|event| ("event", event.verdict().to_owned())));
        }
        compare(step, &answers).map_err(place)?;
        let played = Played { at: step.at, tenant: &step.tenant, command: &step.command, answers: &answers };
        watch.look(&mut world, &played).map_err(place)?;
    }
    Ok(seen)
}

fn compare(step: &Step, answers: &[Answer]) -> Result<(), String> {
    for answer in answers {
        let mismatch = match &step.expected {
            Some(expected) => answer.line.mismatch(expected),
            None => answer.line.is_refusal().then(|| "expected no refusal".into()),
        };
        if let Some(mismatch) = mismatch {
            return Err(format!("answered: {answer}\n  but {mismatch}"));
        }
    }
    let rows: Vec<&Line> = answers.iter().flat_map(|answer| &answer.rows).collect();
    let events: Vec<&Line> = answers.iter().flat_map(|answer| &answer.events).collect();
    for (what, seen, expected) in [("row", rows, &step.rows), ("event", events, &step.events)] {
        let Some(expected) = expected else { continue };
        let mismatch = if seen.len() == expected.len() {
            seen.iter().zip(expected).find_map(|(line, expected)| line.mismatch(expected))
        } else {
            Some(format!("expected {} {what}s, not {}", expected.len(), seen.len()))
        };
        if let Some(mismatch) = mismatch {
            let seen: Vec<_> = seen.iter().map(|line| format!("\n    {line}")).collect();
            return Err(format!("{what}s:{}\n  but {mismatch}", seen.concat()));
        }
    }
    Ok(())
}

pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "with something that is not a text".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::InMemory;
    use crate::parse::parse_command;

    fn outcome_of(text: &str) -> Result<Outcome, String> {
        play(&InMemory, &Story::parse("example", text).unwrap())
    }

    #[test]
    fn a_wrong_answer_is_told_with_its_line_and_with_what_was_answered() {
        let text = "# t\nat 1 start run 1 lease 10 shards 1=[a,m)\nat 2 w1 acquires 1 -> granted, fence 3\n";
        let told = outcome_of(text).unwrap_err();
        assert!(told.contains("stories/example.txt:3: at 2 w1 acquires 1"), "{told}");
        assert!(
            told.contains("answered: granted, shard 1, incarnation 1, fence 2")
                && told.contains("but expected `fence 3`"),
            "{told}"
        );
    }

    #[test]
    fn an_unexpected_refusal_a_missing_row_and_a_missing_event_are_failures() {
        let start = "# t\nat 1 start run 1 shards 1=[a,m) 2=[m,z)\n";
        for (step, told) in [
            ("w1 acquires 3", "expected no refusal"),
            ("list shards of run 1\n| 1, status active", "expected 1 rows, not 2"),
            ("w1 acquires 1\n! shard acquired, fence 9", "expected `fence 9`"),
            ("w1 acquires 1\n! nothing", "expected 0 events, not 1"),
            ("w1 renews 1", "was never granted shard 1"),
            ("show 1.1", "was never made"),
        ] {
            let problem = outcome_of(&format!("{start}{step}\n")).unwrap_err();
            assert!(problem.contains(told), "{step}: {problem}");
        }
    }

    #[test]
    fn a_story_that_needs_what_the_backend_lacks_is_skipped() {
        let text = "# t\nneeds lost sessions\nstart run 1 shards 1=[a,m)\n";
        assert_eq!(outcome_of(text), Ok(Outcome::Skipped(Need::LostSessions)));
    }

    #[test]
    fn every_command_of_every_story_prints_as_it_reads() {
        for (name, text) in STORIES {
            let story = Story::parse(name, text).unwrap_or_else(|error| panic!("{error}"));
            for step in story.steps {
                assert_eq!(parse_command(&step.command.to_string()).as_ref(), Ok(&step.command), "{}", step.command);
            }
        }
    }
}
