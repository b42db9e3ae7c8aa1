//! A table for people, a line of JSON for programs.

use crate::harness::{Measured, Unit};

pub(crate) fn head() -> String {
    format!(
        "{:<34} {:>12} {:>12} {:>7} {:>7}  {:<9} {:>12} {:>12} {:>7} {:>7}",
        "figure (CPU time, median)", "ours", "reference", "ratio", "±", "unit", "ours wall", "ref. wall", "ratio", "±"
    )
}

pub(crate) fn line(measured: &Measured) -> String {
    format!(
        "{:<34} {:>12} {:>12} {:>7.3} {:>7.3}  {:<9} {:>12} {:>12} {:>7.3} {:>7.3}",
        measured.name,
        figure(measured.ours.cpu.median),
        figure(measured.reference.cpu.median),
        measured.ratio.median,
        measured.ratio.spread,
        measured.unit.name(),
        figure(measured.ours.wall.median),
        figure(measured.reference.wall.median),
        measured.ratio_wall.median,
        measured.ratio_wall.spread,
    )
}

/// One object: `figure`, `ours`, `reference`, `ratio`, `unit`, then spreads, wall time and the number of pairs.
pub(crate) fn json(measured: &Measured) -> String {
    let Measured { name, unit, ours, reference, ratio, ratio_wall, pairs } = measured;
    format!(
        "{{\"figure\":\"{name}\",\"ours\":{:.3},\"reference\":{:.3},\"ratio\":{:.4},\"unit\":\"{}\",\"better\":\"{}\",\
         \"ours_spread\":{:.3},\"reference_spread\":{:.3},\"ratio_spread\":{:.4},\
         \"ours_wall\":{:.3},\"reference_wall\":{:.3},\"ratio_wall\":{:.4},\"ratio_wall_spread\":{:.4},\
         \"pairs\":{pairs}}}",
        ours.cpu.median,
        reference.cpu.median,
        ratio.median,
        unit.name(),
        better(*unit),
        ours.cpu.spread,
        reference.cpu.spread,
        ratio.spread,
        ours.wall.median,
        reference.wall.median,
        ratio_wall.median,
        ratio_wall.spread,
    )
}

fn better(unit: Unit) -> &'static str {
    if unit.less_is_better() { "less" } else { "more" }
}

/// Three significant digits.
fn figure(value: f64) -> String {
    match value {
        value if value >= 1000.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::Side;
    use crate::statistics::Summary;

    #[test]
    fn a_json_line_has_the_five_fields_first() {
        let at = |median| Summary { median, spread: 0.5 };
        let measured = Measured {
            name: "area/question",
            unit: Unit::NanosPerOperation,
            ours: Side { cpu: at(12.0), wall: at(13.0) },
            reference: Side { cpu: at(24.0), wall: at(25.0) },
            ratio: at(0.5),
            ratio_wall: at(0.52),
            pairs: 3,
        };
        let line = json(&measured);
        let begins =
            "{\"figure\":\"area/question\",\"ours\":12.000,\"reference\":24.000,\"ratio\":0.5000,\"unit\":\"ns/op\"";
        assert!(line.starts_with(begins), "{line}");
        let ends = "\"ours_wall\":13.000,\"reference_wall\":25.000,\"ratio_wall\":0.5200,\"ratio_wall_spread\":0.5000,\"pairs\":3}";
        assert!(line.ends_with(ends), "{line}");
    }

    #[test]
    fn large_figures_lose_their_decimals() {
        assert_eq!([figure(1.2345), figure(12.345), figure(1234.5)], ["1.23", "12.3", "1234"]);
    }
}
