//! A block without findings goes to the allocator not once, and memory does not grow with the source.

use alloc_counter::{CountingAllocator, count};
use tessera_detect::{Detector, Finding, RuleSet, Source};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Source text with keywords in it, so that expressions run, but without a secret.
const CLEAN: &str = "let token = config.get(\"api_key\"); // password = prompt()\n\
    https://example.org/path?sig=none&key=value%20with%20spaces\n\
    AKIA is a prefix, ghp_ another; -----BEGIN PUBLIC KEY-----\n\
    d41d8cd98f00b204e9800998ecf8427e0cc175b9c0f1b6a831c399e269772661\n\
    datadog_api_key: ${DATADOG}\n";

fn clean(bytes: usize) -> Vec<u8> {
    CLEAN.bytes().cycle().take(bytes).collect()
}

#[test]
fn clean_chunks_are_searched_without_allocating() {
    let mut detector = Detector::new(&RuleSet::builtin()).expect("built-in rules are consistent");
    let text = clean(1 << 20);
    // The first pass compiles the expressions that the text wakes and fills their caches.
    detector.scan_bytes(Source::path("a.rs"), &text, |_| panic!("the text is clean"));
    let (allocations, summary) =
        count(|| detector.scan_bytes(Source::path("a.rs"), &text, |_| panic!("the text is clean")));
    assert_eq!((allocations, summary.findings), (0, 0));
}

#[test]
fn a_clean_stream_allocates_its_buffer_once_for_all_sources() {
    let mut detector = Detector::new(&RuleSet::builtin()).expect("built-in rules are consistent");
    let text = clean(700_000);
    let mut pass = || {
        let mut stream = detector.stream(Source::default(), |_: &Finding<'_>| panic!("the text is clean"));
        text.chunks(10_000).for_each(|chunk| stream.push(chunk));
        stream.finish()
    };
    pass();
    let (allocations, summary) = count(&mut pass);
    assert_eq!((allocations, summary.bytes), (0, 700_000));
}

#[test]
fn a_finding_does_allocate_so_the_counter_counts() {
    use tessera_detect::template::{Seed, expand};
    let mut detector = Detector::new(&RuleSet::builtin()).expect("built-in rules are consistent");
    let text = expand("ghp_<<github 30>>", &mut Seed::new(1)).expect("a known recipe");
    detector.scan_bytes(Source::default(), text.as_bytes(), |_| {});
    let (allocations, _) = count(|| detector.scan_bytes(Source::default(), text.as_bytes(), |_| {}));
    assert!(allocations > 0);
}
