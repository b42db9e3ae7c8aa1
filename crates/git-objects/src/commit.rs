//! What a commit says about itself.

/// Who wrote a commit, when, and what about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Said {
    /// Its author's name.
    pub author: String,
    /// The author's address.
    pub email: String,
    /// Seconds since 1970, and the author's time zone as it is written: `-0330` is three and a half hours.
    pub when: Option<(i64, i64)>,
    /// The first paragraph of the message, on one line.
    pub subject: String,
}

impl Said {
    /// Reads a commit. What it does not say is empty.
    pub fn by(content: &[u8]) -> Self {
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
            when: seconds.map(|seconds| (seconds, zone)),
            subject: text(&subject.join(&b' ')),
        }
    }
}

fn number(text: Option<&[u8]>) -> Option<i64> {
    std::str::from_utf8(text?).ok()?.parse().ok()
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
        assert_eq!((said.when, &said.subject[..]), (Some((951_782_400, -330)), "One two"));
        assert_eq!(Said::by(b"").subject, "");
    }
}
