//! The bounds of what a worker says of itself.

use super::*;

#[tokio::test]
async fn the_largest_hello_is_accepted_and_no_larger_one() {
    let service = serve("");
    let text = |length: usize| "x".repeat(length);
    // Kinds that the server does not have are bounded too.
    let kinds = |count: usize, length: usize| {
        let others = (2..count).map(|number| number.to_string());
        ["far".to_owned(), text(length)].into_iter().chain(others).collect()
    };
    let labels = |count: usize, key: usize, value: usize| {
        (0..count).map(|number| (format!("{number:0>key$}"), text(value))).collect()
    };
    let largest = Hello { name: text(128), kinds: kinds(1024, 128), concurrency: 1024, labels: labels(16, 256, 256) };
    for (larger, field) in [
        (Hello { name: text(129), ..largest.clone() }, "hello.name"),
        (Hello { kinds: kinds(1025, 128), ..largest.clone() }, "hello.kinds"),
        (Hello { kinds: kinds(2, 129), ..largest.clone() }, "hello.kinds"),
        (Hello { concurrency: 1025, ..largest.clone() }, "hello.concurrency"),
        (Hello { labels: labels(17, 256, 256), ..largest.clone() }, "hello.labels"),
        (Hello { labels: labels(1, 257, 256), ..largest.clone() }, "hello.labels"),
        (Hello { labels: labels(1, 256, 257), ..largest.clone() }, "hello.labels"),
    ] {
        let refused = attach_by(service.public.channel().await, Message::Hello(larger)).await.err().expect("too large");
        assert!(refused.message().contains(field), "{field}: {refused}");
    }
    let _worker = attach_by(service.public.channel().await, Message::Hello(largest)).await.expect("the largest one");
    workers(&Caller::of(service.public).await, 1024).await;
}
