//! Path filters and their meaning, each written out by hand.
//!
//! A glob without `/` speaks of names anywhere, one with `/` of paths from the target down. Exclusion of a folder excludes its
//! content; inclusion is asked of files.

use super::random::Random;

/// A glob, and whether it takes a path.
pub(crate) struct Glob {
    pub(crate) text: &'static str,
    takes: fn(&[&[u8]]) -> bool,
}

const EXCLUDES: [Glob; 7] = [
    Glob { text: "*.env", takes: |parts| parts.iter().any(|part| part.ends_with(b".env")) },
    Glob { text: "src/**", takes: |parts| parts.len() > 1 && parts[0] == b"src" },
    Glob { text: "build", takes: |parts| parts.contains(&&b"build"[..]) },
    Glob { text: "/lib", takes: |parts| parts[0] == b"lib" },
    Glob { text: "tests/", takes: |parts| parts.contains(&&b"tests"[..]) },
    Glob { text: "doc/a", takes: |parts| parts.len() > 1 && parts[..2] == [&b"doc"[..], b"a"] },
    Glob { text: "x.*", takes: |parts| parts.iter().any(|part| part.starts_with(b"x.")) },
];

const INCLUDES: [Glob; 4] = [
    Glob { text: "*.env", takes: |parts| parts[parts.len() - 1].ends_with(b".env") },
    Glob { text: "*.log", takes: |parts| parts[parts.len() - 1].ends_with(b".log") },
    Glob { text: "src/**", takes: |parts| parts.len() > 1 && parts[0] == b"src" },
    Glob { text: "a", takes: |parts| parts[parts.len() - 1] == b"a" },
];

/// Filters of one command.
#[derive(Default)]
pub(crate) struct Filters {
    include: Vec<&'static Glob>,
    exclude: Vec<&'static Glob>,
}

impl Filters {
    pub(crate) fn random(random: &mut Random) -> Self {
        static EXCLUDE: [Glob; 7] = EXCLUDES;
        static INCLUDE: [Glob; 4] = INCLUDES;
        let mut filters = Self::default();
        for _ in 0..random.below(3) {
            filters.exclude.push(random.pick(&EXCLUDE));
        }
        if filters.exclude.is_empty() || random.percent(30) {
            filters.include.extend((0..random.within(1..3)).map(|_| random.pick(&INCLUDE)));
        }
        filters
    }

    pub(crate) fn args(&self) -> Vec<&'static str> {
        let include = self.include.iter().flat_map(|glob| ["--include", glob.text]);
        include.chain(self.exclude.iter().flat_map(|glob| ["--exclude", glob.text])).collect()
    }

    /// Whether a path below the target is in scope.
    pub(crate) fn take(&self, path: &[u8]) -> bool {
        let parts: Vec<&[u8]> = path.split(|&byte| byte == b'/').collect();
        let included = self.include.is_empty() || self.include.iter().any(|glob| (glob.takes)(&parts));
        included && !self.exclude.iter().any(|glob| (glob.takes)(&parts))
    }
}
