//! Closed sets of names: what each key of that kind takes.

use super::fault::Fault;
use super::field::{Field, misfit};
use super::problem::Problem;
use super::tree::Node;
use super::withhold::value;
use crate::handler::Builtin;
use crate::model::{Criticality, FailureCode, WhenFull};
use crate::net::{ClientAuth, TlsVersion};
use crate::telemetry::LogFormat;

/// A closed set of names.
pub(super) trait Named: Copy + PartialEq + 'static {
    /// A name, as TOML.
    const EXAMPLE: &'static str;
    /// Every name and its value.
    const NAMES: &'static [(&'static str, Self)];
}

impl<T: Named> Field for T {
    const EXPECTED: &'static str = "a string";
    const EXAMPLE: &'static str = <T as Named>::EXAMPLE;

    fn read(node: &Node, key: &str) -> Result<Self, Fault> {
        let given = String::read(node, key).map_err(|_| misfit::<Self>(node, key))?;
        let found = Self::NAMES.iter().find(|(name, _)| *name == given);
        found.map(|(_, known)| *known).ok_or_else(|| {
            let problem = Problem::UnknownName {
                key: key.to_owned(),
                value: value(&given),
                known: Self::NAMES.iter().map(|(name, _)| *name).collect(),
            };
            Fault::at(problem, &node.span)
        })
    }

    fn show(&self) -> toml::Value {
        let found = Self::NAMES.iter().find(|(_, value)| value == self);
        let (name, _) = found.expect("every value has a name");
        toml::Value::String((*name).to_owned())
    }
}

impl Named for LogFormat {
    const EXAMPLE: &'static str = "\"auto\"";
    const NAMES: &'static [(&'static str, Self)] = &[("auto", Self::Auto), ("text", Self::Text), ("json", Self::Json)];
}

impl Named for ClientAuth {
    const EXAMPLE: &'static str = "\"required\"";
    const NAMES: &'static [(&'static str, Self)] = &[("required", Self::Required), ("optional", Self::Optional)];
}

impl Named for TlsVersion {
    const EXAMPLE: &'static str = "\"1.3\"";
    const NAMES: &'static [(&'static str, Self)] = &[("1.3", Self::V1_3), ("1.2", Self::V1_2)];
}

impl Named for WhenFull {
    const EXAMPLE: &'static str = "\"reject\"";
    const NAMES: &'static [(&'static str, Self)] =
        &[("reject", Self::Reject), ("wait", Self::Wait), ("shed", Self::Shed)];
}

impl Named for Criticality {
    const EXAMPLE: &'static str = "\"CRITICAL\"";
    const NAMES: &'static [(&'static str, Self)] = &[
        ("CRITICAL_PLUS", Self::CriticalPlus),
        ("CRITICAL", Self::Critical),
        ("SHEDDABLE_PLUS", Self::SheddablePlus),
        ("SHEDDABLE", Self::Sheddable),
    ];
}

impl Named for Builtin {
    const EXAMPLE: &'static str = "\"echo\"";
    const NAMES: &'static [(&'static str, Self)] =
        &[("echo", Self::Echo), ("sha256", Self::Sha256), ("sleep", Self::Sleep), ("gzip", Self::Gzip)];
}

impl Named for FailureCode {
    const EXAMPLE: &'static str = "\"NOT_FOUND\"";
    const NAMES: &'static [(&'static str, Self)] = &[
        ("INVALID_ARGUMENT", Self::InvalidArgument),
        ("NOT_FOUND", Self::NotFound),
        ("ALREADY_EXISTS", Self::AlreadyExists),
        ("PERMISSION_DENIED", Self::PermissionDenied),
        ("FAILED_PRECONDITION", Self::FailedPrecondition),
        ("OUT_OF_RANGE", Self::OutOfRange),
        ("UNIMPLEMENTED", Self::Unimplemented),
        ("UNAVAILABLE", Self::Unavailable),
        ("DATA_LOSS", Self::DataLoss),
        ("UNKNOWN", Self::Unknown),
    ];
}
