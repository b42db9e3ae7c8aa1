//! Recall and precision on a labelled set of our own making: `cargo run --release -p tessera-detect --example accuracy [SEED]`
//!
//! The set is made from documented token formats: every positive example of every built-in rule in several surroundings
//! (true), and hard negatives that look alike: tokens cut short or with a wrong checksum, placeholders, hashes, lock files,
//! UUIDs, identifiers, public keys, templates. A near miss such as `COINBASE_API_KEY=` with one character too few is no Coinbase key,
//! but it is still a random value under a telling name: if one of the generic rules says so, that counts as neither
//! right nor wrong and is shown apart. The set is deterministic in the seed. What it cannot say is how secrets outside these
//! formats fare; it is made by the authors of the rules and measures that the rules do what they mean to, together.

use std::collections::BTreeMap;

use tessera_detect::template::{Seed, base64, expand};
use tessera_detect::{Detector, RuleSet, Source};

fn main() {
    let seed = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(1);
    let rules = RuleSet::builtin();
    let mut detector = Detector::new(&rules).expect("built-in rules are consistent");
    let samples = labelled_set(&rules, seed);
    let (mut hit, mut missed, mut false_alarm, mut quiet, mut undecided) = (0, 0, 0, 0, 0);
    let mut complaints: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for sample in &samples {
        let mut ids = Vec::new();
        detector
            .scan_bytes(Source::path("sample"), sample.text.as_bytes(), |finding| ids.push(finding.rule.id.clone()));
        match (sample.secret, ids.is_empty()) {
            (true, false) => {
                hit += 1;
                // More than one report of one secret is noise, and counted as such.
                false_alarm += ids.len() - 1;
            }
            (true, true) => {
                missed += 1;
                complaints.entry("missed").or_default().push(sample.kind.clone());
            }
            (false, true) => quiet += 1,
            (false, false) if sample.is_near_miss && ids.iter().all(|id| id.starts_with("generic-")) => undecided += 1,
            (false, false) => {
                false_alarm += ids.len();
                complaints.entry("false alarm").or_default().push(format!("{} by {ids:?}", sample.kind));
            }
        }
    }
    println!(
        "seed {seed}: {} samples, {} with a secret, {} without",
        samples.len(),
        hit + missed,
        samples.len() - hit - missed
    );
    println!("recall    {:.4}  ({hit} of {})", ratio(hit, hit + missed), hit + missed);
    println!("precision {:.4}  ({hit} of {} reports)", ratio(hit, hit + false_alarm), hit + false_alarm);
    println!("hard negatives passed over: {quiet}; near misses that a generic rule reports: {undecided}");
    for (what, which) in &complaints {
        println!("{what}:");
        which.iter().for_each(|kind| println!("  {kind}"));
    }
}

fn ratio(part: usize, whole: usize) -> f64 {
    if whole == 0 { 1.0 } else { part as f64 / whole as f64 }
}

struct Sample {
    kind: String,
    text: String,
    secret: bool,
    is_near_miss: bool,
}

fn labelled_set(rules: &RuleSet, seed: u64) -> Vec<Sample> {
    let mut seed = Seed::new(seed);
    let mut samples = Vec::new();
    for rule in rules.rules().iter().filter(|rule| rule.confidence >= tessera_detect::Confidence::Medium) {
        for example in &rule.positive {
            let text = expand(example, &mut seed).expect("examples are tested");
            samples.push(Sample {
                kind: format!("{} plain", rule.id),
                text: surrounded(&text, &mut seed),
                secret: true,
                is_near_miss: false,
            });
            let text = expand(example, &mut seed).expect("examples are tested");
            let hidden = format!("payload: {}\n", base64(format!("---\nkind: settings\n{text}\n...\n").as_bytes()));
            samples.push(Sample {
                kind: format!("{} in base64", rule.id),
                text: hidden,
                secret: true,
                is_near_miss: false,
            });
        }
        for example in &rule.negative {
            let text = expand(example, &mut seed).expect("examples are tested");
            samples.push(Sample {
                kind: format!("near miss of {}: {example}", rule.id),
                text: surrounded(&text, &mut seed),
                secret: false,
                is_near_miss: true,
            });
        }
    }
    for recipe in HARMLESS {
        for _ in 0..6 {
            let text = expand(recipe, &mut seed).expect("recipes are known");
            samples.push(Sample {
                kind: (*recipe).into(),
                text: surrounded(&text, &mut seed),
                secret: false,
                is_near_miss: false,
            });
        }
    }
    samples
}

/// Code before and after, as in a real file.
fn surrounded(text: &str, seed: &mut Seed) -> String {
    const BEFORE: &[&str] = &[
        "",
        "// settings\n",
        "# see README for the token format\n",
        "import os\n\n",
        "{\n  \"name\": \"app\",\n  \"password\": null\n}\n",
    ];
    const AFTER: &[&str] = &["", "\n", "\nfunction main() { return getToken(secret); }\n", "\n# end\n"];
    format!("{}{text}{}", seed.pick(BEFORE), seed.pick(AFTER))
}

/// What scanners cry wolf at.
const HARMLESS: &[&str] = &[
    "commit <<hex 40>>",
    "sha256:<<hex 64>>",
    "integrity: sha512-<<b64 86>>==",
    "\"resolved\": \"https://registry.npmjs.org/a/-/a-1.0.0.tgz#<<hex 40>>\",",
    "checksum = \"<<hex 64>>\"",
    "id: <<uuid>>",
    "ETag: \"<<hex 32>>\"",
    "ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAABAQ<<b64 340>> user@host",
    "-----BEGIN CERTIFICATE-----<<nl>>MIID<<b64 60>><<nl>><<b64 64>><<nl>>-----END CERTIFICATE-----",
    "-----BEGIN PUBLIC KEY-----<<nl>>MIIB<<b64 60>><<nl>>-----END PUBLIC KEY-----",
    "background: url(data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAA<<b64 200>>)",
    "token = os.environ[\"GITHUB_TOKEN\"]",
    "password: ${{ secrets.PASSWORD }}",
    "api_key: {{ vault_api_key }}",
    "API_KEY=<your-api-key>",
    "SECRET_KEY = config('SECRET_KEY', default='')",
    "client_secret = getSecret(\"projects/1/secrets/client\")",
    "ghp_<<alnum 36>>",
    "npm_<<alnum 36>>",
    "const publicKey = 'pk_live_<<alnum 24>>';",
    "postgres://user:password@localhost:5432/db",
    "https://user:${TOKEN}@github.com/org/repo",
    "keyboardShortcut: \"ctrl+shift+alt+down+F12\"",
    "\"key\": \"ctrl+k ctrl+shift+<<lower 6>>\"",
    "access_token_url = \"https://auth.example.org/oauth/v2/accessToken\"",
    "secretName: my-application-tls-certificate-production-2024",
    "tokenizer = \"bert-base-multilingual-cased-finetuned-ner-v2\"",
    "apiKeyHeader = \"X-Application-Api-Key-Header-Name\"",
    "PASSWORD_HASHERS = ['django.contrib.auth.hashers.PBKDF2PasswordHasher']",
    "const secret_key_ref = \"arn:aws:secretsmanager:eu-west-1:123456789012:secret:prod\"",
    "access_key_id: AKIAIOSFODNN7EXAMPLE",
    "eyJhbGciOiJIUzI1NiJ9 is the header of a token",
    "session: 00000000-0000-0000-0000-000000000000",
    "color: #<<hex 6>>; margin: 0 auto; token-list: none",
    "auth_token: xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
    "datadog_monitor_id: <<digit 8>>",
    "heroku_app_name: my-app-<<digit 5>>",
    "cloudflare_zone_id = \"<<hex 32>>\"",
    "sentry_dsn: https://<<hex 32>>@o<<digit 6>>.ingest.sentry.io/<<digit 7>>",
    "algolia_app_id: <<upnum 10>>",
    "stripe_publishable_key: pk_test_<<alnum 24>>",
    "twilio_account_sid = AC<<hex 32>>",
    "let accessKeyIdentifierForTheCurrentUserSessionInTheBrowserWindow = null;",
    "translation_key = \"errors.messages.validation.password.confirmation_2\"",
    "passwordResetTemplateId: d-<<hex 32>>",
    "gitHead: <<hex 40>>",
];
