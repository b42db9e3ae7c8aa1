//! Ignored directories in which no repository lies.
//!
//! A walk searches an ignored directory for repositories, which takes a listing of every directory in it: 100,000 files of a
//! `node_modules` take a tenth of a second. The walk that plans does it, and the walks of this process that read need not do it again.
//! A repository that is made in such a directory while the scan runs is found by the next scan, as are files behind the cursor.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

/// Directories remembered. One that is not is searched again.
const REMEMBERED_MAX: usize = 4_096;

/// Ignored directories that were searched to their ends, by their keys.
#[derive(Debug, Default)]
pub(super) struct Barren(Mutex<BTreeSet<Vec<u8>>>);

impl Barren {
    pub(super) fn contains(&self, key: &[u8]) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(key)
    }

    pub(super) fn add(&self, key: &[u8]) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() < REMEMBERED_MAX {
            known.insert(key.to_vec());
        }
    }
}
