//! Where everything lies: deterministic ASCII paths, typed by what they hold.
//!
//! ```text
//! {namespace}/v5/run/{tenant}/{run}                 the run's record: small, read often, written seldom
//!                roots/{tenant}/{run}               the ids of its roots: large, read only where they are asked for
//!                cold/{tenant}/{run}/{shard}        range, metadata, children: written by splits only
//!                hot/{tenant}/{run}/{shard}         status, fence, cursor, op-log: written by every operation
//!                owner/{tenant}/{run}/{place}       who holds it; attached to the worker's etcd lease
//!                standing/{tenant}/{run}/{worker}/{session}  the run is open and the session lives; attached to its etcd lease
//!                present/{tenant}/{worker}/{session}         the session lives; attached to its etcd lease
//!                abstains/{tenant}/{run}/{incarnation}/{worker}/{session}  it cannot serve the run; attached to its etcd lease
//!                free/{tenant}/{run}/{place}        open and not held
//!                reported/{tenant}/{run}/{place}    the same, and a worker could not reach it
//!                held/{tenant}/{run}/{place}        open and held when last written
//!                parked/{tenant}/{run}/{place}      halted
//!                family/{tenant}/{run}/{place}      born together, and not all of them held yet; at the place of the first
//!                hatching/{tenant}/{run}/{shard}    split, with children that have yet to be published
//!                active-run/{tenant}/{run}          run that is active
//!                new-run/{created}/{tenant}/{run}   run without shards, by age
//!                retired/{tenant}                   the run of the tenant that was retired last
//!                count/all/{stripe}                 how many shards there are: the sum over all stripes
//!                count/of/{tenant}/{stripe}         and how many of them a tenant has
//!                count/{of whom}/guard              how many whole blocks those stripes have filled
//! ```
//!
//! An open shard is in `free`, in `reported`, in `held`, or, until a worker first holds it, in a family: so a run is finished when none of
//! those is left, but for families whose members have all been touched. A *place* is the shard's
//! id behind a hash of it: the shards of a run lie evenly over 65,536 points, so a reader can take a narrow window of
//! about as many as it wants, which is the only kind of range etcd serves cheaply. Ids are of fixed width, six bits a
//! character, and text order is numeric order; every segment but the namespace has a fixed alphabet without `/`, so no path
//! can be another's prefix by accident (the tests below try).

mod digits;

use bytes::Bytes;
use tessera_contracts::{LogicalTime, RunId, RunIncarnation, ShardId, ShardKey, TenantId, WorkerId};

use self::digits::NUMBER;
use crate::kv::{EtcdLeaseId, Keys};
use crate::random::mix;

/// The layout's version. Each lives beside the others, never on top of them, and all have their runs under `run/`.
pub const LAYOUT: &str = "v5";
/// Points over which the shards of a run are spread.
pub const POINTS: u32 = 1 << 16;

macro_rules! store_path {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        pub struct $name(Bytes);

        impl From<$name> for Bytes {
            fn from(path: $name) -> Self {
                path.0
            }
        }

        impl From<&$name> for Bytes {
            fn from(path: &$name) -> Self {
                path.0.clone()
            }
        }

        impl $name {
            /// The path's bytes.
            #[must_use]
            pub fn as_bytes(&self) -> &[u8] {
                &self.0
            }
        }
    )*};
}

store_path! {
    /// A run's record.
    RunPath,
    /// The ids of a run's roots.
    RootsPath,
    /// A shard's range, metadata and children.
    ColdPath,
    /// A shard's status, fence, cursor and op-log.
    HotPath,
    /// Who holds a shard.
    OwnerPath,
    /// That a run is open and a session lives.
    StandingPath,
    /// That a session lives, or that it cannot serve a run.
    PresencePath,
    /// An entry of one of a run's indexes.
    IndexPath,
    /// An entry of one of the indexes of runs.
    RunIndexPath,
    /// A counter of shards.
    CountPath,
}

/// A run's index of shards by what can be done with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ShardIndex {
    /// Open and not held.
    Free,
    /// The same, and a worker reported that it cannot reach it.
    Reported,
    /// Open and held when last written.
    Held,
    /// Halted.
    Parked,
}

impl ShardIndex {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Free, Self::Reported, Self::Held, Self::Parked];

    const fn segment(self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::Reported => "reported",
            Self::Held => "held",
            Self::Parked => "parked",
        }
    }
}

/// A part of the circle of points over which a run's shards are spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    start: u32,
    end: u32,
}

impl Window {
    /// All points.
    pub const ALL: Self = Self { start: 0, end: POINTS };

    /// A window that holds about `wanted` of `shards`, beginning near `point`. Everything, if there are no more than that.
    #[must_use]
    pub fn holding(wanted: u32, shards: u64, point: u16) -> Self {
        if shards <= u64::from(wanted) {
            return Self::ALL;
        }
        let width = (u64::from(POINTS) * u64::from(wanted)).div_ceil(shards);
        let width = u32::try_from(width).unwrap_or(POINTS).clamp(1, POINTS);
        let start = u32::from(point).min(POINTS - width);
        Self { start, end: start + width }
    }

    /// The same width again, behind this one; begins anew after the last point.
    #[must_use]
    pub fn next(self) -> Self {
        let width = self.end - self.start;
        if self.end >= POINTS {
            return Self { start: 0, end: width };
        }
        let start = self.end.min(POINTS - width);
        Self { start, end: start + width }
    }

    /// How many such windows cover everything.
    #[must_use]
    pub const fn count(self) -> u32 {
        POINTS.div_ceil(self.end - self.start)
    }

    /// What to multiply a count in this window with to estimate the whole.
    #[must_use]
    pub fn scaled(self, count: u64) -> u64 {
        (count * u64::from(POINTS)).div_ceil(u64::from(self.end - self.start))
    }
}

/// Paths of one namespace.
#[derive(Clone, Debug)]
pub struct Keyspace {
    namespace: String,
    root: String,
}

impl Keyspace {
    /// The paths under `namespace`, which a validated configuration supplies.
    #[must_use]
    pub fn new(namespace: &str) -> Self {
        Self { namespace: namespace.to_owned(), root: format!("{namespace}/{LAYOUT}") }
    }

    /// A run's record.
    #[must_use]
    pub fn run(&self, tenant: TenantId, run: RunId) -> RunPath {
        RunPath(self.of_run("run", tenant, run))
    }

    /// The ids of a run's roots.
    #[must_use]
    pub fn roots(&self, tenant: TenantId, run: RunId) -> RootsPath {
        RootsPath(self.of_run("roots", tenant, run))
    }

    /// A shard's cold part.
    #[must_use]
    pub fn cold(&self, tenant: TenantId, key: ShardKey) -> ColdPath {
        ColdPath(self.of_shard("cold", tenant, key))
    }

    /// A shard's hot part.
    #[must_use]
    pub fn hot(&self, tenant: TenantId, key: ShardKey) -> HotPath {
        HotPath(self.of_shard("hot", tenant, key))
    }

    /// Who holds a shard.
    #[must_use]
    pub fn owner(&self, tenant: TenantId, key: ShardKey) -> OwnerPath {
        OwnerPath(self.at_place("owner", tenant, key))
    }

    /// That a run is open and a session lives, by the worker and the session's etcd lease.
    #[must_use]
    pub fn standing(&self, tenant: TenantId, run: RunId, worker: WorkerId, session: EtcdLeaseId) -> StandingPath {
        let session = session_number(session);
        StandingPath(self.path(format_args!(
            "standing/{}/{}/{}/{session}",
            digits::tenant(tenant),
            digits::number(run.get()),
            digits::number(worker.get())
        )))
    }

    /// That a session of a worker lives, by the session's etcd lease.
    #[must_use]
    pub fn presence(&self, tenant: TenantId, worker: WorkerId, session: EtcdLeaseId) -> PresencePath {
        let (tenant, session) = (digits::tenant(tenant), session_number(session));
        PresencePath(self.path(format_args!("present/{tenant}/{}/{session}", digits::number(worker.get()))))
    }

    /// The live sessions of one worker.
    #[must_use]
    pub fn presences_of(&self, tenant: TenantId, worker: WorkerId) -> Keys {
        let (tenant, worker) = (digits::tenant(tenant), digits::number(worker.get()));
        Keys::with_prefix(self.path(format_args!("present/{tenant}/{worker}/")))
    }

    /// The live sessions of all of a tenant's workers.
    #[must_use]
    pub fn presences(&self, tenant: TenantId) -> Keys {
        Keys::with_prefix(self.path(format_args!("present/{}/", digits::tenant(tenant))))
    }

    /// That a session cannot serve this creation of a run.
    #[must_use]
    pub fn abstention(
        &self,
        tenant: TenantId,
        run: RunId,
        incarnation: RunIncarnation,
        worker: WorkerId,
        session: EtcdLeaseId,
    ) -> PresencePath {
        let all = abstaining(tenant, run, incarnation);
        let (worker, session) = (digits::number(worker.get()), session_number(session));
        PresencePath(self.path(format_args!("{all}{worker}/{session}")))
    }

    /// The sessions that cannot serve this creation of a run.
    #[must_use]
    pub fn abstentions(&self, tenant: TenantId, run: RunId, incarnation: RunIncarnation) -> Keys {
        Keys::with_prefix(self.path(format_args!("{}", abstaining(tenant, run, incarnation))))
    }

    /// The sessions that cannot serve a run, in any of its creations.
    #[must_use]
    pub fn all_abstentions(&self, tenant: TenantId, run: RunId) -> Keys {
        self.shards_after("abstains", tenant, run, None)
    }

    /// The standings of all sessions in a run.
    #[must_use]
    pub fn standings(&self, tenant: TenantId, run: RunId) -> Keys {
        self.shards_after("standing", tenant, run, None)
    }

    /// A shard's entry in an index of its run.
    #[must_use]
    pub fn index(&self, index: ShardIndex, tenant: TenantId, key: ShardKey) -> IndexPath {
        IndexPath(self.at_place(index.segment(), tenant, key))
    }

    /// Shards that were born together, by the first of them.
    #[must_use]
    pub fn family(&self, tenant: TenantId, first: ShardKey) -> IndexPath {
        IndexPath(self.at_place("family", tenant, first))
    }

    /// A split shard whose children have yet to be published.
    #[must_use]
    pub fn hatching(&self, tenant: TenantId, key: ShardKey) -> IndexPath {
        IndexPath(self.of_shard("hatching", tenant, key))
    }

    /// The entry of a run that is active.
    #[must_use]
    pub fn active_run(&self, tenant: TenantId, run: RunId) -> RunIndexPath {
        RunIndexPath(self.of_run("active-run", tenant, run))
    }

    /// The entry of a run without shards, by when it was created.
    #[must_use]
    pub fn new_run(&self, created: LogicalTime, tenant: TenantId, run: RunId) -> RunIndexPath {
        let (created, tenant, run) = (digits::number(created.get()), digits::tenant(tenant), digits::number(run.get()));
        RunIndexPath(self.path(format_args!("new-run/{created}/{tenant}/{run}")))
    }

    /// Changes with every retirement of one of the tenant's runs.
    #[must_use]
    pub fn retired(&self, tenant: TenantId) -> RunIndexPath {
        RunIndexPath(self.path(format_args!("retired/{}", digits::tenant(tenant))))
    }

    /// One of the stripes over which the count of all shards is spread; without a stripe, their guard.
    #[must_use]
    pub fn count_all(&self, stripe: Option<usize>) -> CountPath {
        match stripe {
            Some(stripe) => CountPath(self.path(format_args!("count/all/{stripe:02x}"))),
            None => CountPath(self.path(format_args!("count/all/guard"))),
        }
    }

    /// One of the stripes over which the count of a tenant's shards is spread; without a stripe, their guard.
    #[must_use]
    pub fn count_of(&self, tenant: TenantId, stripe: Option<usize>) -> CountPath {
        let tenant = digits::tenant(tenant);
        match stripe {
            Some(stripe) => CountPath(self.path(format_args!("count/of/{tenant}/{stripe:02x}"))),
            None => CountPath(self.path(format_args!("count/of/{tenant}/guard"))),
        }
    }

    /// The cold parts of a run's shards whose ids lie behind `after`, in the order of their ids.
    #[must_use]
    pub fn colds_after(&self, tenant: TenantId, run: RunId, after: Option<ShardId>) -> Keys {
        self.shards_after("cold", tenant, run, after)
    }

    /// The cold parts of a run's shards with ids from `first` to `last`, both included.
    #[must_use]
    pub fn colds_between(&self, tenant: TenantId, run: RunId, first: ShardId, last: ShardId) -> Keys {
        self.shards_between("cold", tenant, run, first, last)
    }

    /// The hot parts of a run's shards with ids from `first` to `last`, both included.
    #[must_use]
    pub fn hots_between(&self, tenant: TenantId, run: RunId, first: ShardId, last: ShardId) -> Keys {
        self.shards_between("hot", tenant, run, first, last)
    }

    /// The split shards of a run whose children have yet to be published.
    #[must_use]
    pub fn all_hatching(&self, tenant: TenantId, run: RunId) -> Keys {
        self.shards_after("hatching", tenant, run, None)
    }

    /// The hot parts of all of a run's shards.
    #[must_use]
    pub fn hots(&self, tenant: TenantId, run: RunId) -> Keys {
        self.shards_after("hot", tenant, run, None)
    }

    /// An index of a run, within a window.
    #[must_use]
    pub fn indexed(&self, index: ShardIndex, tenant: TenantId, run: RunId, window: Window) -> Keys {
        self.windowed(index.segment(), tenant, run, window)
    }

    /// The families of a run, within a window.
    #[must_use]
    pub fn families(&self, tenant: TenantId, run: RunId, window: Window) -> Keys {
        self.windowed("family", tenant, run, window)
    }

    /// Who holds the shards of a run, within a window.
    #[must_use]
    pub fn owners(&self, tenant: TenantId, run: RunId, window: Window) -> Keys {
        self.windowed("owner", tenant, run, window)
    }

    /// A tenant's active runs behind `after`, in the order of their ids.
    #[must_use]
    pub fn active_runs_after(&self, tenant: TenantId, after: Option<RunId>) -> Keys {
        self.of_tenant_after("active-run", tenant, after)
    }

    /// Runs without shards that were created before `time`.
    #[must_use]
    pub fn new_runs_before(&self, time: LogicalTime) -> Keys {
        let start = self.path(format_args!("new-run/"));
        Keys::Range { start, end: self.path(format_args!("new-run/{}", digits::number(time.get()))) }
    }

    /// A tenant's runs behind `after`, in the order of their ids.
    #[must_use]
    pub fn runs_after(&self, tenant: TenantId, after: Option<RunId>) -> Keys {
        self.of_tenant_after("run", tenant, after)
    }

    /// The runs of every other layout there was or may be, by its version.
    pub fn runs_of_other_layouts(&self) -> impl Iterator<Item = (String, Keys)> {
        let others = (1..=9).map(|version| format!("v{version}")).filter(|layout| layout != LAYOUT);
        others.map(|layout| {
            let runs = Keys::with_prefix(format!("{}/{layout}/run/", self.namespace));
            (layout, runs)
        })
    }

    fn of_run(&self, heading: &str, tenant: TenantId, run: RunId) -> Bytes {
        self.path(format_args!("{heading}/{}/{}", digits::tenant(tenant), digits::number(run.get())))
    }

    fn of_shard(&self, heading: &str, tenant: TenantId, key: ShardKey) -> Bytes {
        self.path(format_args!("{}{}", under(heading, tenant, key.run), digits::number(key.shard.get())))
    }

    fn at_place(&self, heading: &str, tenant: TenantId, key: ShardKey) -> Bytes {
        let (point, shard) = (digits::point(point(key.shard).into()), digits::number(key.shard.get()));
        self.path(format_args!("{}{point}{shard}", under(heading, tenant, key.run)))
    }

    fn shards_after(&self, heading: &str, tenant: TenantId, run: RunId, after: Option<ShardId>) -> Keys {
        let all = under(heading, tenant, run);
        let start = match after {
            None => self.path(format_args!("{all}")),
            // The first path behind one of fixed width is itself with anything appended.
            Some(after) => self.path(format_args!("{all}{}0", digits::number(after.get()))),
        };
        Keys::Range { start, end: self.end_of(&all) }
    }

    fn shards_between(&self, heading: &str, tenant: TenantId, run: RunId, first: ShardId, last: ShardId) -> Keys {
        let all = under(heading, tenant, run);
        let start = self.path(format_args!("{all}{}", digits::number(first.get())));
        Keys::Range { start, end: self.path(format_args!("{all}{}0", digits::number(last.get()))) }
    }

    fn windowed(&self, heading: &str, tenant: TenantId, run: RunId, window: Window) -> Keys {
        let all = under(heading, tenant, run);
        let at = |point| self.path(format_args!("{all}{}", digits::point(point)));
        let end = if window.end >= POINTS { self.end_of(&all) } else { at(window.end) };
        Keys::Range { start: at(window.start), end }
    }

    fn of_tenant_after(&self, heading: &str, tenant: TenantId, after: Option<RunId>) -> Keys {
        let all = format!("{heading}/{}/", digits::tenant(tenant));
        let start = match after {
            None => self.path(format_args!("{all}")),
            Some(after) => self.path(format_args!("{all}{}0", digits::number(after.get()))),
        };
        Keys::Range { start, end: self.end_of(&all) }
    }

    fn path(&self, tail: core::fmt::Arguments<'_>) -> Bytes {
        use core::fmt::Write;
        let mut path = String::with_capacity(self.root.len() + 128);
        // Writing to a string cannot fail.
        let _ = write!(path, "{}/{tail}", self.root);
        Bytes::from(path)
    }

    /// The end of everything under a heading that closes with `/`: the same with `0`, the next byte.
    fn end_of(&self, heading: &str) -> Bytes {
        let open = heading.strip_suffix('/').unwrap_or(heading);
        self.path(format_args!("{open}0"))
    }
}

/// The point a shard lies at: its place within the windows of its run.
#[must_use]
pub fn point(shard: ShardId) -> u16 {
    let [high, low, ..] = mix(shard.get()).to_be_bytes();
    u16::from_be_bytes([high, low])
}

/// What all paths of a kind within a run begin with.
fn under(heading: &str, tenant: TenantId, run: RunId) -> String {
    format!("{heading}/{}/{}/", digits::tenant(tenant), digits::number(run.get()))
}

/// The shard at the end of a path: every path of a shard ends in its id.
#[must_use]
pub fn shard_of(path: &[u8]) -> Option<ShardId> {
    let start = path.len().checked_sub(NUMBER)?;
    digits::read_number(&path[start..]).map(ShardId::new)
}

/// The worker and the etcd lease of a session in the path of its presence or abstention.
#[must_use]
pub fn session_of(path: &[u8]) -> Option<(WorkerId, EtcdLeaseId)> {
    let mut segments = path.rsplit(|byte| *byte == b'/');
    let (session, worker) = (segments.next()?, segments.next()?);
    let session = EtcdLeaseId(digits::read_number(session)?.cast_signed());
    Some((WorkerId::new(digits::read_number(worker)?), session))
}

fn session_number(session: EtcdLeaseId) -> digits::Digits<NUMBER> {
    digits::number(session.0.cast_unsigned())
}

/// The beginning of the paths of all sessions that cannot serve this creation of a run.
fn abstaining(tenant: TenantId, run: RunId, incarnation: RunIncarnation) -> String {
    format!("{}{}/", under("abstains", tenant, run), digits::number(incarnation.get()))
}

/// Tenant and run at the end of a path: every path of a run ends in both.
#[must_use]
pub fn tenant_and_run_of(path: &[u8]) -> Option<(TenantId, RunId)> {
    let mut segments = path.rsplit(|byte| *byte == b'/');
    let (run, tenant) = (segments.next()?, segments.next()?);
    Some((digits::read_tenant(tenant)?, RunId::new(digits::read_number(run)?)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tenant(byte: u8) -> TenantId {
        TenantId::from_bytes([byte; 32])
    }

    /// Every exact path there is for one tenant, run, shard and time.
    fn all_paths(space: &Keyspace, tenant: TenantId, run: RunId, shard: ShardId, time: LogicalTime) -> Vec<Bytes> {
        let key = ShardKey::new(run, shard);
        let mut paths = vec![
            space.run(tenant, run).0,
            space.roots(tenant, run).0,
            space.cold(tenant, key).0,
            space.hot(tenant, key).0,
            space.owner(tenant, key).0,
            space.standing(tenant, run, WorkerId::new(9), EtcdLeaseId(3)).0,
            space.presence(tenant, WorkerId::new(9), EtcdLeaseId(3)).0,
            space.abstention(tenant, run, RunIncarnation::new(5), WorkerId::new(9), EtcdLeaseId(3)).0,
            space.family(tenant, key).0,
            space.hatching(tenant, key).0,
            space.active_run(tenant, run).0,
            space.new_run(time, tenant, run).0,
            space.retired(tenant).0,
            space.count_all(Some(3)).0,
            space.count_all(None).0,
            space.count_of(tenant, Some(3)).0,
            space.count_of(tenant, None).0,
        ];
        paths.extend(ShardIndex::ALL.map(|index| space.index(index, tenant, key).0));
        paths
    }

    #[test]
    fn the_layout_is_as_documented() {
        let space = Keyspace::new("fleet");
        let key = ShardKey::new(RunId::new(7), ShardId::new(0x1f));
        let tenant = tenant(0xab);
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("ASCII");
        // 0xab, eight bits each, in pieces of six.
        let name = "euif".repeat(10) + "eug";
        assert_eq!(text(space.run(tenant, key.run).as_bytes()), format!("fleet/v5/run/{name}/----------6"));
        assert_eq!(text(space.hot(tenant, key).as_bytes()), format!("fleet/v5/hot/{name}/----------6/----------U"));
        let point = digits::point(point(key.shard).into());
        assert_eq!(
            text(space.owner(tenant, key).as_bytes()),
            format!("fleet/v5/owner/{name}/----------6/{point}----------U")
        );
    }

    #[test]
    fn windows_one_after_another_cover_every_point() {
        for shards in [17, 100, 1_000, 65_536, 1_000_000] {
            let mut window = Window::holding(16, shards, 40_000);
            let mut seen = vec![false; POINTS as usize];
            for _ in 0..=window.count() {
                (window.start..window.end).for_each(|point| seen[point as usize] = true);
                window = window.next();
            }
            assert!(seen.iter().all(|seen| *seen), "{shards} shards");
        }
    }

    #[test]
    fn a_small_run_is_one_window_and_its_counts_are_exact() {
        let window = Window::holding(32, 32, 60_000);
        assert_eq!(window, Window::ALL);
        assert_eq!(window.scaled(5), 5);
        assert_ne!(Window::holding(32, 33, 60_000), Window::ALL);
    }

    #[test]
    fn shards_spread_evenly_over_the_points() {
        let mut buckets = [0u32; 16];
        (1..=16_000).for_each(|id| buckets[usize::from(point(ShardId::new(id)) >> 12)] += 1);
        assert!(buckets.iter().all(|count| (850..1_150).contains(count)), "{buckets:?}");
    }

    proptest! {
        #[test]
        fn no_path_is_a_prefix_of_another(
            a in (any::<[u8; 32]>(), any::<u64>(), any::<u64>(), any::<u64>()),
            b in (any::<[u8; 32]>(), any::<u64>(), any::<u64>(), any::<u64>()),
            same in prop::collection::vec(any::<bool>(), 4),
        ) {
            let b = (
                if same[0] { a.0 } else { b.0 },
                if same[1] { a.1 } else { b.1 },
                if same[2] { a.2 } else { b.2 },
                if same[3] { a.3 } else { b.3 },
            );
            let space = Keyspace::new("ns");
            let paths = |(tenant, run, shard, time)| {
                all_paths(&space, TenantId::from_bytes(tenant), RunId::new(run), ShardId::new(shard), LogicalTime::new(time))
            };
            for one in paths(a) {
                prop_assert!(one.is_ascii());
                for other in paths(b) {
                    prop_assert!(one == other || !other.starts_with(&one), "{one:?} begins {other:?}");
                }
            }
        }

        #[test]
        fn one_namespace_never_reads_anothers_keys(one in "[a-z]{1,3}(/[a-z0-9]{1,3}){0,2}", other in "[a-z]{1,3}(/[a-z0-9]{1,3}){0,2}") {
            prop_assume!(one != other);
            let (one, other) = (Keyspace::new(&one), Keyspace::new(&other));
            let (tenant, run) = (tenant(1), RunId::new(1));
            let ranges = [
                one.colds_after(tenant, run, None),
                one.indexed(ShardIndex::Free, tenant, run, Window::ALL),
                one.families(tenant, run, Window::ALL),
                one.standings(tenant, run),
                one.owners(tenant, run, Window::ALL),
                one.active_runs_after(tenant, None),
                one.new_runs_before(LogicalTime::MAX),
            ];
            for path in all_paths(&other, tenant, run, ShardId::new(1), LogicalTime::new(1)) {
                prop_assert!(ranges.iter().all(|range| !range.contains(&path)), "{path:?}");
            }
        }

        #[test]
        fn a_range_holds_its_own_run_and_no_other(tenant_byte: u8, run: u64, shard: u64, after: u64, window_at: u16) {
            let space = Keyspace::new("ns");
            let (owner, run, shard) = (tenant(tenant_byte), RunId::new(run), ShardId::new(shard));
            let key = ShardKey::new(run, shard);
            prop_assert!(space.colds_after(owner, run, None).contains(space.cold(owner, key).as_bytes()));
            prop_assert_eq!(
                space.colds_after(owner, run, Some(ShardId::new(after))).contains(space.cold(owner, key).as_bytes()),
                shard.get() > after
            );
            let window = Window::holding(16, 1_000, window_at);
            let inside = (window.start..window.end).contains(&u32::from(point(shard)));
            prop_assert_eq!(space.families(owner, run, window).contains(space.family(owner, key).as_bytes()), inside);
            for index in ShardIndex::ALL {
                let path = space.index(index, owner, key);
                prop_assert_eq!(space.indexed(index, owner, run, window).contains(path.as_bytes()), inside);
                prop_assert!(space.indexed(index, owner, run, Window::ALL).contains(path.as_bytes()));
                let neighbour = RunId::new(run.get().wrapping_add(1));
                prop_assert!(!space.indexed(index, owner, neighbour, Window::ALL).contains(path.as_bytes()));
                prop_assert_eq!(shard_of(path.as_bytes()), Some(shard));
            }
            let standing = space.standing(owner, run, WorkerId::new(shard.get()), EtcdLeaseId(5));
            prop_assert!(space.standings(owner, run).contains(standing.as_bytes()));
            let (worker, session) = (WorkerId::new(shard.get()), EtcdLeaseId(5));
            let (other, incarnation) = (WorkerId::new(shard.get().wrapping_add(1)), RunIncarnation::new(run.get()));
            let presence = space.presence(owner, worker, session);
            prop_assert!(space.presences(owner).contains(presence.as_bytes()));
            prop_assert!(space.presences_of(owner, worker).contains(presence.as_bytes()));
            prop_assert!(!space.presences_of(owner, other).contains(presence.as_bytes()));
            let abstention = space.abstention(owner, run, incarnation, worker, session);
            prop_assert!(space.abstentions(owner, run, incarnation).contains(abstention.as_bytes()));
            prop_assert!(space.all_abstentions(owner, run).contains(abstention.as_bytes()));
            let next = RunIncarnation::new(run.get().wrapping_add(1));
            prop_assert!(!space.abstentions(owner, run, next).contains(abstention.as_bytes()));
            for path in [presence, abstention] {
                prop_assert_eq!(session_of(path.as_bytes()), Some((worker, session)));
            }
            prop_assert_eq!(tenant_and_run_of(space.active_run(owner, run).as_bytes()), Some((owner, run)));
        }

        #[test]
        fn new_runs_come_by_age(created: u64, before: u64) {
            let space = Keyspace::new("ns");
            let path = space.new_run(LogicalTime::new(created), tenant(1), RunId::new(1));
            prop_assert_eq!(space.new_runs_before(LogicalTime::new(before)).contains(path.as_bytes()), created < before);
        }

        #[test]
        fn a_span_of_ids_holds_both_its_ends_and_nothing_outside(first: u64, width in 0..1_000u64, shard: u64) {
            let space = Keyspace::new("ns");
            let last = first.saturating_add(width);
            let keys = space.colds_between(tenant(1), RunId::new(1), ShardId::new(first), ShardId::new(last));
            for id in [first, last, shard, first.wrapping_sub(1), last.wrapping_add(1)] {
                let path = space.cold(tenant(1), ShardKey::new(RunId::new(1), ShardId::new(id)));
                prop_assert_eq!(keys.contains(path.as_bytes()), (first..=last).contains(&id));
            }
        }
    }
}
