//! The URL of a database.

use std::error::Error as _;

use tokio_postgres::Config;

/// A URL such as `postgres://user:password@host/database?sslmode=require`, with one host or several. `sslmode` is
/// `disable`, `prefer` or `require`; the default uses TLS if the server supports it. TLS always checks the server's
/// certificate.
///
/// `Debug` hides the password.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
#[serde(try_from = "String")]
pub struct DatabaseUrl(Vec<Config>);

/// How to correct an invalid database URL. It quotes nothing of the URL, because any part may be a password.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidDatabaseUrl(String);

impl DatabaseUrl {
    /// The settings of each host. A driver that has all hosts waits for ever for one that takes connections and never
    /// answers.
    pub(super) fn hosts(&self) -> &[Config] {
        &self.0
    }
}

impl TryFrom<String> for DatabaseUrl {
    type Error = InvalidDatabaseUrl;

    fn try_from(text: String) -> Result<Self, InvalidDatabaseUrl> {
        let refuse = |help: &str| Err(InvalidDatabaseUrl(help.to_owned()));
        let Some(rest) = ["postgres://", "postgresql://"].iter().find_map(|scheme| text.strip_prefix(scheme)) else {
            return refuse("begin with `postgres://`");
        };
        // Only the part before the host is hidden where a URL is shown.
        if rest.split_once('?').is_some_and(|(_, options)| options.contains("password")) {
            return refuse("write the password before the host, or name a `store.password_file`");
        }
        let (user, rest) = rest.split_at(rest.find('@').map_or(0, |at| at + 1));
        let (hosts, rest) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        let configs = hosts.split(',').map(|host| format!("postgres://{user}{host}{rest}").parse::<Config>());
        match configs.collect::<Result<Vec<_>, _>>() {
            Ok(configs) if configs.iter().all(|config| config.get_hosts().len() == 1) => Ok(Self(configs)),
            Ok(_) => refuse("name a host, as in `postgres://user@host/database`, and several as `host1,host2`"),
            Err(error) => Err(InvalidDatabaseUrl(advice(&error))),
        }
    }
}

/// Names an option whose value is wrong; what is no option may be a part of a password.
fn advice(error: &tokio_postgres::Error) -> String {
    let detail = error.source().map(ToString::to_string).filter(|detail| detail.starts_with("invalid value for"));
    let detail =
        detail.unwrap_or_else(|| "write `%3F` for a `?` in a password, and so on for `/`, `@`, `:`".to_owned());
    format!("{detail}; `sslmode` is `disable`, `prefer` or `require`")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_host_has_its_own_settings_and_no_refusal_quotes_the_url() {
        let url = |text: &str| DatabaseUrl::try_from(text.to_owned());
        let three = url("postgres://u:p@a:1,b,[::1]:3/jobs?sslmode=require").expect("a URL");
        let shown: Vec<_> = three.0.iter().map(|host| (host.get_hosts().len(), host.get_ports()[0])).collect();
        assert_eq!(shown, [(1, 1), (1, 5432), (1, 3)]);
        assert!(three.0.iter().all(|host| host.get_user() == Some("u") && host.get_dbname() == Some("jobs")));
        assert_eq!(url("postgresql://u@%2Frun%2Fpostgresql/jobs").expect("a socket").0.len(), 1);
        assert_eq!(url("postgres://u@/jobs?host=db").expect("a host").0.len(), 1);
        for bad in [
            "host=h user=u password=hunter2",
            "postgres://u:hunter2",
            "postgres://u:x?hunter2",
            "postgres://u@host/jobs?password=hunter2",
            "postgres://u@host/jobs?hunter2=1",
            "postgres://u:hunter2@/jobs",
            "postgres://u:hunter2@host:x/jobs",
            "postgres://u:hunter2@host/jobs?sslmode=verify-full",
        ] {
            let refusal = url(bad).expect_err(bad);
            assert!(!format!("{refusal} {refusal:?}").contains("hunter2"), "{refusal}");
        }
    }
}
