//! Any bytes are a message or an error with words; a message writes itself as it was read.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tessera_dht::wire::header::Header;
use tessera_dht::wire::message::{Envelope, Message};
use tessera_dht::wire::{ANNOUNCED_IDS_MAX, BODY_BYTES_MAX, CONTACTS_MAX, PROVIDERS_PER_PART_MAX};

fuzz_target!(|bytes: &[u8]| {
    let _ = Header::read(bytes);
    match Envelope::read(bytes) {
        Err(malformed) => assert!(!malformed.to_string().is_empty()),
        Ok(envelope) => {
            let mut again = [0; BODY_BYTES_MAX];
            if let Ok(len) = envelope.write(&mut again) {
                assert_eq!(again[..len], bytes[..len]);
            }
            match envelope.message {
                Message::Nodes { contacts, .. } => assert!(contacts.iter().count() <= CONTACTS_MAX),
                Message::Providers { providers, .. } => assert!(providers.iter().count() <= PROVIDERS_PER_PART_MAX),
                Message::Announce { announcement, .. } => assert!(announcement.ids().count() <= ANNOUNCED_IDS_MAX),
                _ => {}
            }
        }
    }
});
