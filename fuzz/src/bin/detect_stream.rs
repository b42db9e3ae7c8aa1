//! The built-in rules say the same of any bytes, however they come in chunks, and their findings lie in the bytes.

#![no_main]

use std::cell::RefCell;

use libfuzzer_sys::fuzz_target;
use tessera_detect::{Detector, Finding, RuleSet, Source};

thread_local! {
    static DETECTOR: RefCell<Detector> =
        RefCell::new(Detector::new(&RuleSet::builtin()).expect("the built-in rules compile"));
}

fuzz_target!(|input: (Vec<u8>, &[u8])| {
    let (chunks, bytes) = input;
    DETECTOR.with_borrow_mut(|detector| {
        let source = Source::path("file");
        let mut whole = Vec::new();
        detector.scan_bytes(source, bytes, |finding| {
            assert!(finding.span.start <= finding.secret_span.start && finding.secret_span.end <= finding.span.end);
            assert!(finding.span.end <= bytes.len() as u64);
            whole.push(summary(finding));
        });
        let mut streamed = Vec::new();
        let mut stream = detector.stream(source, |finding| streamed.push(summary(finding)));
        let mut rest = bytes;
        for chunk in chunks {
            let (now, later) = rest.split_at(usize::from(chunk).min(rest.len()));
            stream.push(now);
            rest = later;
        }
        stream.push(rest);
        stream.finish();
        assert_eq!(whole, streamed);
    });
});

fn summary(finding: &Finding<'_>) -> (String, u64, u64) {
    (finding.rule.id.clone(), finding.span.start, finding.span.end)
}
