//! The reports for people.

use std::{
    fmt::{Display, Formatter, Result},
    time::Duration,
};

use super::{ComparisonReport, Figures, Latency, LoadReport, Machine, RoundReport, Settings, Spread};
use crate::cli::output::table::{Align, table};

impl Display for LoadReport {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Figures { rpc, throughput_per_s, latency_us, errors, unanswered, .. } = &self.figures;
        writeln!(f, "{} of {} on {}: {}", rpc.method(), self.settings.kind, self.server, self.settings)?;
        writeln!(f, "throughput  {throughput_per_s:.0}/s")?;
        writeln!(f, "latency     {latency_us}")?;
        match self.figures.server_cpu_us_per_request {
            Some(cpu) => writeln!(f, "server cpu  {cpu:.2} µs per request")?,
            None => writeln!(f, "server cpu  unknown; name its process with --server-pid")?,
        }
        if let Some(cpu) = self.figures.client_cpu_us_per_request {
            writeln!(f, "client cpu  {cpu:.2} µs per request")?;
        }
        if let Some(writes) = self.figures.write_syscalls_per_reply {
            writeln!(f, "writes      {writes:.3} system calls of the server per reply")?;
        }
        for (reason, count) in errors {
            writeln!(f, "error       {reason} × {count}")?;
        }
        if *unanswered > 0 {
            writeln!(f, "unanswered  {unanswered} calls, a second past their deadline")?;
        }
        writeln!(f, "machine     {}", self.machine)
    }
}

impl Display for ComparisonReport {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let subject = if self.control { "bare tonic echo (control)" } else { "waterwheel" };
        writeln!(f, "{} rounds of {}s bursts in turn: {}", self.rounds.len(), self.burst_s, self.settings)?;
        let mut rows = vec![row(["medians", "server µs/job", "client µs/job", "jobs/s", "p99 ms", "writes/reply"])];
        rows.push(self.side("bare tonic echo, Submit", |round| &round.bare));
        rows.push(self.side(&format!("{subject}, Submit"), |round| &round.submit));
        rows.push(self.side(&format!("{subject}, SubmitMany"), |round| &round.submit_many));
        write_table(f, &rows)?;
        let rows = [
            row(["ratios", "median", "quartiles", "range"]),
            ratio("server cpu / bare", self.compare_bare.cpu_ratio_spread),
            ratio("throughput / bare", self.compare_bare.throughput_ratio_spread),
            ratio("jobs per cpu second, SubmitMany / Submit", self.submit_many.jobs_per_cpu_second_ratio_spread),
        ];
        write_table(f, &rows)?;
        writeln!(f, "bare: {}", self.bare_executable)?;
        writeln!(f, "machine: {}", self.machine)
    }
}

impl ComparisonReport {
    fn side(&self, name: &str, side: fn(&RoundReport) -> &Figures) -> Vec<String> {
        let median = |figure: fn(&Figures) -> Option<f64>, digits: usize| {
            let values = self.rounds.iter().filter_map(|round| figure(side(round)));
            Spread::of(values).map_or("-".to_owned(), |spread| format!("{:.digits$}", spread.median))
        };
        vec![
            name.to_owned(),
            median(|figures| figures.server_cpu_us_per_request, 2),
            median(|figures| figures.client_cpu_us_per_request, 2),
            median(|figures| Some(figures.throughput_per_s), 0),
            median(|figures| Some(figures.latency_us.p99 / 1e3), 2),
            median(|figures| figures.write_syscalls_per_reply, 3),
        ]
    }
}

impl Display for Settings {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Self { connections, in_flight_per_connection, payload_bytes, .. } = self;
        write!(f, "{connections} connections × {in_flight_per_connection} in flight, {payload_bytes}-byte payload")
    }
}

impl Display for Latency {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Self { p50, p90, p99, p99_9, max } = self;
        let points = [("p50", p50), ("p90", p90), ("p99", p99), ("p99.9", p99_9), ("max", max)];
        let written = points.map(|(name, micros)| format!("{name} {:.2?}", Duration::from_secs_f64(micros / 1e6)));
        f.write_str(&written.join("   "))
    }
}

impl Display for Machine {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Self { cores, cpu, kernel, build, version } = self;
        let unknown = || "unknown".to_owned();
        let (cpu, kernel) = (cpu.clone().unwrap_or_else(unknown), kernel.clone().unwrap_or_else(unknown));
        write!(f, "{cores} cores of {cpu}, kernel {kernel}, {build} build of {version}")
    }
}

fn row<const CELLS: usize>(cells: [&str; CELLS]) -> Vec<String> {
    cells.map(str::to_owned).to_vec()
}

fn ratio(name: &str, spread: Option<Spread>) -> Vec<String> {
    let Some(spread) = spread else { return row([name, "-"]) };
    let quartiles = format!("{:.2}–{:.2}", spread.lower_quartile, spread.upper_quartile);
    let range = format!("{:.2}–{:.2}", spread.min, spread.max);
    vec![name.to_owned(), format!("{:.3}", spread.median), quartiles, range]
}

/// Names to the left, figures to the right.
fn write_table(f: &mut Formatter<'_>, rows: &[Vec<String>]) -> Result {
    let columns = rows.first().map_or(0, Vec::len);
    let align: Vec<Align> = (0..columns).map(|column| if column == 0 { Align::Left } else { Align::Right }).collect();
    table(&align, rows).iter().try_for_each(|line| writeln!(f, "{line}"))
}
