//! Reading segments again that are not what they were.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tessera_contracts::source_family::{ItemPages, PageLimits, SourceError, SourceFamily};

use super::suspect::Suspect;
use super::{Looked, Recheck};
use crate::error::ScanError;
use crate::findings::{Draft, plan_failed};
use crate::source::Source;
use crate::sweep::worker::blobs::Blobs;
use crate::sweep::worker::caution::Caution;
use crate::sweep::worker::driver::ItemEnd;
use crate::sweep::worker::items::{Items, git_failed};
use crate::sweep::worker::reachable;

impl Recheck<'_> {
    /// Reads what changed; how many items were met. Stops early if it is told to.
    pub(crate) fn read_again(&self, looked: &Looked) -> Result<u64, ScanError> {
        if looked.changed.is_empty() {
            return Ok(0);
        }
        let detectors = self.job.detectors().map_err(ScanError::Rules)?;
        let next = AtomicUsize::new(0);
        let caution = Caution::of_reading_again(self.folder.path());
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..self.workers.clamp(1, looked.changed.len()))
                .map(|_| {
                    let (detectors, next, caution) = (detectors.fork(), &next, caution.fork());
                    scope.spawn(move || {
                        let mut items = Items {
                            reader: self.job.reader(detectors),
                            blobs: Blobs::default(),
                            caution,
                            progress: Arc::default(),
                            stop: self.stop,
                            is_one_of_many: false,
                        };
                        let (mut draft, mut met) = (Draft::new(Box::new(self.sink()?)), 0);
                        while let Some(suspect) = looked.changed.get(next.fetch_add(1, Ordering::Relaxed)) {
                            match self.segment(&mut items, &mut draft, suspect, looked.pass)? {
                                Some(read) => met += read,
                                None => break,
                            }
                        }
                        Ok(met)
                    })
                })
                .collect();
            threads.into_iter().try_fold(0, |sum, thread| {
                let met: Result<u64, ScanError> =
                    thread.join().unwrap_or_else(|_| Err(ScanError::Coordinator("a worker panicked".into())));
                Ok(sum + met?)
            })
        })
    }

    /// Reads one segment, and makes it durable. `None` if it was told to stop.
    fn segment(
        &self,
        items: &mut Items<'_>,
        draft: &mut Draft,
        suspect: &Suspect,
        pass: u32,
    ) -> Result<Option<u64>, ScanError> {
        let source = self.source_of(suspect.segment.target)?;
        if !self.read(items, draft, source, suspect)? {
            draft.abandon();
            return Ok(None);
        }
        let read = draft.tally.enumerated();
        draft.commit(suspect.segment.span.clone(), pass)?;
        Ok(Some(read))
    }

    /// Whether it came to the end of the segment.
    fn read(
        &self,
        items: &mut Items<'_>,
        draft: &mut Draft,
        source: &Source,
        suspect: &Suspect,
    ) -> Result<bool, ScanError> {
        let (target, failed) = (source.target(), |error: SourceError| ScanError::Source(error));
        let ledger = self.plan.ledger(target.number, suspect.low()).map_err(|error| failed(plan_failed(&error)))?;
        draft.open(target.number, ledger);
        let mut pages = source.open(&suspect.state()?).map_err(failed)?;
        loop {
            let mut page = pages.next_page(PageLimits::default()).map_err(failed)?;
            let met = page.items.len();
            page.items.retain(|item| suspect.reaches(&item.key));
            items.caution.condemn(&mut page.items);
            let Some(_together) = items.caution.together(&mut || true) else { return Ok(false) };
            items.blobs.request(source, &page.items).map_err(|error| failed(git_failed(&error)))?;
            for item in &page.items {
                if self.stop.load(Ordering::Relaxed) {
                    return Ok(false);
                }
                match items.item(source, item, draft, &mut || true)? {
                    ItemEnd::Done => {}
                    ItemEnd::Interrupted => return Ok(false),
                    ItemEnd::SourceFailed(error) => return Err(failed(error)),
                }
            }
            if page.is_last || page.items.len() < met {
                break;
            }
        }
        draft.pass(suspect.bound()).map_err(failed)?;
        if draft.missing() > 0 {
            reachable::check(target, Some(self.plan.record())).map_err(failed)?;
        }
        Ok(true)
    }
}
