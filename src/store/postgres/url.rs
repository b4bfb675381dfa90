//! The place of a database, as an operator writes it.

use std::error::Error as _;

use tokio_postgres::Config;

/// A URL such as `postgres://user:password@host/database?sslmode=require`. `sslmode` is `disable`, `prefer` or
/// `require`; without it, TLS is used if the server has it. The certificate is checked whenever TLS is used.
///
/// `Debug` withholds the password.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
#[serde(try_from = "String")]
pub struct DatabaseUrl(pub(super) Config);

/// What to change in a text so that it is the URL of a database.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidDatabaseUrl(String);

impl TryFrom<String> for DatabaseUrl {
    type Error = InvalidDatabaseUrl;

    fn try_from(text: String) -> Result<Self, InvalidDatabaseUrl> {
        let refuse = |help: &str| Err(InvalidDatabaseUrl(help.to_owned()));
        if !text.starts_with("postgres://") && !text.starts_with("postgresql://") {
            return refuse("begin with `postgres://`");
        }
        // Where a URL is shown, only what stands before the host is withheld.
        if text.split_once('?').is_some_and(|(_, options)| options.contains("password")) {
            return refuse("write the password before the host, or name a `store.password_file`");
        }
        match text.parse::<Config>() {
            Ok(config) if config.get_hosts().is_empty() => refuse("name a host, as in `postgres://user@host/database`"),
            Ok(config) => Ok(Self(config)),
            Err(error) => {
                let detail = error.source().map_or_else(|| error.to_string(), ToString::to_string);
                Err(InvalidDatabaseUrl(format!("{detail}; `sslmode` is `disable`, `prefer` or `require`")))
            }
        }
    }
}
