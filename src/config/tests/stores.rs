//! Faults of `[store]`, and what is shown of its database.

use super::{Case, FINE, check, ok};

#[test]
fn stores_that_are_two_or_cannot_be_reached() {
    check(STORES);
    let fine = "store.url = \"postgres://me:hunter2@%2Frun/jobs?sslmode=disable\"";
    let loaded = ok(&format!("{fine}{FINE}"), &[], &[]);
    assert!(loaded.config.store.postgres().is_some());
    assert!(!format!("{:?}", loaded.config.store).contains("hunter2"));
    let other = ok(&format!("{}{FINE}", fine.replace("hunter2", "hunter3")), &[], &[]);
    let changes = loaded.changes(&other);
    assert!(changes.len() == 1 && changes[0].needs_restart && changes[0].key == "store.url", "{changes:?}");
}

const STORES: &[Case] = &[
    Case {
        file: r#"[store]
path = "jobs.db"
url = "postgres://db/jobs""#,
        faults: r#"
error: `store.path` and `store.url` are two stores
 --> ww.toml:2:8
  |
2 | path = "jobs.db"
  |        ^^^^^^^^^
3 | url = "postgres://db/jobs"
  |       --------------------
  |
  = help: keep one of the two
"#,
        ..Case::NONE
    },
    Case {
        file: r#"store.password_file = "/etc/hostname""#,
        faults: r#"
error: `store.password_file` has no effect without `store.url`
 --> ww.toml:1:23
  |
1 | store.password_file = "/etc/hostname"
  |                       ^^^^^^^^^^^^^^^
  |
  = help: set `store.url`, or remove it
"#,
        ..Case::NONE
    },
    Case {
        file: r#"store = { url = "postgres://db", ca_file = "/none" }"#,
        faults: r#"
error: `store.ca_file`: /none: no such file or directory
 --> ww.toml:1:44
  |
1 | store = { url = "postgres://db", ca_file = "/none" }
  |                                            ^^^^^^^
  |
  = help: name a file that the server can read
"#,
        ..Case::NONE
    },
    Case {
        file: r#"store.url = "mysql://me:hunter2@db""#,
        faults: r#"
error: `store.url`: `mysql://(withheld)@db` is not a postgres:// URL of a database
 --> ww.toml:1:13
  |
1 | store.url = "mysql://(withheld)@db"
  |             ^^^^^^^^^^^^^^^^^^^^^^^
  |
  = help: begin with `postgres://`
"#,
        ..Case::NONE
    },
    Case {
        file: r#"store.url = "postgres://db/jobs?sslmode=verify-full""#,
        faults: r#"
error: `store.url`: `postgres://db/jobs?sslmode=verify-full` is not a postgres:// URL of a database
 --> ww.toml:1:13
  |
1 | store.url = "postgres://db/jobs?sslmode=verify-full"
  |             ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  |
  = help: invalid value for option `sslmode`; `sslmode` is `disable`, `prefer` or `require`
"#,
        ..Case::NONE
    },
];
