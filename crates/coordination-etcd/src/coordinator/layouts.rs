//! Runs of another layout in the same namespace: they cannot be read, and must not be taken for runs that do not exist.
//!
//! Layouts lie beside each other, so to this version a namespace full of an older one's runs, or of a newer one's, looks
//! empty. Before a coordinator first says that there is no such run, or makes one, it looks for them, once: nothing that
//! finds what it asks for ever waits for this.

use std::sync::atomic::Ordering;

use tessera_coordination::error::InfraError;

use super::stored::found;
use super::{Inner, failed};
use crate::keyspace::LAYOUT;
use crate::kv::{Kv, Moment, Op, RangeRequest, Txn};

impl<K: Kv> Inner<K> {
    /// Refuses to go on if the namespace holds runs of another layout.
    pub(super) async fn refuse_other_layouts(
        &self,
        operation: &'static str,
        deadline: Moment,
    ) -> Result<(), InfraError> {
        if self.layout_is_alone.load(Ordering::Relaxed) {
            return Ok(());
        }
        let others: Vec<_> = self.space.runs_of_other_layouts().collect();
        let reads = others.iter().map(|(_, runs)| Op::Range(RangeRequest::of(runs.clone()).limit(1).keys_only()));
        let read = self.kv.txn(Txn::of(reads.collect()), deadline).await.map_err(|error| failed(operation, &error))?;
        let there = others.iter().zip(&read.responses).find(|(_, answer)| found(answer).is_some());
        if let Some(((layout, _), _)) = there {
            let namespace = &self.config.namespace;
            let message = format!(
                "the namespace `{namespace}` holds runs of layout {layout}, and this version reads layout {LAYOUT}: let the \
                 version that wrote them finish and retire them, or delete `{namespace}/{layout}/`, or configure another \
                 namespace"
            );
            return Err(InfraError::refused(operation, message));
        }
        self.layout_is_alone.store(true, Ordering::Relaxed);
        Ok(())
    }
}
