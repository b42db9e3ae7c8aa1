//! Dates as people read them: `2026-11-16T03:05:10Z`.

use tessera_contracts::LogicalTime;

/// A time of the coordinator, which counts milliseconds since 1970, in UTC.
pub fn utc(time: LogicalTime) -> String {
    iso_8601(i64::try_from(time.get() / 1_000).unwrap_or(i64::MAX), 0)
}

/// Seconds since 1970 in a time zone. `zone` is written as hours and minutes: `-0330` is three and a half hours.
pub(crate) fn iso_8601(seconds: i64, zone: i64) -> String {
    let minutes = zone / 100 * 60 + zone % 100;
    // Years of four digits; what claims to be outside is at the edge.
    let local = seconds.saturating_add(minutes * 60).clamp(-62_135_596_800, 253_402_300_799);
    let (days, second) = (local.div_euclid(86_400), local.rem_euclid(86_400));
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    let zone = match minutes {
        0 => "Z".to_owned(),
        _ => {
            let sign = if minutes < 0 { '-' } else { '+' };
            format!("{sign}{:02}:{:02}", minutes.abs() / 60, minutes.abs() % 60)
        }
    };
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}{zone}")
}

/// Year, month and day of a day counted from 1970, by the calendar whose years begin in March.
fn civil(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (era * 400 + year_of_era + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_counted_over_leap_years() {
        for (seconds, date) in [
            (0, "1970-01-01T00:00:00Z"),
            (-1, "1969-12-31T23:59:59Z"),
            (951_868_799, "2000-02-29T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
            (i64::MAX, "9999-12-31T23:59:59Z"),
        ] {
            assert_eq!(iso_8601(seconds, 0), date);
        }
        assert_eq!(iso_8601(0, 530), "1970-01-01T05:30:00+05:30");
        assert_eq!(iso_8601(951_782_400, -330), "2000-02-28T20:30:00-03:30");
    }

    #[test]
    fn a_time_of_the_coordinator_is_told_to_the_second() {
        assert_eq!(utc(LogicalTime::new(1_794_798_310_999)), "2026-11-16T03:05:10Z");
        assert_eq!(utc(LogicalTime::new(u64::MAX)), "9999-12-31T23:59:59Z");
    }
}
