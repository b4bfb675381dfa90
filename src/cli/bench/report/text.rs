//! The reports for people.

use std::{
    fmt::{Display, Formatter, Result},
    time::Duration,
};

use super::{Figures, Latency, LoadReport, Machine, Settings};

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
