//! The changes of a batch as bytes: rows one behind the other, in the log and on their way to the tables.
//!
//! ```text
//! row:   1 run | 2 roots | 3 cold | 4 hot,  key 40 (runs) or 48 (shards),  length 4,  value
//! gone:  5,  key 40
//! ```
//!
//! A row replaces the one before it, so rows may be applied twice. A run that is gone takes with it all rows of that run so
//! far.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use tessera_contracts::ids::{RunId, ShardId, ShardKey, TenantId};
use tessera_coordination::record::shard_record::ShardRecord;
use tessera_coordination::run::record::RunRecord;
use tessera_coordination::stored::{ColdPart, HotView, RootsPart, RunPart};

/// A table of the file, and the number by which rows name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Table {
    Runs = 1,
    Roots = 2,
    Cold = 3,
    Hot = 4,
}

const GONE: u8 = 5;

/// Rows that are being gathered.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    bytes: Vec<u8>,
}

impl Rows {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Empties it; the memory is kept for the next batch unless it was an unusually large one.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.bytes.shrink_to(1 << 20);
    }

    pub(crate) fn run(&mut self, record: &RunRecord) {
        let key = run_key(record.tenant, record.run);
        self.row(Table::Runs, &key, &RunPart::of(record, None).encode());
        self.row(Table::Roots, &key, &RootsPart { roots: record.root_shards.clone() }.encode());
    }

    pub(crate) fn cold(&mut self, record: &ShardRecord) {
        self.row(Table::Cold, &shard_key(record.tenant, record.key), &ColdPart::of(record).encode());
    }

    /// Most writes; encoded where it will stay.
    pub(crate) fn hot(&mut self, tenant: TenantId, key: ShardKey, part: &HotView<'_>) {
        self.bytes.push(Table::Hot as u8);
        self.bytes.extend_from_slice(&shard_key(tenant, key));
        let length_at = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 4]);
        part.append_to(&mut self.bytes);
        let length = (self.bytes.len() - length_at - 4) as u32;
        self.bytes[length_at..length_at + 4].copy_from_slice(&length.to_le_bytes());
    }

    pub(crate) fn gone(&mut self, tenant: TenantId, run: RunId) {
        self.bytes.push(GONE);
        self.bytes.extend_from_slice(&run_key(tenant, run));
    }

    pub(crate) fn row(&mut self, table: Table, key: &[u8], value: &[u8]) {
        self.bytes.push(table as u8);
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(&(value.len() as u32).to_le_bytes());
        self.bytes.extend_from_slice(value);
    }
}

/// The sum of many batches: of each row the last, in the order of keys.
#[derive(Debug, Default)]
pub(crate) struct Latest<'r> {
    pub(crate) gone: BTreeSet<[u8; RUN_KEY_BYTES]>,
    pub(crate) runs: Ordered<'r>,
    pub(crate) roots: Ordered<'r>,
    pub(crate) cold: Ordered<'r>,
    pub(crate) hot: Ordered<'r>,
}

/// Values by key.
pub(crate) type Ordered<'r> = BTreeMap<&'r [u8], &'r [u8]>;

impl<'r> Latest<'r> {
    /// Takes in the rows of a batch, later than all before.
    pub(crate) fn take_in(&mut self, rows: &'r [u8]) -> Result<(), String> {
        let mut rest = rows;
        while let Some((kind, behind)) = rest.split_first() {
            rest = self.take_in_row(*kind, behind).ok_or_else(|| format!("row {kind} of a batch cannot be read"))?;
        }
        Ok(())
    }

    /// The bytes after the row; `None` if it is not one.
    fn take_in_row(&mut self, kind: u8, row: &'r [u8]) -> Option<&'r [u8]> {
        let (table, key_bytes) = match kind {
            GONE => {
                let (run, rest) = row.split_first_chunk::<RUN_KEY_BYTES>()?;
                self.forget(run);
                return Some(rest);
            }
            1 => (&mut self.runs, RUN_KEY_BYTES),
            2 => (&mut self.roots, RUN_KEY_BYTES),
            3 => (&mut self.cold, SHARD_KEY_BYTES),
            4 => (&mut self.hot, SHARD_KEY_BYTES),
            _ => return None,
        };
        let (key, rest) = row.split_at_checked(key_bytes)?;
        let (length, rest) = rest.split_first_chunk()?;
        let (value, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        table.insert(key, value);
        Some(rest)
    }

    fn forget(&mut self, run: &[u8; RUN_KEY_BYTES]) {
        self.runs.remove(run.as_slice());
        self.roots.remove(run.as_slice());
        let (first, last) = shards_of(run);
        for table in [&mut self.cold, &mut self.hot] {
            let of_run = (Bound::Included(first.as_slice()), Bound::Included(last.as_slice()));
            let keys: Vec<&[u8]> = table.range::<[u8], _>(of_run).map(|(key, _)| *key).collect();
            for key in keys {
                table.remove(key);
            }
        }
        self.gone.insert(*run);
    }
}

const RUN_KEY_BYTES: usize = 40;
const SHARD_KEY_BYTES: usize = 48;

/// Numbers in keys are big-endian, so that a run's shards lie together.
fn run_key(tenant: TenantId, run: RunId) -> [u8; RUN_KEY_BYTES] {
    let mut key = [0; RUN_KEY_BYTES];
    key[..32].copy_from_slice(tenant.as_bytes());
    key[32..].copy_from_slice(&run.get().to_be_bytes());
    key
}

fn shard_key(tenant: TenantId, shard: ShardKey) -> [u8; SHARD_KEY_BYTES] {
    let mut key = [0; SHARD_KEY_BYTES];
    key[..RUN_KEY_BYTES].copy_from_slice(&run_key(tenant, shard.run));
    key[RUN_KEY_BYTES..].copy_from_slice(&shard.shard.get().to_be_bytes());
    key
}

/// The first and the last key that a shard of the run can have.
pub(crate) fn shards_of(run: &[u8; RUN_KEY_BYTES]) -> ([u8; SHARD_KEY_BYTES], [u8; SHARD_KEY_BYTES]) {
    let mut ends = ([0; SHARD_KEY_BYTES], [u8::MAX; SHARD_KEY_BYTES]);
    ends.0[..RUN_KEY_BYTES].copy_from_slice(run);
    ends.1[..RUN_KEY_BYTES].copy_from_slice(run);
    ends
}

/// The run that a key names, if it is one.
pub(crate) fn parse_run_key(key: &[u8]) -> Option<(TenantId, RunId)> {
    let (tenant, run) = key.split_first_chunk()?;
    Some((TenantId::from_bytes(*tenant), RunId::new(u64::from_be_bytes(run.try_into().ok()?))))
}

/// The shard that a key names, if it is one.
pub(crate) fn parse_shard_key(key: &[u8]) -> Option<(TenantId, ShardKey)> {
    let (rest, shard) = key.split_last_chunk()?;
    let (tenant, run) = parse_run_key(rest)?;
    Some((tenant, ShardKey::new(run, ShardId::new(u64::from_be_bytes(*shard)))))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TENANT: TenantId = TenantId::from_bytes([3; 32]);

    fn of(run: u64, shard: u64) -> [u8; SHARD_KEY_BYTES] {
        shard_key(TENANT, ShardKey::new(RunId::new(run), ShardId::new(shard)))
    }

    #[test]
    fn of_each_row_the_last_one_counts_and_a_run_that_is_gone_takes_its_rows_along() {
        let (mut first, mut second) = (Rows::default(), Rows::default());
        for shard in [0, 7, u64::MAX] {
            first.row(Table::Hot, &of(2, shard), b"of the run that goes");
            first.row(Table::Cold, &of(2, shard), b"of the run that goes");
        }
        first.row(Table::Hot, &of(1, u64::MAX), b"neighbour");
        first.row(Table::Hot, &of(3, 0), b"old");
        second.row(Table::Hot, &of(3, 0), b"new");
        second.gone(TENANT, RunId::new(2));
        second.row(Table::Hot, &of(2, 7), b"of the run that came again");
        let mut latest = Latest::default();
        latest.take_in(first.bytes()).unwrap();
        latest.take_in(second.bytes()).unwrap();
        assert_eq!(latest.gone, BTreeSet::from([run_key(TENANT, RunId::new(2))]));
        let left: Vec<(&[u8], &[u8])> = latest.hot.into_iter().collect();
        let expected: [(&[u8], &[u8]); 3] =
            [(&of(1, u64::MAX), b"neighbour"), (&of(2, 7), b"of the run that came again"), (&of(3, 0), b"new")];
        assert_eq!(left, expected);
        assert!(latest.cold.is_empty() && latest.runs.is_empty() && latest.roots.is_empty());
    }

    #[test]
    fn rows_that_end_in_the_middle_or_are_of_no_known_kind_are_refused() {
        let mut rows = Rows::default();
        rows.row(Table::Runs, &run_key(TENANT, RunId::new(1)), b"a run");
        let whole = rows.bytes().len();
        rows.gone(TENANT, RunId::new(1));
        for end in 1..rows.bytes().len() {
            assert_eq!(Latest::default().take_in(&rows.bytes()[..end]).is_ok(), end == whole, "{end} bytes");
        }
        assert!(Latest::default().take_in(rows.bytes()).is_ok());
        assert!(Latest::default().take_in(&[6]).is_err() && Latest::default().take_in(&[0; 100]).is_err());
    }

    #[test]
    fn keys_are_read_as_written() {
        let shard = ShardKey::new(RunId::new(0x0102_0304_0506_0708), ShardId::new(9));
        assert_eq!(parse_shard_key(&shard_key(TENANT, shard)), Some((TENANT, shard)));
        assert_eq!(parse_run_key(&run_key(TENANT, shard.run)), Some((TENANT, shard.run)));
        assert_eq!(parse_run_key(&shard_key(TENANT, shard)), None);
        assert_eq!(parse_shard_key(&run_key(TENANT, shard.run)[1..]), None);
    }
}
