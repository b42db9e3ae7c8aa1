//! Tenants by id, and the one that was asked for last.
//!
//! Most coordinators serve one tenant, or one for a while. Comparing 32 bytes costs a tenth of hashing them.

use alloc::vec::Vec;

use foldhash::fast::FixedState;
use tessera_contracts::ids::TenantId;

use super::{FixedMap, Tenant};

/// All tenants that have a run.
#[derive(Debug)]
pub(super) struct Tenants {
    places: FixedMap<TenantId, usize>,
    held: Vec<Option<Tenant>>,
    vacant: Vec<usize>,
    recent: Option<(TenantId, usize)>,
}

impl Tenants {
    pub(super) fn new(hash_seed: u64) -> Self {
        let places = FixedMap::with_hasher(FixedState::with_seed(hash_seed));
        Self { places, held: Vec::new(), vacant: Vec::new(), recent: None }
    }

    pub(super) fn get(&self, tenant: TenantId) -> Option<&Tenant> {
        self.held[self.place_of(tenant)?].as_ref()
    }

    /// The same, and remembers it.
    #[inline]
    pub(super) fn recall(&mut self, tenant: TenantId) -> Option<&Tenant> {
        let place = self.place_of(tenant)?;
        self.recent = Some((tenant, place));
        self.held[place].as_ref()
    }

    pub(super) fn get_mut(&mut self, tenant: TenantId) -> Option<&mut Tenant> {
        let place = self.place_of(tenant)?;
        self.held[place].as_mut()
    }

    /// The tenant, made if it is not there.
    pub(super) fn get_or_insert(&mut self, tenant: TenantId, make: impl FnOnce() -> Tenant) -> &mut Tenant {
        let place = self.place_of(tenant).unwrap_or_else(|| {
            let place = self.vacant.pop().unwrap_or_else(|| {
                self.held.push(None);
                self.held.len() - 1
            });
            self.places.insert(tenant, place);
            place
        });
        self.held[place].get_or_insert_with(make)
    }

    pub(super) fn remove(&mut self, tenant: TenantId) {
        self.recent = None;
        if let Some(place) = self.places.remove(&tenant) {
            self.held[place] = None;
            self.vacant.push(place);
        }
    }

    #[inline]
    fn place_of(&self, tenant: TenantId) -> Option<usize> {
        match self.recent {
            Some((recent, place)) if recent == tenant => Some(place),
            _ => self.places.get(&tenant).copied(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(byte: u8) -> TenantId {
        TenantId::from_bytes([byte; 32])
    }

    #[test]
    fn a_tenant_that_went_is_not_remembered_and_its_place_serves_the_next() {
        let mut tenants = Tenants::new(0);
        tenants.get_or_insert(named(1), || Tenant::new(0));
        assert!(tenants.recall(named(1)).is_some() && tenants.recall(named(2)).is_none());
        tenants.recall(named(1));
        tenants.remove(named(1));
        assert!(tenants.get(named(1)).is_none() && tenants.recall(named(1)).is_none());
        tenants.get_or_insert(named(2), || Tenant::new(0));
        assert!(tenants.get(named(1)).is_none(), "the tenant that left is not taken for the one that came");
        assert!(tenants.recall(named(2)).is_some() && tenants.get(named(1)).is_none());
        assert_eq!(tenants.held.len(), 1);
    }

    #[test]
    fn the_tenant_that_was_asked_for_last_is_found_without_the_table() {
        let mut tenants = Tenants::new(0);
        for byte in [1, 2] {
            tenants.get_or_insert(named(byte), || Tenant::new(0));
        }
        tenants.recall(named(2));
        tenants.places.clear();
        assert!(tenants.get(named(2)).is_some() && tenants.recall(named(2)).is_some());
        assert!(tenants.get(named(1)).is_none(), "nobody else is taken for it");
    }
}
