//! `docs/SPEC_COVERAGE.md`: a table that must be true, so every path, item and test it names is looked up.

use std::collections::BTreeMap;

use crate::repo::Repo;

pub(crate) const PAGE: &str = "docs/SPEC_COVERAGE.md";

/// One line of the specification, and how far it is.
#[derive(Debug, PartialEq, Eq)]
struct Row {
    id: String,
    what: String,
    code: Vec<String>,
    test: Vec<String>,
    status: Status,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Clone, Copy)]
enum Status {
    Yes,
    Partly,
    No,
}

/// Prints the counts and the rows that are not `yes`; returns whether the page is well-formed.
pub(crate) fn print(repo: &Repo) -> Result<bool, String> {
    let text = repo.read(PAGE)?;
    let (rows, mut problems) = parse(&text);
    problems.extend(check(repo, &rows));
    for row in rows.iter().filter(|row| row.status != Status::Yes) {
        println!("{:<6} {:<34} {}", word(row.status), row.id, row.what);
    }
    let count = |status| rows.iter().filter(|row| row.status == status).count();
    println!(
        "\n{} rows: {} yes, {} partly, {} no",
        rows.len(),
        count(Status::Yes),
        count(Status::Partly),
        count(Status::No)
    );
    for problem in &problems {
        eprintln!("{problem}");
    }
    Ok(problems.is_empty())
}

/// Everything that is wrong with the page, for the check.
pub(crate) fn problems(repo: &Repo) -> Result<(usize, Vec<String>), String> {
    let text = repo.read(PAGE)?;
    let (rows, mut problems) = parse(&text);
    problems.extend(check(repo, &rows));
    Ok((rows.len(), problems))
}

fn parse(text: &str) -> (Vec<Row>, Vec<String>) {
    let mut rows: Vec<Row> = Vec::new();
    let mut problems = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let Some(inner) = line.strip_prefix('|') else { continue };
        let cells: Vec<&str> = inner.trim_end().trim_end_matches('|').split('|').map(str::trim).collect();
        let at = format!("{PAGE}:{}", index + 1);
        if cells.first() == Some(&"id") || cells.iter().all(|cell| cell.chars().all(|c| c == '-')) {
            continue;
        }
        let [id, what, code, test, status] = cells[..] else {
            problems
                .push(format!("{at}: a row has five cells (id, what, code, test, status); this has {}", cells.len()));
            continue;
        };
        let status = match status {
            "yes" => Status::Yes,
            "partly" => Status::Partly,
            "no" => Status::No,
            other => {
                problems.push(format!("{at}: status is yes, partly or no, not `{other}`"));
                continue;
            }
        };
        let row = Row { id: id.to_string(), what: what.to_string(), code: names(code), test: names(test), status };
        if rows.iter().any(|other| other.id == row.id) {
            problems.push(format!("{at}: the id {id} is taken by an earlier row"));
        }
        if status == Status::Yes && (row.code.is_empty() || row.test.is_empty()) {
            problems.push(format!(
                "{at}: {id} says yes and names no {}",
                if row.code.is_empty() { "code" } else { "test" }
            ));
        }
        rows.push(row);
    }
    for section in rows.iter().filter(|row| row.status == Status::Yes && !row.id.contains('.')) {
        let open = rows.iter().find(|row| belongs(&row.id, &section.id) && row.status != Status::Yes);
        if let Some(open) = open {
            problems.push(format!(
                "{PAGE}: the section {} says yes, but {} says {}",
                section.id,
                open.id,
                word(open.status)
            ));
        }
    }
    (rows, problems)
}

/// `A§3.tiers.1` belongs to `A§3`; the decisions belong to `A§10`.
fn belongs(row: &str, section: &str) -> bool {
    row.strip_prefix(section).is_some_and(|rest| rest.starts_with('.')) || section == "A§10" && row.starts_with("D2.")
}

/// The names between backquotes in a cell.
fn names(cell: &str) -> Vec<String> {
    cell.split('`').skip(1).step_by(2).map(str::to_string).collect()
}

fn check(repo: &Repo, rows: &[Row]) -> Vec<String> {
    let mut sources: BTreeMap<String, Option<String>> = BTreeMap::new();
    let mut problems = Vec::new();
    for row in rows {
        for (name, is_test) in row.code.iter().map(|name| (name, false)).chain(row.test.iter().map(|name| (name, true)))
        {
            let (path, item) = name.split_once("::").map_or((name.as_str(), None), |(path, item)| (path, Some(item)));
            let path = path.trim_end_matches('/');
            if !repo.root.join(path).exists() {
                problems.push(format!("{PAGE}: {} names {path}, which does not exist", row.id));
                continue;
            }
            let Some(item) = item.and_then(|item| item.rsplit("::").next()) else { continue };
            let source = sources.entry(path.to_string()).or_insert_with(|| repo.read(path).ok());
            let there = source
                .as_ref()
                .is_some_and(|source| if is_test { has_test(source, item) } else { has_word(source, item) });
            if !there {
                let kind = if is_test { "test" } else { "item" };
                problems.push(format!("{PAGE}: {} names the {kind} {item}, which is not in {path}", row.id));
            }
        }
    }
    problems
}

/// Whether there is a function of that name that the test runner calls: a helper shows nothing.
fn has_test(source: &str, name: &str) -> bool {
    let Some(at) = source.find(&format!("fn {name}(")) else { return false };
    // Between the end of the item before it and its own line.
    let begins = source[..at].rfind('\n').unwrap_or(0);
    let above = source[..begins].split('\n').rev().take_while(|line| !line.is_empty() && line.trim() != "}");
    above.into_iter().any(|line| line.trim_end().ends_with("test]"))
}

fn has_word(source: &str, name: &str) -> bool {
    source.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == name)
}

fn word(status: Status) -> &'static str {
    match status {
        Status::Yes => "yes",
        Status::Partly => "partly",
        Status::No => "no",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_read_with_all_its_names() {
        let (rows, problems) = parse(
            "| id | what | code | test | status |\n| --- | --- | --- | --- | --- |\n\
                                      | A§1.x | words | `a.rs::Item` `b.rs` | `a.rs::holds` | yes |\n",
        );
        assert_eq!(problems, Vec::<String>::new());
        assert_eq!(rows[0].code, ["a.rs::Item", "b.rs"]);
        assert_eq!(rows[0].status, Status::Yes);
    }

    #[test]
    fn a_function_that_no_runner_calls_is_no_test() {
        let source = "#[test]\n#[cfg(unix)]\nfn real() {}\n\n#[tokio::test]\nasync fn waits() {}\n\nfn helper() {}\n";
        assert_eq!(["real", "waits", "helper", "none"].map(|name| has_test(source, name)), [true, true, false, false]);
    }

    #[test]
    fn yes_without_a_test_is_refused() {
        let (_, problems) = parse("| A§1.x | words | `a.rs` | - | yes |\n");
        assert!(problems[0].contains("names no test"), "{problems:?}");
    }

    #[test]
    fn a_section_cannot_be_ahead_of_its_rows() {
        let (_, problems) = parse(
            "| A§1 | all | `a.rs` | `a.rs::t` | yes |\n| A§1.x | one | - | - | partly |\n\
                                   | A§10 | all | `a.rs` | `a.rs::t` | yes |\n| D2.1 | one | - | - | no |\n",
        );
        assert_eq!(problems.len(), 2, "{problems:?}");
    }

    #[test]
    fn a_section_is_not_confused_with_one_whose_number_it_begins() {
        assert!(!belongs("A§10.x", "A§1"));
        assert!(belongs("A§1.x", "A§1"));
    }

    #[test]
    fn malformed_and_repeated_rows_are_named_by_line() {
        let (_, problems) =
            parse("| A | b | - | no |\n| A | b | - | - | maybe |\n| A | b | - | - | no |\n| A | b | - | - | no |\n");
        assert_eq!(problems.len(), 3, "{problems:?}");
        assert!(problems[2].contains(":4: the id A is taken"), "{problems:?}");
    }
}
