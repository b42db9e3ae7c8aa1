//! The harness: a figure is two bodies that answer the same question, run in turns.
//!
//! An area's file looks so:
//!
//! ```text
//! pub(crate) fn figures() -> Vec<Figure> {
//!     vec![Figure::cost("area/question", "ours beside the reference", || {
//!         let mut ours = Ours::new();
//!         let mut reference = Reference::new();
//!         Pair::new(
//!             move |times| for _ in 0..times { black_box(ours.step()); },
//!             move |times| for _ in 0..times { black_box(reference.step()); },
//!         )
//!     })]
//! }
//! ```
//!
//! Each sample is long enough for the clock, the order within a pair alternates, and ratios, of CPU and of wall time, are
//! medians over the pairs, so that a machine that slows down in the middle of a run slows both sides.

use std::time::Duration;

use crate::clock::{Moment, Passed};
use crate::statistics::Summary;

/// One question with two answers.
pub(crate) struct Figure {
    /// `area/question`.
    pub(crate) name: &'static str,
    /// The two sides that are compared, in a line.
    pub(crate) asks: &'static str,
    pub(crate) unit: Unit,
    /// At most this many of our instructions for one of the reference's, when counted.
    pub(crate) gate: Option<f64>,
    /// How many times as long as others its samples take.
    pub(crate) longer: u32,
    /// How many times as many pairs as of others are taken.
    pub(crate) more: u32,
    /// Makes both sides, outside the measured time.
    pub(crate) setup: Box<dyn Fn() -> Pair>,
}

/// Both sides of a figure: each does so many operations.
pub(crate) struct Pair {
    pub(crate) ours: Body,
    pub(crate) reference: Body,
    /// Puts back the inputs of so many operations of ours, outside the measured time.
    pub(crate) refill: Body,
    /// What the reference is given before each of its samples, of as many operations as ours then; `None`: nothing, and as
    /// many operations as fill a sample.
    pub(crate) refill_reference: Option<Body>,
    /// The most operations of ours between two refills.
    pub(crate) times_max: u64,
}

/// Does that many operations.
pub(crate) type Body = Box<dyn FnMut(u64)>;

/// The quoted result.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Unit {
    /// CPU nanoseconds an operation; less is better.
    NanosPerOperation,
    /// Megabytes a CPU second, for operations over so many bytes each; more is better.
    MegabytesPerSecond { bytes: u64 },
}

impl Figure {
    /// A figure in CPU nanoseconds an operation.
    pub(crate) fn cost(name: &'static str, asks: &'static str, setup: impl Fn() -> Pair + 'static) -> Self {
        Self { name, asks, unit: Unit::NanosPerOperation, gate: None, longer: 1, more: 1, setup: Box::new(setup) }
    }

    /// A figure in megabytes a CPU second, for operations over `bytes` each.
    pub(crate) fn rate(name: &'static str, asks: &'static str, bytes: u64, setup: impl Fn() -> Pair + 'static) -> Self {
        Self { unit: Unit::MegabytesPerSecond { bytes }, ..Self::cost(name, asks, setup) }
    }

    /// Takes samples so many times as long: for sides that wait for a disk or for another process, whose pauses a short
    /// sample meets either wholly or not at all.
    pub(crate) fn longer(self, times: u32) -> Self {
        Self { longer: times, ..self }
    }

    /// Takes so many times as many pairs: for sides whose samples scatter however long they are.
    pub(crate) fn more(self, times: u32) -> Self {
        Self { more: times, ..self }
    }

    /// Sets the bound that `--instructions` holds the figure to.
    pub(crate) fn gated(self, ratio_max: f64) -> Self {
        Self { gate: Some(ratio_max), ..self }
    }
}

impl Pair {
    pub(crate) fn new(ours: impl FnMut(u64) + 'static, reference: impl FnMut(u64) + 'static) -> Self {
        Self {
            ours: Box::new(ours),
            reference: Box::new(reference),
            refill: Box::new(|_| ()),
            refill_reference: None,
            times_max: u64::MAX,
        }
    }

    /// For operations of ours that use something up: `refill` is called before each sample with the number of operations
    /// to come, which is at most `times_max`.
    pub(crate) fn refilled(self, times_max: u64, refill: impl FnMut(u64) + 'static) -> Self {
        Self { refill: Box::new(refill), times_max, ..self }
    }

    /// For a refill whose traces are felt by the sample behind it: the reference gets one as well, before each sample, and
    /// does as many operations as ours.
    pub(crate) fn refilled_alike(self, refill: impl FnMut(u64) + 'static) -> Self {
        Self { refill_reference: Some(Box::new(refill)), ..self }
    }
}

impl Unit {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::NanosPerOperation => "ns/op",
            Self::MegabytesPerSecond { .. } => "MB/CPU-s",
        }
    }

    pub(crate) fn less_is_better(self) -> bool {
        self == Self::NanosPerOperation
    }

    fn of(self, passed: Duration, times: u64) -> f64 {
        // A clock that saw nothing pass would make the ratio infinite; a nanosecond is below its resolution anyway.
        let nanos = passed.max(Duration::from_nanos(1)).as_nanos() as f64;
        match self {
            Self::NanosPerOperation => nanos / times as f64,
            Self::MegabytesPerSecond { bytes } => (bytes * times) as f64 / 1e6 / (nanos / 1e9),
        }
    }
}

/// How much time to spend on a figure.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Effort {
    pairs: usize,
    sample: Duration,
}

impl Effort {
    pub(crate) const FULL: Self = Self { pairs: 25, sample: Duration::from_millis(15) };
    pub(crate) const QUICK: Self = Self { pairs: 5, sample: Duration::from_millis(2) };
}

/// A figure, measured.
#[derive(Debug)]
pub(crate) struct Measured {
    pub(crate) name: &'static str,
    pub(crate) unit: Unit,
    pub(crate) ours: Side,
    pub(crate) reference: Side,
    /// Ours over the reference, pair by pair, of the CPU figure.
    pub(crate) ratio: Summary,
    /// The same of wall time.
    pub(crate) ratio_wall: Summary,
    pub(crate) pairs: usize,
}

/// One side, by both clocks.
#[derive(Debug)]
pub(crate) struct Side {
    pub(crate) cpu: Summary,
    pub(crate) wall: Summary,
}

/// Takes the samples of a figure.
pub(crate) fn measure(figure: &Figure, effort: Effort) -> Measured {
    let mut pair = (figure.setup)();
    let sample_min = effort.sample * figure.longer;
    let times_ours = times_for(&mut pair.ours, &mut pair.refill, pair.times_max, sample_min);
    let times_reference = match &mut pair.refill_reference {
        None => times_for(&mut pair.reference, &mut |_| (), u64::MAX, sample_min),
        Some(refill) => {
            refill(times_ours);
            sample(&mut pair.reference, times_ours);
            times_ours
        }
    };
    let pairs = effort.pairs * figure.more as usize;
    let (mut ours, mut reference) = (Vec::new(), Vec::new());
    for index in 0..pairs {
        let ours_first = index % 2 == 0;
        // Just before it is used up: a reference that ran in between would have it out of the caches, and a sample that takes
        // each thing once would measure that.
        let mut sample_ours = || {
            (pair.refill)(times_ours);
            ours.push(sample(&mut pair.ours, times_ours));
        };
        if ours_first {
            sample_ours();
        }
        if let Some(refill) = &mut pair.refill_reference {
            refill(times_reference);
        }
        reference.push(sample(&mut pair.reference, times_reference));
        if !ours_first {
            sample_ours();
        }
    }
    let side = |samples: &[Passed], times| Side {
        cpu: Summary::of(&samples.iter().map(|passed| figure.unit.of(passed.cpu, times)).collect::<Vec<_>>()),
        wall: Summary::of(&samples.iter().map(|passed| figure.unit.of(passed.wall, times)).collect::<Vec<_>>()),
    };
    let ratio = |clock| ratios(figure.unit, (&ours, times_ours), (&reference, times_reference), clock);
    Measured {
        name: figure.name,
        unit: figure.unit,
        ours: side(&ours, times_ours),
        reference: side(&reference, times_reference),
        ratio: ratio(|passed| passed.cpu),
        ratio_wall: ratio(|passed| passed.wall),
        pairs,
    }
}

/// Ours over the reference by one clock, pair by pair; samples of so many operations each.
fn ratios(unit: Unit, ours: (&[Passed], u64), reference: (&[Passed], u64), clock: fn(&Passed) -> Duration) -> Summary {
    let of = |(one, other)| unit.of(clock(one), ours.1) / unit.of(clock(other), reference.1);
    Summary::of(&ours.0.iter().zip(reference.0).map(of).collect::<Vec<_>>())
}

fn sample(body: &mut Body, times: u64) -> Passed {
    let begun = Moment::now();
    body(times);
    begun.passed()
}

/// How many operations fill a sample; also warms caches and branch predictors.
fn times_for(body: &mut Body, refill: &mut dyn FnMut(u64), times_max: u64, sample_min: Duration) -> u64 {
    let mut times = 1;
    loop {
        refill(times);
        // The longer of both clocks: a body that sleeps would otherwise be given an endless number of operations.
        let passed = sample(body, times);
        if passed.cpu.max(passed.wall) >= sample_min || times >= times_max.min(1 << 40) {
            return times;
        }
        times = (times * 2).min(times_max);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_run_equally_often_and_in_turns() {
        use std::cell::RefCell;
        use std::rc::Rc;
        let log: Rc<RefCell<String>> = Rc::default();
        let figure = {
            let log = log.clone();
            Figure::cost("test/turns", "", move || {
                let (ours, reference) = (log.clone(), log.clone());
                let spin = || std::thread::sleep(Duration::from_millis(3));
                Pair::new(
                    move |_| {
                        ours.borrow_mut().push('o');
                        spin();
                    },
                    move |_| {
                        reference.borrow_mut().push('r');
                        spin();
                    },
                )
            })
        };
        let measured = measure(&figure, Effort { pairs: 4, sample: Duration::from_millis(2) });
        assert_eq!(log.borrow().as_str(), "or".to_string() + "orroorro");
        assert_eq!(measured.pairs, 4);
    }

    #[test]
    fn inputs_that_were_used_up_are_refilled_before_each_sample() {
        use std::cell::Cell;
        use std::rc::Rc;
        let left: Rc<Cell<u64>> = Rc::default();
        let figure = {
            let left = left.clone();
            Figure::cost("test/refill", "", move || {
                let (user, store) = (left.clone(), left.clone());
                let ours =
                    move |times| user.set(user.get().checked_sub(times).expect("there is enough for the sample"));
                let reference = |times| std::thread::sleep(Duration::from_micros(times));
                Pair::new(ours, reference).refilled(5, move |times| store.set(times))
            })
        };
        measure(&figure, Effort { pairs: 4, sample: Duration::from_millis(2) });
        assert_eq!(left.get(), 0);
    }

    #[test]
    fn a_reference_that_is_refilled_alike_is_so_before_each_sample_and_does_as_much_as_ours() {
        use std::cell::RefCell;
        use std::rc::Rc;
        let log: Rc<RefCell<Vec<(char, u64)>>> = Rc::default();
        let figure = {
            let log = log.clone();
            Figure::cost("test/alike", "", move || {
                let noted = |what| {
                    let log = log.clone();
                    move |times| log.borrow_mut().push((what, times))
                };
                Pair::new(noted('o'), noted('r')).refilled(3, noted('O')).refilled_alike(noted('R'))
            })
            .more(2)
        };
        let measured = measure(&figure, Effort { pairs: 2, sample: Duration::from_secs(1) });
        assert_eq!(measured.pairs, 4);
        let log = log.borrow();
        assert_eq!(log[..8], [('O', 1), ('o', 1), ('O', 2), ('o', 2), ('O', 3), ('o', 3), ('R', 3), ('r', 3)]);
        assert!(log[8..].iter().all(|(_, times)| *times == 3), "{log:?}");
        let order: String = log[8..].iter().map(|(what, _)| *what).collect();
        assert_eq!(order, "OoRrRrOo".repeat(2));
    }

    #[test]
    fn ratios_are_of_pairs_and_each_clock_has_its_own() {
        let passed = |cpu, wall| Passed { cpu: Duration::from_millis(cpu), wall: Duration::from_millis(wall) };
        // A machine that slows down in the middle slows both sides.
        let ours = [passed(10, 30), passed(100, 300), passed(10, 33)];
        let reference = [passed(20, 20), passed(200, 200), passed(20, 22)];
        let ratio = |clock| ratios(Unit::NanosPerOperation, (&ours, 2), (&reference, 4), clock);
        assert_eq!(ratio(|passed| passed.cpu), Summary { median: 1.0, spread: 0.0 });
        assert_eq!(ratio(|passed| passed.wall), Summary { median: 3.0, spread: 0.0 });
    }

    #[test]
    fn units_turn_time_into_cost_and_rate() {
        let second = Duration::from_secs(1);
        assert_eq!(Unit::NanosPerOperation.of(second, 1_000_000_000), 1.0);
        assert_eq!(Unit::MegabytesPerSecond { bytes: 1_000_000 }.of(second, 150), 150.0);
    }
}
