//! What an answer to a step of a lookup means: it is judged before anything it says is used.

use tessera_contracts::point::ContentId;

use crate::abuse::Offence;
use crate::lookup::Lookup;
use crate::node::link::LaneSealer;
use crate::record::{RecordRefused, RecordView, check_provider};
use crate::wire::message::{Contacts, ErrorCode, Message, Token};

/// What an answer means.
#[derive(Debug)]
pub(super) enum Judged<'m> {
    /// It holds. Of a valid record, its sequence.
    Answer {
        token: Token,
        closer: Contacts<'m>,
        sequence: Option<u64>,
    },
    /// The token with which the record was sent is no use: the peer is asked as if there had been none.
    TokenRefused,
    /// The peer does not keep the record that it was sent.
    WriteRefused(ErrorCode),
    /// The peer is to be asked again, for no fault of its own.
    AskAgain,
    Refused(ErrorCode),
    Lie(Offence),
}

/// Judges an answer to a step of `lookup`, which `stores` if the record itself was sent.
pub(super) fn judge<'m>(
    message: &Message<'m>,
    lookup: &Lookup,
    stores: bool,
    sealer: &LaneSealer,
    now_secs: u64,
) -> Judged<'m> {
    let (token, closer) = match *message {
        Message::Nodes { token, contacts } => (token, contacts),
        Message::Value { token, closer, .. } | Message::Providers { token, closer, .. } => (token, closer),
        Message::Stored { closer } if stores => (Token::default(), closer),
        Message::Error { code: ErrorCode::BadToken | ErrorCode::TooFar | ErrorCode::CookieRequired, .. } if stores => {
            return Judged::TokenRefused;
        }
        Message::Error { code, .. } if stores => return Judged::WriteRefused(code),
        Message::Error { code: ErrorCode::CookieRequired | ErrorCode::RelayFailed, .. } => return Judged::AskAgain,
        Message::Error { code, .. } => return Judged::Refused(code),
        _ => return Judged::Lie(Offence::Malformed),
    };
    let target = ContentId::from_bytes(*lookup.target());
    let mut sequence = None;
    if let Message::Value { record: Some(record), .. } = message {
        let judged = RecordView::read(record).map_err(|_| RecordRefused::Signature).and_then(|view| {
            // Byte for byte what was verified already needs no second signature check.
            if lookup.record() != Some(record) {
                view.check(&target, sealer.crypto(), sealer.network(), now_secs)?;
            }
            Ok(view.sequence())
        });
        if judged.is_err_and(is_lie) {
            return Judged::Lie(Offence::InvalidRecord);
        }
        sequence = judged.ok();
    }
    if let Message::Providers { providers, .. } = message {
        let unknown = providers.iter().filter(|provider| !lookup.providers().contains(provider));
        let mut checked =
            unknown.map(|provider| check_provider(&provider, &target, sealer.crypto(), sealer.network(), now_secs));
        if checked.any(|checked| checked.is_err_and(is_lie)) {
            return Judged::Lie(Offence::InvalidRecord);
        }
    }
    Judged::Answer { token, closer, sequence }
}

/// Whether a record that does not hold is to be blamed on its sender. Clocks disagree, and lifetimes end on the way: that is no offence.
pub(crate) fn is_lie(refused: RecordRefused) -> bool {
    !matches!(refused, RecordRefused::Expired | RecordRefused::NotYetIssued)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lookup::{Goal, LookupConfig};
    use crate::node::lone_lane::{contact, lane};
    use crate::record::immutable_record;
    use tessera_contracts::point::{Distance, Point as _};

    #[test]
    fn an_answer_is_a_lie_only_if_it_can_be_blamed_on_its_sender() {
        let lane = lane();
        let record = immutable_record(b"value", 100).unwrap();
        let id = RecordView::read(&record).unwrap().id();
        let judged = |target: [u8; 32], message: Message<'_>, stores: bool| {
            let mut lookup = Lookup::new();
            lookup.start(0, LookupConfig::default(), target, Goal::Immutable, Distance::ZERO);
            alloc::format!("{:?}", judge(&message, &lookup, stores, lane.router.peers.sealer(), 1_800_000_000))
        };
        let value = Message::Value { token: [1; 16], record: Some(&record), closer: Contacts::over(&[]) };
        assert!(judged(*id.as_bytes(), value, false).contains("sequence: Some(0)"));
        assert_eq!(judged([7; 32], value, false), "Lie(InvalidRecord)", "a record of another id");
        assert_eq!(judged([7; 32], Message::Pong { observed: contact(1).addr }, false), "Lie(Malformed)");
        let refusal = |code| Message::Error { code, retry_after_ms: 0 };
        for (code, asked, stored) in [
            (ErrorCode::CookieRequired, "AskAgain", "TokenRefused"),
            (ErrorCode::RelayFailed, "AskAgain", "WriteRefused(RelayFailed)"),
            (ErrorCode::TooFar, "Refused(TooFar)", "TokenRefused"),
            (ErrorCode::Full, "Refused(Full)", "WriteRefused(Full)"),
        ] {
            assert_eq!(
                (judged([7; 32], refusal(code), false).as_str(), judged([7; 32], refusal(code), true).as_str()),
                (asked, stored)
            );
        }
    }
}
