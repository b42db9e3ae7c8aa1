//! The views that own writes left behind. Only ever a shortcut: every write proves its view, every refusal asks the store.

use std::collections::HashMap;

use tessera_contracts::{ShardKey, TenantId};

use super::stored::StoredShard;

/// How many views are kept. A worker holds some hundreds of shards; beyond this, some of them cost a read.
const VIEWS_MAX: usize = 8_192;

/// Kept views, the oldest half forgotten when there are too many.
#[derive(Debug, Default)]
pub(super) struct Cache {
    young: HashMap<(TenantId, ShardKey), StoredShard>,
    old: HashMap<(TenantId, ShardKey), StoredShard>,
}

impl Cache {
    pub(super) fn get(&mut self, tenant: TenantId, key: ShardKey) -> Option<StoredShard> {
        if let Some(view) = self.young.get(&(tenant, key)) {
            return Some(view.clone());
        }
        let view = self.old.remove(&(tenant, key))?;
        self.put(view.clone());
        Some(view)
    }

    pub(super) fn put(&mut self, view: StoredShard) {
        if self.young.len() >= VIEWS_MAX / 2 {
            self.old = core::mem::take(&mut self.young);
        }
        let name = (view.record.tenant, view.record.key);
        self.old.remove(&name);
        self.young.insert(name, StoredShard { fresh: false, ..view });
    }

    pub(super) fn forget(&mut self, tenant: TenantId, key: ShardKey) {
        self.young.remove(&(tenant, key));
        self.old.remove(&(tenant, key));
    }
}
