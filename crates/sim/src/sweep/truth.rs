//! The items in the targets of a world, and their planted secrets.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Mutex, OnceLock};

use tessera_detect::{Detector, IdKey, RuleSet, Source, template};
use tessera_scan::findings::occurrence::{Occurrence, Place};
use tessera_scan::plan::key;
use tessera_scan::plan::target::{ReadOptions, Target, TargetKind};
use tessera_scan::source::item::{Item, ItemKind, SkipReason};

use super::broken::Defect;
use crate::coordination::dice::Dice;

/// Different secrets of a world, at most.
const SECRETS: u64 = 40;

/// A place of a planted secret: target, path, offset.
pub type PlantedPlace = (u32, Vec<u8>, u64);

/// Everything there is to find.
#[derive(Debug)]
pub struct Truth {
    pub(super) targets: Vec<Target>,
    /// All items, by key: those that were planned, and those that only some machines see.
    pub(super) items: BTreeMap<Vec<u8>, Planted>,
    /// The places that a whole report names.
    pub(super) places: BTreeSet<PlantedPlace>,
}

/// An item, and its planted secrets.
#[derive(Debug)]
pub(super) struct Planted {
    pub(super) item: Item,
    /// Whether it was there when the run was planned.
    pub(super) is_planned: bool,
    /// How often its reader asks whether to go on.
    pub(super) looks: u64,
    pub(super) occurrences: Vec<Occurrence>,
}

impl Truth {
    /// Draws targets of up to `items_max` items. The second target is a clone of the first.
    pub(super) fn draw(dice: &mut Dice, targets: u64, items_max: u64, defect: Defect) -> Self {
        let mut truth = Self { targets: Vec::new(), items: BTreeMap::new(), places: BTreeSet::new() };
        let mut wanted = Wanted::new();
        let mut first_seed = 0;
        for number in 0..targets as u32 {
            let drawn = dice.roll();
            let seed = if number == 1 { first_seed } else { drawn };
            first_seed = if number == 0 { seed } else { first_seed };
            truth.plant(number, &mut Dice::new(seed), items_max, &mut wanted);
        }
        for ((seed, line), places) in wanted {
            for (key, occurrence) in occurrences(seed, line, places, defect) {
                let planted = truth.items.get_mut(&key).expect("it was planted");
                if planted.is_planned {
                    truth.places.insert(place_of(&occurrence));
                }
                planted.occurrences.push(occurrence);
            }
        }
        truth
    }

    fn plant(&mut self, number: u32, dice: &mut Dice, items_max: u64, wanted: &mut Wanted) {
        let path = PathBuf::from(format!("/target/{number}"));
        self.targets.push(Target { number, path, kind: TargetKind::Tree, rules: 0, options: ReadOptions::default() });
        for name in 0..dice.between(0, items_max) {
            let path = format!("d{}/f{name}", name % 7);
            let components = path.split('/').map(str::as_bytes);
            let key = key::path_key(number, components);
            let kind = if dice.happens(50_000) {
                ItemKind::Skipped { reason: SkipReason::Binary, count: 1 }
            } else {
                ItemKind::File
            };
            let is_read = kind == ItemKind::File;
            let is_planned = dice.happens(970_000);
            let looks = if dice.happens(20_000) { dice.between(1, 20) } else { 0 };
            let secrets = if is_read && dice.happens(150_000) { dice.between(1, 3) } else { 0 };
            for line in 0..secrets {
                // Most secrets stand in many places.
                let among = if dice.happens(500_000) { 5 } else { SECRETS };
                let seed = dice.below(among);
                let place = (number, path.clone().into_bytes(), key.clone());
                wanted.entry((seed, line)).or_default().push(place);
            }
            let item = Item { key: key.clone(), size: dice.below(100_000), kind, stamp: None };
            self.items.insert(key, Planted { item, is_planned, looks, occurrences: Vec::new() });
        }
    }

    /// Items that were planned to be read, by target.
    pub(super) fn planned(&self, target: u32) -> impl Iterator<Item = &Planted> {
        let (start, end) = key::target_range(target);
        self.items.range(start.to_vec()..end.to_vec()).map(|(_, planted)| planted).filter(|planted| planted.is_planned)
    }
}

/// Where an occurrence stands.
pub(super) fn place_of(occurrence: &Occurrence) -> PlantedPlace {
    (occurrence.target, occurrence.path.clone(), occurrence.offset)
}

/// Where secrets go, by seed of the secret and line: target, path, and key of the item.
type Wanted = BTreeMap<(u64, u64), Vec<(u32, Vec<u8>, Vec<u8>)>>;

/// The real detector's results for a token in a line of these files. It runs once for all of them: a world has thousands.
fn occurrences(
    seed: u64,
    line: u64,
    places: Vec<(u32, Vec<u8>, Vec<u8>)>,
    defect: Defect,
) -> Vec<(Vec<u8>, Occurrence)> {
    static DETECTOR: OnceLock<Mutex<Detector>> = OnceLock::new();
    let detector =
        DETECTOR.get_or_init(|| Mutex::new(Detector::new(&RuleSet::builtin()).expect("the built-in rules are good")));
    let token = template::expand("ghp_<<github 30>>", &mut template::Seed::new(seed)).expect("a good template");
    let text = format!("{}token = \"{token}\"\n", "\n".repeat(line as usize));
    let mut found = Vec::new();
    let mut detector = detector.lock().expect("the detector does not panic");
    detector.scan_bytes(Source::path("x"), text.as_bytes(), |finding| {
        found.extend(places.iter().map(|(target, path, key)| {
            let named = if defect == Defect::PlaceWithoutTarget { 0 } else { *target };
            let place = Place::of_item(named, path, None);
            let occurrence = Occurrence::new(finding, &IdKey::new([0; 32]), &place, false);
            (key.clone(), Occurrence { target: *target, ..occurrence })
        }));
    });
    assert_eq!(found.len(), places.len(), "the detector finds a planted token");
    found
}
