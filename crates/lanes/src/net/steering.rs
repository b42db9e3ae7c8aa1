//! The packet filter that sends a datagram to the lane that owns its slot: a classic BPF program made from the slot table.
//!
//! The kernel runs it for every datagram to a SO_REUSEPORT group and takes its answer as the index of a socket in the order of
//! binding. It needs no privilege. The slot byte is read at a fixed offset of the UDP payload; a datagram too short to have
//! one goes where slot 0 goes, because an answer out of range would not drop it but scatter it.
//!
//! The program is a search tree over the table's runs of equal lanes: about log2(S) comparisons for a map of S lanes, eight
//! at the most. Pure: attaching is `sys`'s.

use tessera_contracts::prefix_map::LaneIndex;

/// One instruction of classic BPF, laid out as the kernel wants it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Instruction {
    /// What to do.
    pub code: u16,
    /// Instructions to skip if a condition holds.
    pub jump_true: u8,
    /// Instructions to skip if it does not.
    pub jump_false: u8,
    /// The operand.
    pub k: u32,
}

/// The most instructions the kernel accepts.
pub const INSTRUCTIONS_MAX: usize = 4096;

const LOAD_LENGTH: u16 = 0x80; // BPF_LD | BPF_W | BPF_LEN
const LOAD_BYTE: u16 = 0x30; // BPF_LD | BPF_B | BPF_ABS
const JUMP: u16 = 0x05; // BPF_JMP | BPF_JA
const JUMP_IF_GREATER_OR_EQUAL: u16 = 0x35; // BPF_JMP | BPF_JGE | BPF_K
const RETURN: u16 = 0x06; // BPF_RET | BPF_K

/// The program for a table, with the slot byte at `offset`. Lane *n*'s socket must be the *n*-th of the group.
#[must_use]
pub fn program(table: &[LaneIndex; 256], offset: u16) -> Vec<Instruction> {
    let mut runs: Vec<(u8, LaneIndex)> = Vec::new();
    for (slot, lane) in (0..=u8::MAX).zip(table) {
        if runs.last().is_none_or(|(_, last)| last != lane) {
            runs.push((slot, *lane));
        }
    }
    let mut program = vec![
        plain(LOAD_LENGTH, 0),
        Instruction { code: JUMP_IF_GREATER_OR_EQUAL, jump_true: 1, jump_false: 0, k: u32::from(offset) + 1 },
        plain(RETURN, u32::from(table[0].0)),
        plain(LOAD_BYTE, u32::from(offset)),
    ];
    search(&runs, &mut program);
    debug_assert!(program.len() <= INSTRUCTIONS_MAX);
    program
}

fn search(runs: &[(u8, LaneIndex)], program: &mut Vec<Instruction>) {
    let middle = runs.len() / 2;
    if middle == 0 {
        program.push(plain(RETURN, u32::from(runs[0].1.0)));
        return;
    }
    // A conditional jump reaches 255 instructions, a plain one anywhere: the condition only chooses between two of those.
    let pivot = u32::from(runs[middle].0);
    program.push(Instruction { code: JUMP_IF_GREATER_OR_EQUAL, jump_true: 0, jump_false: 1, k: pivot });
    let over_the_left = program.len();
    program.push(plain(JUMP, 0));
    search(&runs[..middle], program);
    program[over_the_left].k = (program.len() - over_the_left - 1) as u32;
    search(&runs[middle..], program);
}

const fn plain(code: u16, k: u32) -> Instruction {
    Instruction { code, jump_true: 0, jump_false: 0, k }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The program as the kernel would run it.
    fn run(program: &[Instruction], packet: &[u8]) -> (u32, usize) {
        let (mut at, mut accumulator, mut steps) = (0, 0u32, 0);
        loop {
            let instruction = program[at];
            steps += 1;
            at += 1;
            match instruction.code {
                LOAD_LENGTH => accumulator = packet.len() as u32,
                LOAD_BYTE => accumulator = u32::from(packet[instruction.k as usize]),
                JUMP => at += instruction.k as usize,
                JUMP_IF_GREATER_OR_EQUAL if accumulator >= instruction.k => at += usize::from(instruction.jump_true),
                JUMP_IF_GREATER_OR_EQUAL => at += usize::from(instruction.jump_false),
                RETURN => return (instruction.k, steps),
                other => panic!("no such instruction: {other:#x}"),
            }
        }
    }

    proptest! {
        #[test]
        fn every_slot_of_any_table_goes_to_its_lane(lanes in prop::collection::vec(any::<u8>(), 256), offset in 0u16..40) {
            let table: [LaneIndex; 256] = core::array::from_fn(|slot| LaneIndex(lanes[slot]));
            let program = program(&table, offset);
            prop_assert!(program.len() <= INSTRUCTIONS_MAX);
            for slot in 0..=255u8 {
                let mut packet = vec![0xee; usize::from(offset)];
                packet.push(slot);
                let (lane, steps) = run(&program, &packet);
                prop_assert_eq!(lane, u32::from(lanes[usize::from(slot)]));
                prop_assert!(steps <= 3 + 8 * 2 + 1, "{} steps", steps);
            }
            prop_assert_eq!(run(&program, &vec![0; usize::from(offset)]).0, u32::from(lanes[0]), "a runt goes where slot 0 goes");
        }
    }

    #[test]
    fn a_fair_map_of_four_lanes_takes_two_comparisons() {
        let table = core::array::from_fn(|slot| LaneIndex((slot / 64) as u8));
        let program = program(&table, 4);
        assert_eq!(program.len(), 4 + 3 * 2 + 4);
        assert!((0..=255u8).all(|slot| run(&program, &[0, 0, 0, 0, slot]).1 <= 3 + 2 * 2 + 1));
    }
}
