//! A worker is granted no shard within the cooldown after its last one.

use std::collections::BTreeMap;

use crate::coordination::call::{Answer, Request};
use crate::coordination::watch::{Checker, Sight};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct ClaimCooldown {
    last: BTreeMap<usize, u64>,
}

impl Checker for ClaimCooldown {
    fn name(&self) -> &'static str {
        "ClaimCooldown"
    }

    fn after_restart(&mut self) {
        self.last.clear();
    }

    fn after_call(&mut self, sight: &Sight<'_>) -> Result<(), String> {
        let (Some(worker), Request::Claim, Answer::Granted { .. }) =
            (sight.worker(), &sight.call.request, sight.answer)
        else {
            return Ok(());
        };
        let at = sight.call.at.get();
        let cooldown = sight.config.cooldown;
        match self.last.insert(worker, at) {
            Some(last) if cooldown > 0 && at < last + cooldown => {
                Err(format!("worker {worker} was granted a shard at {last} and again at {at}"))
            }
            _ => Ok(()),
        }
    }
}
