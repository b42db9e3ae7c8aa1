//! Any text is a rule file or an error with words, in our format and in that of gitleaks; rules that are read can be used.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tessera_detect::{Detector, RuleFileError, RuleSet, Source, gitleaks};

fuzz_target!(|text: &str| {
    can_be_used(RuleSet::from_toml(text), text);
    can_be_used(gitleaks::read(text, &mut |path| Err(format!("there is no {path}"))), text);
});

fn can_be_used(read: Result<RuleSet, RuleFileError>, text: &str) {
    match read {
        Err(error) => assert!(!error.to_string().is_empty()),
        Ok(rules) => match Detector::new(&rules) {
            Err(error) => assert!(!error.to_string().is_empty()),
            Ok(mut detector) => {
                detector.scan_bytes(Source::path("rules.toml"), text.as_bytes(), |_| {});
            }
        },
    }
}
