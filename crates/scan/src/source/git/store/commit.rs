//! What a commit says about itself.

/// Who wrote a commit, when, and what about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Said {
    pub(crate) author: String,
    pub(crate) email: String,
    /// In ISO 8601, with the author's time zone.
    pub(crate) date: String,
    /// The first paragraph of the message, on one line.
    pub(crate) subject: String,
}

impl Said {
    /// Reads a commit. What it does not say is empty.
    pub(crate) fn by(content: &[u8]) -> Self {
        let end = memchr::memmem::find(content, b"\n\n").unwrap_or(content.len());
        let (head, message) = (&content[..end], content.get(end + 2..).unwrap_or_default());
        let field = |name: &[u8]| {
            head.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(name)).unwrap_or_default()
        };
        let is_latin = [&b"iso-8859-1"[..], b"iso8859-1", b"latin1", b"latin-1"]
            .iter()
            .any(|name| field(b"encoding ").eq_ignore_ascii_case(name));
        let text = |bytes: &[u8]| match is_latin {
            true => bytes.iter().map(|&byte| char::from(byte)).collect(),
            false => String::from_utf8_lossy(bytes).into_owned(),
        };
        // `Name <address> seconds zone`
        let author = field(b"author ");
        let close = memchr::memrchr(b'>', author).unwrap_or(author.len());
        let open = memchr::memchr(b'<', &author[..close]).unwrap_or(close);
        let mut when = author.get(close + 1..).unwrap_or_default().trim_ascii().split(|&byte| byte == b' ');
        let (seconds, zone) = (number(when.next()), number(when.next()).unwrap_or(0));
        let lines = message.split(|&byte| byte == b'\n').map(<[u8]>::trim_ascii);
        let subject: Vec<&[u8]> =
            lines.skip_while(|line| line.is_empty()).take_while(|line| !line.is_empty()).collect();
        Self {
            author: text(author[..open].trim_ascii()),
            email: text(author.get(open + 1..close).unwrap_or_default()),
            date: seconds.map(|seconds| iso_8601(seconds, zone)).unwrap_or_default(),
            subject: text(&subject.join(&b' ')),
        }
    }
}

fn number(text: Option<&[u8]>) -> Option<i64> {
    std::str::from_utf8(text?).ok()?.parse().ok()
}

/// `zone` is written as hours and minutes: `-0330` is three and a half hours.
fn iso_8601(seconds: i64, zone: i64) -> String {
    let minutes = zone / 100 * 60 + zone % 100;
    // Years of four digits; what claims to be outside is at the edge.
    let local = seconds.saturating_add(minutes * 60).clamp(-62_135_596_800, 253_402_300_799);
    let (days, second) = (local.div_euclid(86_400), local.rem_euclid(86_400));
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    let zone = match minutes {
        0 => "Z".to_owned(),
        _ => {
            let sign = if minutes < 0 { '-' } else { '+' };
            format!("{sign}{:02}:{:02}", minutes.abs() / 60, minutes.abs() % 60)
        }
    };
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}{zone}")
}

/// Year, month and day of a day counted from 1970, by the calendar whose years begin in March.
fn civil(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (era * 400 + year_of_era + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_is_read_as_git_prints_it() {
        let commit = b"tree 0\nauthor J\xf6rg <j@example.org> 951782400 -0330\ncommitter C <c@d> 1 +0000\n\
                       encoding ISO-8859-1\n\n\nOne\ntwo\n\nMore.\n";
        let said = Said::by(commit);
        assert_eq!((&said.author[..], &said.email[..]), ("J\u{f6}rg", "j@example.org"));
        assert_eq!((&said.date[..], &said.subject[..]), ("2000-02-28T20:30:00-03:30", "One two"));
        assert_eq!(Said::by(b"").subject, "");
    }

    #[test]
    fn days_are_counted_over_leap_years() {
        for (seconds, date) in [
            (0, "1970-01-01T00:00:00Z"),
            (-1, "1969-12-31T23:59:59Z"),
            (951_868_799, "2000-02-29T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
            (i64::MAX, "9999-12-31T23:59:59Z"),
        ] {
            assert_eq!(iso_8601(seconds, 0), date);
        }
        assert_eq!(iso_8601(0, 530), "1970-01-01T05:30:00+05:30");
    }
}
