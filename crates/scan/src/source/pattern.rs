//! One line of an ignore file, matched as git matches it.
//!
//! The rules are those of `gitignore(5)`, down to the habits of git's own matcher (`dir.c` and `wildmatch.c`): paths are bytes, `*`
//! stops at a slash, `**` crosses it where it stands alone between slashes, a set may name classes such as `[:alpha:]`, and braces
//! are plain characters. A line that is no pattern matches nothing.
//!
//! Matching walks all ways through the pattern at once, so it takes at most the length of the pattern times that of the path,
//! whatever the pattern is.

/// Longest line that is obeyed. A longer one matches nothing.
pub const PATTERN_BYTES_MAX: usize = 4_096;

/// One line of an ignore file.
#[derive(Debug)]
pub struct Pattern {
    /// Whether it keeps what it matches (`!`).
    pub is_negated: bool,
    /// Whether it speaks about directories alone (a slash at its end).
    dirs_only: bool,
    /// Whether it speaks about names anywhere and not about paths (no other slash).
    by_name: bool,
    matcher: Matcher,
}

#[derive(Debug)]
enum Matcher {
    /// Exactly this.
    Literal(Vec<u8>),
    /// Anything that ends so.
    Suffix(Vec<u8>),
    /// This, and then what the tokens say.
    Tokens(Vec<u8>, Vec<Token>),
}

#[derive(Debug)]
enum Token {
    Byte(u8),
    /// Any byte but a slash.
    Any,
    Set(Box<Set>),
    /// Any bytes but slashes.
    Star,
    /// Any bytes.
    StarStar,
    /// Either nothing, or the loop that comes next.
    Maybe,
    /// Any bytes up to and with a slash.
    UpToSlash,
}

type Set = [bool; 256];

impl Pattern {
    /// Reads a line without its end; `None` if it can match nothing.
    pub fn parse(line: &[u8]) -> Option<Self> {
        if line.first().is_none_or(|&first| first == b'#') || line.len() > PATTERN_BYTES_MAX {
            return None;
        }
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        // Git reads lines as C strings.
        let line = line.split(|&byte| byte == 0).next().unwrap_or_default();
        let line = without_trailing_spaces(line);
        let (is_negated, line) = match line {
            [b'!', rest @ ..] => (true, rest),
            _ => (false, line),
        };
        let (dirs_only, line) = match line {
            [rest @ .., b'/'] => (true, rest),
            _ => (false, line),
        };
        let by_name = !line.contains(&b'/');
        let is_plain = |bytes: &[u8]| !bytes.iter().any(|&byte| is_special(byte));
        let matcher = if by_name && line.first() == Some(&b'*') && is_plain(&line[1..]) {
            Matcher::Suffix(line[1..].to_vec())
        } else {
            let line = if by_name { line } else { line.strip_prefix(b"/").unwrap_or(line) };
            let plain_len = line.iter().position(|&byte| is_special(byte)).unwrap_or(line.len());
            let (plain, rest) = line.split_at(plain_len);
            match rest {
                [] if plain.is_empty() => return None,
                [] => Matcher::Literal(plain.to_vec()),
                _ if by_name => Matcher::Tokens(Vec::new(), tokens(line)?),
                _ => Matcher::Tokens(plain.to_vec(), tokens(rest)?),
            }
        };
        Some(Self { is_negated, dirs_only, by_name, matcher })
    }

    /// Whether it matches `path`, which is relative to the directory of its ignore file.
    pub fn matches(&self, path: &[u8], is_dir: bool) -> bool {
        if self.dirs_only && !is_dir {
            return false;
        }
        let text = if self.by_name { path.rsplit(|&byte| byte == b'/').next().unwrap_or_default() } else { path };
        match &self.matcher {
            Matcher::Literal(literal) => text == literal,
            Matcher::Suffix(suffix) => text.ends_with(suffix),
            Matcher::Tokens(prefix, tokens) => text.strip_prefix(&prefix[..]).is_some_and(|rest| run(tokens, rest)),
        }
    }
}

/// A space at the end counts only behind a backslash.
fn without_trailing_spaces(line: &[u8]) -> &[u8] {
    let mut spaces_at = None;
    let mut bytes = line.iter().enumerate();
    while let Some((at, &byte)) = bytes.next() {
        match byte {
            b' ' => spaces_at = spaces_at.or(Some(at)),
            // The byte behind it is plain. A backslash at the very end keeps everything, as in git.
            b'\\' if bytes.next().is_none() => return line,
            _ => spaces_at = None,
        }
    }
    &line[..spaces_at.unwrap_or(line.len())]
}

fn is_special(byte: u8) -> bool {
    matches!(byte, b'*' | b'?' | b'[' | b'\\')
}

/// The tokens of a pattern; `None` if it can match nothing.
fn tokens(pattern: &[u8]) -> Option<Vec<Token>> {
    let (mut tokens, mut at) = (Vec::new(), 0);
    while let Some(&byte) = pattern.get(at) {
        match byte {
            b'*' => {
                let start = at;
                at = pattern[at..].iter().position(|&byte| byte != b'*').map_or(pattern.len(), |stars| at + stars);
                let rest = &pattern[at..];
                let is_alone = (start == 0 || pattern[start - 1] == b'/')
                    && (rest.is_empty() || rest[0] == b'/' || rest.starts_with(b"\\/"));
                match rest.first() {
                    _ if at - start == 1 || !is_alone => tokens.push(Token::Star),
                    Some(b'/') => {
                        tokens.extend([Token::Maybe, Token::UpToSlash]);
                        at += 1;
                    }
                    _ => tokens.push(Token::StarStar),
                }
            }
            b'?' => {
                tokens.push(Token::Any);
                at += 1;
            }
            b'[' => {
                let (set, end) = set(pattern, at + 1)?;
                tokens.push(Token::Set(Box::new(set)));
                at = end;
            }
            b'\\' => {
                tokens.push(Token::Byte(*pattern.get(at + 1)?));
                at += 2;
            }
            byte => {
                tokens.push(Token::Byte(byte));
                at += 1;
            }
        }
    }
    Some(tokens)
}

/// The set that begins at `at`, behind its bracket, and where the pattern goes on; `None` if it does not end.
fn set(pattern: &[u8], mut at: usize) -> Option<(Set, usize)> {
    let byte_at = |at: usize| pattern.get(at).copied();
    let mut set = [false; 256];
    let is_negated = matches!(byte_at(at)?, b'!' | b'^');
    at += usize::from(is_negated);
    let mut before: Option<u8> = None;
    // The first byte belongs to the set even if it is the bracket that would end it.
    let mut is_first = true;
    loop {
        let byte = byte_at(at)?;
        match byte {
            b']' if !is_first => break,
            b'\\' => {
                at += 1;
                let escaped = byte_at(at)?;
                set[usize::from(escaped)] = true;
                before = Some(escaped);
            }
            b'-' if before.is_some() && byte_at(at + 1).is_some_and(|next| next != b']') => {
                at += 1;
                let mut last = byte_at(at)?;
                if last == b'\\' {
                    at += 1;
                    last = byte_at(at)?;
                }
                let first = before.take().expect("the guard asked for it");
                (first..=last).for_each(|byte| set[usize::from(byte)] = true);
            }
            b'[' if byte_at(at + 1) == Some(b':') => {
                let name_at = at + 2;
                let end = name_at + pattern.get(name_at..)?.iter().position(|&byte| byte == b']')?;
                match pattern[name_at..end].strip_suffix(b":") {
                    Some(name) => {
                        let class = class(name)?;
                        (0..=255_u8).filter(class).for_each(|byte| set[usize::from(byte)] = true);
                        at = end;
                        before = None;
                    }
                    None => {
                        set[usize::from(b'[')] = true;
                        before = Some(b'[');
                    }
                }
            }
            byte => {
                set[usize::from(byte)] = true;
                before = Some(byte);
            }
        }
        is_first = false;
        at += 1;
    }
    if is_negated {
        set.iter_mut().for_each(|has| *has = !*has);
    }
    set[usize::from(b'/')] = false;
    Some((set, at + 1))
}

fn class(name: &[u8]) -> Option<fn(&u8) -> bool> {
    Some(match name {
        b"alnum" => u8::is_ascii_alphanumeric,
        b"alpha" => u8::is_ascii_alphabetic,
        b"blank" => |byte| matches!(byte, b' ' | b'\t'),
        b"cntrl" => u8::is_ascii_control,
        b"digit" => u8::is_ascii_digit,
        b"graph" => u8::is_ascii_graphic,
        b"lower" => u8::is_ascii_lowercase,
        b"print" => |byte| matches!(byte, b' '..=b'~'),
        b"punct" => u8::is_ascii_punctuation,
        b"space" => |byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r'),
        b"upper" => u8::is_ascii_uppercase,
        b"xdigit" => u8::is_ascii_hexdigit,
        _ => return None,
    })
}

/// Whether the tokens match all of `text`.
fn run(tokens: &[Token], text: &[u8]) -> bool {
    let mut now = vec![false; tokens.len() + 1];
    let mut next = now.clone();
    enter(tokens, &mut now, 0);
    for &byte in text {
        next.fill(false);
        let mut is_alive = false;
        for (at, token) in tokens.iter().enumerate().filter(|(at, _)| now[*at]) {
            let (stays, leaves) = match token {
                Token::Byte(wanted) => (false, byte == *wanted),
                Token::Any => (false, byte != b'/'),
                Token::Set(set) => (false, set[usize::from(byte)]),
                Token::Star => (byte != b'/', false),
                Token::StarStar => (true, false),
                Token::Maybe => (false, false),
                Token::UpToSlash => (true, byte == b'/'),
            };
            if stays {
                enter(tokens, &mut next, at);
            }
            if leaves {
                enter(tokens, &mut next, at + 1);
            }
            is_alive |= stays || leaves;
        }
        if !is_alive {
            return false;
        }
        std::mem::swap(&mut now, &mut next);
    }
    now[tokens.len()]
}

/// Goes to the token at `at`, and past those that may match nothing.
fn enter(tokens: &[Token], states: &mut [bool], mut at: usize) {
    while !std::mem::replace(&mut states[at], true) {
        match tokens.get(at) {
            Some(Token::Star | Token::StarStar) => at += 1,
            Some(Token::Maybe) => {
                states[at + 1] = true;
                at += 2;
            }
            _ => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(line: &str, path: &str, is_dir: bool) -> bool {
        Pattern::parse(line.as_bytes()).is_some_and(|pattern| pattern.matches(path.as_bytes(), is_dir))
    }

    #[test]
    fn names_match_anywhere_and_paths_from_the_ignore_file_down() {
        for (line, path, expected) in [
            ("foo", "a/foo", true),
            ("/foo", "a/foo", false),
            ("/foo", "foo", true),
            ("a/foo", "a/foo", true),
            ("a/foo", "b/a/foo", false),
            ("*.log", "a/x.log", true),
            ("a/*.log", "a/b/x.log", false),
            ("a/**/x.log", "a/x.log", true),
            ("a/**/x.log", "a/b/c/x.log", true),
            ("a/**/x.log", "a/bx.log", false),
            ("**/x", "x", true),
            ("a/**", "a", false),
            ("a/**", "a/b/c", true),
            ("{a,b}", "a", false),
            ("{a,b}", "{a,b}", true),
            ("[[:alpha:]]x", "ax", true),
            ("[!a]", "a", false),
            ("[]a]", "]", true),
            ("[a", "a", false),
            ("a\\*b", "a*b", true),
            ("a\\*b", "axb", false),
            ("x\\", "x\\", false),
            ("\\#h", "#h", true),
            ("#h", "#h", false),
            ("s\\ ", "s ", true),
            ("s  ", "s", true),
            ("t\t", "t", false),
            ("", "", false),
            ("/", "a", false),
        ] {
            assert_eq!(matches(line, path, false), expected, "{line:?} on {path:?}");
        }
        assert!(matches("build/", "build", true) && !matches("build/", "build", false));
    }

    #[test]
    fn trailing_spaces_go_unless_a_backslash_keeps_them() {
        for (line, kept) in [("a ", "a"), ("a  ", "a"), ("a\\ ", "a\\ "), ("a\\  ", "a\\ "), (" ", ""), ("a b ", "a b")]
        {
            assert_eq!(without_trailing_spaces(line.as_bytes()), kept.as_bytes(), "{line:?}");
        }
        assert_eq!(without_trailing_spaces(b"a \\"), b"a \\", "a backslash at the very end keeps everything");
    }

    #[test]
    fn a_pattern_made_to_take_for_ever_does_not() {
        let pattern = Pattern::parse(&[&b"**/".repeat(1_000)[..], b"x"].concat()).unwrap();
        assert!(!pattern.matches(&b"a/".repeat(2_000), false));
        let pattern = Pattern::parse(&[&b"a*".repeat(1_000)[..], b"b"].concat()).unwrap();
        assert!(!pattern.matches(&[b'a'; 4_000], false));
        assert!(Pattern::parse(&[b'a'; PATTERN_BYTES_MAX]).is_some());
        assert!(Pattern::parse(&[b'a'; PATTERN_BYTES_MAX + 1]).is_none());
    }
}
