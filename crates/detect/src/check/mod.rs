//! Offline proof: what a token says about itself without asking its service.
//!
//! A checksum turns "looks like" into "is" ([`Outcome::Checksum`]); a structure that only real tokens have turns
//! most look-alikes away ([`Outcome::Structure`]). Nothing here talks to a network, and nothing stores the token.

pub mod aws;
pub(crate) mod base64;
pub mod bech32;
pub mod crc;
pub mod jwt;
pub mod luhn;
pub mod password;
pub mod pem;
pub mod structure;

use crate::error::RuleError;
use crate::random;
use crate::rule::named;
use core::fmt;
use core::str::FromStr;

/// What a check said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The rule has no check.
    Unchecked,
    /// The token has the structure of a real one.
    Structure,
    /// The token's own checksum is right.
    Checksum,
    /// Structure or checksum is wrong.
    Failed,
}

named!(Outcome, "check outcome", "unchecked" => Unchecked, "structure" => Structure, "checksum" => Checksum, "failed" => Failed);

/// Which proof a rule asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Check {
    /// `prefix_` + random + CRC-32 in base 62: GitHub's classic tokens and npm's.
    Crc62,
    /// GitLab's routable tokens: payload, length and CRC-32 in base 36.
    GitlabRoutable,
    /// An AWS access key id: base32 that spells a possible account number.
    AwsKeyId,
    /// A JSON web token: two JSON objects, the first of which names an algorithm.
    Jwt,
    /// A private key in PEM armour: the frame fits and the body decodes to what the frame says.
    Pem,
    /// A Slack token: numeric parts where they belong.
    Slack,
    /// A payment card number.
    Luhn,
    /// A UUID that is not nil and not a counter.
    Uuid,
    /// Base64 of a JSON object.
    Base64Json,
    /// Base64 or base64url that decodes.
    Base64,
    /// User and password of a URL: neither is a placeholder.
    UrlPassword,
    /// Drawn at random, by its alphabet and length.
    Random,
    /// A password that a person chose, and no name, word or reference.
    Password,
    /// The same with three kinds of characters, for places without quotes.
    StrongPassword,
    /// Base64 of `user:password`.
    BasicCredentials,
    /// Base64 of a text that is no stand-in.
    EncodedText,
    /// A private key in PEM armour that is encrypted.
    PemEncrypted,
    /// Base64 of a private key in DER, without armour.
    DerKey,
    /// NATS: base32 with a CRC-16.
    Nkey,
    /// Grafana: the CRC-32 of the token's beginning in hexadecimal at its end.
    GrafanaCrc,
    /// Bech32 with its checksum: secret keys of age.
    Bech32,
    /// A private key of WireGuard: base64 of a key of Curve25519.
    WireguardKey,
}

named!(Check, "check", "crc62" => Crc62, "gitlab-routable" => GitlabRoutable, "aws-key-id" => AwsKeyId, "jwt" => Jwt, "pem" => Pem,
    "slack" => Slack, "luhn" => Luhn, "uuid" => Uuid, "base64-json" => Base64Json, "base64" => Base64,
    "url-password" => UrlPassword, "random" => Random, "password" => Password, "strong-password" => StrongPassword,
    "basic-credentials" => BasicCredentials, "encoded-text" => EncodedText, "pem-encrypted" => PemEncrypted,
    "der-key" => DerKey, "nkey" => Nkey, "grafana-crc" => GrafanaCrc, "bech32" => Bech32,
    "wireguard-key" => WireguardKey);

impl Check {
    /// Asks `secret` to prove itself.
    ///
    /// ```
    /// use tessera_detect::check::{Check, Outcome};
    ///
    /// assert_eq!(Check::Luhn.run(b"4242 4242 4242 4242"), Outcome::Structure);
    /// assert_eq!(Check::Luhn.run(b"4242 4242 4242 4241"), Outcome::Failed);
    /// ```
    pub fn run(self, secret: &[u8]) -> Outcome {
        match self {
            Self::Crc62 => proved(crc::crc62_holds(secret), Outcome::Checksum),
            Self::GitlabRoutable => proved(crc::gitlab_routable_holds(secret), Outcome::Checksum),
            // One number in ten satisfies Luhn by accident: a hint, not a proof.
            Self::Luhn => proved(luhn::holds(secret), Outcome::Structure),
            Self::AwsKeyId => proved(aws::account_of(secret).is_some(), Outcome::Structure),
            Self::Jwt => proved(jwt::is_token(secret), Outcome::Structure),
            Self::Pem => proved(pem::is_private_key(secret) && !pem::is_encrypted(secret), Outcome::Structure),
            Self::PemEncrypted => proved(pem::is_private_key(secret) && pem::is_encrypted(secret), Outcome::Structure),
            Self::DerKey => proved(pem::is_der_key(secret), Outcome::Structure),
            Self::Nkey => proved(crc::nkey_holds(secret), Outcome::Checksum),
            Self::GrafanaCrc => proved(crc::grafana_holds(secret), Outcome::Checksum),
            Self::Bech32 => proved(bech32::holds(secret), Outcome::Checksum),
            Self::WireguardKey => proved(structure::is_wireguard_key(secret), Outcome::Structure),
            Self::Random => proved(random::looks_random(secret), Outcome::Structure),
            Self::Password => proved(password::is_password(secret), Outcome::Structure),
            Self::StrongPassword => proved(password::is_strong_password(secret), Outcome::Structure),
            Self::BasicCredentials => proved(password::is_basic_credentials(secret), Outcome::Structure),
            Self::EncodedText => proved(password::is_encoded_text(secret), Outcome::Structure),
            Self::Slack => proved(structure::is_slack(secret), Outcome::Structure),
            Self::Uuid => proved(structure::is_random_uuid(secret), Outcome::Structure),
            Self::Base64Json => proved(structure::is_base64_json(secret), Outcome::Structure),
            Self::Base64 => proved(structure::is_base64(secret), Outcome::Structure),
            Self::UrlPassword => proved(structure::is_url_password(secret), Outcome::Structure),
        }
    }
}

fn proved(holds: bool, as_what: Outcome) -> Outcome {
    if holds { as_what } else { Outcome::Failed }
}
