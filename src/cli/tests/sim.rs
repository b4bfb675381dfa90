//! Tests of the bounds of a simulation.

use clap::Parser;

use super::*;
use crate::cli::fake::Line;

fn check(line: &str) -> Result<(), Failure> {
    let args = Line::<SimArgs>::try_parse_from(["sim"].into_iter().chain(line.split_whitespace())).unwrap().args;
    args.check(&args.cases(None))
}

#[test]
fn what_is_too_much_is_refused_with_how_much_it_is() {
    check("").expect("what is done without any flag");
    let of = |line: &str| {
        let refused = check(line).unwrap_err();
        (refused.to_string(), refused.help().unwrap().to_owned())
    };
    let (error, help) = of("--load 100 --duration 1h --workers 65535 --mean 1us --seeds 1");
    assert!(error.starts_with("one run would simulate 23592829.4 billion jobs; at most 10 million"), "{error}");
    assert!(help.contains("--workers"), "{help}");
    // 8,000 each second for 1,000 s, and once 560 for five; four times.
    let (error, _) = of("--load 1 --duration 1000s --mean 1ms --seeds 7 --service exponential");
    assert_eq!(error, "that would simulate 56.2 million jobs in 7 runs; at most 50 million are simulated");
    check("--load 1 --duration 1000s --mean 1ms --seeds 6 --service exponential").unwrap();
}

#[test]
fn the_shortest_mean_is_a_microsecond() {
    let parse = |mean| Line::<SimArgs>::try_parse_from(["sim", "--mean", mean]);
    assert!(parse("999ns").unwrap_err().to_string().contains("must be from 1us to 1day"));
    assert!(parse("1us").is_ok());
}
