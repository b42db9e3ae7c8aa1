//! The ledger on simulated lanes: crashes, power failures, changes of the number of lanes, all by seed.
#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

mod support;

use std::time::Duration;

use support::virtual_client::{Client, pass};
use support::{Ledger, Order, slot_of};
use tessera_contracts::prefix_map::{LaneIndex, Slot};
use tessera_lanes::LaneTime;
use tessera_lanes::class::Class;
use tessera_lanes::config::LaneConfig;
use tessera_lanes::handler::Notice;
use tessera_lanes::simulated::{NetworkConfig, VirtualConfig, VirtualNetwork, VirtualNode};
use tessera_lanes::wal::storage::Storage;
use tessera_lanes::wal::{Durability, LogConfig};

fn config(lanes: usize, seed: u64) -> VirtualConfig {
    let log = LogConfig {
        durability: Durability::Group { delay: Duration::from_millis(2) },
        compact_bytes_min: 4096,
        ..LogConfig::default()
    };
    VirtualConfig { lanes, lane: LaneConfig::default(), log: Some(log), seed }
}

fn node(lanes: usize, seed: u64) -> VirtualNode<Ledger> {
    VirtualNode::new(config(lanes, seed), |_| Ledger::default()).unwrap()
}

#[test]
fn a_quiet_node_answers_every_order() {
    let mut node = node(4, 1);
    let mut client = Client::new(1);
    client.ask(&mut node, 500);
    pass(&mut node, 20);
    client.check(&node, "quiet");
    assert_eq!(client.acked, client.asked);
}

#[test]
fn an_order_is_answered_though_nothing_follows_it() {
    for seed in 0..30 {
        let mut node = node(3, seed);
        let mut client = Client::new(seed);
        for round in 0..40 {
            let orders = 1 + client.next() as usize % 40;
            client.ask(&mut node, orders);
            pass(&mut node, 30);
            client.collect();
            assert_eq!(client.acked, client.asked, "seed {seed}, round {round}");
        }
        let compacted = node.disk().list().unwrap().iter().filter(|name| name.ends_with(".snap")).count();
        assert_eq!(compacted, 3, "seed {seed}: there was a snapshot to stumble over in every lane");
    }
}

#[test]
fn a_running_lanes_log_stays_short_however_much_is_logged() {
    let mut node = node(1, 4);
    let mut client = Client::new(4);
    let mut written = 0;
    for _ in 0..200 {
        client.ask(&mut node, 100);
        pass(&mut node, 5);
        written = node.counters(LaneIndex(0)).unwrap().log_records.get();
    }
    client.check(&node, "compacted");
    let disk = node.disk();
    let bytes: usize = disk.list().unwrap().iter().map(|name| disk.read(name).unwrap().len()).sum();
    // 2000 keys at most are alive; the log may be twice as long as their snapshot before it is compacted, and has room for as much
    // again.
    assert!(written > 19_000 && bytes < 2000 * 40 * 6, "{written} records logged, {bytes} bytes on disk");
}

#[test]
fn the_same_seed_gives_the_same_history() {
    let history = |seed| {
        let mut node = node(3, seed);
        let mut client = Client::new(7);
        for round in 0..20 {
            client.ask(&mut node, 50);
            pass(&mut node, 1);
            if round == 9 {
                node.crash_lane(LaneIndex(1));
            }
        }
        client.collect();
        (client.acked.clone(), node.disk().operations(), node.counters(LaneIndex(0)).unwrap().turns.get())
    };
    assert_eq!(history(5), history(5));
}

#[test]
fn a_lane_that_dies_comes_back_with_everything_it_had_acknowledged() {
    for seed in 0..20 {
        let mut node = node(4, seed);
        let mut client = Client::new(seed);
        for round in 0..30u64 {
            client.ask(&mut node, 40);
            for _ in 0..client.next() % 4 {
                node.turn();
            }
            if round % 5 == 4 {
                node.crash_lane(LaneIndex((client.next() % 4) as u8));
            }
            pass(&mut node, round % 3);
            client.check(&node, &format!("seed {seed}, round {round}"));
        }
        let told = node.handler(LaneIndex(0)).unwrap().notices.iter().any(|n| matches!(n, Notice::LaneDown { .. }))
            || node.counters(LaneIndex(0)).unwrap().incarnations.get() > 1;
        assert!(told, "the other lanes are told");
    }
}

#[test]
fn after_a_power_failure_everything_acknowledged_is_there_whatever_the_number_of_lanes() {
    for seed in 0..20 {
        let mut client = Client::new(seed);
        let mut running = node(1 + seed as usize % 5, seed);
        for life in 0..4u64 {
            for _ in 0..10 {
                client.ask(&mut running, 30);
                let millis = client.next() % 4;
                pass(&mut running, millis);
            }
            client.collect();
            let now = running.now();
            let disk = running.power_failure();
            let lanes = 1 + (client.next() % 6) as usize;
            running = VirtualNode::on_disk(config(lanes, seed * 100 + life), disk, now, |_| Ledger::default()).unwrap();
            pass(&mut running, 50);
            client.check(&running, &format!("seed {seed}, life {life}, {lanes} lanes"));
        }
    }
}

#[test]
fn records_on_disk_before_lanes_changed_survive_a_power_failure_however_seldom_logs_are_synced() {
    for seed in 0..20 {
        let mut client = Client::new(seed);
        let mut running = node(1 + seed as usize % 3, seed);
        for _ in 0..10 {
            client.ask(&mut running, 30);
            pass(&mut running, 5);
        }
        pass(&mut running, 50);
        client.collect();
        assert_eq!(client.acked, client.asked);
        let seldom = |lanes: usize| {
            let durability = Durability::Async { interval: Duration::from_secs(3600) };
            let log = LogConfig { durability, ..LogConfig::default() };
            VirtualConfig { log: Some(log), ..config(lanes, seed) }
        };
        let (now, disk) = (running.now(), running.power_failure());
        let mut running = VirtualNode::on_disk(seldom(3), disk, now, |_| Ledger::default()).unwrap();
        pass(&mut running, 50);
        for lanes in [5, 1] {
            running.resize(lanes).unwrap();
            pass(&mut running, 50);
            while running.retire_idle_lanes() {
                pass(&mut running, 1);
            }
        }
        let (now, disk) = (running.now(), running.power_failure());
        let mut running = VirtualNode::on_disk(seldom(2), disk, now, |_| Ledger::default()).unwrap();
        pass(&mut running, 50);
        client.check(&running, &format!("seed {seed}"));
    }
}

#[test]
fn lanes_come_and_go_under_load_and_nothing_is_lost() {
    for seed in 0..20 {
        let mut node = node(2, seed);
        let mut client = Client::new(seed);
        for round in 0..12u64 {
            client.ask(&mut node, 60);
            for _ in 0..client.next() % 3 {
                node.turn();
            }
            let lanes = 1 + (client.next() % 6) as usize;
            node.resize(lanes).unwrap();
            client.ask(&mut node, 60);
            if round % 4 == 3 {
                node.crash_lane(LaneIndex((client.next() % lanes as u64) as u8));
            }
            let mut left = true;
            for _ in 0..200 {
                pass(&mut node, 5);
                left = node.retire_idle_lanes();
                if !left {
                    break;
                }
            }
            assert!(!left, "seed {seed}, round {round}: lanes that own nothing go");
            pass(&mut node, 50);
            client.check(&node, &format!("seed {seed}, round {round}, {lanes} lanes"));
            for lane in 0..lanes {
                assert_eq!(
                    node.counters(LaneIndex(lane as u8)).unwrap().handoffs_pending.get(),
                    0,
                    "seed {seed} round {round}"
                );
            }
        }
    }
}

#[test]
fn without_crashes_a_change_of_lanes_loses_no_order_at_all() {
    for seed in 0..10 {
        let mut node = node(3, seed);
        let mut client = Client::new(seed);
        for lanes in [5, 2, 4, 1, 3] {
            client.ask(&mut node, 80);
            node.turn();
            node.resize(lanes).unwrap();
            client.ask(&mut node, 80);
            while {
                pass(&mut node, 5);
                node.retire_idle_lanes()
            } {}
            pass(&mut node, 20);
        }
        client.check(&node, &format!("seed {seed}"));
        // An order whose origin lane was retired cannot be answered; all others are.
        let held: usize = (0..3).map(|lane| node.handler(LaneIndex(lane)).unwrap().versions.len()).sum();
        assert_eq!(held, client.asked.len(), "seed {seed}: every order arrived, none twice");
    }
}

#[test]
fn a_hot_slot_is_lent_to_a_helper_and_comes_back() {
    let mut node = node(2, 3);
    let mut client = Client::new(3);
    client.ask(&mut node, 800);
    pass(&mut node, 20);
    let slot = Slot(5);
    let home = node.map().lane_of_slot(slot);
    let helper = LaneIndex(1 - home.0);
    let there = |node: &VirtualNode<Ledger>, lane| {
        node.handler(lane).unwrap().versions.keys().filter(|key| slot_of(**key) == slot).count()
    };
    let keys = there(&node, home);
    assert!(keys > 0);
    node.lend(slot, helper).unwrap();
    pass(&mut node, 20);
    assert_eq!((there(&node, home), there(&node, helper)), (0, keys));
    client.ask(&mut node, 200);
    pass(&mut node, 20);
    let keys = there(&node, helper);
    node.return_all();
    pass(&mut node, 20);
    assert_eq!((there(&node, home), there(&node, helper)), (keys, 0));
    client.check(&node, "lent and returned");
    assert_eq!(client.acked, client.asked);
}

#[test]
fn a_lane_given_up_before_it_heard_of_a_change_is_followed_by_one_that_awaits_its_new_slots() {
    for seed in 0..20 {
        let mut node = node(2, seed);
        let mut client = Client::new(seed);
        client.ask(&mut node, 300);
        pass(&mut node, 20);
        let slot = (0..=u8::MAX).map(Slot).find(|slot| node.map().lane_of_slot(*slot) == LaneIndex(0)).unwrap();
        let under_way = |node: &VirtualNode<Ledger>| node.counters(LaneIndex(1)).unwrap().handoffs_pending.get();
        node.stall_lane(LaneIndex(1), LaneTime(u64::MAX));
        node.lend(slot, LaneIndex(1)).unwrap();
        pass(&mut node, seed % 4);
        assert_eq!(under_way(&node), 0, "it hangs and has not heard of it");
        node.kill_lane(LaneIndex(1));
        pass(&mut node, seed % 3);
        node.restart_lane(LaneIndex(1));
        let foreign = 256 - node.map().load(LaneIndex(1)) as u64;
        // It hands over every slot that is not its own, since it cannot know which of them its predecessor still had.
        assert_eq!(under_way(&node), foreign + 1, "seed {seed}: what is not found in the lent slot may still come");
        pass(&mut node, 50);
        assert_eq!(under_way(&node), 0, "seed {seed}: it came");
        client.check(&node, &format!("seed {seed}"));
    }
}

#[test]
fn a_message_sent_by_an_old_map_is_forwarded_once_and_never_circles() {
    let mut node = node(4, 9);
    let mut client = Client::new(9);
    client.ask(&mut node, 300);
    // The messages are in their rings, routed by the old map; now every slot moves on by one lane, twice.
    for _ in 0..2 {
        for slot in 0..=255 {
            let owner = node.map().lane_of_slot(Slot(slot));
            node.lend(Slot(slot), LaneIndex((owner.0 + 1) % 4)).unwrap();
        }
    }
    pass(&mut node, 200);
    client.check(&node, "twice moved");
    assert_eq!(client.acked, client.asked);
    let forwarded: u64 = (0..4).map(|lane| node.counters(LaneIndex(lane)).unwrap().forwarded.get()).sum();
    assert!(forwarded > 0 && forwarded <= 300 * 3, "{forwarded} forwards");
}

#[test]
fn a_datagram_reaches_its_owner_however_wrong_its_slot_byte_is() {
    let mut steered = config(4, 5);
    steered.lane.steer_offset = Some(0);
    let client = "10.0.0.2:2".parse().unwrap();
    for misroute_permille in [0, 1000] {
        let mut node = VirtualNode::new(steered.clone(), |_| Ledger::default()).unwrap();
        node.misroute_permille = misroute_permille;
        let mut answers = Vec::new();
        for slot in 0..=255u8 {
            for claimed in [slot, slot ^ 0x80] {
                node.datagram(client, &mut [claimed, slot, 7]);
                node.run_until_idle();
                answers.extend(node.take_outgoing());
            }
        }
        assert_eq!(answers.len(), 512);
        for (to, bytes) in &answers {
            assert_eq!(*to, client);
            assert_eq!(LaneIndex(bytes[3]), node.map().lane_of_slot(Slot(bytes[1])), "answered by the owner");
            assert!(bytes[4] <= 2, "at most two forwards");
        }
        let misrouted: u64 = (0..4).map(|lane| node.counters(LaneIndex(lane)).unwrap().misrouted.get()).sum();
        let lies = answers.iter().filter(|(_, bytes)| bytes[0] != bytes[1]).count() as u64;
        assert!(if misroute_permille == 0 { misrouted == lies } else { misrouted > lies + 100 }, "{misrouted}");
    }
}

#[test]
fn two_nodes_talk_over_a_network_that_loses_and_repeats() {
    let run = |seed| {
        let mut network = VirtualNetwork::new(NetworkConfig {
            loss_permille: 100,
            duplicate_permille: 100,
            seed,
            ..NetworkConfig::default()
        });
        let here = "10.0.0.1:1".parse().unwrap();
        let there = "10.0.0.2:1".parse().unwrap();
        network.insert(here, VirtualNode::new(config(2, 1), |_| Ledger::default()).unwrap());
        network.insert(there, VirtualNode::new(config(3, 2), |_| Ledger::default()).unwrap());
        // Each echo makes the datagram two bytes longer; the exchange ends when one is lost.
        network.node(here).unwrap().datagram(there, &mut [0, 7]);
        network.run_until(LaneTime(2_000_000));
        network.datagrams_sent()
    };
    assert_eq!(run(1), run(1), "the same seed, the same fate");
    assert!((1..20).any(|seed| run(seed) > 5));
}

#[test]
fn messages_to_a_dead_lane_are_counted_as_lost_and_their_senders_told() {
    let mut node = node(2, 1);
    node.stall_lane(LaneIndex(1), LaneTime(u64::MAX));
    node.command(LaneIndex(0), Order::Chatter(100));
    node.turn();
    node.crash_lane(LaneIndex(1));
    let ledger = node.handler(LaneIndex(0)).unwrap();
    assert!(ledger.notices.contains(&Notice::LaneDown { lane: LaneIndex(1), lost: 100 }), "{:?}", ledger.notices);
    let dropped = &node.counters(LaneIndex(0)).unwrap().class(Class::Hints).dropped;
    assert_eq!(dropped[tessera_lanes::class::DropCause::LaneDown as usize].get(), 100);
}
