//! Recall and precision on a labelled set of our own making: `cargo run --release -p tessera-detect --example accuracy [SEED]`
//!
//! With another scanner's command after the seed, its recall beside ours: `… --example accuracy 1 kingfisher scan -n
//! --no-update-check --format json`. The samples become files in a folder, whose path is put after the command; a sample counts
//! as reported if its file's name occurs in what the command writes. A family (`github-…`, `aws-…`) is shared if both report
//! something of it: what only one side has rules for says nothing about how good its rules are.
//!
//! The set is made from documented token formats: every positive example of every built-in rule in several surroundings
//! (true), and hard negatives that look alike: tokens cut short or with a wrong checksum, placeholders, hashes, lock files,
//! UUIDs, identifiers, public keys, templates. A near miss such as `COINBASE_API_KEY=` with one character too few is no Coinbase key,
//! but it is still a random value under a telling name: if one of the generic rules says so, that counts as neither
//! right nor wrong and is shown apart. The set is deterministic in the seed. What it cannot say is how secrets outside these
//! formats fare; it is made by the authors of the rules and measures that the rules do what they mean to, together.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};

use tessera_detect::template::{Seed, base64, expand};
use tessera_detect::{Detector, RuleSet, Source};

fn main() {
    let mut args = std::env::args().skip(1);
    let seed = args.next().and_then(|text| text.parse().ok()).unwrap_or(1);
    let rival: Vec<String> = args.collect();
    let rules = RuleSet::builtin();
    let mut detector = Detector::new(&rules).expect("built-in rules are consistent");
    let samples = labelled_set(&rules, seed);
    let (mut hit, mut missed, mut false_alarm, mut quiet, mut undecided) = (0, 0, 0, 0, 0);
    let mut complaints: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let mut ours = Vec::new();
    for sample in &samples {
        let mut ids = Vec::new();
        detector
            .scan_bytes(Source::path("sample"), sample.text.as_bytes(), |finding| ids.push(finding.rule.id.clone()));
        ours.push(!ids.is_empty());
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
    if !rival.is_empty() {
        match reported_by(&rival, &samples) {
            Ok(theirs) => compare(&samples, &ours, &theirs),
            Err(problem) => println!("{} could not be run: {problem}", rival[0]),
        }
    }
}

/// Which samples another scanner reports.
fn reported_by(rival: &[String], samples: &[Sample]) -> std::io::Result<Vec<bool>> {
    let dir = std::env::temp_dir().join(format!("accuracy-{}", std::process::id()));
    std::fs::create_dir_all(&dir)?;
    let name = |i: usize| format!("sample-{i:05}.txt");
    for (i, sample) in samples.iter().enumerate() {
        std::fs::write(dir.join(name(i)), &sample.text)?;
    }
    let output = Command::new(&rival[0]).args(&rival[1..]).arg(&dir).stdin(Stdio::null()).output();
    std::fs::remove_dir_all(&dir)?;
    let text = String::from_utf8_lossy(&output?.stdout).into_owned();
    Ok((0..samples.len()).map(|i| text.contains(&name(i))).collect())
}

fn compare(samples: &[Sample], ours: &[bool], theirs: &[bool]) {
    let secrets = || (0..samples.len()).filter(|&i| samples[i].secret);
    let mut families: BTreeMap<&str, [usize; 3]> = BTreeMap::new();
    for i in secrets() {
        let [all, by_us, by_them] = families.entry(samples[i].family()).or_default();
        *all += 1;
        *by_us += usize::from(ours[i]);
        *by_them += usize::from(theirs[i]);
    }
    let shared = || families.iter().filter(|(_, [_, by_us, by_them])| *by_us > 0 && *by_them > 0);
    let sum = |field: usize| shared().map(|(_, counts)| counts[field]).sum::<usize>();
    let (all, hits) = (sum(0), [sum(1), sum(2)]);
    println!("\n{} of {} families are shared, {all} samples with a secret", shared().count(), families.len());
    println!("{:<36} {:>8} {:>8}", "", "tessera", "rival");
    let line = |what: &str, parts: [usize; 2], whole: usize| {
        println!("{what:<36} {:>8.4} {:>8.4}", ratio(parts[0], whole), ratio(parts[1], whole));
    };
    line("recall on shared families", hits, all);
    let plain = |reported: &[bool]| {
        let of_shared = |i: &usize| shared().any(|(family, _)| *family == samples[*i].family());
        let plain: Vec<usize> = secrets().filter(|&i| !samples[i].is_encoded).filter(of_shared).collect();
        (plain.iter().filter(|&&i| reported[i]).count(), plain.len())
    };
    line("  of these, not encoded", [plain(ours).0, plain(theirs).0], plain(ours).1);
    let count = |reported: &[bool], of: &dyn Fn(&Sample) -> bool| {
        (0..samples.len()).filter(|&i| of(&samples[i]) && reported[i]).count()
    };
    let with = samples.iter().filter(|sample| sample.secret).count();
    line("recall on everything", [count(ours, &|s| s.secret), count(theirs, &|s| s.secret)], with);
    let harmless = samples.iter().filter(|sample| !sample.secret && !sample.is_near_miss).count();
    let is_harmless = |sample: &Sample| !sample.secret && !sample.is_near_miss;
    line("harmless samples that are reported", [count(ours, &is_harmless), count(theirs, &is_harmless)], harmless);
    println!("shared families in which the rival reports more:");
    for (family, [all, by_us, by_them]) in shared().filter(|(_, [_, by_us, by_them])| by_them > by_us) {
        println!("  {family}: {by_us} and {by_them} of {all}");
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
    is_encoded: bool,
}

impl Sample {
    /// Whose secret it is: the first word of its rule's id.
    fn family(&self) -> &str {
        self.kind.split(['-', ' ']).next().unwrap_or_default()
    }
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
                is_encoded: false,
            });
            let text = expand(example, &mut seed).expect("examples are tested");
            let hidden = format!("payload: {}\n", base64(format!("---\nkind: settings\n{text}\n...\n").as_bytes()));
            samples.push(Sample {
                kind: format!("{} in base64", rule.id),
                text: hidden,
                secret: true,
                is_near_miss: false,
                is_encoded: true,
            });
        }
        for example in &rule.negative {
            let text = expand(example, &mut seed).expect("examples are tested");
            samples.push(Sample {
                kind: format!("near miss of {}: {example}", rule.id),
                text: surrounded(&text, &mut seed),
                secret: false,
                is_near_miss: true,
                is_encoded: false,
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
                is_encoded: false,
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
