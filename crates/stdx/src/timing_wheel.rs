//! Timers on a hierarchical wheel: insert, cancel and expiry in constant time, no allocation after construction, or only to
//! hold more timers than ever before.
//!
//! A deadline is read as a number in base 64. A timer lies on the level of the highest digit in which its deadline differs
//! from the wheel's time, in the slot of that digit. Eleven levels cover every `u64`, so no deadline is too far away. When
//! the time reaches a slot of a higher level, its timers move down; each moves at most once per level in its life, though
//! one call may have to move a whole slot.
//!
//! The rule above is an invariant: where a timer lies follows from its deadline and the time alone. So timers of one
//! deadline are always in one slot, and as slots are queues, **timers fire in the order of their deadlines, and those of
//! one deadline in the order they were inserted.** A simulation can rely on it. Also, time can jump over any stretch in
//! which no slot begins without visiting the ticks between.
//!
//! The caller chooses the unit of a tick. There is no clock here, and no waiting: the caller sleeps until
//! [`TimingWheel::next_wake`].

use alloc::vec::Vec;
use core::fmt;

/// At most a fixed number of timers, each with a deadline and a value.
///
/// ```
/// use tessera_stdx::TimingWheel;
///
/// let mut wheel = TimingWheel::with_capacity(100, 0);
/// let ping = wheel.insert(500, "ping").unwrap();
/// wheel.insert(300, "timeout").unwrap();
/// assert_eq!(wheel.pop_due(299), None);
/// assert_eq!(wheel.pop_due(300), Some((300, "timeout")));
/// assert_eq!(wheel.cancel(ping), Some("ping"));
/// assert_eq!(wheel.next_wake(), None);
/// ```
pub struct TimingWheel<T> {
    now: u64,
    /// Room for `capacity` timers, filled from the front, so that a large wheel touches only what it has needed so far.
    timers: Vec<Timer<T>>,
    capacity: u32,
    /// Timers that have gone, linked by `next`.
    free_head: u32,
    len: u32,
    /// By level and slot, down to the highest level that was ever used.
    queues: Vec<Queue>,
    /// Per level, one bit per slot that has a timer.
    occupied: [u64; LEVELS],
}

/// Names one timer of one [`TimingWheel`], until it has fired or was cancelled; after that it finds nothing, unless it is kept
/// while its place is reused exactly 2^32 times. Whose wheel it is, the owner knows: another wheel would not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TimerHandle {
    index: u32,
    generation: u32,
}

/// The wheel holds as many timers as it can. The refused value comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WheelFull<T>(pub T);

impl<T> TimingWheel<T> {
    /// A wheel for at most `capacity` timers whose time starts at `now`.
    ///
    /// # Panics
    ///
    /// If `capacity` is `u32::MAX`, or more than memory can be asked for. A capacity is a setting, not something a peer
    /// sends.
    pub fn with_capacity(capacity: u32, now: u64) -> Self {
        let mut wheel = Self::growing(capacity, now);
        wheel.reserve_all();
        wheel
    }

    /// Takes the memory of as many timers as there may be, on every level: from now on nothing is allocated.
    pub fn reserve_all(&mut self) {
        self.timers.reserve_exact(self.capacity as usize - self.timers.len());
        self.queues.resize(LEVELS * SLOTS, Queue::EMPTY);
    }

    /// The same, but memory is taken as timers come and kept: none before the first, then for a few, then in doublings. For many
    /// wheels of which few are ever full, and some never used.
    ///
    /// # Panics
    ///
    /// If `capacity` is `u32::MAX`.
    pub fn growing(capacity: u32, now: u64) -> Self {
        assert!(capacity < NO_TIMER, "the last index marks the end of a list");
        Self {
            now,
            timers: Vec::new(),
            capacity,
            free_head: NO_TIMER,
            len: 0,
            queues: Vec::new(),
            occupied: [0; LEVELS],
        }
    }

    /// Starts a timer. A deadline that has passed counts as the wheel's time: it is due at once, behind those due now.
    pub fn insert(&mut self, deadline: u64, value: T) -> Result<TimerHandle, WheelFull<T>> {
        let index = match self.free_head {
            NO_TIMER if self.timers.len() == self.capacity as usize => return Err(WheelFull(value)),
            NO_TIMER => {
                if self.timers.capacity() == 0 {
                    self.timers.reserve_exact(FIRST_TIMERS.min(self.capacity as usize));
                    self.queues.reserve_exact(FIRST_LEVELS * SLOTS);
                }
                self.timers.push(Timer::VACANT);
                self.timers.len() as u32 - 1
            }
            index => {
                self.free_head = self.timers[index as usize].next;
                index
            }
        };
        let timer = &mut self.timers[index as usize];
        timer.deadline = deadline.max(self.now);
        timer.value = Some(value);
        let generation = timer.generation;
        self.len += 1;
        self.enqueue(index);
        Ok(TimerHandle { index, generation })
    }

    /// Stops a timer and returns its value, or `None` if it has fired or was cancelled before.
    pub fn cancel(&mut self, handle: TimerHandle) -> Option<T> {
        let timer = self.timers.get(handle.index as usize)?;
        if timer.generation != handle.generation || timer.value.is_none() {
            return None;
        }
        self.take(handle.index)
    }

    /// Moves time on to `now`, or to the first deadline on the way: then that timer is taken out and returned. Call until
    /// it returns `None`; timers inserted in between are served in their turn.
    ///
    /// Time does not go back. A `now` before the latest one seen counts as that one.
    pub fn pop_due(&mut self, now: u64) -> Option<(u64, T)> {
        loop {
            match self.first_slot() {
                Some((level, slot, begin)) if begin <= now.max(self.now) => {
                    self.now = begin;
                    let queue = level * SLOTS + slot;
                    if level == 0 {
                        let value = self.take(self.queues[queue].first)?;
                        return Some((begin, value));
                    }
                    self.move_down(queue);
                }
                _ => {
                    self.now = now.max(self.now);
                    return None;
                }
            }
        }
    }

    /// When to call [`pop_due`](Self::pop_due) next: at the first deadline, or before it when several timers have to move down
    /// then; a timer that runs alone causes no earlier wake-up. Never after the first deadline. `None` when there are
    /// no timers.
    pub fn next_wake(&self) -> Option<u64> {
        let (level, slot, begin) = self.first_slot()?;
        let Queue { first, last } = self.queues[level * SLOTS + slot];
        Some(if first == last { self.timers[first as usize].deadline } else { begin })
    }

    /// The latest time the wheel has seen.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// How many timers are running.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether no timer is running.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many timers can run at once.
    pub fn capacity(&self) -> usize {
        self.capacity as usize
    }

    /// The occupied slot that begins first. All timers of a level fall due before those of the next, because they share
    /// one more digit with the time; and within a level no occupied slot lies behind the time.
    fn first_slot(&self) -> Option<(usize, usize, u64)> {
        let level = self.occupied.iter().position(|slots| *slots != 0)?;
        let slot = self.occupied[level].trailing_zeros() as usize;
        let shift = level as u32 * DIGIT_BITS;
        let digits_above = u64::MAX.checked_shl(shift + DIGIT_BITS).unwrap_or(0);
        Some((level, slot, (self.now & digits_above) | ((slot as u64) << shift)))
    }

    /// Sorts the timers of a slot that has begun into the levels below, in order.
    fn move_down(&mut self, queue: usize) {
        let mut index = self.queues[queue].first;
        self.queues[queue] = Queue::EMPTY;
        self.occupied[queue / SLOTS] &= !(1 << (queue % SLOTS));
        while index != NO_TIMER {
            let next = self.timers[index as usize].next;
            self.enqueue(index);
            index = next;
        }
    }

    /// Appends a timer to the queue where its deadline belongs at this time.
    fn enqueue(&mut self, index: u32) {
        let queue = queue_of(self.now, self.timers[index as usize].deadline);
        if queue >= self.queues.len() {
            self.queues.resize((queue / SLOTS + 1) * SLOTS, Queue::EMPTY);
        }
        let last = self.queues[queue].last;
        let timer = &mut self.timers[index as usize];
        timer.previous = last;
        timer.next = NO_TIMER;
        match last {
            NO_TIMER => self.queues[queue].first = index,
            last => self.timers[last as usize].next = index,
        }
        self.queues[queue].last = index;
        self.occupied[queue / SLOTS] |= 1 << (queue % SLOTS);
    }

    /// Takes a running timer out of its queue, and makes its place free under a new generation.
    fn take(&mut self, index: u32) -> Option<T> {
        let timer = &mut self.timers[index as usize];
        let (previous, next, deadline) = (timer.previous, timer.next, timer.deadline);
        let value = timer.value.take();
        timer.generation = timer.generation.wrapping_add(1);
        timer.next = self.free_head;
        self.free_head = index;
        self.len -= 1;

        let queue = queue_of(self.now, deadline);
        match previous {
            NO_TIMER => self.queues[queue].first = next,
            previous => self.timers[previous as usize].next = next,
        }
        match next {
            NO_TIMER => self.queues[queue].last = previous,
            next => self.timers[next as usize].previous = previous,
        }
        if self.queues[queue].first == NO_TIMER {
            self.occupied[queue / SLOTS] &= !(1 << (queue % SLOTS));
        }
        value
    }
}

impl<T> fmt::Debug for TimingWheel<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("TimingWheel")
            .field("now", &self.now)
            .field("len", &self.len)
            .field("capacity", &self.capacity)
            .field("next_wake", &self.next_wake())
            .finish_non_exhaustive()
    }
}

impl<T> fmt::Display for WheelFull<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("all timers of the wheel are running; cancel some or make the wheel larger")
    }
}

impl<T: fmt::Debug> core::error::Error for WheelFull<T> {}

const DIGIT_BITS: u32 = 6;
const SLOTS: usize = 1 << DIGIT_BITS;
const LEVELS: usize = u64::BITS.div_ceil(DIGIT_BITS) as usize;
const NO_TIMER: u32 = u32::MAX;
/// Timers a growing wheel has room for once it has one, and levels: if a tick is a millisecond, those of the next twelve days.
const FIRST_TIMERS: usize = 16;
const FIRST_LEVELS: usize = 5;

struct Timer<T> {
    deadline: u64,
    /// Neighbours in the queue; of a free timer, `next` is the next free one.
    previous: u32,
    next: u32,
    generation: u32,
    value: Option<T>,
}

impl<T> Timer<T> {
    const VACANT: Self = Self { deadline: 0, previous: NO_TIMER, next: NO_TIMER, generation: 0, value: None };
}

#[derive(Clone, Copy)]
struct Queue {
    first: u32,
    last: u32,
}

impl Queue {
    const EMPTY: Self = Self { first: NO_TIMER, last: NO_TIMER };
}

/// Where a timer with this deadline lies at this time. A timer due now is on the lowest level, like one that differs from now
/// in the lowest digit only.
fn queue_of(now: u64, deadline: u64) -> usize {
    let level = ((now ^ deadline) | 1).ilog2() / DIGIT_BITS;
    let slot = (deadline >> (level * DIGIT_BITS)) as usize % SLOTS;
    level as usize * SLOTS + slot
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeMap;
    use alloc::rc::Rc;
    use proptest::prelude::*;

    #[derive(Debug, Clone)]
    enum Step {
        Insert { after: u64 },
        InsertPassed { before: u64 },
        InsertAt { deadline: u64 },
        Cancel { which: usize },
        Advance { by: u64 },
        AdvanceToWake,
        ClockBack { by: u64 },
    }

    /// Spans of every magnitude, so that every level and the borders between them are met.
    fn span() -> impl Strategy<Value = u64> {
        prop_oneof![4 => 0..130_u64, 1 => (0..64_u32, any::<u64>()).prop_map(|(shift, bits)| bits >> shift)]
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        prop::collection::vec(
            prop_oneof![
                8 => span().prop_map(|after| Step::Insert { after }),
                1 => span().prop_map(|before| Step::InsertPassed { before }),
                1 => prop_oneof![any::<u64>(), Just(u64::MAX)].prop_map(|deadline| Step::InsertAt { deadline }),
                4 => any::<usize>().prop_map(|which| Step::Cancel { which }),
                3 => span().prop_map(|by| Step::Advance { by }),
                3 => Just(Step::AdvanceToWake),
                1 => span().prop_map(|by| Step::ClockBack { by }),
            ],
            0..120,
        )
    }

    const CAPACITY: usize = 24;

    /// The promise of a wheel, as plainly as possible: timers by deadline, then by order of insertion.
    struct Model {
        now: u64,
        inserted: usize,
        running: BTreeMap<(u64, usize), usize>,
    }

    impl Model {
        fn pop_due(&mut self, now: u64) -> Option<(u64, usize)> {
            self.now = self.now.max(now);
            let (&(deadline, order), &value) = self.running.first_key_value()?;
            if deadline > self.now {
                return None;
            }
            self.running.remove(&(deadline, order));
            Some((deadline, value))
        }
    }

    proptest! {
        #[test]
        fn a_wheel_behaves_like_an_ordered_map(start in span(), steps in steps(), growing: bool) {
            let make = if growing { TimingWheel::growing } else { TimingWheel::with_capacity };
            let mut wheel = make(CAPACITY as u32, start);
            let mut model = Model { now: start, inserted: 0, running: BTreeMap::new() };
            let mut handles: Vec<(TimerHandle, (u64, usize))> = Vec::new();
            for step in steps {
                let mut insert = |deadline: u64, wheel: &mut TimingWheel<usize>, model: &mut Model| {
                    let value = model.inserted;
                    model.inserted += 1;
                    let due = deadline.max(model.now);
                    match wheel.insert(deadline, value) {
                        Ok(handle) => {
                            assert!(model.running.len() < CAPACITY);
                            model.running.insert((due, value), value);
                            handles.push((handle, (due, value)));
                        }
                        Err(WheelFull(refused)) => assert_eq!((refused, model.running.len()), (value, CAPACITY)),
                    }
                };
                match step {
                    Step::Insert { after } => insert(model.now.saturating_add(after), &mut wheel, &mut model),
                    Step::InsertPassed { before } => insert(model.now.saturating_sub(before), &mut wheel, &mut model),
                    Step::InsertAt { deadline } => insert(deadline, &mut wheel, &mut model),
                    Step::Cancel { which } => {
                        if !handles.is_empty() {
                            let (handle, key) = handles[which % handles.len()];
                            prop_assert_eq!(wheel.cancel(handle), model.running.remove(&key));
                        }
                    }
                    Step::Advance { by } => {
                        let now = model.now.saturating_add(by);
                        loop {
                            let expected = model.pop_due(now);
                            prop_assert_eq!(wheel.pop_due(now), expected);
                            if expected.is_none() {
                                break;
                            }
                        }
                    }
                    Step::AdvanceToWake => {
                        let first = model.running.first_key_value().map(|(key, _)| key.0);
                        prop_assert_eq!(wheel.next_wake().is_some(), first.is_some());
                        if let (Some(wake), Some(first)) = (wheel.next_wake(), first) {
                            prop_assert!(model.now <= wake && wake <= first, "{} <= {} <= {}", model.now, wake, first);
                            prop_assert_eq!(wheel.pop_due(wake), model.pop_due(wake));
                        }
                    }
                    Step::ClockBack { by } => {
                        let now = model.now.saturating_sub(by);
                        prop_assert_eq!(wheel.pop_due(now), model.pop_due(now));
                    }
                }
                prop_assert_eq!(wheel.len(), model.running.len());
                prop_assert_eq!(wheel.is_empty(), model.running.is_empty());
            }
            loop {
                let expected = model.pop_due(u64::MAX);
                prop_assert_eq!(wheel.pop_due(u64::MAX), expected);
                if expected.is_none() {
                    break;
                }
            }
            prop_assert!(handles.into_iter().all(|(handle, _)| wheel.cancel(handle).is_none()));
        }
    }

    /// A fixed sequence of numbers that looks like none.
    fn scattered(index: u64) -> u64 {
        let mixed = (index + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (mixed ^ (mixed >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 20
    }

    #[test]
    fn a_million_timers_fire_at_their_exact_ticks() {
        const TIMERS: u64 = 1_000_000;
        const TICKS: u64 = 60_000;
        let mut wheel = TimingWheel::with_capacity(TIMERS as u32, 0);
        let handles: Vec<_> = (0..TIMERS)
            .map(|index| wheel.insert(1 + scattered(index) % TICKS, index as u32).expect("there is room for each"))
            .collect();
        assert_eq!(wheel.insert(1, 0), Err(WheelFull(0)));
        for (index, handle) in handles.iter().enumerate().step_by(3) {
            assert_eq!(wheel.cancel(*handle), Some(index as u32));
        }
        let mut fired = 0;
        for now in 0..=TICKS {
            while let Some((deadline, index)) = wheel.pop_due(now) {
                assert_eq!((deadline, deadline), (now, 1 + scattered(u64::from(index)) % TICKS));
                assert_ne!(index % 3, 0, "a cancelled timer fired");
                fired += 1;
            }
        }
        assert_eq!(fired, TIMERS - TIMERS.div_ceil(3));
        assert!(wheel.is_empty());
    }

    #[test]
    fn the_farthest_deadline_fires_at_its_tick_and_not_before() {
        let mut wheel = TimingWheel::with_capacity(1, 0);
        wheel.insert(u64::MAX, "end of time").expect("there is room");
        assert_eq!(wheel.pop_due(u64::MAX - 1), None);
        assert_eq!(wheel.next_wake(), Some(u64::MAX));
        assert_eq!(wheel.pop_due(u64::MAX), Some((u64::MAX, "end of time")));
    }

    #[test]
    fn deadlines_at_the_borders_of_every_level_fire_at_their_ticks() {
        let borders = (1..LEVELS as u32).flat_map(|level| {
            let border = 1_u64 << (level * DIGIT_BITS);
            [border - 1, border, border + 1]
        });
        let mut wheel = TimingWheel::with_capacity(64, 0);
        for deadline in borders.clone() {
            wheel.insert(deadline, ()).expect("there is room");
        }
        for deadline in borders {
            assert_eq!(wheel.pop_due(deadline - 1), None, "early for {deadline}");
            assert_eq!(wheel.pop_due(deadline), Some((deadline, ())));
        }
    }

    #[test]
    fn sleeping_until_the_next_wake_reaches_any_deadline_in_one_step_per_level() {
        let mut wheel = TimingWheel::with_capacity(2, 0);
        for _ in 0..2 {
            wheel.insert(u64::MAX - 12_345, ()).expect("there is room");
        }
        let mut wakes = 0;
        while let Some(wake) = wheel.next_wake() {
            wheel.pop_due(wake);
            wakes += 1;
        }
        assert!(wakes <= LEVELS + 1, "{wakes}");
        assert_eq!(wheel.now(), u64::MAX - 12_345);
    }

    #[test]
    fn a_timer_that_runs_alone_is_not_woken_for_before_it_is_due() {
        let mut wheel = TimingWheel::with_capacity(2, 0);
        for deadline in [7, 1_000, 123_456, u64::MAX - 12_345] {
            wheel.insert(deadline, deadline).expect("there is room");
            assert_eq!(wheel.next_wake(), Some(deadline));
            assert_eq!(wheel.pop_due(deadline), Some((deadline, deadline)));
        }
    }

    #[test]
    fn a_timer_inserted_while_others_fire_takes_its_turn() {
        let mut wheel = TimingWheel::with_capacity(8, 0);
        wheel.insert(10, 'a').expect("there is room");
        wheel.insert(30, 'd').expect("there is room");
        assert_eq!(wheel.pop_due(100), Some((10, 'a')));
        wheel.insert(20, 'c').expect("there is room");
        wheel.insert(5, 'b').expect("there is room");
        assert_eq!(wheel.pop_due(100), Some((10, 'b')));
        assert_eq!(wheel.pop_due(100), Some((20, 'c')));
        assert_eq!(wheel.pop_due(100), Some((30, 'd')));
        assert_eq!(wheel.pop_due(100), None);
    }

    #[test]
    fn the_handle_of_a_gone_timer_does_not_cancel_its_successor() {
        let mut wheel = TimingWheel::with_capacity(1, 0);
        let first = wheel.insert(1, "first").expect("there is room");
        assert_eq!(wheel.cancel(first), Some("first"));
        assert_eq!(wheel.cancel(first), None);
        let second = wheel.insert(1, "second").expect("there is room again");
        assert_eq!(wheel.cancel(first), None);
        assert_eq!(wheel.pop_due(1), Some((1, "second")));
        assert_eq!(wheel.cancel(second), None);
    }

    #[test]
    fn a_growing_wheel_takes_no_memory_before_its_first_timer_and_then_little() {
        let mut wheel = TimingWheel::growing(1 << 16, 0);
        let room = |wheel: &TimingWheel<u32>| (wheel.timers.capacity(), wheel.queues.capacity());
        assert_eq!((wheel.pop_due(1), wheel.next_wake(), room(&wheel)), (None, None, (0, 0)));
        wheel.insert(9, 1).expect("there is room");
        assert_eq!(room(&wheel), (FIRST_TIMERS, FIRST_LEVELS * SLOTS));
        let full = TimingWheel::<u32>::with_capacity(100, 0);
        assert_eq!((full.timers.capacity(), full.queues.len()), (100, LEVELS * SLOTS), "another takes all at once");
    }

    #[test]
    fn a_wheel_for_no_timers_refuses_and_has_nothing_due() {
        let mut wheel = TimingWheel::with_capacity(0, 7);
        assert_eq!(wheel.insert(8, 'x'), Err(WheelFull('x')));
        assert_eq!(wheel.pop_due(9), None);
    }

    #[test]
    fn values_are_dropped_once_whether_fired_cancelled_or_left() {
        let value = Rc::new(());
        let mut wheel = TimingWheel::with_capacity(4, 0);
        let cancelled = wheel.insert(5, value.clone()).expect("there is room");
        wheel.insert(6, value.clone()).expect("there is room");
        wheel.insert(7, value.clone()).expect("there is room");
        assert_eq!(Rc::strong_count(&value), 4);
        wheel.cancel(cancelled);
        wheel.pop_due(6);
        assert_eq!(Rc::strong_count(&value), 2);
        drop(wheel);
        assert_eq!(Rc::strong_count(&value), 1);
    }
}
