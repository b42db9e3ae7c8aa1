//! Text from scanned content, made fit to be displayed.
//!
//! A secret may stand in a commit's subject, an author's name, a path, or an error that quotes one of them. So what is displayed
//! of such text is a [`Shown`], and only a [`Redactor`] makes one: it shortens every secret that the rules find in the text, and
//! every secret that the run found anywhere, which it recognises by length and id without knowing it. Reports are written from a
//! view that hands out nothing else ([`crate::report`]).
//!
//! If the run was asked to show secrets, text is shown as it is.

use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::ops::Range;

use tessera_detect::{Confidence, Detector, IdKey, Options, RuleSet, Secret, SecretId, Source};

use crate::read::rules::Rules;
use crate::report::finding::Finding;
use crate::run::job::Job;

/// Text that may be displayed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Shown(String);

impl Shown {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// How often a text is looked at: what was shortened may leave something else behind.
const ROUNDS_MAX: usize = 4;
/// Texts that are remembered: paths and commits are displayed again and again.
const REMEMBERED_MAX: usize = 1 << 16;
/// Secrets of this length or more are stored with their first characters.
const PREFIX_FROM: usize = 16;
const PREFIX_BYTES: usize = 4;

/// Makes text fit to be displayed.
pub struct Redactor {
    rules: Vec<RuleSet>,
    confidence_min: Confidence,
    /// Whether text is shown as it is.
    exposes: bool,
    /// How much of the secrets that the run kept is hidden, in per cent.
    percent: u8,
    id_key: IdKey,
    /// Secrets of the run, by their length.
    secrets: BTreeMap<usize, Secrets>,
    /// Made when there is something to display.
    detector: OnceCell<RefCell<Detector>>,
    remembered: RefCell<HashMap<Vec<u8>, Shown>>,
}

/// Secrets of one length.
#[derive(Debug, Default)]
struct Secrets {
    ids: HashSet<SecretId>,
    /// How they begin; empty if that is not known of all.
    prefixes: HashSet<[u8; PREFIX_BYTES]>,
    /// Whether the beginning of one is not known.
    any_prefix: bool,
}

impl fmt::Debug for Redactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redactor").field("exposes", &self.exposes).finish_non_exhaustive()
    }
}

impl Redactor {
    /// For text that belongs to no run: shortens what the built-in rules find.
    pub fn builtin() -> Self {
        Self::of_rules(&[])
    }

    /// Shortens what the built-in rules or these find.
    pub fn of_rules(rules: &[Rules]) -> Self {
        let (secrets, detector, remembered) = Default::default();
        Self {
            rules: rules.iter().map(|rules| rules.set().clone()).collect(),
            confidence_min: Confidence::Medium,
            exposes: false,
            percent: 100,
            id_key: IdKey::new([0; 32]),
            secrets,
            detector,
            remembered,
        }
    }

    /// For what a run displays: also shortens the secrets that it found, of which `percent` are hidden if the run kept them.
    pub fn of_run(job: &Job, findings: &[Finding], percent: u8) -> Self {
        let mut redactor = Self::of_rules(&job.rules);
        redactor.confidence_min = job.detect.confidence_min.min(Confidence::Medium);
        redactor.percent = if job.keep_secrets { percent } else { 100 };
        redactor.exposes = redactor.percent == 0;
        redactor.id_key = IdKey::new(job.id_key);
        for finding in findings {
            // A finding that is a path has no secret.
            let len = finding.first().occurrence.secret_len as usize;
            if len > 0 {
                redactor.secrets.entry(len).or_default().add(len, finding);
            }
        }
        redactor
    }

    /// Makes text fit to be displayed.
    pub fn show(&self, text: impl AsRef<[u8]>) -> Shown {
        let text = text.as_ref();
        if self.exposes || text.is_empty() {
            return Shown(legible(text));
        }
        if let Some(shown) = self.remembered.borrow().get(text) {
            return shown.clone();
        }
        let shown = Shown(legible(&self.shortened(text)));
        let mut remembered = self.remembered.borrow_mut();
        if remembered.len() < REMEMBERED_MAX {
            remembered.insert(text.to_vec(), shown.clone());
        }
        shown
    }

    /// The same for bytes that a program reads, which need not be text.
    pub fn show_bytes(&self, bytes: &[u8]) -> Vec<u8> {
        if self.exposes { bytes.to_vec() } else { self.shortened(bytes) }
    }

    /// The secret of a finding: as much of it as is to be seen if the run kept it, else as it was shortened when it was found.
    pub fn secret_of(&self, finding: &Finding) -> Shown {
        match finding.exposed.as_ref().filter(|_| self.percent < 100) {
            Some(exposed) => Shown(self.partly(&String::from_utf8_lossy(exposed.secret.expose()))),
            None => Shown(finding.redacted.clone()),
        }
    }

    /// The whole match of a finding, as [`Redactor::secret_of`].
    pub fn match_of(&self, finding: &Finding) -> Shown {
        match finding.exposed.as_ref().filter(|_| self.percent < 100) {
            Some(exposed) => {
                let secret = String::from_utf8_lossy(exposed.secret.expose());
                let matched = String::from_utf8_lossy(exposed.matched.expose());
                match matched.contains(&*secret) && !secret.is_empty() {
                    true => Shown(matched.replace(&*secret, &self.partly(&secret))),
                    // It stands there in another form, which is as secret.
                    false => Shown(self.partly(&matched)),
                }
            }
            None => Shown(finding.redacted.clone()),
        }
    }

    /// The beginning of a secret, as long as it may be.
    fn partly(&self, secret: &str) -> String {
        if self.percent == 0 {
            return secret.to_owned();
        }
        let shown = secret.chars().count() * usize::from(100 - self.percent) / 100;
        secret.chars().take(shown).chain("...".chars()).collect()
    }

    fn shortened(&self, text: &[u8]) -> Vec<u8> {
        let mut text = text.to_vec();
        for _ in 0..ROUNDS_MAX {
            let mut spans = self.known_secrets(&text);
            spans.extend(self.found_by_rules(&text));
            let after = replaced(&text, spans);
            if after == text {
                break;
            }
            text = after;
        }
        text
    }

    /// Where secrets of the run stand.
    fn known_secrets(&self, text: &[u8]) -> Vec<Range<usize>> {
        let mut spans = Vec::new();
        for (&len, secrets) in &self.secrets {
            for (start, window) in text.windows(len).enumerate() {
                if secrets.may_be(window) && secrets.ids.contains(&self.id_key.secret_id(window)) {
                    spans.push(start..start + len);
                }
            }
        }
        spans
    }

    fn found_by_rules(&self, text: &[u8]) -> Vec<Range<usize>> {
        let detector = self.detector.get_or_init(|| RefCell::new(self.detector()));
        let mut spans = Vec::new();
        detector.borrow_mut().scan_bytes(Source::default(), text, |finding| {
            spans.push(finding.secret_span.start as usize..finding.secret_span.end as usize);
        });
        spans
    }

    fn detector(&self) -> Detector {
        let options = Options { confidence_min: self.confidence_min, honour_remarks: false, ..Options::default() };
        let rules = RuleSet::for_texts(&self.rules);
        // Rules that were read can contradict one another only in what they require, and those that require are left out.
        Detector::with_options(&rules, options.clone())
            .or_else(|_| Detector::with_options(&RuleSet::builtin(), options))
            .expect("a test makes the built-in rules ready")
    }
}

impl Secrets {
    fn add(&mut self, len: usize, finding: &Finding) {
        self.ids.insert(finding.secret_id);
        let prefix = finding.redacted.as_bytes().first_chunk().filter(|_| len >= PREFIX_FROM);
        match prefix {
            // A character that is no letter is not told.
            Some(prefix) if !prefix.contains(&b'?') => {
                self.prefixes.insert(*prefix);
            }
            _ => self.any_prefix = true,
        }
    }

    /// Whether it can be one of them, by its beginning. Hashing every piece of every text would take too long.
    fn may_be(&self, window: &[u8]) -> bool {
        self.any_prefix || window.first_chunk().is_some_and(|prefix| self.prefixes.contains(prefix))
    }
}

/// Bytes as text. What is no UTF-8 is written as `\xff` and not as a mark that is alike for all: names of files that differ are shown
/// as names that differ.
pub(super) fn legible(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        for byte in chunk.invalid() {
            text.push_str(&format!("\\x{byte:02x}"));
        }
    }
    text
}

/// `text` with what stands at these places shortened; places that touch are one.
fn replaced(text: &[u8], mut spans: Vec<Range<usize>>) -> Vec<u8> {
    spans.retain(|span| span.start < span.end && span.end <= text.len());
    spans.sort_by_key(|span| (span.start, span.end));
    let mut merged: Vec<Range<usize>> = Vec::with_capacity(spans.len());
    for span in spans {
        match merged.last_mut() {
            Some(last) if span.start < last.end => last.end = last.end.max(span.end),
            _ => merged.push(span),
        }
    }
    let (mut out, mut at) = (Vec::with_capacity(text.len()), 0);
    for span in merged {
        out.extend_from_slice(&text[at..span.start]);
        out.extend_from_slice(Secret::new(&text[span.clone()]).redacted().as_bytes());
        at = span.end;
    }
    out.extend_from_slice(&text[at..]);
    out
}

#[cfg(test)]
mod tests {
    use tessera_contracts::redact::SecretBytes;
    use tessera_detect::template;

    use super::*;
    use crate::findings::occurrence::Exposed;
    use crate::report::tests::findings;

    fn token(seed: u64) -> String {
        template::expand("ghp_<<github 30>>", &mut template::Seed::new(seed)).unwrap()
    }

    fn job(keep_secrets: bool) -> Job {
        Job { rules: vec![Rules::builtin()], detect: Options::default(), keep_secrets, id_key: [7; 32] }
    }

    /// A finding of this secret, of which the text is not known.
    fn finding(secret: &str) -> Finding {
        let mut finding = findings().remove(0);
        finding.secret_id = IdKey::new([7; 32]).secret_id(secret.as_bytes());
        finding.redacted = Secret::new(secret.as_bytes()).redacted();
        for location in &mut finding.locations {
            location.occurrence.secret_len = secret.len() as u64;
        }
        finding
    }

    #[test]
    fn what_rules_find_in_a_text_is_shortened_wherever_it_stands() {
        let redactor = Redactor::builtin();
        let (one, two) = (token(1), token(2));
        assert_eq!(redactor.show(format!("use {one}, not {two}!")).as_str(), "use ghp_****, not ghp_****!");
        assert_eq!(redactor.show(format!("keys/{one}.txt")).as_str(), "keys/ghp_****.txt");
        for plain in ["", "Fix the parser", "src/main.rs", "a\u{e4}\n\tb", "Merge branch 'main' of example.org:repo"] {
            assert_eq!(redactor.show(plain).as_str(), plain);
        }
        // Twice: the second time it is remembered.
        assert_eq!(redactor.show(&one), redactor.show(&one));
    }

    #[test]
    fn a_secret_of_the_run_is_recognised_where_no_rule_would_find_it() {
        for secret in ["correct horse battery", "hunter2-and-more", "hunter2", "\u{fc}ber\u{e4}ll-geheim-7"] {
            let redactor = Redactor::of_run(&job(false), &[finding(secret), finding("another secret")], 0);
            for text in [format!("a {secret} b"), secret.to_owned(), format!("x{secret}x/{secret}")] {
                assert!(Redactor::builtin().show(&text).as_str().contains(secret), "no rule finds it in {text}");
                let shown = redactor.show(&text);
                assert!(!shown.as_str().contains(secret), "{shown}");
            }
            assert_eq!(redactor.show("nothing of it").as_str(), "nothing of it");
        }
    }

    #[test]
    fn rules_of_the_run_count_too_and_nothing_is_hidden_that_was_asked_for() {
        let own = "[[rules]]\nid = 'own'\nregex = 'own_[a-z]{20}'\nkeywords = ['own_']\n";
        let own = Rules::from_gitleaks(own, &mut |_| Err("no".into())).unwrap();
        let text = format!("own_abcdefghijklmnopqrst {}", token(1));
        let job = |keep_secrets| Job { rules: vec![Rules::builtin(), own.clone()], ..job(keep_secrets) };
        assert_eq!(Redactor::of_run(&job(false), &[], 0).show(&text).as_str(), "own_**** ghp_****");
        assert_eq!(Redactor::of_run(&job(true), &[], 0).show(&text).as_str(), text);
    }

    #[test]
    fn a_secret_is_told_in_full_only_if_the_run_kept_it_to_be_shown() {
        let mut finding = finding("the secret itself");
        let exposed = Exposed {
            secret: SecretBytes::new(&b"the secret itself"[..]),
            matched: SecretBytes::new(&b"x = the secret itself"[..]),
        };
        finding.exposed = Some(exposed);
        let shown = |keep_secrets, percent| {
            let redactor = Redactor::of_run(&job(keep_secrets), std::slice::from_ref(&finding), percent);
            let subject = redactor.show("use the secret itself").to_string();
            (redactor.secret_of(&finding).to_string(), redactor.match_of(&finding).to_string(), subject)
        };
        let told = |secret: &str, matched: &str, subject: &str| (secret.into(), matched.into(), subject.into());
        assert_eq!(shown(false, 0), told("the?****", "the?****", "use the?****"));
        assert_eq!(shown(true, 0), told("the secret itself", "x = the secret itself", "use the secret itself"));
        assert_eq!(shown(true, 60), told("the se...", "x = the se...", "use the?****"));
        assert_eq!(shown(true, 99), told("...", "x = ...", "use the?****"));
        assert_eq!(shown(true, 100), told("the?****", "the?****", "use the?****"));
    }

    #[test]
    fn names_that_are_no_text_stay_apart() {
        let redactor = Redactor::builtin();
        assert_eq!(redactor.show(b"a\xff\xc3").as_str(), r"a\xff\xc3");
        assert_ne!(redactor.show(b"a\xff"), redactor.show(b"a\xfe"));
        assert_eq!(redactor.show("ä€\u{fffd}").as_str(), "ä€\u{fffd}");
        let token = token(1);
        assert_eq!(redactor.show_bytes(format!("k/{token}").as_bytes()), b"k/ghp_****");
    }

    #[test]
    fn places_that_overlap_are_shortened_as_one() {
        assert_eq!(replaced(b"abcdefgh", vec![1..3, 2..5, 7..7, 6..20]), b"a****fgh");
        assert_eq!(replaced(b"abc", Vec::new()), b"abc");
    }
}
