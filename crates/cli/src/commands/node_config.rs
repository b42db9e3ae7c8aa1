//! The settings of `tessera node`, from a TOML file and from flags. A key that is not known is refused: a misspelt one would
//! otherwise silently do nothing.

use std::io::Read as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use tessera_dht::addr::Addr;
use tessera_dht::node::config::NodeConfig;
use tessera_dht_node::{Durability, PeerAddr};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::node_log::Format;

/// The largest settings file.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The settings. `None` is "not set".
#[derive(Debug, Default)]
pub(crate) struct Settings {
    pub(crate) listen: Option<SocketAddr>,
    pub(crate) bootstrap: Vec<PeerAddr>,
    pub(crate) lanes: Option<usize>,
    pub(crate) data: Option<PathBuf>,
    pub(crate) network: Option<String>,
    pub(crate) metrics: Option<SocketAddr>,
    pub(crate) public_addr: Option<SocketAddr>,
    pub(crate) address_diversity: Option<bool>,
    pub(crate) durability: Option<Durable>,
    pub(crate) pin: Option<bool>,
    pub(crate) reserve_memory: Option<bool>,
    pub(crate) relieve_hot_lanes: Option<bool>,
    pub(crate) trace_every: Option<u32>,
    pub(crate) trace_dir: Option<PathBuf>,
    pub(crate) log: Option<Format>,
    pub(crate) limits: Limits,
}

impl Settings {
    /// What `other` says wins.
    pub(crate) fn override_with(&mut self, other: Self) {
        self.listen = other.listen.or(self.listen);
        self.bootstrap.extend(other.bootstrap);
        self.lanes = other.lanes.or(self.lanes);
        self.data = other.data.or(self.data.take());
        self.network = other.network.or(self.network.take());
        self.metrics = other.metrics.or(self.metrics);
        self.public_addr = other.public_addr.or(self.public_addr);
        self.log = other.log.or(self.log);
    }
}

/// Bounds of one lane, and limits on requests of others.
#[derive(Debug, Default)]
pub(crate) struct Limits {
    record_bytes_max: Option<u32>,
    record_bytes_per_giver_max: Option<u32>,
    requests_per_peer_per_sec: Option<u32>,
    requests_per_prefix_per_sec: Option<u32>,
    relays_max: Option<u32>,
    stem_hops: Option<u8>,
    put_quorum_percent: Option<u8>,
}

impl Limits {
    pub(crate) fn apply(&self, config: &mut NodeConfig) {
        let set = |what: &mut u32, to: Option<u32>| *what = to.unwrap_or(*what);
        set(&mut config.records.bytes_max, self.record_bytes_max);
        set(&mut config.records.bytes_per_giver_max, self.record_bytes_per_giver_max);
        set(&mut config.abuse.per_peer_per_sec, self.requests_per_peer_per_sec);
        set(&mut config.abuse.per_prefix_per_sec, self.requests_per_prefix_per_sec);
        if let Some(relays_max) = self.relays_max {
            config.relays_max = relays_max as usize;
        }
        if let Some(percent) = self.put_quorum_percent {
            config.put_quorum_percent = percent;
        }
        if let Some(hops) = self.stem_hops {
            config.stem_hops = hops;
        }
    }
}

/// When something stored counts as safe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Durable {
    Async,
    Group,
    Strict,
}

impl Durable {
    pub(crate) fn of(durable: Self) -> Durability {
        match durable {
            Self::Async => Durability::Async { interval: Duration::from_secs(1) },
            Self::Group => Durability::Group { delay: Duration::from_millis(2) },
            Self::Strict => Durability::Strict,
        }
    }
}

impl FromStr for Durable {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        match text {
            "async" => Ok(Self::Async),
            "group" => Ok(Self::Group),
            "strict" => Ok(Self::Strict),
            _ => Err("expected async, group or strict"),
        }
    }
}

pub(crate) fn read(path: &Path) -> Result<Settings, String> {
    let fail = |why: String| format!("{}: {why}", path.display());
    let mut text = String::new();
    // A device has no length to look at first.
    std::fs::File::open(path)
        .and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text))
        .map_err(|error| format!("cannot read the settings {}: {error}", path.display()))?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(fail(format!("more than {FILE_BYTES_MAX} bytes are too many for settings")));
    }
    parse(&text).map_err(fail)
}

fn parse(text: &str) -> Result<Settings, String> {
    let line_of = |offset: usize| 1 + text.as_bytes()[..offset.min(text.len())].iter().filter(|b| **b == b'\n').count();
    let document = DeTable::parse(text).map_err(|error| {
        let line = error.span().map_or(1, |span| line_of(span.start));
        format!("line {line}: {}", error.message())
    })?;
    let mut settings = Settings::default();
    for (key, value) in document.get_ref() {
        let line = line_of(key.span().start);
        let name = key.get_ref().as_ref();
        let at = |why: String| format!("line {line}: `{name}`: {why}");
        match name {
            "listen" => settings.listen = Some(text_of(value).and_then(socket_addr).map_err(at)?),
            "bootstrap" => {
                let list = value.get_ref().as_array().ok_or_else(|| at("expected a list of texts".to_owned()))?;
                settings.bootstrap = list.iter().map(parsed).collect::<Result<_, _>>().map_err(at)?;
            }
            "lanes" => settings.lanes = Some(number(value).map_err(at)? as usize),
            "data" => settings.data = Some(folder(value).map_err(at)?),
            "network" => settings.network = Some(text_of(value).map_err(at)?.to_owned()),
            "metrics" => settings.metrics = Some(text_of(value).and_then(socket_addr).map_err(at)?),
            "public-addr" => settings.public_addr = Some(text_of(value).and_then(public_addr).map_err(at)?),
            "address-diversity" => settings.address_diversity = Some(yes_or_no(value).map_err(at)?),
            "durability" => settings.durability = Some(parsed(value).map_err(at)?),
            "pin" => settings.pin = Some(yes_or_no(value).map_err(at)?),
            "reserve-memory" => settings.reserve_memory = Some(yes_or_no(value).map_err(at)?),
            "relieve-hot-lanes" => settings.relieve_hot_lanes = Some(yes_or_no(value).map_err(at)?),
            "trace-every" => settings.trace_every = Some(number(value).map_err(at)?),
            "trace-dir" => settings.trace_dir = Some(folder(value).map_err(at)?),
            "log" => {
                settings.log = Some(match text_of(value).map_err(at)? {
                    "text" => Format::Text,
                    "json" => Format::Json,
                    other => return Err(at(format!("`{other}` is neither text nor json"))),
                });
            }
            "limits" => {
                let table = value.get_ref().as_table().ok_or_else(|| at("expected a table".to_owned()))?;
                for (key, value) in table {
                    let (line, name) = (line_of(key.span().start), key.get_ref().as_ref());
                    let limits = &mut settings.limits;
                    let at = |why: String| format!("line {line}: `{name}`: {why}");
                    let limit = match name {
                        "put-quorum-percent" => {
                            let percent = number(value).ok().and_then(|percent| u8::try_from(percent).ok());
                            let percent = percent.filter(|percent| (1..=100).contains(percent));
                            limits.put_quorum_percent =
                                Some(percent.ok_or_else(|| at("expected a number from 1 to 100".to_owned()))?);
                            continue;
                        }
                        "stem-hops" => {
                            let hops = number(value).ok().and_then(|hops| u8::try_from(hops).ok());
                            limits.stem_hops =
                                Some(hops.ok_or_else(|| at("expected a number from 0 to 255".to_owned()))?);
                            continue;
                        }
                        "record-bytes-max" => &mut limits.record_bytes_max,
                        "record-bytes-per-giver-max" => &mut limits.record_bytes_per_giver_max,
                        "requests-per-peer-per-sec" => &mut limits.requests_per_peer_per_sec,
                        "requests-per-prefix-per-sec" => &mut limits.requests_per_prefix_per_sec,
                        "relays-max" => &mut limits.relays_max,
                        _ => return Err(format!("line {line}: there is no limit `{name}`")),
                    };
                    *limit = Some(number(value).map_err(at)?);
                }
            }
            _ => return Err(format!("line {line}: there is no setting `{name}`")),
        }
    }
    Ok(settings)
}

/// An address to listen on or to be reached by. Names are not looked up: one may have several addresses, and not always the same.
pub(crate) fn socket_addr(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "expected IP:PORT, such as 127.0.0.1:4242, 0.0.0.0:4242 or [::1]:4242".to_owned())
}

/// An address by which others are to reach the node: one to which something can be sent.
pub(crate) fn public_addr(text: &str) -> Result<SocketAddr, String> {
    let addr = socket_addr(text)?;
    if !Addr::from(addr).is_dialable() {
        return Err(format!(
            "nothing can be sent to {addr}: expected the address and port by which others reach this node"
        ));
    }
    Ok(addr)
}

fn text_of<'v>(value: &'v Spanned<DeValue<'_>>) -> Result<&'v str, String> {
    value.get_ref().as_str().ok_or_else(|| "expected a text".to_owned())
}

/// A path; an empty one would be the folder that happens to be the current one.
fn folder(value: &Spanned<DeValue<'_>>) -> Result<PathBuf, String> {
    match text_of(value)? {
        "" => Err("expected a folder, not an empty text".to_owned()),
        path => Ok(PathBuf::from(path)),
    }
}

fn parsed<T: FromStr<Err: std::fmt::Display>>(value: &Spanned<DeValue<'_>>) -> Result<T, String> {
    text_of(value)?.parse().map_err(|error: T::Err| error.to_string())
}

fn number(value: &Spanned<DeValue<'_>>) -> Result<u32, String> {
    let DeValue::Integer(number) = value.get_ref() else { return Err("expected a number".to_owned()) };
    u32::from_str_radix(number.as_str(), number.radix())
        .map_err(|_| "expected a number from 0 to 4294967295".to_owned())
}

fn yes_or_no(value: &Spanned<DeValue<'_>>) -> Result<bool, String> {
    value.get_ref().as_bool().ok_or_else(|| "expected true or false".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_is_read_from_the_documented_file() {
        let settings = parse(include_str!("../../../../docs/node.toml")).unwrap();
        assert_eq!((settings.lanes, settings.network.as_deref()), (Some(3), Some("mine")));
        assert_eq!((settings.durability, settings.log), (Some(Durable::Strict), Some(Format::Json)));
        assert_eq!((settings.address_diversity, settings.pin), (Some(false), Some(false)));
        assert_eq!(
            (settings.listen, settings.public_addr),
            ("0.0.0.0:4242".parse().ok(), "203.0.113.7:4242".parse().ok())
        );
        assert_eq!((settings.bootstrap.len(), settings.metrics), (1, "127.0.0.1:9100".parse().ok()));
        assert_eq!(
            (settings.data, settings.trace_dir),
            (Some("/var/lib/tessera".into()), Some("/var/log/tessera".into()))
        );
        assert_eq!((settings.trace_every, settings.reserve_memory), (Some(100), Some(true)));
        assert_eq!(settings.relieve_hot_lanes, Some(false));
        let mut config = NodeConfig::default();
        settings.limits.apply(&mut config);
        assert_eq!((config.records.bytes_max, config.records.bytes_per_giver_max), (1_000_000, 1000));
        assert_eq!((config.abuse.per_peer_per_sec, config.abuse.per_prefix_per_sec), (7, 8));
        assert_eq!((config.relays_max, config.stem_hops, config.put_quorum_percent), (0, 2, 75));
    }

    #[test]
    fn an_unknown_setting_is_refused_with_its_line() {
        for (text, why) in [
            ("lanes = 2\nlisen = \"127.0.0.1:1\"", "line 2: there is no setting `lisen`"),
            ("[limits]\nrelay-max = 1", "line 2: there is no limit `relay-max`"),
            ("[limits]\nput-quorum-percent = 101", "line 2: `put-quorum-percent`: expected a number from 1 to 100"),
            ("[limits]\nput-quorum-percent = 0", "line 2: `put-quorum-percent`: expected a number from 1 to 100"),
            ("[limits]\nstem-hops = 256", "line 2: `stem-hops`: expected a number from 0 to 255"),
            ("lanes = \"two\"", "line 1: `lanes`: expected a number"),
            ("lanes = -1", "expected a number from 0"),
            ("listen = \"somewhere\"", "line 1: `listen`"),
            ("public-addr = \"0.0.0.0:4242\"", "line 1: `public-addr`: nothing can be sent to 0.0.0.0:4242"),
            ("public-addr = \"203.0.113.7:0\"", "line 1: `public-addr`: nothing can be sent to"),
            ("public-addr = \"[::]:4242\"", "line 1: `public-addr`: nothing can be sent to"),
            ("bootstrap = [\"127.0.0.1:1\"]", "no `@`"),
            ("durability = \"maybe\"", "expected async, group or strict"),
            ("data = \"\"", "line 1: `data`: expected a folder"),
            ("trace-dir = \"\"", "line 1: `trace-dir`: expected a folder"),
            ("lanes =", "line 1"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn a_file_without_end_is_read_no_further_than_settings_may_be_long() {
        let error = read(Path::new("/dev/zero")).unwrap_err();
        assert!(error.contains("too many for settings"), "{error}");
    }

    #[test]
    fn flags_win_over_the_file_and_bootstrap_nodes_add_up() {
        let mut settings = parse("lanes = 3\nnetwork = \"mine\"").unwrap();
        let peer = PeerAddr::new([7; 32], "127.0.0.1:1".parse().unwrap());
        settings.override_with(Settings { lanes: Some(1), bootstrap: vec![peer], ..Settings::default() });
        assert_eq!((settings.lanes, settings.network.as_deref()), (Some(1), Some("mine")));
        assert_eq!(settings.bootstrap, [peer]);
    }
}
