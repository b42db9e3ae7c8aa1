//! Any bytes are a message or an error with words; a message writes itself as it was read.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tessera_dht::wire::BODY_BYTES_MAX;
use tessera_dht::wire::header::Header;
use tessera_dht::wire::message::{Envelope, Message};

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
                Message::Nodes { contacts, .. } => assert!(contacts.iter().count() <= 16),
                Message::Providers { providers, .. } => assert!(providers.iter().count() <= 8),
                Message::Announce { announcement, .. } => assert!(announcement.ids().count() <= 10),
                _ => {}
            }
        }
    }
});
