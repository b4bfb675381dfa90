//! The built-in handlers, each in a file below `builtin/`. A new one is also a name in the table of
//! `src/config/keys.rs`.

use super::{Kind, KindOptions};

mod echo;
mod gzip;
mod sha256;
mod sleep;

/// A handler that comes with the crate, for a first run, for tests and for benchmarks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Builtin {
    /// Gives the payload back, with its content type.
    Echo,
    /// Gives the SHA-256 of the payload in lower-case hexadecimal digits, as `text/plain`.
    Sha256,
    /// Waits for the milliseconds that its JSON payload names: `{"ms":1500}`, or just `1500`; at most an hour.
    ///
    /// With `"ignore_cancel":true` it sleeps on when it is asked to stop, to try what happens then.
    Sleep,
    /// Compresses the payload, and streams what it gets. The same payload always gives the same bytes.
    Gzip,
}

impl Builtin {
    /// A kind called `name` that this handler serves.
    #[must_use]
    pub fn kind(self, name: &str, options: KindOptions) -> Kind {
        let kind = match self {
            Self::Echo => Kind::new(name, || echo::Echo),
            Self::Sha256 => Kind::blocking(name, || sha256::Sha256),
            Self::Sleep => Kind::new(name, || sleep::Sleep),
            Self::Gzip => Kind::blocking(name, || gzip::Gzip),
        };
        kind.options(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_run_where_they_should() {
        for (builtin, blocking) in
            [(Builtin::Echo, false), (Builtin::Sha256, true), (Builtin::Sleep, false), (Builtin::Gzip, true)]
        {
            let kind = builtin.kind("mine", KindOptions { idempotent: true, ..KindOptions::default() });
            assert_eq!(kind.is_blocking(), blocking, "{builtin:?}");
            assert_eq!(&**kind.name(), "mine");
            assert!(kind.get_options().idempotent);
        }
    }
}
