//! The files under `vectors/` show the wire format to other implementations. They are rendered from the code
//! here and compared: a difference is a change of the wire format and needs a new version, not a new file. Until version 1
//! is released, `RENDER_VECTORS=1` writes them anew.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests.

use std::fmt::Write as _;

use tessera_contracts::point::ContentId;
use tessera_dht::addr::Addr;
use tessera_dht::contact::Contact;
use tessera_dht::identity::{Crypto as _, Identity};
use tessera_dht::node::steering_slot;
use tessera_dht::record::{MutableDraft, RecordView, immutable_record, mutable_record, sign_provider};
use tessera_dht::rng::LaneRng;
use tessera_dht::seal::cookie::{Proofs, Scope};
use tessera_dht::seal::keys::{NetworkKey, PairRoot};
use tessera_dht::seal::{SealLimits, Sealer};
use tessera_dht::time::Now;
use tessera_dht::wire::header::{CLEAR_BYTES, Challenge, HEADER_BYTES, Header, Suite};
use tessera_dht::wire::message::{
    Announcement, Capabilities, Contacts, Envelope, ErrorCode, Message, Providers, SignedProvider, capability, kind,
};
use tessera_dht::wire::{BODY_BYTES_MAX, DATAGRAM_BYTES_MAX, TAG_BYTES};

const T: Now = Now { mono_ms: 0, unix_ms: 1_800_000_000_000 };

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut out, byte| {
        let _ = write!(out, "{byte:02x}");
        out
    })
}

fn field(out: &mut String, name: &str, bytes: &[u8]) {
    let _ = writeln!(out, "{name} = {}", hex(bytes));
}

fn alice() -> Identity {
    Identity::from_seed(&[1; 32])
}

fn bob() -> Identity {
    Identity::from_seed(&[2; 32])
}

fn network() -> NetworkKey {
    NetworkKey::of_name("vectors")
}

fn contact(identity: &Identity, last: u8) -> Contact {
    Contact { key: identity.public_key(), addr: Addr::v4([192, 0, 2, last], 4000) }
}

fn identities() -> String {
    let mut out =
        String::from("# Identities and derived secrets. Values are hex; numbers inside are little-endian.\n\n");
    field(&mut out, "network name", b"vectors");
    field(&mut out, "network key", network().as_bytes());
    for (name, seed, identity) in [("alice", 1, alice()), ("bob", 2, bob())] {
        field(&mut out, &format!("{name} seed"), &[seed; 32]);
        field(&mut out, &format!("{name} public key"), &identity.public_key().0);
        field(&mut out, &format!("{name} node id"), tessera_contracts::point::Point::as_bytes(&identity.node_id()));
    }
    let secret = alice().agree(&bob().public_key()).unwrap();
    field(&mut out, "x25519 secret of alice and bob", secret.as_bytes());
    let proofs = Proofs::new(&alice(), &network());
    let addr = contact(&bob(), 2).addr;
    field(&mut out, "bob's address on the wire", &addr.to_wire());
    field(&mut out, "unix seconds", &T.unix_secs().to_le_bytes());
    let cookie = proofs.cookie(&bob().public_key(), &addr, T.unix_secs());
    field(&mut out, "alice's cookie for bob at bob's address", &cookie);
    let id = ContentId::from_bytes([0x55; 32]);
    let token = |scope| proofs.token(&addr, &bob().node_id(), &id, scope, T.unix_secs());
    field(&mut out, "alice's token for bob and an id", &token(Scope::EXACT));
    field(&mut out, "alice's token for bob and its first nine bits", &token(Scope::region(9)));
    field(&mut out, "slot of content id 5555.. at alice", &[steering_slot(&alice().node_id(), &[0x55; 32])]);
    out
}

fn datagrams() -> String {
    let mut out = String::from(
        "# A PING from alice to bob, sealed with each suite, and bob's challenge to it. The incarnation is a lane's random choice.\n",
    );
    for (name, suite) in [("AES-256-GCM", Suite::Aes256Gcm), ("ChaCha20-Poly1305", Suite::ChaCha20Poly1305)] {
        let mut rng = LaneRng::new([7; 32]);
        let mut sealer = Sealer::new(alice(), network(), suite, &SealLimits::default(), &mut rng, T);
        sealer.set_reply_slot(0x24);
        let mut datagram = [0; DATAGRAM_BYTES_MAX];
        let envelope =
            Envelope { flags: 0, correlation: 0x0807_0605_0403_0211, cookie: [0xc0; 8], message: Message::Ping };
        let len = envelope.write(&mut datagram[HEADER_BYTES..HEADER_BYTES + BODY_BYTES_MAX]).unwrap();
        let _ = writeln!(out, "\nsuite = {name}");
        field(&mut out, "body", &datagram[HEADER_BYTES..HEADER_BYTES + len]);
        let len = sealer.seal(T, &bob().public_key(), 0x42, &mut datagram, len).unwrap();
        let header = Header::read(&datagram[..len]).unwrap();
        field(&mut out, "incarnation", &header.incarnation);
        field(&mut out, "period", &header.period.to_le_bytes());
        field(&mut out, "counter", &header.counter.to_le_bytes());
        field(&mut out, "datagram", &datagram[..len]);
        let cookie =
            Proofs::new(&bob(), &network()).cookie(&alice().public_key(), &contact(&alice(), 1).addr, T.unix_secs());
        let challenge = Challenge::to(&header, &datagram[..len], bob().public_key(), cookie).unwrap();
        field(&mut out, "challenge", &challenge.to_wire());

        // A reader with only the datagram and bob's seed opens it by the schedule alone.
        let secret = bob().agree(&header.sender).unwrap();
        let root = PairRoot::derive(&secret, &network(), &header.sender, &bob().public_key());
        let (clear, sealed) = datagram[..len].split_at_mut(CLEAR_BYTES);
        root.stream_key(&header).open(header.counter, clear, sealed).unwrap();
        let body = &datagram[HEADER_BYTES..len - TAG_BYTES];
        assert!(matches!(Envelope::read(body).unwrap().message, Message::Ping));
    }
    out
}

fn messages() -> String {
    let mut out = String::from("# One body of every kind: correlation id 0x1122334455667742, no cookie, no flags.\n\n");
    let (a, b) = (contact(&alice(), 1), contact(&bob(), 2));
    let capabilities = Capabilities {
        version_min: 1,
        version_max: 1,
        datagram_bytes_max: 1200,
        bits: capability::AES_256_GCM | capability::CHACHA20_POLY1305 | capability::STORES,
    };
    let id = ContentId::from_bytes([0x55; 32]);
    let contacts = [a.to_wire(), b.to_wire()].concat();
    let contacts = Contacts::over(&contacts);
    let record = immutable_record(b"hello", 3600).unwrap();
    let issued_secs = T.unix_secs();
    let signature = sign_provider(&alice(), &network(), &id, &a.addr, issued_secs, 3600);
    let provider = SignedProvider { provider: a, issued_secs, ttl_secs: 3600, signature };
    let announced = [&[0x55; 32][..], &signature].concat();
    let announcement = Announcement::over(a, issued_secs, 3600, &announced);
    let page = provider.to_wire();
    let token = [0x70; 16];
    for (name, message) in [
        ("PING", Message::Ping),
        ("PONG", Message::Pong { observed: b.addr }),
        ("NEGOTIATE", Message::Negotiate(capabilities)),
        ("NEGOTIATED", Message::Negotiated { capabilities, observed: b.addr }),
        ("FIND_NODE", Message::FindNode { target: [0x55; 32], scope: Scope::EXACT }),
        ("NODES", Message::Nodes { token, contacts }),
        ("FIND_VALUE", Message::FindValue { id, sequence_min: 9 }),
        ("VALUE, found", Message::Value { token, record: Some(&record), closer: contacts }),
        ("VALUE, not found", Message::Value { token, record: None, closer: contacts }),
        ("STORE", Message::Store { token, closer_max: 16, record: &record }),
        ("STORED", Message::Stored { closer: contacts }),
        ("ANNOUNCE", Message::Announce { token, announcement }),
        ("ANNOUNCED", Message::Announced { kept: 1 }),
        ("GET_PROVIDERS", Message::GetProviders { id, page: 0, parts_max: 5 }),
        (
            "PROVIDERS",
            Message::Providers {
                token,
                total: 1,
                next: 0,
                part: 0,
                parts: 1,
                providers: Providers::over(&page),
                closer: contacts,
            },
        ),
        ("RELAY", Message::Relay { to: b, kind: kind::FIND_NODE, payload: &[0x55; 32] }),
        ("RELAYED", Message::Relayed { kind: kind::NODES, payload: &[0; 17] }),
        ("STEM", Message::Stem { hops_left: 3, announcement }),
        ("STEM_TAKEN", Message::StemTaken),
        ("CACHE_HINT", Message::CacheHint { token, record: &record }),
        ("LEAVING", Message::Leaving),
        ("ERROR", Message::Error { code: ErrorCode::RateLimited, retry_after_ms: 1500 }),
    ] {
        let envelope = Envelope { flags: 0, correlation: 0x1122_3344_5566_7742, cookie: [0; 8], message };
        let mut body = [0; BODY_BYTES_MAX];
        let len = envelope.write(&mut body).unwrap();
        field(&mut out, name, &body[..len]);
    }
    out
}

fn records() -> String {
    let mut out = String::from("# Records of the network `vectors`, owned by alice where owned.\n\n");
    let immutable = immutable_record(b"hello", 3600).unwrap();
    let draft =
        |value| MutableDraft { salt: [0x5a; 32], sequence: 7, issued_secs: T.unix_secs(), ttl_secs: 3600, value };
    let mutable = mutable_record(&draft(Some(b"hello")), &alice(), &network()).unwrap();
    let tombstone = mutable_record(&draft(None), &alice(), &network()).unwrap();
    for (name, record) in [("immutable", immutable), ("mutable", mutable), ("tombstone", tombstone)] {
        let view = RecordView::read(&record).unwrap();
        view.check(&view.id(), &bob(), &network(), T.unix_secs()).unwrap();
        field(&mut out, &format!("{name} record"), &record);
        field(&mut out, &format!("{name} content id"), tessera_contracts::point::Point::as_bytes(&view.id()));
    }
    out
}

fn held_to(file: &str, rendered: &str) {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("vectors").join(file);
    if std::env::var_os("RENDER_VECTORS").is_some() {
        std::fs::write(&path, rendered).unwrap();
    }
    let stored = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(stored == rendered, "{} differs from the code, which says:\n{rendered}", path.display());
}

#[test]
fn identities_are_as_published() {
    held_to("identities.txt", &identities());
}

#[test]
fn sealed_datagrams_are_as_published() {
    held_to("datagrams.txt", &datagrams());
}

#[test]
fn messages_are_as_published() {
    held_to("messages.txt", &messages());
}

#[test]
fn records_are_as_published() {
    held_to("records.txt", &records());
}

#[test]
fn the_document_states_the_limits_of_the_code() {
    use tessera_dht::wire::*;
    let document = include_str!("../../../docs/WIRE.md");
    for row in [
        format!(
            "| datagram | {DATAGRAM_BYTES_MIN} to {DATAGRAM_BYTES_MAX} bytes, of which {HEADER_BYTES} header, {TAG_BYTES} tag |"
        ),
        format!(
            "| body | up to {BODY_BYTES_MAX} bytes: {} preamble, up to {PAYLOAD_BYTES_MAX} payload, rest padding |",
            message::PREAMBLE_BYTES
        ),
        format!("| contacts in NODES | {CONTACTS_MAX} |"),
        format!("| contacts beside a value or providers | {CLOSER_CONTACTS_MAX} |"),
        format!(
            "| providers a page | {PROVIDERS_PER_PAGE_MAX}, in up to {PROVIDER_PARTS_MAX} datagrams of up to {PROVIDERS_PER_PART_MAX} (a signed provider is {} bytes) |",
            message::PROVIDER_BYTES
        ),
        format!("| ids in one ANNOUNCE | {ANNOUNCED_IDS_MAX} |"),
        format!("| value of one record | {VALUE_BYTES_MAX} bytes |"),
        format!("then up to {} content\nids", tessera_dht::chunk::FANOUT),
    ] {
        assert!(document.contains(&row), "docs/WIRE.md lacks: {row}");
    }
    for code in ErrorCode::ALL {
        assert!(document.contains(&format!("\n| {} ", code as u8)), "docs/WIRE.md lacks error code {code:?}");
    }
}
