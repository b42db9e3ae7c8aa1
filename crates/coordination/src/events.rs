//! Events: what an operation changed, for observers.
//!
//! Events are inert data handed back beside a result. Nothing in the protocol acts on them; metrics, dashboards and
//! notifications are the caller's business. A replay emits nothing, because nothing happened.
//!
//! Every mutating operation of every backend takes an [`EventSink`] in its `_with_events` form, and the plain form passes
//! [`NoEvents`]; so a backend cannot forget to emit. [`EventKind`] is not serialisable on purpose: a checkpoint event
//! holds key bytes that only `Debug` hides.

use alloc::vec::Vec;

use tessera_contracts::ids::{FenceEpoch, LogicalTime, RunId, ShardId, TenantId, WorkerId};
use tessera_contracts::redact::RedactedKey;

use crate::decide::Split;
use crate::decide::order::OrderRequest;
use crate::record::history::MoveReason;
use crate::record::op_log::OpKind;
use crate::record::state::Change;
use crate::record::status::ParkReason;

/// What happened.
///
/// More kinds may come, so a match says what becomes of those it does not know:
///
/// ```
/// # use tessera_coordination::events::EventKind;
/// fn of_a_run(kind: &EventKind) -> bool {
///     match kind {
///         EventKind::RunCreated => true,
///         other => other.is_run_event(),
///     }
/// }
/// ```
///
/// ```compile_fail,E0004
/// # use tessera_coordination::events::EventKind;
/// fn of_a_run(kind: &EventKind) -> bool {
///     match kind {
///         EventKind::RunCreated
///         | EventKind::RunActivated { .. }
///         | EventKind::RunCompleted
///         | EventKind::RunFailed
///         | EventKind::RunCancelled
///         | EventKind::RunRetired { .. } => true,
///         EventKind::ShardAcquired { .. }
///         | EventKind::ShardCheckpointed { .. }
///         | EventKind::ShardResidualCreated { .. }
///         | EventKind::ShardUnparked { .. }
///         | EventKind::ShardLeaseRenewed { .. }
///         | EventKind::ShardReleased { .. }
///         | EventKind::ShardOrdered { .. }
///         | EventKind::ShardCompleted { .. }
///         | EventKind::ShardParked { .. }
///         | EventKind::ShardSplit { .. } => false,
///     }
/// }
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum EventKind {
    /// A worker was granted a shard.
    ShardAcquired {
        /// The shard.
        shard: ShardId,
        /// Its new owner.
        worker: WorkerId,
        /// The new fence epoch.
        fence_epoch: FenceEpoch,
        /// Why the shard was free.
        reason: MoveReason,
    },
    /// Progress was recorded.
    ShardCheckpointed {
        /// The shard.
        shard: ShardId,
        /// The last key processed.
        last_key: RedactedKey,
    },
    /// A shard gave away the rest of its range.
    ShardResidualCreated {
        /// The shard that shrank.
        parent: ShardId,
        /// The new shard.
        residual: ShardId,
    },
    /// A parked shard was revived.
    ShardUnparked {
        /// The shard.
        shard: ShardId,
        /// The new fence epoch.
        new_fence_epoch: FenceEpoch,
    },
    /// A lease was extended.
    ShardLeaseRenewed {
        /// The shard.
        shard: ShardId,
        /// The new deadline.
        new_deadline: LogicalTime,
    },
    /// A worker gave a shard back.
    ShardReleased {
        /// The shard.
        shard: ShardId,
        /// Why.
        reason: MoveReason,
    },
    /// A holder was asked for something.
    ShardOrdered {
        /// The shard.
        shard: ShardId,
        /// What.
        order: OrderRequest,
    },
    /// A shard is done.
    ShardCompleted {
        /// The shard.
        shard: ShardId,
    },
    /// A shard was halted.
    ShardParked {
        /// The shard.
        shard: ShardId,
        /// Why.
        reason: ParkReason,
    },
    /// A shard was replaced by its children.
    ShardSplit {
        /// The shard that retired.
        parent: ShardId,
        /// Its children, in key order.
        children: Vec<ShardId>,
    },
    /// A run was created.
    RunCreated,
    /// A run got its shards.
    RunActivated {
        /// How many.
        shard_count: u32,
    },
    /// A run is done.
    RunCompleted,
    /// A run was given up.
    RunFailed,
    /// A run was called off.
    RunCancelled,
    /// A settled run was forgotten.
    RunRetired {
        /// How many shards went with it.
        shard_count: u32,
    },
}

impl EventKind {
    /// Whether it is about a shard.
    pub const fn is_shard_event(&self) -> bool {
        match self {
            Self::ShardAcquired { .. }
            | Self::ShardCheckpointed { .. }
            | Self::ShardResidualCreated { .. }
            | Self::ShardUnparked { .. }
            | Self::ShardLeaseRenewed { .. }
            | Self::ShardReleased { .. }
            | Self::ShardOrdered { .. }
            | Self::ShardCompleted { .. }
            | Self::ShardParked { .. }
            | Self::ShardSplit { .. } => true,
            Self::RunCreated
            | Self::RunActivated { .. }
            | Self::RunCompleted
            | Self::RunFailed
            | Self::RunCancelled
            | Self::RunRetired { .. } => false,
        }
    }

    /// Whether it is about a run as a whole.
    pub const fn is_run_event(&self) -> bool {
        !self.is_shard_event()
    }

    /// Whether the shard or run it is about is settled by it.
    pub const fn is_terminal(&self) -> bool {
        match self {
            Self::ShardCompleted { .. }
            | Self::ShardParked { .. }
            | Self::ShardSplit { .. }
            | Self::RunCompleted
            | Self::RunFailed
            | Self::RunCancelled
            | Self::RunRetired { .. } => true,
            Self::ShardAcquired { .. }
            | Self::ShardCheckpointed { .. }
            | Self::ShardResidualCreated { .. }
            | Self::ShardUnparked { .. }
            | Self::ShardLeaseRenewed { .. }
            | Self::ShardReleased { .. }
            | Self::ShardOrdered { .. }
            | Self::RunCreated
            | Self::RunActivated { .. } => false,
        }
    }

    /// Which records changed with it: what a backend has to write down.
    pub const fn touched(&self) -> Touched<'_> {
        match self {
            Self::ShardAcquired { shard, .. }
            | Self::ShardCheckpointed { shard, .. }
            | Self::ShardUnparked { shard, .. }
            | Self::ShardLeaseRenewed { shard, .. }
            | Self::ShardReleased { shard, .. }
            | Self::ShardOrdered { shard, .. }
            | Self::ShardCompleted { shard }
            | Self::ShardParked { shard, .. } => Touched::Shard(*shard),
            Self::ShardResidualCreated { parent, residual } => {
                Touched::Split { parent: *parent, children: core::slice::from_ref(residual) }
            }
            Self::ShardSplit { parent, children } => Touched::Split { parent: *parent, children: children.as_slice() },
            Self::RunActivated { .. } => Touched::RunAndRoots,
            Self::RunCreated | Self::RunCompleted | Self::RunFailed | Self::RunCancelled => Touched::Run,
            Self::RunRetired { .. } => Touched::RunGone,
        }
    }

    /// The event of an operation with an op id that made no shards, told by what it logs.
    pub fn of_change(shard: ShardId, change: &Change<'_>) -> Option<Self> {
        let last_key = || change.cursor.and_then(|cursor| cursor.last_key());
        match change.logged?.kind {
            OpKind::Checkpoint => Some(Self::ShardCheckpointed { shard, last_key: RedactedKey::new(last_key()) }),
            OpKind::Complete => Some(Self::ShardCompleted { shard }),
            OpKind::Park => change.head.park.map(|park| Self::ShardParked { shard, reason: park.reason }),
            OpKind::Unpark => Some(Self::ShardUnparked { shard, new_fence_epoch: change.head.fence }),
            // A report that a shard cannot be reached may be the one that halts it.
            OpKind::Release => Some(match change.head.park {
                Some(park) => Self::ShardParked { shard, reason: park.reason },
                None => Self::ShardReleased { shard, reason: change.head.freed },
            }),
            OpKind::SplitReplace | OpKind::SplitResidual => None,
        }
    }

    /// The event of a split.
    pub fn of_split<T>(parent: ShardId, split: &Split<'_, '_, T>) -> Option<Self> {
        let residual = split.births.first()?.key.shard;
        match split.change.logged?.kind {
            OpKind::SplitResidual => Some(Self::ShardResidualCreated { parent, residual }),
            OpKind::SplitReplace => {
                Some(Self::ShardSplit { parent, children: split.births.iter().map(|birth| birth.key.shard).collect() })
            }
            OpKind::Checkpoint | OpKind::Complete | OpKind::Park | OpKind::Unpark | OpKind::Release => None,
        }
    }
}

/// The records that an event changed; see [`EventKind::touched`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Touched<'e> {
    /// One shard, but neither its range nor its children.
    Shard(ShardId),
    /// A shard's range or children, and the shards it made.
    Split {
        /// The shard that was split.
        parent: ShardId,
        /// The shards it made.
        children: &'e [ShardId],
    },
    /// The run's record.
    Run,
    /// The run's record; and its shards are new.
    RunAndRoots,
    /// The run and its shards are no more.
    RunGone,
}

/// An event with what is needed to route, correlate and order it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StateTransitionEvent {
    /// Whose.
    pub tenant: TenantId,
    /// Of which run.
    pub run: RunId,
    /// When.
    pub at: LogicalTime,
    /// What.
    pub kind: EventKind,
}

/// Where events go.
pub trait EventSink: Send {
    /// Whether anyone listens; if not, events are not even made.
    fn is_enabled(&self) -> bool;

    /// Takes one event; false if it was dropped for want of room.
    fn emit(&mut self, event: StateTransitionEvent) -> bool;
}

/// Nobody listens.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoEvents;

impl EventSink for NoEvents {
    fn is_enabled(&self) -> bool {
        false
    }

    fn emit(&mut self, _: StateTransitionEvent) -> bool {
        false
    }
}

/// Where and when events happen; backends emit through it.
#[derive(Clone, Copy, Debug)]
pub struct EventScope {
    /// Whose.
    pub tenant: TenantId,
    /// Of which run.
    pub run: RunId,
    /// When.
    pub at: LogicalTime,
}

impl EventScope {
    /// Emits what `kind` makes, if anyone listens.
    #[inline]
    pub fn emit(self, sink: &mut dyn EventSink, kind: impl FnOnce() -> Option<EventKind>) {
        if sink.is_enabled()
            && let Some(kind) = kind()
        {
            sink.emit(StateTransitionEvent { tenant: self.tenant, run: self.run, at: self.at, kind });
        }
    }
}

/// Collects the events of one tenant.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct EventCollector {
    events: Vec<StateTransitionEvent>,
    tenant: Option<TenantId>,
    capacity_max: Option<usize>,
}

impl EventCollector {
    /// Empty; nothing is allocated yet.
    pub const fn new() -> Self {
        Self { events: Vec::new(), tenant: None, capacity_max: None }
    }

    /// Empty, with room for `capacity` events.
    pub fn with_capacity(capacity: usize) -> Self {
        Self { events: Vec::with_capacity(capacity), ..Self::new() }
    }

    /// Empty, never holding more than `max` events: what comes on top is dropped.
    pub const fn with_max_capacity(max: usize) -> Self {
        Self { events: Vec::new(), tenant: None, capacity_max: Some(max) }
    }

    /// Takes one event; false if there was no room.
    ///
    /// # Panics
    ///
    /// If the event is of another tenant than those before: one collector serves one tenant, so that nobody reads
    /// another's events by accident.
    pub fn emit(&mut self, event: StateTransitionEvent) -> bool {
        let tenant = *self.tenant.get_or_insert(event.tenant);
        assert!(tenant == event.tenant, "an event collector serves one tenant");
        if self.capacity_max.is_some_and(|max| self.events.len() >= max) {
            return false;
        }
        self.events.push(event);
        true
    }

    /// All events so far, leaving none.
    pub fn drain(&mut self) -> Vec<StateTransitionEvent> {
        core::mem::take(&mut self.events)
    }

    /// Gives all events so far to `f` and keeps the memory for the next.
    pub fn drain_with(&mut self, f: impl FnMut(StateTransitionEvent)) {
        self.events.drain(..).for_each(f);
    }

    /// How many there are.
    pub const fn len(&self) -> usize {
        self.events.len()
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// The events so far.
    pub fn iter(&self) -> core::slice::Iter<'_, StateTransitionEvent> {
        self.events.iter()
    }
}

impl EventSink for EventCollector {
    fn is_enabled(&self) -> bool {
        true
    }

    fn emit(&mut self, event: StateTransitionEvent) -> bool {
        Self::emit(self, event)
    }
}

#[cfg(test)]
mod tests {
    use alloc::format;

    use super::*;

    #[test]
    fn nothing_here_can_be_serialised_by_accident() {
        // A derive needs a library, and this crate depends on none that serialises.
        let manifest = include_str!("../Cargo.toml");
        for library in ["serde", "bincode", "postcard", "rkyv", "borsh", "prost", "ciborium"] {
            assert!(!manifest.contains(library), "{library} could write out the keys that `Debug` hides");
        }
    }

    fn event(tenant: u8, kind: EventKind) -> StateTransitionEvent {
        let tenant = TenantId::from_bytes([tenant; 32]);
        StateTransitionEvent { tenant, run: RunId::new(1), at: LogicalTime::new(1), kind }
    }

    #[test]
    fn a_full_collector_drops_the_next_event_and_says_so() {
        let mut collector = EventCollector::with_max_capacity(1);
        assert!(collector.emit(event(1, EventKind::RunCreated)));
        assert!(!collector.emit(event(1, EventKind::RunCompleted)));
        assert_eq!(collector.len(), 1);
        assert_eq!(collector.drain(), [event(1, EventKind::RunCreated)]);
        assert!(collector.is_empty());
        assert!(collector.emit(event(1, EventKind::RunFailed)));
    }

    #[test]
    fn draining_with_a_function_keeps_the_memory() {
        let mut collector = EventCollector::with_capacity(4);
        collector.emit(event(1, EventKind::RunCreated));
        let capacity = collector.events.capacity();
        let mut seen = Vec::new();
        collector.drain_with(|event| seen.push(event.kind));
        assert_eq!(seen, [EventKind::RunCreated]);
        assert_eq!((collector.len(), collector.events.capacity()), (0, capacity));
    }

    #[test]
    #[should_panic(expected = "one tenant")]
    fn events_of_two_tenants_do_not_mix() {
        let mut collector = EventCollector::new();
        collector.emit(event(1, EventKind::RunCreated));
        collector.drain();
        collector.emit(event(2, EventKind::RunCreated));
    }

    #[test]
    fn an_event_shows_the_length_of_a_key_and_not_the_key() {
        let kind = EventKind::ShardCheckpointed {
            shard: ShardId::new(1),
            last_key: RedactedKey::new(Some(b"customer/secret")),
        };
        let shown = format!("{kind:?}");
        assert!(shown.contains("Some(<15 bytes>)") && !shown.contains("customer"), "{shown}");
    }

    #[test]
    fn settling_events_are_terminal_and_others_are_not() {
        let shard = ShardId::new(1);
        for (kind, terminal, of_shard) in [
            (EventKind::ShardCompleted { shard }, true, true),
            (EventKind::ShardParked { shard, reason: ParkReason::Other }, true, true),
            (EventKind::ShardSplit { parent: shard, children: Vec::new() }, true, true),
            (EventKind::ShardResidualCreated { parent: shard, residual: shard }, false, true),
            (EventKind::ShardUnparked { shard, new_fence_epoch: FenceEpoch::INITIAL }, false, true),
            (EventKind::RunCreated, false, false),
            (EventKind::RunActivated { shard_count: 1 }, false, false),
            (EventKind::RunCompleted, true, false),
            (EventKind::RunFailed, true, false),
            (EventKind::RunCancelled, true, false),
        ] {
            assert_eq!((kind.is_terminal(), kind.is_shard_event()), (terminal, of_shard), "{kind:?}");
            assert_ne!(kind.is_shard_event(), kind.is_run_event());
        }
    }

    #[test]
    fn nobody_listens_to_no_events_and_nothing_is_taken() {
        let mut nobody = NoEvents;
        assert!(!nobody.is_enabled() && !EventSink::emit(&mut nobody, event(1, EventKind::RunCreated)));
        let scope = EventScope { tenant: TenantId::from_bytes([1; 32]), run: RunId::new(1), at: LogicalTime::new(1) };
        scope.emit(&mut nobody, || panic!("an event was made for nobody"));
    }

    #[test]
    fn a_collector_that_is_given_room_needs_no_more_of_it() {
        let mut collector = EventCollector::with_capacity(40);
        assert!(collector.is_empty() && collector.events.capacity() >= 40);
        let before = collector.events.as_ptr();
        (0..40).for_each(|_| assert!(collector.emit(event(1, EventKind::RunCreated))));
        assert_eq!((collector.events.as_ptr(), collector.iter().len()), (before, 40));
    }

    #[test]
    fn whoever_emits_to_a_sink_hears_whether_it_was_taken() {
        let mut collector = EventCollector::with_max_capacity(1);
        let sink: &mut dyn EventSink = &mut collector;
        assert!(sink.is_enabled());
        assert_eq!([(); 2].map(|()| sink.emit(event(1, EventKind::RunCreated))), [true, false]);
        assert_eq!(collector.len(), 1);
    }
}
