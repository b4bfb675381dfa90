//! Faults of `[schedule]`.

use super::check_lines;

#[test]
fn schedules_that_cannot_run() {
    let zone = "`schedule.a.timezone`: `Mars/Base` is not a time zone of the IANA database";
    check_lines(&[
        (
            "store.memory = true\nschedule.a.kind = \"echo\"",
            "`schedule.a.cron` is missing",
            "add `cron = \"0 3 * * *\"`",
        ),
        (
            "store.memory = true\nschedule.a.cron = \"0 3 * * *\"",
            "`schedule.a.kind` is missing",
            "add `kind = \"NAME\"`",
        ),
        (
            "store.memory = true\nschedule.a = { cron = \"0 3 * * *\", kind = \"ehco\" }",
            "`schedule.a.kind` is `ehco`, which is not declared",
            "did you mean `echo`? else add it",
        ),
        (
            "schedule.a = { cron = \"0 3 * * *\", kind = \"echo\" }",
            "schedule `a` has no store to keep its jobs in",
            "add `store.path = \"waterwheel.db\"`",
        ),
        (
            "store.memory = true\nschedule.a = { cron = \"61 * * * *\", kind = \"echo\" }",
            "`schedule.a.cron`: `61 * * * *` is not a pattern of cron",
            "Component error: Number out of bounds.",
        ),
        (
            "store.memory = true\nschedule.a = { cron = \"* * * * *\", kind = \"echo\", timezone = \"Mars/Base\" }",
            zone,
            "write it like `\"Europe/Berlin\"`",
        ),
    ]);
}
