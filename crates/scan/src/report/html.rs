//! A page that needs nothing beside itself: no script, no other file, no network.

use std::io::{self, Write};

use tessera_detect::Severity;

use super::human::count;
use super::view::{FindingView, View};
use super::xml::escaped;
use crate::clock::calendar::utc;
use crate::run::ExitStatus;

/// Colours for light and dark, and tables that a small screen can scroll.
const STYLE: &str = "\
:root{color-scheme:light dark}body{font:15px/1.5 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem}h2{font-size:1.1rem;margin:2rem 0 .3rem}table{border-collapse:collapse;width:100%;display:block;overflow-x:auto}
th,td{text-align:left;padding:.3rem .8rem .3rem 0;border-bottom:1px solid #8884;vertical-align:top}code{font:13px ui-monospace,monospace;overflow-wrap:anywhere}
.tag{border-radius:.3rem;padding:.1rem .5rem;color:#fff;background:#666}.critical,.high{background:#b3261e}.medium{background:#8a5a00}.dim{opacity:.7}";

pub(super) fn write(view: &View<'_>, out: &mut dyn Write) -> io::Result<()> {
    let verdict = match view.exit_status() {
        ExitStatus::CleanComplete => "Clean: everything was read and no secret found".to_owned(),
        ExitStatus::Findings => {
            let places: usize = view.findings().map(|finding| finding.places_len()).sum();
            format!("{} at {}", count(view.findings_len() as u64, "secret"), count(places as u64, "place"))
        }
        ExitStatus::Error | ExitStatus::Incomplete => "No secret found, but not everything was read".to_owned(),
    };
    writeln!(out, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">")?;
    writeln!(out, "<meta name=\"viewport\" content=\"width=device-width\">")?;
    // Whatever a name says, the page fetches and runs nothing.
    writeln!(
        out,
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
    )?;
    writeln!(out, "<title>Tessera: {verdict}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{verdict}</h1>")?;
    let targets: Vec<String> = view.targets().iter().map(|target| escaped(target.as_str())).collect();
    write!(out, "<p class=\"dim\">Run {} of {}", view.run(), targets.join(", "))?;
    if let Some(ended) = view.ended() {
        write!(out, ", ended at {} ({})", utc(ended.at), ended.status)?;
    }
    writeln!(out, "</p>")?;
    for finding in view.findings() {
        write_finding(&finding, out)?;
    }
    write_receipt(view, out)?;
    writeln!(out, "</body>\n</html>")
}

fn write_finding(finding: &FindingView<'_>, out: &mut dyn Write) -> io::Result<()> {
    let (severity, title) = (finding.severity(), escaped(finding.title().as_str()));
    let class = match severity {
        Severity::Critical => "critical",
        Severity::High => "high",
        Severity::Medium => "medium",
        Severity::Low => "low",
    };
    writeln!(out, "<h2><span class=\"tag {class}\">{severity}</span> {title}</h2>")?;
    writeln!(
        out,
        "<p><code>{}</code><br><span class=\"dim\">rule {}, confidence {}, id {}</span></p>",
        escaped(finding.secret().as_str()),
        escaped(finding.rule().as_str()),
        finding.confidence(),
        &finding.secret_id().to_string()[..16]
    )?;
    writeln!(out, "<table>\n<tr><th>place</th><th>commit</th><th>author</th><th>date</th></tr>")?;
    for place in finding.places() {
        let (path, start) = (escaped(place.plain_path().as_str()), place.start());
        let decoded = match place.decoded_from() {
            [] => String::new(),
            encodings => format!(" (inside {})", escaped(&encodings.join(", "))),
        };
        write!(out, "<tr><td><code>{path}:{}:{}</code>{decoded}</td>", start.line, start.column)?;
        match place.commit() {
            Some(commit) => writeln!(
                out,
                "<td><code>{}</code> {}</td><td>{}</td><td>{}</td></tr>",
                commit.id().get(..12).unwrap_or_default(),
                escaped(commit.subject().as_str()),
                escaped(commit.author().as_str()),
                escaped(commit.date().as_str())
            )?,
            None => writeln!(out, "<td></td><td></td><td></td></tr>")?,
        }
    }
    writeln!(out, "</table>")
}

fn write_receipt(view: &View<'_>, out: &mut dyn Write) -> io::Result<()> {
    let tally = view.tally();
    writeln!(out, "<h2>Receipt</h2>\n<table>\n<tr><th>items</th><th>what became of them</th></tr>")?;
    writeln!(out, "<tr><td>{}</td><td>met</td></tr>", tally.enumerated())?;
    writeln!(out, "<tr><td>{}</td><td>scanned</td></tr>", tally.scanned)?;
    for (reason, items) in &tally.skipped {
        let how = reason.included_by().map(|how| format!(" ({how})")).unwrap_or_default();
        writeln!(out, "<tr><td>{items}</td><td>skipped: {reason}{how}</td></tr>")?;
    }
    for (reason, items) in &tally.unreadable {
        writeln!(out, "<tr><td>{items}</td><td>unreadable: {reason}</td></tr>")?;
    }
    if view.suppressed() > 0 {
        writeln!(out, "<tr><td>{}</td><td>known places, left out</td></tr>", view.suppressed())?;
    }
    writeln!(out, "<tr><td></td><td>not searched: {}</td></tr>", view.not_searched().join(", "))?;
    writeln!(out, "</table>")?;
    for note in view.notes(100) {
        writeln!(out, "<p>Not read: <code>{}</code> ({})</p>", escaped(note.path.as_str()), note.reason)?;
    }
    for text in view.parked().into_iter().chain(view.damage().map(|damage| damage.text)).chain(view.plan_problem()) {
        writeln!(out, "<p>{}</p>", escaped(text.as_str()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::report::Format;
    use crate::report::tests::{report, written_of};

    #[test]
    fn the_page_needs_nothing_and_runs_nothing_of_what_was_scanned() {
        let mut report = report();
        report.findings[0].locations[0].occurrence.path = b"<script src=//x.example/>'\".env".to_vec();
        let page = written_of(&report, Format::Html);
        assert!(page.contains("&lt;script src=//x.example/&gt;&#39;&quot;.env:2:7"), "{page}");
        for outside in ["<script", "<link", "<img", "@import", "url("] {
            assert!(!page.contains(outside), "{outside}");
        }
        for tag in ["html", "body", "table", "h2", "p"] {
            let count = |text: &str| page.matches(text).count();
            let opened = count(&format!("<{tag}>")) + count(&format!("<{tag} "));
            assert_eq!(opened, count(&format!("</{tag}>")), "{tag}");
        }
    }
}
