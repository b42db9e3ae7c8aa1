//! A lock file names one registry, the public one: a private mirror must not be committed.

const PUBLIC: &str = "registry+https://github.com/rust-lang/crates.io-index";

pub(super) fn problems(name: &str, text: &str) -> Vec<String> {
    let sources = text.lines().enumerate().filter_map(|(index, line)| {
        let source = line.strip_prefix("source = \"")?.trim_end_matches('"');
        (source != PUBLIC).then(|| format!("{name}:{}: `{source}` is not the public registry", index + 1))
    });
    sources.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_public_registry_is_accepted() {
        assert!(problems("Cargo.lock", &format!("source = \"{PUBLIC}\"\n")).is_empty());
        assert_eq!(problems("Cargo.lock", "source = \"registry+https://mirror.example/index\"\n").len(), 1);
        assert_eq!(problems("Cargo.lock", "source = \"git+https://example.org/x#1\"\n").len(), 1);
    }
}
