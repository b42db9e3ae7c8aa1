//! A retry that is still remembered gets the first answer.

use std::collections::{BTreeMap, BTreeSet};

use tessera_contracts::ids::{OpId, ShardId};

use crate::coordination::call::{Answer, Caller, Outcome, Request};
use crate::coordination::watch::{Checker, Sight};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct ReplayAnswersAgree {
    first: BTreeMap<OpId, Vec<ShardId>>,
    /// Operations whose store failed: they may have happened, and then a retry hears the first answer first.
    unheard: BTreeSet<OpId>,
}

impl Checker for ReplayAnswersAgree {
    fn name(&self) -> &'static str {
        "ReplayAnswersAgree"
    }

    fn after_call(&mut self, sight: &Sight<'_>) -> Result<(), String> {
        let Some(op) = sight.call.request.op() else { return Ok(()) };
        if sight.call.caller == Caller::Vandal || sight.call.caller == Caller::Stranger {
            // Another caller's use of the id is no retry.
            return Ok(());
        }
        match (sight.answer, self.first.get(&op)) {
            (Answer::Accepted { outcome: Outcome::Executed, children }, _) => {
                self.first.insert(op, children.clone());
                Ok(())
            }
            (Answer::Accepted { children, .. }, Some(first)) if children != first => {
                Err(format!("operation {op} made {first:?} and a retry was told {children:?}"))
            }
            (Answer::Failed, None) => {
                self.unheard.insert(op);
                Ok(())
            }
            (Answer::Accepted { children, .. }, None) if self.unheard.contains(&op) => {
                self.first.insert(op, children.clone());
                Ok(())
            }
            (Answer::Accepted { .. }, None) => Err(format!("operation {op} is called a retry and never happened")),
            (Answer::Refused(refusal), Some(_)) if is_remembered(sight, op) => {
                Err(format!("operation {op} happened and is remembered, and a retry was refused: {refusal:?}"))
            }
            _ => Ok(()),
        }
    }
}

/// Whether a retry has a right to its first answer: the op-log remembers it, or it made children, which stay as long as the
/// run does.
fn is_remembered(sight: &Sight<'_>, op: OpId) -> bool {
    let splits = matches!(sight.call.request, Request::SplitReplace { .. } | Request::SplitResidual { .. });
    let logged = sight.named_before().is_some_and(|before| before.state.op_log.find(op).is_some());
    let of_run = sight.run.is_some_and(|run| run.find_op(op).is_some());
    sight.other_incarnation().is_none() && sight.run_before.is_some() && (splits || logged || of_run)
}
