//! The threads on which lanes of many runtimes take turns: at most as many as there are cores, there while somebody needs them.
//!
//! Who starts a lane takes a place first: the lane's bed must be known before anybody has a way to it. The lane itself comes when
//! it has been opened.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::thread::{CpuSet, sched_setaffinity};

use crate::ring::bell::Places;
use crate::ring::park::Bed;
use crate::runtime::carrier::Carrier;
use crate::runtime::lock;

/// A thread that is so long in one turn is given nobody new.
const HELD_UP: Duration = Duration::from_millis(250);

/// A thread that has been busy for so much of its time gets nobody new while there are others.
const BUSY_PERCENT: u8 = 75;

/// A thread that carries lanes, as those see it who look for a place.
struct Thread {
    carrier: Arc<Carrier>,
    /// Where it may run, as whoever started it may.
    home: Option<CpuSet>,
    taken: Places,
}

static THREADS: Mutex<Vec<Thread>> = Mutex::new(Vec::new());

/// A place on a thread that carries lanes. It is free again when this is dropped.
#[derive(Debug)]
pub(super) struct Place {
    carrier: Arc<Carrier>,
    number: u8,
}

impl Place {
    /// Takes a place for the lane with this number among those of its runtime, on a thread that may run in `home`. One that is in a
    /// turn for longer than `patience`, after which the lane would be given up, is not such a thread.
    pub(super) fn take(home: Option<CpuSet>, lane: usize, patience: Duration) -> io::Result<Self> {
        let mut threads = lock(&THREADS);
        let cores = home.map_or(1, |home| home.count().max(1)) as usize;
        let mut fitting: Vec<&mut Thread> = threads
            .iter_mut()
            .filter(|thread| thread.home == home && thread.carrier.busy_for() < patience.min(HELD_UP))
            .filter(|thread| thread.taken.first_missing().is_some())
            .collect();
        if let Some(thread) = choose(fitting.iter().map(|thread| thread.carrier.worked_percent()), lane % cores, cores)
            && let Some(number) = fitting[thread].taken.first_missing()
        {
            let thread = &mut fitting[thread];
            thread.taken.add(number);
            return Ok(Self { carrier: thread.carrier.clone(), number });
        }
        let (carrier, wheels) = Carrier::new()?;
        let carrier = Arc::new(carrier);
        let carried_by = carrier.clone();
        std::thread::Builder::new().name(format!("lanes-{}", threads.len())).spawn(move || {
            // Where it started is as good, if this is refused.
            let _ = home.map(|home| sched_setaffinity(None, &home));
            carried_by.carry(wheels, || leave_if_nobody_comes(&carried_by));
        })?;
        let mut taken = Places::default();
        taken.add(0);
        threads.push(Thread { carrier: carrier.clone(), home, taken });
        Ok(Self { carrier, number: 0 })
    }

    pub(super) fn carrier(&self) -> &Arc<Carrier> {
        &self.carrier
    }

    pub(super) fn number(&self) -> u8 {
        self.number
    }

    /// What whoever has this place is woken by.
    pub(super) fn bed(&self) -> Arc<Bed> {
        Bed::shared(self.carrier.bell().clone(), self.number)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut threads = lock(&THREADS);
        if let Some(thread) = threads.iter_mut().find(|thread| Arc::ptr_eq(&thread.carrier, &self.carrier)) {
            thread.taken.remove(self.number);
        }
        drop(threads);
        // It may have been the last that its thread waited for. Called and not only woken: the thread may be about to sleep,
        // and looks once more at who was called and not at who has a place.
        self.carrier.bell().call(self.number);
    }
}

/// Which of the threads, given how many percent of their time they work, a lane is put on; none if on a new one.
///
/// Lanes of one runtime are put on threads of their own, as they would have cores of their own. Those of different runtimes are put
/// together for as long as one thread is enough for them: what one sends another then calls no other core, which halves what it
/// costs, and it comes sooner.
fn choose(loads: impl Iterator<Item = u8>, wanted: usize, threads_max: usize) -> Option<usize> {
    let loads: Vec<u8> = loads.collect();
    match loads.get(wanted) {
        Some(percent) if *percent < BUSY_PERCENT => Some(wanted),
        _ if loads.len() < threads_max => None,
        _ => (0..loads.len()).min_by_key(|thread| loads[*thread]),
    }
}

/// Whether nobody has a place on the thread; then nobody can get one any more.
fn leave_if_nobody_comes(carrier: &Arc<Carrier>) -> bool {
    let mut threads = lock(&THREADS);
    let nobody = |thread: &Thread| Arc::ptr_eq(&thread.carrier, carrier) && thread.taken.is_empty();
    let before = threads.len();
    threads.retain(|thread| !nobody(thread));
    threads.len() < before
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// So long a test waits for something that must happen; it does not measure.
    const PATIENCE: Duration = Duration::from_secs(30);

    #[test]
    fn a_thread_that_is_about_to_sleep_when_its_last_place_is_given_up_ends() {
        let (carrier, wheels) = Carrier::new().unwrap();
        let carrier = Arc::new(carrier);
        let mut taken = Places::default();
        taken.add(5);
        lock(&THREADS).push(Thread { carrier: carrier.clone(), home: None, taken });
        let place = Place { carrier: carrier.clone(), number: 5 };
        let (ended, ends) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let place = Cell::new(Some(place));
            carrier.carry(wheels, || {
                let leaves = leave_if_nobody_comes(&carrier);
                // Now it is too late for this look.
                drop(place.take());
                leaves
            });
            ended.send(()).unwrap();
        });
        ends.recv_timeout(PATIENCE).expect("nobody has a place on it");
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
    fn a_thread_that_is_full_is_given_nobody_and_one_that_has_ended_is_not_found() {
        // A home of its own, so that nobody else takes places there.
        let mut home = CpuSet::new();
        home.set(CpuSet::MAX_CPU - 1);
        let mut places: Vec<_> = (0..=256).map(|_| Place::take(Some(home), 0, HELD_UP).unwrap()).collect();
        let first = places[0].carrier().clone();
        let on_first = |places: &[Place]| places.iter().filter(|place| Arc::ptr_eq(place.carrier(), &first)).count();
        assert_eq!(on_first(&places), 256);
        let mut numbers: Vec<u8> = places[..256].iter().map(Place::number).collect();
        numbers.sort_unstable();
        assert!(numbers.into_iter().eq(0..=255), "one place for each");
        places.remove(100);
        places.push(Place::take(Some(home), 0, HELD_UP).unwrap());
        assert_eq!(on_first(&places), 256, "the place that was free");
        drop(places);
        let deadline = std::time::Instant::now() + PATIENCE;
        while lock(&THREADS).iter().any(|thread| thread.home == Some(home)) {
            assert!(std::time::Instant::now() < deadline, "the threads do not end");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(!Arc::ptr_eq(Place::take(Some(home), 0, HELD_UP).unwrap().carrier(), &first));
    }
}
