//! Calls that fail before or after they took effect.

use tessera_contracts::LogicalTime;
use tessera_coordination::session::SessionState;
use tessera_scan::sweep::worker::driver::Calls;
use tessera_scan::sweep::{Answer, Call, CallFailure};

use super::broken::Defect;
use super::config::Met;
use crate::coordination::dice::Dice;

/// Calls over a network that loses requests and answers.
pub(super) struct FaultyCalls<'d, C> {
    pub(super) calls: C,
    pub(super) dice: &'d mut Dice,
    pub(super) per_million: u32,
    pub(super) defect: Defect,
    pub(super) met: &'d mut Met,
}

impl<C: Calls> Calls for FaultyCalls<'_, C> {
    fn call(&mut self, now: LogicalTime, call: &Call, held: Option<&SessionState>) -> Answer {
        if self.defect == Defect::NothingCompletes && matches!(call, Call::Complete { .. }) {
            return Answer::Done;
        }
        if matches!(call, Call::RequestSplit { .. }) {
            self.met.count("asks");
        }
        if !self.dice.happens(self.per_million) {
            return self.calls.call(now, call, held);
        }
        self.met.count("calls");
        let failure = CallFailure { message: "simulated: no answer".into(), is_transient: true };
        if self.dice.happens(500_000) {
            self.calls.call(now, call, held);
        }
        Answer::Failed(failure)
    }
}
