//! The threads on which lanes of many runtimes take turns: at most as many as there are cores, started and ended on demand.
//!
//! The supervisor takes a reservation before it opens a lane: the lane's parker must exist before any sender can reach it. The lane follows when
//! it has been opened.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::thread::{CpuSet, sched_setaffinity};

use crate::ring::park::Parker;
use crate::ring::wake_set::IndexSet;
use crate::runtime::lock;
use crate::runtime::shared_thread::SharedThread;

/// A thread that has been in one turn for so long gets no new lane.
const TURN_MAX: Duration = Duration::from_millis(250);

/// A thread that has been busy for so much of its time gets no new lane while there are other threads.
const BUSY_PERCENT: u8 = 75;

/// A shared thread and its free indices.
struct Thread {
    shared: Arc<SharedThread>,
    /// Where it may run: the affinity of the thread that started it.
    cpus: Option<CpuSet>,
    taken: IndexSet,
}

static THREADS: Mutex<Vec<Thread>> = Mutex::new(Vec::new());

/// An index on a shared thread, freed on drop.
#[derive(Debug)]
pub(super) struct Reservation {
    shared: Arc<SharedThread>,
    number: u8,
}

impl Reservation {
    /// Takes a reservation for the lane with this number among those of its runtime, on a thread that may run in `cpus`. A thread that is in
    /// a turn for longer than `stall_max`, after which the lane would be given up, is passed over.
    pub(super) fn take(cpus: Option<CpuSet>, lane: usize, stall_max: Duration) -> io::Result<Self> {
        let mut threads = lock(&THREADS);
        let cores = cpus.map_or(1, |cpus| cpus.count().max(1)) as usize;
        let mut fitting: Vec<&mut Thread> = threads
            .iter_mut()
            .filter(|thread| thread.cpus == cpus && thread.shared.busy_for() < stall_max.min(TURN_MAX))
            .filter(|thread| thread.taken.first_missing().is_some())
            .collect();
        if let Some(thread) = choose(fitting.iter().map(|thread| thread.shared.worked_percent()), lane % cores, cores)
            && let Some(number) = fitting[thread].taken.first_missing()
        {
            let thread = &mut fitting[thread];
            thread.taken.add(number);
            return Ok(Self { shared: thread.shared.clone(), number });
        }
        let (shared, parts) = SharedThread::new()?;
        let shared = Arc::new(shared);
        let runner = shared.clone();
        std::thread::Builder::new().name(format!("lanes-{}", threads.len())).spawn(move || {
            // Where it started is as good, if this is refused.
            let _ = cpus.map(|cpus| sched_setaffinity(None, &cpus));
            runner.run(parts, || remove_if_unused(&runner));
        })?;
        let mut taken = IndexSet::default();
        taken.add(0);
        threads.push(Thread { shared: shared.clone(), cpus, taken });
        Ok(Self { shared, number: 0 })
    }

    pub(super) fn shared(&self) -> &Arc<SharedThread> {
        &self.shared
    }

    pub(super) fn number(&self) -> u8 {
        self.number
    }

    /// The parker of the lane at this index.
    pub(super) fn parker(&self) -> Arc<Parker> {
        Parker::shared(self.shared.wake_set().clone(), self.number)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut threads = lock(&THREADS);
        if let Some(thread) = threads.iter_mut().find(|thread| Arc::ptr_eq(&thread.shared, &self.shared)) {
            thread.taken.remove(self.number);
        }
        drop(threads);
        // It may have been the last that its thread waited for. Called and not only woken: the thread may be about to sleep,
        // and looks once more at called lanes and not at reservations.
        self.shared.wake_set().call(self.number);
    }
}

/// Which of the threads, given how many percent of their time they work, a lane is put on; none if on a new one.
///
/// Lanes of one runtime are put on threads of their own, as they would have cores of their own. Those of different runtimes are put
/// together for as long as one thread is enough for them: a message between them then calls no other core, which halves its
/// cost, and it comes sooner.
fn choose(loads: impl Iterator<Item = u8>, wanted: usize, threads_max: usize) -> Option<usize> {
    let loads: Vec<u8> = loads.collect();
    match loads.get(wanted) {
        Some(percent) if *percent < BUSY_PERCENT => Some(wanted),
        _ if loads.len() < threads_max => None,
        _ => (0..loads.len()).min_by_key(|thread| loads[*thread]),
    }
}

/// Removes the thread if it has no reservation; then no lane can get one any more.
fn remove_if_unused(shared: &Arc<SharedThread>) -> bool {
    let mut threads = lock(&THREADS);
    let is_unused = |thread: &Thread| Arc::ptr_eq(&thread.shared, shared) && thread.taken.is_empty();
    let before = threads.len();
    threads.retain(|thread| !is_unused(thread));
    threads.len() < before
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// So long a test waits for something that must happen; it does not measure.
    const PATIENCE: Duration = Duration::from_secs(600);

    #[test]
    fn a_thread_that_is_about_to_sleep_when_its_last_place_is_given_up_ends() {
        let (shared, parts) = SharedThread::new().unwrap();
        let shared = Arc::new(shared);
        let mut taken = IndexSet::default();
        taken.add(5);
        lock(&THREADS).push(Thread { shared: shared.clone(), cpus: None, taken });
        let reservation = Reservation { shared: shared.clone(), number: 5 };
        let (ended, ends) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let reservation = Cell::new(Some(reservation));
            shared.run(parts, || {
                let leaves = remove_if_unused(&shared);
                // Now it is too late for this look.
                drop(reservation.take());
                leaves
            });
            ended.send(()).unwrap();
        });
        ends.recv_timeout(PATIENCE).expect("it has no reservation");
    }

    #[test]
    fn lanes_of_one_runtime_are_spread_and_those_of_many_are_together_until_a_thread_is_busy() {
        let on = |loads: &[u8], lane: usize| choose(loads.iter().copied(), lane % 4, 4);
        assert_eq!(on(&[], 0), None);
        assert_eq!([on(&[74], 0), on(&[74], 4)], [Some(0); 2], "one thread is enough for them");
        assert_eq!(on(&[0], 1), None, "a second lane wants a second thread");
        assert_eq!([on(&[0, 0, 0], 1), on(&[0, 0, 0], 2)], [Some(1), Some(2)]);
        assert_eq!(on(&[75], 0), None, "enough is enough");
        assert_eq!(on(&[90, 80, 20, 80], 0), Some(2), "as many as cores, and no more");
        assert_eq!(on(&[90, 80, 85, 79], 1), Some(3));
    }

    #[test]
    fn a_full_thread_is_given_no_lane_and_an_ended_one_is_not_found() {
        // CPUs of its own, so that no other test takes reservations there.
        let mut cpus = CpuSet::new();
        cpus.set(CpuSet::MAX_CPU - 1);
        let mut reservations: Vec<_> = (0..=256).map(|_| Reservation::take(Some(cpus), 0, TURN_MAX).unwrap()).collect();
        let first = reservations[0].shared().clone();
        let on_first = |reservations: &[Reservation]| {
            reservations.iter().filter(|reservation| Arc::ptr_eq(reservation.shared(), &first)).count()
        };
        assert_eq!(on_first(&reservations), 256);
        let mut numbers: Vec<u8> = reservations[..256].iter().map(Reservation::number).collect();
        numbers.sort_unstable();
        assert!(numbers.into_iter().eq(0..=255), "one reservation for each");
        reservations.remove(100);
        reservations.push(Reservation::take(Some(cpus), 0, TURN_MAX).unwrap());
        assert_eq!(on_first(&reservations), 256, "the reservation that was free");
        drop(reservations);
        let deadline = std::time::Instant::now() + PATIENCE;
        while lock(&THREADS).iter().any(|thread| thread.cpus == Some(cpus)) {
            assert!(std::time::Instant::now() < deadline, "the threads do not end");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(!Arc::ptr_eq(Reservation::take(Some(cpus), 0, TURN_MAX).unwrap().shared(), &first));
    }
}
