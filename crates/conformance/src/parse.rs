//! From the text of a story to its steps.
//!
//! One command a line; see the crate's front page for the language. An error names the file, the
//! line, the expectation there, and the form of the command it seems to be.

mod tokens;

use std::fmt;

use tessera_contracts::CursorSemantics;
use tessera_coordination::decide::settle_run::Settlement;
use tessera_coordination::record::status::{ParkReason, ShardStatus};
use tessera_coordination::run::config::RunConfig;
use tessera_coordination::run::summary::ShardFilter;

use crate::backend::{BackendConfig, Need};
use crate::command::{
    Command, Holder, Ops, OrderText, ReleaseText, ReplaceText, ResidualText, RootText, Roots, reason_text,
};
use crate::text::CursorText;
use tokens::Tokens;

/// A scenario: commands and their answers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Story {
    pub(crate) name: String,
    /// The claim it stands for: the first comment.
    pub(crate) title: String,
    pub(crate) config: BackendConfig,
    pub(crate) needs: Vec<Need>,
    pub(crate) steps: Vec<Step>,
}

/// One line of a story.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Step {
    pub(crate) line: usize,
    pub(crate) at: u64,
    pub(crate) tenant: String,
    pub(crate) command: Command,
    /// The clauses the answer must have; without them, anything but a refusal will do.
    pub(crate) expected: Option<String>,
    /// The rows it must list, if the story cares.
    pub(crate) rows: Option<Vec<String>>,
    /// Which events it must emit, if the story cares.
    pub(crate) events: Option<Vec<String>>,
}

/// Why a story cannot be read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ParseError {
    story: String,
    line: usize,
    problem: String,
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stories/{}.txt:{}: {}", self.story, self.line, self.problem)
    }
}

impl Story {
    pub(crate) fn parse(name: &str, text: &str) -> Result<Self, ParseError> {
        let mut story = Self {
            name: name.into(),
            title: String::new(),
            config: BackendConfig::default(),
            needs: Vec::new(),
            steps: Vec::new(),
        };
        let (mut at, mut tenant) = (0, String::from("acme"));
        for (index, text) in text.lines().enumerate() {
            let line = index + 1;
            story.read_line(line, text.trim(), &mut at, &mut tenant).map_err(|problem| ParseError {
                story: name.into(),
                line,
                problem,
            })?;
        }
        let problem = if story.title.is_empty() {
            "a story begins with a comment that says what it shows: `# A worker that lost its lease cannot write.`"
        } else if story.steps.is_empty() {
            "a story has at least one command: `at 1 start run 1 shards 1=[a,m)`"
        } else {
            return Ok(story);
        };
        Err(ParseError { story: name.into(), line: 1, problem: problem.into() })
    }

    fn read_line(&mut self, line: usize, text: &str, at: &mut u64, tenant: &mut String) -> Result<(), String> {
        if text.is_empty() {
            return Ok(());
        }
        if let Some(comment) = text.strip_prefix('#') {
            if self.title.is_empty() {
                self.title = comment.trim().into();
            }
            return Ok(());
        }
        for (mark, is_row) in [('|', true), ('!', false)] {
            if let Some(expected) = text.strip_prefix(mark) {
                let step = self.steps.last_mut().ok_or("there is no command above that could answer this")?;
                let list = if is_row { &mut step.rows } else { &mut step.events };
                let list = list.get_or_insert_default();
                if expected.trim() != "nothing" {
                    list.push(expected.trim().into());
                }
                return Ok(());
            }
        }
        let (command, expected) = match text.split_once("->") {
            Some((command, expected)) => (command, Some(expected.trim().to_owned())),
            None => (text, None),
        };
        let mut tokens = Tokens::new(command)?;
        if tokens.take("needs") {
            let need = tokens.rest().join(" ");
            let found = Need::ALL.into_iter().find(|known| known.as_str() == need);
            let known = Need::ALL.map(Need::as_str).join("`, `");
            self.needs.push(found.ok_or_else(|| format!("a story can need `{known}`, not `{need}`"))?);
            return Ok(());
        }
        if tokens.take("config") {
            return self.read_config(&mut tokens);
        }
        if tokens.take("tenant") {
            *tenant = tokens.next("a name, such as `acme`, or `nobody` for the id that means unassigned")?.into();
            return tokens.end();
        }
        if tokens.take("at") {
            *at = tokens.number("a time")?;
        }
        let command = read_command(&mut tokens)?;
        let tenant = tenant.clone();
        self.steps.push(Step { line, at: *at, tenant, command, expected, rows: None, events: None });
        Ok(())
    }

    fn read_config(&mut self, tokens: &mut Tokens<'_>) -> Result<(), String> {
        const FORM: &str =
            "`lease N`, `tenant shards N`, `total shards N`, `runs N`, `cooldown N`, `skew N` or `bytes N`";
        if !self.steps.is_empty() {
            return Err("the configuration comes before the first command".into());
        }
        while !tokens.is_at_end() {
            let config = &mut self.config;
            match tokens.next(FORM)? {
                "lease" => config.default_lease_duration = tokens.number("a duration")?,
                "tenant" => {
                    tokens.expect("shards")?;
                    config.shard_limits.per_tenant_max = tokens.number("a number of shards")?;
                }
                "total" => {
                    tokens.expect("shards")?;
                    config.shard_limits.total_max = tokens.number("a number of shards")?;
                }
                "runs" => config.runs_max = Some(tokens.number("a number of runs")?),
                "cooldown" => config.claim_cooldown_interval = tokens.number("a duration")?,
                "skew" => config.clock_skew_allowance = tokens.number("a duration")?,
                "bytes" => config.bytes_max = Some(tokens.number("a number of bytes")?),
                other => return Err(format!("a configuration is made of {FORM}, not `{other}`")),
            }
        }
        Ok(())
    }
}

/// Reads a command as a story would have it.
#[cfg(test)]
pub(crate) fn parse_command(text: &str) -> Result<Command, String> {
    read_command(&mut Tokens::new(text)?)
}

/// The forms of all commands, by their first distinguishing word.
const FORMS: &[(&str, &str)] = &[
    ("create", "create run RUN [incarnation N] [lease N] [retries N] [dispatched]"),
    ("register", "register run RUN shards SHARD=[FROM,TO)[{META}][@CURSOR] ... op N (or: shards 1..10000)"),
    ("start", "start run RUN [incarnation N] [lease N] [retries N] [dispatched] shards SHARD=[FROM,TO) ... [op N]"),
    ("complete", "complete run RUN op N"),
    ("fail", "fail run RUN op N"),
    ("cancel", "cancel run RUN op N"),
    ("retire", "retire runs settled by TIME [limit N]"),
    ("show", "show run RUN, or: show SHARD"),
    (
        "list",
        "list runs [after RUN] [limit N], or: list shards of run RUN [all|active|done|split|parked|available] [roots] [limit N]",
    ),
    ("progress", "progress of run RUN"),
    ("candidates", "candidates of run RUN [for WORKER] [limit N]"),
    ("explain", "explain run RUN for WORKER"),
    ("unpark", "unpark SHARD expecting fence N op N"),
    ("ask", "ask SHARD at fence N to yield, or: ask SHARD at fence N to keep PERCENT%"),
    ("acquires", "WORKER acquires SHARD"),
    ("claims", "WORKER claims run RUN"),
    ("renews", "WORKER renews SHARD [SHARD ...]"),
    ("checkpoints", "WORKER checkpoints SHARD at KEY[~TOKEN] op N"),
    ("completes", "WORKER completes SHARD at KEY[~TOKEN]|none op N"),
    ("parks", "WORKER parks SHARD for REASON [saying \"TEXT\"] [retry after TIME] op N"),
    ("replaces", "WORKER replaces SHARD with [FROM,TO) [FROM,TO) ... op N, or: WORKER replaces SHARD evenly N op N"),
    (
        "splits",
        "WORKER splits SHARD keeping [FROM,TO) giving [FROM,TO) op N, or: WORKER splits SHARD keeping PERCENT% op N",
    ),
    (
        "releases",
        "WORKER releases SHARD [at KEY[~TOKEN]] [because released|yielded|drained|unreachable [saying \"TEXT\"] [retry after TIME]] op N",
    ),
    ("drains", "WORKER drains SHARD[@CURSOR] ... op N (each shard takes the next op id)"),
    ("loses", "WORKER loses its session"),
];

fn read_command(tokens: &mut Tokens<'_>) -> Result<Command, String> {
    let first = tokens.next("a command")?;
    let (verb, holder) = match parse_holder(first) {
        Some(holder) => (tokens.next("what the worker does")?, Some(holder)),
        None => (first, None),
    };
    let read = match holder {
        Some(holder) => read_worker_command(holder, verb, tokens),
        None => read_run_command(verb, tokens),
    };
    let command = read.and_then(|command| tokens.end().map(|()| command));
    command.map_err(|problem| match FORMS.iter().find(|(word, _)| *word == verb) {
        Some((_, form)) => format!("{problem}; the form is: {form}"),
        None => {
            let verbs: Vec<_> = FORMS.iter().map(|(word, _)| *word).collect();
            format!(
                "{problem}; commands begin with one of: {} (the latter after a worker such as `w1`)",
                verbs.join(", ")
            )
        }
    })
}

fn parse_holder(text: &str) -> Option<Holder> {
    let (tenant, rest) = match text.split_once(':') {
        Some((tenant, rest)) => (Some(tenant.to_owned()), rest),
        None => (None, text),
    };
    let (worker, epoch) = match rest.split_once('#') {
        Some((worker, epoch)) => (worker, Some(epoch.parse().ok()?)),
        None => (rest, None),
    };
    Some(Holder { tenant, worker: worker.strip_prefix('w')?.parse().ok()?, epoch })
}

fn read_run_command(verb: &str, tokens: &mut Tokens<'_>) -> Result<Command, String> {
    Ok(match verb {
        "create" => {
            let (run, incarnation) = (tokens.run()?, read_incarnation(tokens)?);
            Command::CreateRun { run, incarnation, config: read_run_config(tokens)? }
        }
        "register" => {
            let run = tokens.run()?;
            tokens.expect("shards")?;
            Command::Register { run, roots: read_roots(tokens)?, op: tokens.op()? }
        }
        "start" => {
            let (run, incarnation) = (tokens.run()?, read_incarnation(tokens)?);
            let config = read_run_config(tokens)?;
            tokens.expect("shards")?;
            let roots = read_roots(tokens)?;
            let op = if tokens.is_at_end() { Ops::one(1) } else { tokens.op()? };
            Command::Start { run, incarnation, config, roots, op }
        }
        "complete" => Command::Settle { run: tokens.run()?, settlement: Settlement::Complete, op: tokens.op()? },
        "fail" => Command::Settle { run: tokens.run()?, settlement: Settlement::Fail, op: tokens.op()? },
        "cancel" => Command::Settle { run: tokens.run()?, settlement: Settlement::Cancel, op: tokens.op()? },
        "retire" => {
            tokens.expect_all(&["runs", "settled", "by"])?;
            Command::Retire { settled_until: tokens.number("a time")?, limit: tokens.limit()? }
        }
        "show" if tokens.is_next("run") => Command::ShowRun { run: tokens.run()? },
        "show" => Command::ShowShard { shard: tokens.parsed("a shard")? },
        "list" if tokens.take("runs") => {
            let after = if tokens.take("after") { Some(tokens.number("a run")?) } else { None };
            Command::ListRuns { after, limit: tokens.limit()? }
        }
        "list" => {
            tokens.expect_all(&["shards", "of"])?;
            let run = tokens.run()?;
            let filter = read_filter(tokens);
            Command::ListShards { run, filter, limit: tokens.limit()? }
        }
        "progress" => {
            tokens.expect("of")?;
            Command::Progress { run: tokens.run()? }
        }
        "candidates" => {
            tokens.expect("of")?;
            let run = tokens.run()?;
            let worker = if tokens.take("for") { read_asker(tokens)? } else { 0 };
            Command::Candidates { run, worker, limit: tokens.limit()? }
        }
        "explain" => {
            let run = tokens.run()?;
            tokens.expect("for")?;
            Command::Explain { run, worker: read_asker(tokens)? }
        }
        "unpark" => {
            let shard = tokens.parsed("a shard")?;
            tokens.expect_all(&["expecting", "fence"])?;
            Command::Unpark { shard, epoch: tokens.parsed("a fence epoch")?, op: tokens.op()? }
        }
        "ask" => {
            let shard = tokens.parsed("a shard")?;
            tokens.expect_all(&["at", "fence"])?;
            let epoch = tokens.parsed("a fence epoch")?;
            tokens.expect("to")?;
            let order = match tokens.next("`yield` or `keep PERCENT%`")? {
                "yield" => OrderText::Yield,
                "keep" => OrderText::KeepPercent(parse_percent(tokens.next("a percentage")?)?),
                other => return Err(format!("a holder can be asked to `yield` or to `keep` a part, not to `{other}`")),
            };
            Command::Order { shard, epoch, order }
        }
        _ => return Err(format!("`{verb}` is not a command")),
    })
}

fn read_worker_command(holder: Holder, verb: &str, tokens: &mut Tokens<'_>) -> Result<Command, String> {
    Ok(match verb {
        "acquires" => Command::Acquire { worker: holder.worker, shard: tokens.parsed("a shard")? },
        "claims" => Command::Claim { worker: holder.worker, run: tokens.run()? },
        "renews" => {
            let mut shards = vec![tokens.parsed("a shard")?];
            while !tokens.is_at_end() {
                shards.push(tokens.parsed("a shard")?);
            }
            Command::Renew { holder, shards }
        }
        "checkpoints" => {
            let shard = tokens.parsed("a shard")?;
            tokens.expect("at")?;
            Command::Checkpoint { holder, shard, cursor: tokens.parsed("a cursor")?, op: tokens.op()? }
        }
        "completes" => {
            let shard = tokens.parsed("a shard")?;
            tokens.expect("at")?;
            Command::Complete { holder, shard, cursor: tokens.parsed("a cursor")?, op: tokens.op()? }
        }
        "parks" => {
            let shard = tokens.parsed("a shard")?;
            tokens.expect("for")?;
            let word = tokens.next("a reason")?;
            let reason = ParkReason::ALL.into_iter().find(|reason| reason_text(*reason) == word);
            let known = ParkReason::ALL.map(reason_text).join("`, `");
            let reason = reason.ok_or_else(|| format!("`{word}` is not a reason; the reasons are `{known}`"))?;
            let (detail, retry_after) = read_words(tokens)?;
            Command::Park { holder, shard, reason, detail, retry_after, op: tokens.op()? }
        }
        "replaces" => {
            let shard = tokens.parsed("a shard")?;
            let plan = match tokens.next("`with` or `evenly`")? {
                "evenly" => ReplaceText::Evenly(tokens.number("a number of children")?),
                "with" => {
                    let mut children = Vec::new();
                    while !tokens.is_next("op") {
                        children.push(tokens.parsed("a range")?);
                    }
                    ReplaceText::With(children)
                }
                other => return Err(format!("expected `with` or `evenly`, found `{other}`")),
            };
            Command::Replace { holder, shard, plan, op: tokens.op()? }
        }
        "splits" => {
            let shard = tokens.parsed("a shard")?;
            tokens.expect("keeping")?;
            let kept = tokens.next("a range or a percentage")?;
            let plan = if kept.ends_with('%') {
                ResidualText::KeepPercent(parse_percent(kept)?)
            } else {
                let kept = kept.parse()?;
                tokens.expect("giving")?;
                ResidualText::Parts { kept, residual: tokens.parsed("a range")? }
            };
            Command::Split { holder, shard, plan, op: tokens.op()? }
        }
        "releases" => {
            let shard = tokens.parsed("a shard")?;
            let cursor = if tokens.take("at") { Some(tokens.parsed("a cursor")?) } else { None };
            let mut reason = ReleaseText::Released;
            if tokens.take("because") {
                reason = match tokens.next("a reason")? {
                    "released" => ReleaseText::Released,
                    "yielded" => ReleaseText::Yielded,
                    "drained" => ReleaseText::Drained,
                    "unreachable" => {
                        let (detail, retry_after) = read_words(tokens)?;
                        ReleaseText::Unreachable { detail, retry_after }
                    }
                    other => {
                        return Err(format!(
                            "a shard is `released`, `yielded`, `drained` or `unreachable`, not `{other}`"
                        ));
                    }
                };
            }
            Command::Release { holder, shard, cursor, reason, op: tokens.op()? }
        }
        "drains" => {
            let mut held = Vec::new();
            while !tokens.is_next("op") {
                let next = tokens.next("a shard")?;
                let (shard, cursor) = match next.split_once('@') {
                    Some((shard, cursor)) => (shard, Some(cursor.parse::<CursorText>()?)),
                    None => (next, None),
                };
                held.push((shard.parse()?, cursor));
            }
            Command::Drain { holder, held, op: tokens.op()? }
        }
        "loses" => {
            tokens.expect_all(&["its", "session"])?;
            Command::LoseSession { worker: holder.worker }
        }
        _ => return Err(format!("`{verb}` is not something a worker does")),
    })
}

/// A worker's message, and when to try again.
fn read_words(tokens: &mut Tokens<'_>) -> Result<(Option<String>, Option<u64>), String> {
    let detail = if tokens.take("saying") { Some(tokens.next("a quoted text")?.to_owned()) } else { None };
    let mut retry_after = None;
    if tokens.take("retry") {
        tokens.expect("after")?;
        retry_after = Some(tokens.number("a time")?);
    }
    Ok((detail, retry_after))
}

/// The worker that is named behind `for`.
fn read_asker(tokens: &mut Tokens<'_>) -> Result<u64, String> {
    let worker = tokens.next("a worker")?;
    parse_holder(worker).map(|holder| holder.worker).ok_or_else(|| format!("`{worker}` is not a worker; write `w1`"))
}

fn read_incarnation(tokens: &mut Tokens<'_>) -> Result<Option<u64>, String> {
    if tokens.take("incarnation") { tokens.number("an incarnation").map(Some) } else { Ok(None) }
}

fn read_run_config(tokens: &mut Tokens<'_>) -> Result<RunConfig, String> {
    let mut config = RunConfig::default();
    loop {
        if tokens.take("lease") {
            config.lease_duration = Some(tokens.number("a duration")?);
        } else if tokens.take("retries") {
            config.max_shard_retries = tokens.number("a number of acquisitions")?;
        } else if tokens.take("dispatched") {
            config.cursor_semantics = CursorSemantics::Dispatched;
        } else {
            return Ok(config);
        }
    }
}

fn read_roots(tokens: &mut Tokens<'_>) -> Result<Roots, String> {
    let mut roots = Vec::new();
    while !tokens.is_at_end() && !tokens.is_next("op") {
        let text = tokens.next("a root shard")?;
        let wrong = || format!("`{text}` is not a root shard; write `1=[a,m)`");
        let Some((shard, rest)) = text.split_once('=') else {
            let (first, last) = text.split_once("..").ok_or_else(wrong)?;
            let number = |text: &str| text.parse().map_err(|_| wrong());
            return Ok(Roots::Numbered { first: number(first)?, last: number(last)? });
        };
        let (range, cursor) = match rest.rsplit_once('@') {
            Some((range, cursor)) => (range, cursor.parse()?),
            None => (rest, CursorText::default()),
        };
        roots.push(RootText { shard: shard.parse().map_err(|_| wrong())?, range: range.parse()?, cursor });
    }
    Ok(Roots::Listed(roots))
}

fn read_filter(tokens: &mut Tokens<'_>) -> ShardFilter {
    let mut filter = ShardFilter::all();
    if tokens.take("available") {
        filter = ShardFilter::available();
    } else if let Some(status) = ShardStatus::ALL.into_iter().find(|status| tokens.take(status.as_str())) {
        filter.status = Some(status);
    } else {
        tokens.take("all");
    }
    if tokens.take("roots") { filter.roots() } else { filter }
}

fn parse_percent(text: &str) -> Result<u32, String> {
    let percent = text.strip_suffix('%').and_then(|number| number.parse().ok());
    percent.filter(|percent| (1..100).contains(percent)).ok_or_else(|| format!("`{text}` is not a part; write `50%`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(text: &str) -> String {
        Story::parse("example", text).unwrap_err().to_string()
    }

    #[test]
    fn a_problem_names_file_and_line_and_teaches_the_form() {
        let shown = problem("# Title\nat 1 start run 1 shards 1=[a,m)\nat 2 w1 checkpoints 1 on c op 3\n");
        assert!(shown.starts_with("stories/example.txt:3: expected `at`, found `on`"), "{shown}");
        assert!(shown.ends_with("WORKER checkpoints SHARD at KEY[~TOKEN] op N"), "{shown}");
    }

    #[test]
    fn each_mistake_has_an_answer() {
        for (text, taught) in [
            ("at 1 show run 1", "begins with a comment"),
            ("# t", "at least one command"),
            ("# t\n| 1, active", "no command above"),
            ("# t\nneeds luck", "byte limit"),
            ("# t\nshow 1\nconfig lease 3", "before the first command"),
            ("# t\nconfig length 3", "cooldown N"),
            ("# t\nfrobnicate 1", "commands begin with one of: create, register"),
            ("# t\nw1 dances", "not something a worker does"),
            ("# t\nw1 parks 1 for fun op 1", "permission-denied"),
            ("# t\nw1 parks 1 for other saying \"x op 1", "no closing quote"),
            ("# t\nw1 acquires", "the line ends where a shard was expected"),
            ("# t\nw1 acquires 1 now", "`now` was not expected"),
            ("# t\nw1 splits 1 keeping 100% op 1", "write `50%`"),
            ("# t\nregister run 1 shards a op 1", "write `1=[a,m)`"),
            ("# t\ncancel run 1 op x", "`7..22`"),
            ("# t\nask 1 at fence 2 to sing", "`yield`"),
        ] {
            let shown = problem(text);
            assert!(shown.contains(taught), "{text:?} is answered with {shown:?}");
        }
    }

    #[test]
    fn every_form_that_is_taught_belongs_to_a_command() {
        for (verb, _) in FORMS {
            let run_command = read_run_command(verb, &mut Tokens::new("").unwrap());
            let worker_command = read_worker_command(
                Holder { tenant: None, worker: 1, epoch: None },
                verb,
                &mut Tokens::new("").unwrap(),
            );
            let unknown = |read: Result<Command, String>| read.is_err_and(|problem| problem.contains("is not"));
            assert!(!(unknown(run_command) && unknown(worker_command)), "`{verb}` is taught but not read");
        }
    }
}
