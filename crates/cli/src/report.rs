//! The flags that say how a report is written, and writing it.

use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};

use tessera_scan::report::{Format, Written};
use tessera_scan::run::ScanReport;
use tessera_scan::run::job::Job;
use tessera_scan::source::small_file;

use crate::whole_file::write_whole;

/// How to write a report.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ReportArgs {
    /// How to write the report
    #[arg(long, value_enum, default_value_t = FormatName::Human)]
    pub(crate) format: FormatName,

    /// Write the report as this file says, a template in the language of Jinja that sees the fields of the JSON report
    #[arg(long, value_name = "FILE", conflicts_with = "format")]
    pub(crate) template: Option<PathBuf>,

    /// Write the report to a file instead of standard output; `-` is standard output
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,

    /// When to use colours
    #[arg(long, value_enum, default_value_t = Colour::Auto)]
    pub(crate) color: Colour,
}

/// The name of a format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum FormatName {
    Human,
    Json,
    Jsonl,
    Sarif,
    Csv,
    Gitleaks,
    Junit,
    GitlabSecretDetection,
    GitlabCodeQuality,
    Github,
    Html,
    Markdown,
}

/// When to use colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Colour {
    Auto,
    Always,
    Never,
}

/// A user's template, with the name that errors and escaping go by.
struct Template {
    name: String,
    text: String,
}

impl Template {
    fn read(path: &Path) -> Result<Self, String> {
        let text = small_file::read_named(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        Ok(Self { name: path.display().to_string(), text })
    }
}

impl ReportArgs {
    /// The file to write to, unless it is standard output.
    fn output(&self) -> Option<&Path> {
        self.output.as_deref().filter(|path| *path != Path::new("-"))
    }

    /// Whether a person sees colours.
    fn colours(&self) -> bool {
        match self.color {
            Colour::Always => true,
            Colour::Never => false,
            Colour::Auto => {
                self.output().is_none()
                    && io::stdout().is_terminal()
                    && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
            }
        }
    }
}

impl FormatName {
    fn format(self) -> Format {
        match self {
            Self::Human => Format::Human,
            Self::Json => Format::Json,
            Self::Jsonl => Format::Jsonl,
            Self::Sarif => Format::Sarif,
            Self::Csv => Format::Csv,
            Self::Gitleaks => Format::Gitleaks,
            Self::Junit => Format::Junit,
            Self::GitlabSecretDetection => Format::GitlabSecretDetection,
            Self::GitlabCodeQuality => Format::GitlabCodeQuality,
            Self::Github => Format::Github,
            Self::Html => Format::Html,
            Self::Markdown => Format::Markdown,
        }
    }
}

pub(crate) fn write(
    args: &ReportArgs,
    job: &Job,
    report: &ScanReport,
    suppressed: u64,
    redacted_percent: u8,
) -> Result<(), String> {
    let template = args.template.as_deref().map(Template::read).transpose()?;
    let written = Written { report, job, suppressed, colours: args.colours(), redacted_percent };
    write_with(args, |out| match &template {
        Some(template) => written.write_template(&template.name, &template.text, out),
        None => written.write(args.format.format(), out),
    })
}

/// Writes each target with its numbers.
pub(crate) fn write_by_target(args: &ReportArgs, job: &Job, report: &ScanReport) -> Result<(), String> {
    let as_json = match (args.format, &args.template) {
        (FormatName::Human, None) => false,
        (FormatName::Json, None) => true,
        _ => {
            return Err(
                "--by repository is written for people or as JSON: leave out --format and --template, or give --format json"
                    .into(),
            );
        }
    };
    let written = Written { report, job, suppressed: 0, colours: args.colours(), redacted_percent: 0 };
    write_with(args, |out| written.write_by_target(as_json, out))
}

fn write_with(args: &ReportArgs, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), String> {
    let output = args.output();
    let result = match output {
        Some(path) => write_whole(path, write),
        None => {
            let mut out = BufWriter::new(io::stdout().lock());
            write(&mut out).and_then(|()| out.flush())
        }
    };
    match result {
        // A reader may close early (`| head`).
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        Err(error) => {
            let place = output.map_or("standard output".into(), |path| path.display().to_string());
            Err(format!("cannot write the report to {place}: {error}"))
        }
        Ok(()) => Ok(()),
    }
}
