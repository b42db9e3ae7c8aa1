//! Any bytes are a record or an error; no record that was not made by its owner is valid. The same for manifests.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tessera_contracts::ContentId;
use tessera_dht::chunk::Assembly;
use tessera_dht::identity::Identity;
use tessera_dht::record::RecordView;
use tessera_dht::seal::keys::NetworkKey;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(view) = RecordView::read(bytes) {
        let id = view.id();
        let network = NetworkKey::of_name("fuzz");
        let valid = view.check(&id, &Identity::from_seed(&[1; 32]), &network, 1_800_000_000).is_ok();
        assert!(!valid || view.mutable.is_none(), "a signature was forged");
    }
    let id = ContentId::of_immutable(bytes);
    let mut assembly = Assembly::new(id);
    if assembly.offer(&id, bytes).is_ok() {
        assert!(assembly.wanted().count() <= 27);
    }
});
