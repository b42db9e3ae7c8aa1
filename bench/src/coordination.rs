//! The in-memory coordinator beside the least that any coordinator must do.
//!
//! `-floor` figures count an operation against one pass of the [`floor`]; a cycle of two operations against two passes
//! over one shard. `-flat` figures have ours on both sides: one run of 100,000 shards beside a hundred runs of 1,000.

use std::cell::RefCell;
use std::rc::Rc;

use crate::harness::{Figure, Pair};

mod floor;
mod world;

use floor::Floor;
use world::{Held, World};

/// A million, but few where a test only wants to see that it runs.
const MANY: u64 = if cfg!(test) { 2_000 } else { 1_000_000 };
const SOME: u64 = if cfg!(test) { 2_000 } else { 100_000 };
const FEW: u64 = 1_000;

/// Range and cursor of a shard whose keys are so long lie in its record,
const SHORT: usize = 24;
/// and those of paths that are not too long as well.
const PATH: usize = 72;
/// These lie in the slab: one more place in memory to go to.
const LONGEST: usize = 120;

pub(crate) fn figures() -> Vec<Figure> {
    let scales = |question: &'static [(&'static str, &'static str); 3], asked: Asked| {
        [FEW, SOME, MANY]
            .into_iter()
            .zip(question)
            .map(move |(shards, (name, asks))| Figure::cost(name, asks, move || against_floor(shards, asked)))
    };
    let checkpoint = Asked { operation: World::checkpoint, held: Held::All, passes: 1, key_len: SHORT };
    let mut figures = Vec::new();
    figures.extend(scales(
        &[
            ("coordination/checkpoint-floor-1k", "checkpoint among 1,000 shards, beside the floor"),
            ("coordination/checkpoint-floor-100k", "the same among 100,000"),
            ("coordination/checkpoint-floor-1m", "the same among 1,000,000"),
        ],
        checkpoint,
    ));
    figures.extend(scales(
        &[
            ("coordination/checkpoint-72B-floor-1k", "checkpoint with keys of 72 bytes"),
            ("coordination/checkpoint-72B-floor-100k", "the same among 100,000"),
            ("coordination/checkpoint-72B-floor-1m", "the same among 1,000,000"),
        ],
        Asked { key_len: PATH, ..checkpoint },
    ));
    figures.extend(scales(
        &[
            ("coordination/checkpoint-120B-floor-1k", "checkpoint with keys of 120 bytes, which lie in the slab"),
            ("coordination/checkpoint-120B-floor-100k", "the same among 100,000"),
            ("coordination/checkpoint-120B-floor-1m", "the same among 1,000,000"),
        ],
        Asked { key_len: LONGEST, ..checkpoint },
    ));
    figures.extend(scales(
        &[
            ("coordination/renew-floor-1k", "renew among 1,000 shards, beside the floor of a checkpoint"),
            ("coordination/renew-floor-100k", "the same among 100,000"),
            ("coordination/renew-floor-1m", "the same among 1,000,000"),
        ],
        Asked { operation: World::renew, ..checkpoint },
    ));
    figures.extend(scales(
        &[
            ("coordination/cycle-floor-1k", "acquire and release among 1,000 shards, beside two floors"),
            ("coordination/cycle-floor-100k", "the same among 100,000"),
            ("coordination/cycle-floor-1m", "the same among 1,000,000"),
        ],
        Asked { operation: World::cycle, held: Held::None, passes: 2, ..checkpoint },
    ));
    figures.extend(scales(
        &[
            ("coordination/claim-floor-1k", "claim and release among 1,000 free shards, beside two floors"),
            ("coordination/claim-floor-100k", "the same among 100,000"),
            ("coordination/claim-floor-1m", "the same among 1,000,000"),
        ],
        Asked { operation: World::claim, held: Held::None, passes: 2, ..checkpoint },
    ));
    figures.extend(
        [FEW, SOME, MANY]
            .into_iter()
            .zip([
                ("coordination/complete-floor-1k", "acquire and complete among 1,000 shards, beside two floors"),
                ("coordination/complete-floor-100k", "the same among 100,000"),
                ("coordination/complete-floor-1m", "the same among 1,000,000"),
            ])
            .map(|(shards, (name, asks))| Figure::cost(name, asks, move || completing_against_floor(shards))),
    );
    let flat = |name, asks, asked: Asked| Figure::cost(name, asks, move || large_run_against_small(asked));
    figures.extend([
        flat("coordination/checkpoint-flat", "checkpoint in one run of 100,000, beside a hundred of 1,000", checkpoint),
        flat(
            "coordination/renew-flat",
            "renew in one run of 100,000, beside a hundred of 1,000",
            Asked { operation: World::renew, ..checkpoint },
        ),
        flat(
            "coordination/claim-flat",
            "claim and release in one run of 100,000, beside a hundred of 1,000",
            Asked { operation: World::claim, held: Held::None, passes: 2, ..checkpoint },
        ),
    ]);
    // Instructions are counted among few shards: how far memory is does not show there.
    figures
        .into_iter()
        .map(|figure| if figure.name.ends_with("-floor-1k") { figure.gated(1.5) } else { figure })
        .collect()
}

/// An operation, its precondition, and its reference.
#[derive(Clone, Copy)]
struct Asked {
    operation: fn(&mut World),
    held: Held,
    /// Of the floor.
    passes: u32,
    key_len: usize,
}

fn against_floor(shards: u64, asked: Asked) -> Pair {
    let Asked { operation, held, passes, key_len } = asked;
    let mut world = World::new(shards, shards, key_len, held);
    let mut floor = Floor::new(shards, key_len);
    Pair::new(
        move |times| (0..times).for_each(|_| operation(&mut world)),
        move |times| (0..times).for_each(|_| floor.operation(passes)),
    )
}

/// A completed shard stays completed, so the world is made anew when too few are left.
fn completing_against_floor(shards: u64) -> Pair {
    let made = move |shards| World::new(shards, shards, SHORT, Held::None);
    let world = Rc::new(RefCell::new(made(shards)));
    let mut floor = Floor::new(shards, SHORT);
    let completed = world.clone();
    Pair::new(
        move |times| {
            let mut world = completed.borrow_mut();
            (0..times).for_each(|_| world.complete());
        },
        move |times| (0..times).for_each(|_| floor.operation(2)),
    )
    .refilled(shards, move |times| {
        if world.borrow().left() < times {
            world.replace(made(shards.max(times)));
        }
    })
}

fn large_run_against_small(Asked { operation, held, key_len, .. }: Asked) -> Pair {
    let mut large = World::new(SOME, SOME, key_len, held);
    let mut small = World::new(SOME, FEW, key_len, held);
    Pair::new(
        move |times| (0..times).for_each(|_| operation(&mut large)),
        move |times| (0..times).for_each(|_| operation(&mut small)),
    )
}

/// The key at `step` of the shard at `index`, in the order of shards and then steps. Its first `key_len` bytes count.
fn place(index: u64, step: u64) -> [u8; LONGEST] {
    let mut key = [b'x'; LONGEST];
    key[8..16].copy_from_slice(&index.to_be_bytes());
    key[16..24].copy_from_slice(&step.to_be_bytes());
    key
}

/// Splitmix64: the same numbers for both sides, at a cost that is the same for both.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % bound as u64) as usize
    }
}
