//! A slab against a plain map, and every rule by itself.

use super::blocks::{FREE, Link, TAKEN};
use super::*;
use alloc::format;
use alloc::vec::Vec;
use proptest::prelude::*;
use std::collections::HashMap;

impl ByteSlab {
    /// Walks all blocks and lists and asserts the invariants between operations.
    fn assert_consistent(&self) {
        if self.fresh {
            assert_eq!((self.len, self.occupied_bytes, self.free_classes), (0, 0, 0));
            return;
        }
        let units = self.units.len() as u32;
        let (mut unit, mut taken, mut taken_bytes) = (0, 0, 0);
        let mut free_blocks = Vec::new();
        while unit < units {
            let state = self.state(unit);
            let class = u32::from(state & !(FREE | TAKEN));
            assert_eq!(unit % (1 << class), 0, "a block starts at a multiple of its size");
            assert!(unit + (1 << class) <= units, "a block ends inside the slab");
            assert!((unit + 1..unit + (1 << class)).all(|inside| self.state(inside) == INSIDE));
            match state & (FREE | TAKEN) {
                FREE => {
                    let other = unit ^ (1 << class);
                    assert!(other >= units || self.state(other) != state, "two free halves are joined");
                    free_blocks.push((class, unit));
                }
                TAKEN => {
                    taken += 1;
                    taken_bytes += class_bytes(class);
                }
                _ => panic!("no block starts where the one before ends"),
            }
            unit += 1 << class;
        }
        assert_eq!((taken, taken_bytes), (self.len, self.occupied_bytes));
        let mut listed = Vec::new();
        for class in 0..CLASSES as u32 {
            let (mut unit, mut previous) = (self.free_heads[class as usize], NO_BLOCK);
            assert_eq!(unit != NO_BLOCK, self.free_classes & (1 << class) != 0);
            while unit != NO_BLOCK {
                assert_eq!(self.link(unit, Link::Previous), previous);
                listed.push((class, unit));
                (previous, unit) = (unit, self.link(unit, Link::Next));
            }
        }
        listed.sort_unstable();
        free_blocks.sort_unstable();
        assert_eq!(listed, free_blocks, "every free block is in the list of its class, once");
    }
}

#[test]
fn a_slab_touches_no_memory_before_its_first_value() {
    for capacity in [16, 1 << 10, 3000] {
        let mut slab = ByteSlab::with_capacity(capacity);
        let whole = slab.available_bytes();
        assert!(slab.get(ByteSlot::EMPTY).is_some() && slab.insert(&[]).is_ok());
        let clean = |slab: &ByteSlab| slab.storage.iter().all(|b| *b == 0) && slab.units.iter().all(|unit| *unit == 0);
        assert!(clean(&slab), "zero is what the system gives");
        let mut idle = ByteSlab::on_demand(capacity);
        assert_eq!((idle.capacity_bytes(), idle.available_bytes()), (slab.capacity_bytes(), whole));
        assert!(
            idle.insert(&[]).is_ok() && idle.storage.is_empty() && idle.units.is_empty(),
            "and this one asks for none"
        );
        assert!(slab.insert(&vec![1; whole + 1]).is_err());
        let value = slab.insert(&vec![1; whole]).expect("the largest value is taken");
        assert!(!clean(&slab) && slab.remove(value) && slab.available_bytes() == whole);
        slab.assert_consistent();
    }
}

#[derive(Debug, Clone)]
enum Step {
    Insert(Vec<u8>),
    Replace { which: usize, kept: usize, tail: Vec<u8> },
    Remove(usize),
    Stale(usize),
}

fn value() -> impl Strategy<Value = Vec<u8>> {
    let length = prop_oneof![
        1 => Just(0),
        6 => 1..40_usize,
        2 => (0..8_u32, 0..3_usize).prop_map(|(class, more)| (16 << class) + more - 1),
        1 => 0..2000_usize,
    ];
    (length, any::<u8>()).prop_map(|(length, first)| (0..length).map(|index| first.wrapping_add(index as u8)).collect())
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(
        prop_oneof![
            4 => value().prop_map(Step::Insert),
            3 => (any::<usize>(), prop_oneof![Just(0), any::<usize>()], value())
                .prop_map(|(which, kept, tail)| Step::Replace { which, kept, tail }),
            3 => any::<usize>().prop_map(Step::Remove),
            1 => any::<usize>().prop_map(Step::Stale),
        ],
        0..150,
    )
}

proptest! {
#[test]
    fn a_slab_behaves_like_a_map_of_handles(capacity in 0..3000_u32, at_once: bool, steps in steps()) {
        let mut slab = if at_once { ByteSlab::with_capacity(capacity) } else { ByteSlab::on_demand(capacity) };
        let mut other = ByteSlab::with_capacity(capacity);
        let whole = slab.available_bytes();
        let mut model: HashMap<ByteSlot, Vec<u8>> = HashMap::new();
        let (mut live, mut stale): (Vec<ByteSlot>, Vec<ByteSlot>) = (Vec::new(), Vec::new());
        for step in steps {
            match step {
                Step::Insert(value) => match slab.insert(&value) {
                    Ok(slot) if value.is_empty() => prop_assert_eq!(slot, ByteSlot::EMPTY),
                    Ok(slot) => {
                        prop_assert_eq!(model.insert(slot, value), None);
                        live.push(slot);
                    }
                    Err(full) => {
                        prop_assert_eq!(full.requested_bytes, value.len());
                        prop_assert_eq!(full.available_bytes, slab.available_bytes());
                        prop_assert!(value.len() > slab.available_bytes());
                    }
                },
                Step::Replace { which, kept, tail } if !live.is_empty() => {
                    let index = which % live.len();
                    let slot = live[index];
                    let occupied = slab.occupied_bytes();
                    let kept = kept % (slot.len() + 1);
                    let value = [&model[&slot][..kept], &tail].concat();
                    match slab.replace_tail(slot, kept, &[&tail[..tail.len() / 2], &tail[tail.len() / 2..]]) {
                        Ok(slot_new) => {
                            model.remove(&slot);
                            stale.push(slot);
                            if value.is_empty() {
                                live.swap_remove(index);
                            } else {
                                prop_assert_eq!(model.insert(slot_new, value), None);
                                live[index] = slot_new;
                            }
                        }
                        Err(_) => {
                            prop_assert!(class_for(value.len()) > class_for(slot.len()), "what fits in place is taken");
                            prop_assert!(value.len() > slab.available_bytes());
                            prop_assert_eq!(slab.occupied_bytes(), occupied);
                        }
                    }
                }
                Step::Remove(which) if !live.is_empty() => {
                    let slot = live.swap_remove(which % live.len());
                    model.remove(&slot);
                    stale.push(slot);
                    prop_assert!(slab.remove(slot));
                }
                Step::Stale(which) if !stale.is_empty() => prop_assert!(!slab.remove(stale[which % stale.len()])),
                _ => {}
            }
            slab.assert_consistent();
            prop_assert_eq!(slab.len(), model.len());
            prop_assert_eq!(slab.used_bytes(), model.values().map(Vec::len).sum::<usize>());
            prop_assert!(model.iter().all(|(slot, value)| slab.get(*slot) == Some(value)));
            prop_assert!(stale.iter().all(|slot| slab.get(*slot).is_none()));
            prop_assert!(live.iter().all(|slot| other.get(*slot).is_none() && !other.remove(*slot)));
        }
        for slot in live {
            prop_assert!(slab.remove(slot));
        }
        slab.assert_consistent();
        prop_assert_eq!((slab.len(), slab.used_bytes(), slab.occupied_bytes()), (0, 0, 0));
        prop_assert_eq!(slab.available_bytes(), whole, "all room is whole again");
    }
}

#[test]
fn a_value_may_fill_the_slab_and_one_byte_more_is_refused() {
    let mut slab = ByteSlab::with_capacity(256);
    let refused = slab.insert(&[1; 257]);
    assert_eq!(refused, Err(SlabFull { requested_bytes: 257, available_bytes: 256, capacity_bytes: 256 }));
    let slot = slab.insert(&[1; 256]).expect("it fits exactly");
    assert_eq!(slab.get(slot), Some(&[1; 256][..]));
    assert_eq!(slab.available_bytes(), 0);
    assert!(slab.insert(&[1]).is_err());
}

#[test]
fn room_freed_by_small_values_serves_a_large_one() {
    let mut slab = ByteSlab::with_capacity(1024);
    let small: Vec<_> = (0..64).map(|value| slab.insert(&[value; 16]).expect("64 times 16 bytes fit")).collect();
    assert!(slab.insert(&[0]).is_err());
    for slot in &small {
        assert!(slab.remove(*slot));
    }
    assert!(slab.insert(&[0; 1024]).is_ok());
}

#[test]
fn holes_that_are_not_adjacent_do_not_add_up() {
    let mut slab = ByteSlab::with_capacity(64);
    let slots: Vec<_> = (0..4).map(|value| slab.insert(&[value; 16]).expect("four fit")).collect();
    slab.remove(slots[0]);
    slab.remove(slots[2]);
    let refused = slab.insert(&[0; 17]).expect_err("32 bytes are free, in two places");
    assert_eq!((refused.available_bytes, slab.occupied_bytes()), (16, 32));
}

#[test]
fn a_refused_replacement_leaves_the_old_value() {
    let mut slab = ByteSlab::with_capacity(64);
    let slot = slab.insert(b"old").expect("there is room");
    assert!(slab.replace(slot, &[1; 64]).is_err(), "the old value is still needed while the new one is written");
    assert_eq!(slab.get(slot), Some(&b"old"[..]));
    assert!(slab.remove(slot));
}

#[test]
fn replacing_in_place_works_in_a_full_slab_and_ends_the_old_handle() {
    let mut slab = ByteSlab::with_capacity(64);
    let slot = slab.insert(&[1; 64]).expect("it fits exactly");
    let same_class = slab.replace(slot, &[2; 33]).expect("the same class");
    let smaller = slab.replace(same_class, &[3; 5]).expect("a smaller class");
    assert_eq!((slab.get(slot), slab.get(same_class), slab.get(smaller)), (None, None, Some(&[3; 5][..])));
    assert_eq!(slab.available_bytes(), 32, "what the smaller value does not need is free");
}

#[test]
fn empty_values_need_no_room_even_in_a_slab_without_any() {
    let mut slab = ByteSlab::with_capacity(0);
    let slot = slab.insert(b"").expect("nothing is needed");
    assert_eq!((slab.get(slot), slab.len()), (Some(&b""[..]), 0));
    assert!(slab.remove(slot));
    assert_eq!(slab.replace(slot, b""), Ok(ByteSlot::EMPTY));
    assert!(slab.insert(b"x").is_err());
}

#[test]
fn an_empty_slot_is_replaced_by_an_insertion_and_back_by_a_removal() {
    let mut slab = ByteSlab::with_capacity(16);
    let slot = slab.replace(ByteSlot::EMPTY, b"x").expect("there is room");
    assert_eq!(slab.len(), 1);
    assert_eq!(slab.replace(slot, b""), Ok(ByteSlot::EMPTY));
    assert_eq!((slab.len(), slab.get(slot)), (0, None));
}

#[test]
fn a_handle_of_another_slab_finds_nothing() {
    let (mut one, mut two) = (ByteSlab::with_capacity(64), ByteSlab::with_capacity(64));
    let slot = one.insert(b"one").expect("there is room");
    two.insert(b"two").expect("there is room");
    assert_eq!(two.get(slot), None);
    assert!(!two.remove(slot));
}

#[test]
fn the_end_of_a_value_changes_in_place_and_the_beginning_moves_along_when_it_must() {
    let mut slab = ByteSlab::with_capacity(128);
    let slot = slab.insert(b"beginning, end").expect("there is room");
    let same = slab.replace_tail(slot, 9, &[b" stays"]).expect("it fits in place");
    assert_eq!((slab.get(same), slab.get(slot)), (Some(&b"beginning stays"[..]), None));
    let longer = slab.replace_tail(same, 9, &[b" moves", b" along"]).expect("there is another block");
    assert_eq!((slab.get(longer), slab.get(same)), (Some(&b"beginning moves along"[..]), None));
    assert_eq!((slab.len(), slab.occupied_bytes()), (1, 32), "the first block is free again");
    assert!(slab.replace_tail(longer, 9, &[&[1; 120]]).is_err());
    assert_eq!(slab.get(longer), Some(&b"beginning moves along"[..]));
}

#[test]
#[should_panic(expected = "the kept bytes are there")]
fn more_cannot_be_kept_than_there_is() {
    let mut slab = ByteSlab::with_capacity(64);
    let slot = slab.insert(b"four").expect("there is room");
    let _ = slab.replace_tail(slot, 5, &[b"more"]);
}

#[test]
#[should_panic(expected = "names a value of this slab")]
fn replacing_through_a_stale_handle_is_a_bug() {
    let mut slab = ByteSlab::with_capacity(64);
    let slot = slab.insert(b"gone").expect("there is room");
    slab.remove(slot);
    let _ = slab.replace(slot, b"lost");
}

#[test]
fn the_largest_slab_is_made_without_touching_its_memory() {
    let mut slab = ByteSlab::with_capacity(u32::MAX);
    assert_eq!(slab.capacity_bytes(), (u32::MAX - 15) as usize);
    assert_eq!(slab.available_bytes(), 1 << 31);
    let slot = slab.insert(b"first").expect("there is room");
    assert_eq!(slab.get(slot), Some(&b"first"[..]));
    assert!(slab.remove(slot));
    assert_eq!(slab.available_bytes(), 1 << 31);
}

#[test]
fn no_slab_is_asked_for_more_than_any_could_hold() {
    assert_eq!(class_for(1 << 31), Some(27));
    assert_eq!(class_for((1 << 31) + 1), None);
    assert_eq!(class_for(usize::MAX), None);
}

#[test]
fn a_clone_answers_to_the_handles_made_before_and_then_goes_its_own_way() {
    let mut slab = ByteSlab::with_capacity(64);
    let slot = slab.insert(b"shared").expect("there is room");
    let copy = slab.clone();
    slab.remove(slot);
    assert_eq!((slab.get(slot), copy.get(slot)), (None, Some(&b"shared"[..])));
}

#[test]
fn debug_output_shows_no_stored_bytes() {
    let mut slab = ByteSlab::with_capacity(64);
    let slot = slab.insert(b"hunter2").expect("there is room");
    let shown = format!("{slab:?} {slot:?} {}", slab.insert(&[0; 99]).expect_err("too long"));
    assert!(!shown.contains("hunter2") && !shown.contains("104, 117"), "{shown}");
}

#[test]
fn a_slot_is_sixteen_bytes() {
    assert_eq!(size_of::<ByteSlot>(), 16);
}

#[test]
fn parts_are_one_value_end_to_end() {
    let mut slab = ByteSlab::with_capacity(64);
    let slot = slab.insert_parts(&[b"ab", b"", b"c"]).unwrap();
    assert_eq!((slab.get(slot), slab.len()), (Some(&b"abc"[..]), 1));
    let slot = slab.replace_parts(slot, &[b"a much longer", b" value"]).unwrap();
    assert_eq!((slab.get(slot), slab.len()), (Some(&b"a much longer value"[..]), 1));
    assert_eq!(slab.replace_parts(slot, &[b"", b""]), Ok(ByteSlot::EMPTY));
    assert!(slab.is_empty());
    assert_eq!(slab.insert_parts(&[&[1; 64], &[1; 1]]).unwrap_err().requested_bytes, 65);
}
