//! Side-by-side measurements: every figure is ours and a reference, taken in turns in one run.
//!
//! A number alone says more about the machine than about the code. The harness is in [`harness`], the list of areas in
//! [`registry`]; an area is one file with `figures()`.

#![deny(unsafe_code)]

mod clock;
mod coordination;
mod detect;
mod dht;
mod etcd;
mod harness;
mod instructions;
mod lanes;
mod local;
mod postgres;
mod registry;
mod report;
mod statistics;
mod stdx;

use std::process::ExitCode;

use clap::Parser;

use harness::{Effort, Figure};

/// Measures ours beside a reference, in interleaved pairs in one run.
///
/// CPU time is the figure; wall time stands beside it. Numbers from two runs are not comparable, ratios mostly are.
#[derive(Debug, Parser)]
#[command(
    name = "tessera-bench",
    after_help = "EXAMPLES
  cargo run --release -p tessera-bench                          every figure
  cargo run --release -p tessera-bench -- --list                what there is
  cargo run --release -p tessera-bench -- stdx/ring --json      figures whose name contains a text, one line each
  cargo run --release -p tessera-bench -- --instructions stdx   exact instruction counts (needs valgrind)"
)]
struct Args {
    /// Texts to select figures by: a figure runs if its name is or contains one of them; a whole name selects it alone
    #[arg(value_name = "FIGURE")]
    figures: Vec<String>,
    /// Print one JSON object per figure and line
    #[arg(long)]
    json: bool,
    /// List the figures and what each asks
    #[arg(long)]
    list: bool,
    /// Fewer and shorter samples: to see that it runs, not to quote
    #[arg(long)]
    quick: bool,
    /// Count instructions with callgrind instead of taking time; exit 1 if a figure exceeds its gate
    #[arg(long)]
    instructions: bool,
    /// Run one side of one figure so many times: how --instructions calls itself
    #[arg(long, hide = true, num_args = 3, value_names = ["FIGURE", "SIDE", "TIMES"])]
    body: Option<Vec<String>>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    match run(&args) {
        Ok(code) => code,
        Err(problem) => {
            eprintln!("error: {problem}");
            ExitCode::from(2)
        }
    }
}

fn run(args: &Args) -> Result<ExitCode, String> {
    let all = registry::figures();
    if let Some(body) = &args.body {
        instructions::run_body(&all, body)?;
        return Ok(ExitCode::SUCCESS);
    }
    let chosen = choose(&all, &args.figures)?;
    if args.list {
        for figure in chosen {
            println!("{:<36} {}", figure.name, figure.asks);
        }
        return Ok(ExitCode::SUCCESS);
    }
    if cfg!(debug_assertions) {
        eprintln!("note: this is an unoptimised build; quote figures of `cargo run --release` only");
    }
    if args.instructions {
        let held = instructions::count(&chosen, args.json)?;
        return Ok(if held { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    let effort = if args.quick { Effort::QUICK } else { Effort::FULL };
    if !args.json {
        println!("{}", report::head());
    }
    for figure in chosen {
        let result = harness::measure(figure, effort);
        println!("{}", if args.json { report::json(&result) } else { report::line(&result) });
    }
    Ok(ExitCode::SUCCESS)
}

fn choose<'a>(all: &'a [Figure], texts: &[String]) -> Result<Vec<&'a Figure>, String> {
    for text in texts {
        if !all.iter().any(|figure| figure.name.contains(text.as_str())) {
            return Err(format!("no figure has `{text}` in its name; --list shows all names"));
        }
    }
    let is_name = |text: &str| all.iter().any(|figure| figure.name == text);
    let selects = |text: &String, name: &str| name == text || (!is_name(text) && name.contains(text.as_str()));
    let wanted = |figure: &&Figure| texts.is_empty() || texts.iter().any(|text| selects(text, figure.name));
    Ok(all.iter().filter(wanted).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_start_with_their_area() {
        let all = registry::figures();
        for (index, figure) in all.iter().enumerate() {
            assert!(figure.name.contains('/'), "{}", figure.name);
            assert!(all[..index].iter().all(|other| other.name != figure.name), "{} twice", figure.name);
        }
    }

    #[test]
    fn a_text_that_selects_nothing_is_refused() {
        assert!(choose(&registry::figures(), &["no such figure".to_string()]).is_err());
    }

    #[test]
    fn a_whole_name_selects_one_figure_and_a_part_of_names_all_that_have_it() {
        let figure = |name| Figure::cost(name, "", || harness::Pair::new(|_| (), |_| ()));
        let all = [figure("area/one"), figure("area/one-more"), figure("area/two")];
        let chosen = |text: &str| {
            let chosen = choose(&all, &[text.to_string()]).expect("there is one");
            chosen.iter().map(|figure| figure.name).collect::<Vec<_>>()
        };
        assert_eq!(chosen("area/one"), ["area/one"]);
        assert_eq!(chosen("one"), ["area/one", "area/one-more"]);
    }

    #[test]
    fn every_figure_runs_on_both_sides() {
        for figure in registry::figures() {
            let mut pair = (figure.setup)();
            (pair.refill)(3);
            (pair.ours)(3);
            if let Some(refill) = &mut pair.refill_reference {
                refill(3);
            }
            (pair.reference)(3);
        }
    }
}
