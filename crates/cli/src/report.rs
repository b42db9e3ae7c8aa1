//! The flags that say how a report is written, and writing it.

use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};

use tessera_scan::report::{Format, Written};
use tessera_scan::run::ScanReport;
use tessera_scan::run::job::Job;

/// How to write a report.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ReportArgs {
    /// How to write the report
    #[arg(long, value_enum, default_value_t = FormatName::Human)]
    pub(crate) format: FormatName,

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
}

/// When to use colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Colour {
    Auto,
    Always,
    Never,
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
        }
    }
}

pub(crate) fn write(args: &ReportArgs, job: &Job, report: &ScanReport, suppressed: u64) -> Result<(), String> {
    let format = args.format.format();
    write_with(args, job, report, suppressed, |written, out| written.write(format, out))
}

/// Writes each target with its numbers.
pub(crate) fn write_by_target(args: &ReportArgs, job: &Job, report: &ScanReport) -> Result<(), String> {
    let as_json = match args.format {
        FormatName::Human => false,
        FormatName::Json => true,
        _ => {
            return Err(
                "--by repository is written for people or as JSON: leave out --format, or give --format json".into()
            );
        }
    };
    write_with(args, job, report, 0, |written, out| written.write_by_target(as_json, out))
}

fn write_with(
    args: &ReportArgs,
    job: &Job,
    report: &ScanReport,
    suppressed: u64,
    write: impl FnOnce(&Written<'_>, &mut dyn Write) -> io::Result<()>,
) -> Result<(), String> {
    let output = args.output.as_deref().filter(|path| *path != Path::new("-"));
    let colours = match args.color {
        Colour::Always => true,
        Colour::Never => false,
        Colour::Auto => {
            output.is_none()
                && io::stdout().is_terminal()
                && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
        }
    };
    let written = Written { report, job, suppressed, colours };
    let result = match output {
        Some(path) => File::create(path).and_then(|file| {
            let mut out = BufWriter::new(file);
            write(&written, &mut out)?;
            out.flush()
        }),
        None => {
            let mut out = BufWriter::new(io::stdout().lock());
            write(&written, &mut out).and_then(|()| out.flush())
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
