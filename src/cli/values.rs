//! Parsers of the values of flags.

use std::{ops::RangeInclusive, time::Duration};

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

/// Parses a protobuf enum value by its name. The help explains each value.
pub(super) fn one_of<T, const N: usize>(
    values: [(&'static str, T, &'static str); N],
) -> impl TypedValueParser<Value = T>
where
    T: Copy + Send + Sync + 'static,
{
    let names = values.map(|(name, _, help)| PossibleValue::new(name).help(help));
    let value = move |chosen: String| values.iter().find(|(name, ..)| *name == chosen).expect("one of the names").1;
    PossibleValuesParser::new(names).map(value)
}

/// Reads a duration.
pub(super) fn any_duration(text: &str) -> Result<Duration, &'static str> {
    humantime::parse_duration(text).map_err(|_| "not a duration; write it as 500ms, 2s or 10m")
}

/// Reads a duration within bounds.
pub(super) fn duration_in(
    bounds: RangeInclusive<Duration>,
) -> impl Fn(&str) -> Result<Duration, String> + Clone + Send + Sync {
    move |text| {
        let duration = any_duration(text)?;
        if bounds.contains(&duration) {
            return Ok(duration);
        }
        let [min, max] = [*bounds.start(), *bounds.end()].map(humantime::format_duration);
        Err(format!("must be from {min} to {max}"))
    }
}

/// Reads a number within bounds.
pub(super) fn number_in(bounds: RangeInclusive<f64>) -> impl Fn(&str) -> Result<f64, String> + Clone + Send + Sync {
    move |text| {
        let number = text.parse().ok().filter(|number| bounds.contains(number));
        number.ok_or_else(|| format!("must be a number from {} to {}", bounds.start(), bounds.end()))
    }
}
