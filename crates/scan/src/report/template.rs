//! A report as a user's template says, in the language of Jinja.
//!
//! A template sees the fields of the JSON report, so what is documented there holds here, and secrets are shortened in both. In a
//! template whose name ends with `.html` or `.xml` text is escaped. Marks on which a terminal or an editor acts are replaced. It can include
//! no other file.

use std::io::{self, Write};

use minijinja::value::Serde;
use minijinja::{Environment, UndefinedBehavior, Value};

use super::human::steers;
use super::json;
use super::view::View;

pub(super) fn write(view: &View<'_>, name: &str, template: &str, out: &mut dyn Write) -> io::Result<()> {
    let mut environment = Environment::new();
    // A field that is misspelt would print nothing.
    environment.set_undefined_behavior(UndefinedBehavior::SemiStrict);
    let rendered = environment
        .template_from_named_str(name, template)
        .and_then(|template| template.render(Value::from(Serde(harmless(json::value_of(view))))));
    let rendered = rendered.map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, wrong(name, &error)))?;
    // The language leaves out the end of the last line.
    writeln!(out, "{rendered}")
}

/// The same value without marks that steer its reader, but with the ends of lines.
fn harmless(value: serde_json::Value) -> serde_json::Value {
    match value {
        serde_json::Value::String(text) => {
            let harmless = |char: char| if steers(char) && !matches!(char, '\n' | '\t') { '\u{fffd}' } else { char };
            text.chars().map(harmless).collect::<String>().into()
        }
        serde_json::Value::Array(values) => values.into_iter().map(harmless).collect(),
        serde_json::Value::Object(fields) => fields.into_iter().map(|(name, value)| (name, harmless(value))).collect(),
        plain => plain,
    }
}

fn wrong(name: &str, error: &minijinja::Error) -> String {
    let line = error.line().map(|line| format!(":{line}")).unwrap_or_default();
    format!("the template {name}{line} cannot be used: {error}")
}

#[cfg(test)]
mod tests {
    use super::super::Written;
    use crate::report::tests::{job, report};

    fn rendered(name: &str, template: &str) -> Result<String, String> {
        let (report, job) = (report(), job(false));
        let mut out = Vec::new();
        let written = Written { report: &report, job: &job, suppressed: 0, colours: false, redacted_percent: 0 };
        written.write_template(name, template, &mut out).map_err(|error| error.to_string())?;
        Ok(String::from_utf8(out).unwrap())
    }

    #[test]
    fn a_template_sees_the_fields_of_the_json_report() {
        let template = "{% for f in findings %}{% for l in f.locations %}{{ f.rule }} {{ l.path }}:{{ l.start.line }} {{ f.secret }}\n\
                        {% endfor %}{% endfor %}{{ receipt.enumerated }} items";
        let expected = "github-pat a.env:2 ghp_****\ngithub-pat b/b.env:1 ghp_****\n4 items\n";
        assert_eq!(rendered("t.txt", template).unwrap(), expected);
        assert_eq!(rendered("t.html", "{{ '<' ~ status }}").unwrap(), "&lt;findings\n");
    }

    #[test]
    fn a_template_that_is_wrong_is_refused_with_its_line() {
        for (template, part) in [
            ("\n{{ 1", "t:2"),
            ("{{ nosuch.field }}", "t:1"),
            ("{% include '/etc/passwd' %}", "t:1"),
            ("{{ misspelt }}", "t:1"),
        ] {
            let error = rendered("t", template).unwrap_err();
            assert!(error.contains(part), "{template}: {error}");
        }
    }
}
