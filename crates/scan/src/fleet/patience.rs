//! Bearing failures of the coordinator for a while, and only those that can pass.
//!
//! One rule for every program: a failure that the store calls transient is tried again until it has lasted for as long as the
//! user said; anything else (a wrong password, a missing permission, a certificate) ends the program at once.

use std::error::Error;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tessera_contracts::LogicalTime;
use tessera_coordination::error::InfraError;

use super::pause;
use crate::clock::calendar::utc;
use crate::clock::wall_clock;

const RETRY_WAIT_MIN: Duration = Duration::from_millis(50);
const RETRY_WAIT_MAX: Duration = Duration::from_secs(2);

/// How long a program bears a coordinator that is away, and whom it tells.
pub struct Patience<'p> {
    give_up_after: Duration,
    stop: &'p AtomicBool,
    notice: &'p (dyn Fn(&str) + Sync),
    outage: Option<Outage>,
}

#[derive(Debug)]
struct Outage {
    since: Instant,
    times: u32,
}

impl<'p> Patience<'p> {
    /// Bears an outage for `give_up_after`, or until `stop` is set. `notice` hears when one begins and when it ends.
    pub fn new(give_up_after: Duration, stop: &'p AtomicBool, notice: &'p (dyn Fn(&str) + Sync)) -> Self {
        Self { give_up_after, stop, notice, outage: None }
    }

    /// The coordinator answered: the next outage is a new one.
    pub(super) fn succeeded(&mut self) {
        if let Some(outage) = self.outage.take() {
            let seconds = outage.since.elapsed().as_secs_f64();
            (self.notice)(&format!("the coordinator answers again, after {seconds:.1} s"));
        }
    }

    /// Waits a little before another try.
    ///
    /// # Errors
    /// It has been too long, or the program was told to stop: the cause, and what to do.
    pub(super) fn failed(&mut self, cause: &str) -> Result<(), String> {
        let outage = self.outage.get_or_insert_with(|| {
            (self.notice)(&notice_of(cause, self.give_up_after, wall_clock()));
            Outage { since: Instant::now(), times: 0 }
        });
        let lasted = outage.since.elapsed();
        if lasted >= self.give_up_after {
            let waited = lasted.as_secs();
            return Err(format!(
                "{cause}; gave up after {waited} s (--give-up-after). What was checkpointed stands: start again to go on"
            ));
        }
        let wait = (RETRY_WAIT_MIN * (1 << outage.times.min(6))).min(RETRY_WAIT_MAX);
        outage.times += 1;
        pause(wait.min(self.give_up_after - lasted), self.stop);
        if self.stop.load(Ordering::Relaxed) {
            return Err(format!("{cause}; stopped while waiting for it. What was checkpointed stands"));
        }
        Ok(())
    }
}

fn notice_of(cause: &str, give_up_after: Duration, now: LogicalTime) -> String {
    let until = now.saturating_add(u64::try_from(give_up_after.as_millis()).unwrap_or(u64::MAX));
    let seconds = give_up_after.as_secs();
    format!("the coordinator cannot be used: {cause}; trying again until {} (--give-up-after {seconds})", utc(until))
}

impl fmt::Debug for Patience<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Patience").field("give_up_after", &self.give_up_after).finish_non_exhaustive()
    }
}

/// The failure of the store behind an error, if the protocol did not refuse.
pub fn infra_of<'e>(error: &'e (dyn Error + 'static)) -> Option<&'e InfraError> {
    let mut at = Some(error);
    while let Some(error) = at {
        if let Some(infra) = error.downcast_ref() {
            return Some(infra);
        }
        at = error.source();
    }
    None
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use tessera_coordination::error::{CreateRunError, GetRunError, RegisterShardsError};

    use super::*;

    #[test]
    fn an_outage_is_borne_as_long_as_asked_and_told_once() {
        let (stop, said) = (AtomicBool::new(false), Mutex::new(Vec::new()));
        let notice = |text: &str| said.lock().unwrap().push(text.to_owned());
        let mut patience = Patience::new(Duration::from_millis(30), &stop, &notice);
        let started = Instant::now();
        let error = loop {
            if let Err(error) = patience.failed("away") {
                break error;
            }
        };
        assert!(started.elapsed() >= Duration::from_millis(30), "not before the time");
        assert!(error.starts_with("away; gave up") && error.contains("--give-up-after"), "{error}");
        assert_eq!(said.lock().unwrap().len(), 1);
        patience.succeeded();
        patience.failed("away").unwrap();
        assert!(said.lock().unwrap()[1].starts_with("the coordinator answers again"));
        assert_eq!(said.lock().unwrap().len(), 3, "a success ends an outage");
    }

    #[test]
    fn a_stop_ends_the_wait() {
        let stop = AtomicBool::new(true);
        let error = Patience::new(Duration::from_secs(3_600), &stop, &|_| {}).failed("away").unwrap_err();
        assert!(error.contains("away") && error.contains("stopped"), "{error}");
    }

    #[test]
    fn the_notice_says_until_when() {
        let now = LogicalTime::new(1_794_798_310_000);
        let notice = notice_of("connection refused", Duration::from_secs(20), now);
        assert!(notice.contains("connection refused"), "{notice}");
        assert!(notice.ends_with("until 2026-11-16T03:05:30Z (--give-up-after 20)"), "{notice}");
    }

    #[test]
    fn the_failure_of_the_store_is_found_behind_every_error_and_a_refusal_is_none() {
        let infra = || InfraError::transient("x", "away");
        let deep = RegisterShardsError::Create(CreateRunError::BackendError(infra()));
        for error in [&GetRunError::from(infra()) as &(dyn Error + 'static), &deep, &infra()] {
            assert_eq!(infra_of(error), Some(&infra()), "{error}");
        }
        let run = tessera_contracts::RunId::new(1);
        assert_eq!(infra_of(&CreateRunError::AlreadyExists { run }), None);
    }
}
