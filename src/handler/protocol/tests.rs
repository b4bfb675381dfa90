//! Tests of the messages of workers, and their fuzz target: see [`crate::fuzzing`].

use super::*;

/// What a worker writes: the same wherever it is cut, never more than was written, and never held without a bound.
pub(crate) fn worker(data: &[u8]) {
    let Some((cut, written)) = data.split_first() else { return };
    let cut = usize::from(*cut).min(written.len());
    let [(whole, whole_fault), (parts, parts_fault)] = [read(&[written]), read(&[&written[..cut], &written[cut..]])];
    assert_eq!((&whole, whole_fault), (&parts, parts_fault));
    let bytes: usize = whole.iter().map(|(_, bytes)| bytes.len()).sum();
    assert!(bytes <= written.len());
}

/// The messages with their bytes, and whether a fault ended them.
fn read(chunks: &[&[u8]]) -> (Vec<(FromWorker, Vec<u8>)>, bool) {
    let (mut codec, mut buffer, mut read) = (Messages::default(), BytesMut::new(), Vec::new());
    for chunk in chunks {
        buffer.extend_from_slice(chunk);
        loop {
            match codec.decode(&mut buffer) {
                Ok(Some(Frame::Message(message, bytes))) => {
                    assert!(bytes <= MAX_BYTES);
                    read.push((message, Vec::new()));
                }
                Ok(Some(Frame::Piece(piece))) => {
                    read.last_mut().expect("a line comes first").1.extend_from_slice(&piece);
                }
                Ok(None) => break,
                Err(_) => return (read, true),
            }
        }
        assert!(buffer.len() <= MAX_LINE, "what waits for the end of its line is bounded");
    }
    (read, false)
}

#[cfg(test)]
mod cases {
    use rand::{RngExt, SeedableRng, rngs::StdRng};

    use super::*;

    fn decode(chunks: &[&[u8]]) -> Result<Vec<Frame>, ProtocolFault> {
        let (mut codec, mut buffer) = (Messages::default(), BytesMut::new());
        let mut frames = Vec::new();
        for chunk in chunks {
            buffer.extend_from_slice(chunk);
            while let Some(frame) = codec.decode(&mut buffer)? {
                frames.push(frame);
            }
        }
        while let Some(frame) = codec.decode_eof(&mut buffer)? {
            frames.push(frame);
        }
        Ok(frames)
    }

    /// Messages with all of their bytes, however they were cut.
    fn whole(frames: Vec<Frame>) -> Vec<(FromWorker, Vec<u8>)> {
        let mut messages: Vec<(FromWorker, Vec<u8>)> = Vec::new();
        for frame in frames {
            match frame {
                Frame::Message(message, _) => messages.push((message, Vec::new())),
                Frame::Piece(piece) => {
                    assert!(!piece.is_empty() && piece.len() <= MAX_PIECE);
                    messages.last_mut().expect("a line comes first").1.extend_from_slice(&piece);
                }
            }
        }
        messages
    }

    #[test]
    fn messages_are_the_same_wherever_they_are_cut() {
        let id = "1".to_owned();
        let messages = [
            (FromWorker::Ready(Ready { protocol: 1, kinds: vec!["a".into()], name: "w 1".into() }), Vec::new()),
            (FromWorker::Output { id: id.clone() }, b"{\"done\":{}}\n\0\xff".to_vec()),
            (FromWorker::Progress { id: id.clone(), fraction: Some(0.5), message: "ü\n".into() }, Vec::new()),
            (FromWorker::Done { id: id.clone(), content_type: "a/b".into() }, vec![b'\n'; 3 * MAX_PIECE + 1]),
            (
                FromWorker::Failed(Failed {
                    id,
                    code: "NOT_FOUND".into(),
                    message: "no".into(),
                    retryable: Some(true),
                    retry_after_ms: Some(1500.0),
                    counts: Some(false),
                    scope: "KIND".into(),
                }),
                Vec::new(),
            ),
        ];
        let parts = messages.iter().flat_map(|(message, bytes)| parts(message, bytes.clone().into()));
        let wire = parts.collect::<Vec<_>>().concat();
        for seed in 0..200 {
            let (mut random, mut rest, mut chunks) = (StdRng::seed_from_u64(seed), &wire[..], Vec::new());
            let most = [1, 7, 100, 5_000, 300_000][random.random_range(0..5)];
            // The begin in small cuts, the long output at once.
            while !rest.is_empty() {
                let cut = if rest.len() > 2 * MAX_PIECE { random.random_range(1..=most) } else { 4_000 };
                let (chunk, after) = rest.split_at(cut.min(rest.len()));
                chunks.push(chunk);
                rest = after;
            }
            assert_eq!(whole(decode(&chunks).expect("sound")), messages, "seed {seed}");
        }
    }

    #[test]
    fn the_lines_are_those_of_the_page() {
        let run = Run { id: "1".into(), kind: "thumbnail".into(), budget_ms: 900, attempt: 1, ..Run::default() };
        let line = |message: &ToWorker, bytes: &'static [u8]| {
            let [line, rest] = parts(message, Bytes::from_static(bytes));
            String::from_utf8([line, rest].concat()).expect("text")
        };
        assert_eq!(
            line(&ToWorker::Run(run), b"abc"),
            r#"{"run":{"id":"1","job_id":"","kind":"thumbnail","content_type":"","budget_ms":900,"request_id":"","#
                .to_owned()
                + r#""traceparent":"","tenant":"","labels":{},"attempt":1,"idempotency_key":"","token":""},"bytes":3}"#
                + "\nabc"
        );
        let cancel = ToWorker::Cancel { id: "1".into(), reason: "DEADLINE".into(), grace_ms: 1000 };
        let expected = "{\"cancel\":{\"id\":\"1\",\"reason\":\"DEADLINE\",\"grace_ms\":1000}}\n";
        assert_eq!(line(&cancel, b""), expected);
        assert_eq!(line(&ToWorker::Leave { grace_ms: 5 }, b""), "{\"leave\":{\"grace_ms\":5}}\n");
        assert_eq!(
            parts(ToWorker::Leave { grace_ms: 5 }, vec![0; INLINE + 1].into())[1].len(),
            INLINE + 1,
            "nothing is copied"
        );
    }

    #[test]
    fn what_a_worker_leaves_out_or_adds_is_no_fault() {
        let lines = b"{\"ready\":{\"protocol\":1,\"new\":[1]},\"more\":{\"a\":1}}\r\n{\"done\":{\"id\":\"1\"}}\n{\"failed\":{\"id\":\"2\"}}\n";
        let frames = decode(&[lines]).expect("sound");
        let failed = Failed { id: "2".into(), ..Failed::default() };
        assert_eq!(
            frames,
            [
                Frame::Message(FromWorker::Ready(Ready { protocol: 1, ..Ready::default() }), 0),
                Frame::Message(FromWorker::Done { id: "1".into(), content_type: String::new() }, 0),
                Frame::Message(FromWorker::Failed(failed), 0),
            ]
        );
    }

    #[test]
    fn what_a_failure_says_about_the_next_attempt_is_bounded() {
        let hour = Duration::from_secs(3600);
        for (said, after, counts, hold) in [
            (r#""retry_after_ms":1500,"scope":"JOB""#, Some(Duration::from_millis(1500)), true, None),
            (r#""retry_after_ms":"soon","counts":1"#, None, true, None),
            (r#""retry_after_ms":"NaN","counts":"no""#, None, true, None),
            (r#""retry_after_ms":"600000""#, Some(Duration::from_secs(600)), true, None),
            (r#""retry_after_ms":-1,"counts":null"#, None, true, None),
            (r#""retry_after_ms":1e300,"counts":false,"scope":"KIND""#, Some(hour), false, Some(Limiter::Hold)),
            (
                r#""retry_after_ms":0.5,"scope":"LIMIT_KEY""#,
                Some(Duration::from_micros(500)),
                true,
                Some(Limiter::KeyHold),
            ),
        ] {
            let FromWorker::Failed(failed) = read_one(&format!(r#"{{"failed":{{"id":"1",{said}}}}}"#)) else {
                panic!("{said}")
            };
            let HandlerError::Refused { next, .. } = failed.error("w").bounded() else { panic!("{said}") };
            assert_eq!((next.after, !next.is_uncounted, next.hold), (after, counts, hold), "{said}");
        }
    }

    fn read_one(line: &str) -> FromWorker {
        match decode(&[line.as_bytes(), b"\n"]).expect("sound").remove(0) {
            Frame::Message(message, _) => message,
            piece @ Frame::Piece(_) => panic!("{piece:?}"),
        }
    }

    #[test]
    fn a_field_that_is_not_as_it_should_be_is_read_as_what_it_means() {
        let id = || "1".to_owned();
        let done = |content_type: &str| FromWorker::Done { id: id(), content_type: content_type.into() };
        let failed = |message: &str| {
            let (code, message) = ("NOT_FOUND".into(), message.into());
            FromWorker::Failed(Failed { id: id(), code, message, ..Failed::default() })
        };
        let progress = |fraction| FromWorker::Progress { id: id(), fraction, message: "m".into() };
        for (line, expected) in [
            (r#"{"done":{"id":"1","content_type":null},"bytes":null}"#, done("")),
            (r#"{"done":{"id":1,"content_type":5}}"#, done("5")),
            (r#"{"bytes":0,"done":{"content_type":"a/b","id":"1"}}"#, done("a/b")),
            (
                r#"{"failed": {"id": "1", "code": "NOT_FOUND", "message": "\udcff \"no\"", "retryable": "yes"}}"#,
                failed(r#"\udcff \"no\""#),
            ),
            (r#"{"failed":{"id":"1","code":"NOT_FOUND","message":"a \x b"}}"#, failed(r"a \x b")),
            (r#"{"failed":{"id":"1","code":"NOT_FOUND","message":"a \"b\"","took":NaN}}"#, failed("a \"b\"")),
            (r#"{"failed":{"id":"1","code":"NOT_FOUND","message":{"a":1}}}"#, failed(r#"{"a":1}"#)),
            (r#"{"failed":{"message":"id","code":"NOT_FOUND","id":"1",,}}"#, failed("id")),
            (r#"{"progress":{"id":"1","fraction":NaN,"message":"m"}}"#, progress(None)),
            (r#"{"progress":{"id":"1","fraction":"half","message":"m"}}"#, progress(None)),
            (r#"{"progress": {"id": "1", "fraction": -Infinity, "message": "m"}}"#, progress(None)),
            (&format!(r#"{{"progress":{{"id":"1","fraction":1{},"message":"m"}}}}"#, "0".repeat(400)), progress(None)),
            (r#"{"progress":{"id":"1","fraction":1e400,"message":"m"}}"#, progress(None)),
            (r#"{"progress":{"id":"1","fraction":1,"message":"m"}}"#, progress(Some(1.0))),
        ] {
            assert_eq!(read_one(line), expected, "{line}");
        }
        let latin =
            decode(&[b"{\"failed\":{\"id\":\"1\",\"code\":\"NOT_FOUND\",\"message\":\"\xe9\"}}\n"]).expect("sound");
        assert_eq!(latin, [Frame::Message(failed("\u{fffd}"), 0)]);
    }

    #[test]
    fn a_line_that_cannot_be_read_is_the_fault_of_the_job_that_it_names() {
        for (line, is_answer) in [
            (r#"{"done":{"id":"7"},"bytes":"many"}"#, true),
            (r#"{"done":{"id":"7"},"bytes":1.5}"#, true),
            (r#"{"done":{"id":7,,}}"#, true),
            (r#"{"finished":{"id":"7"}}"#, true),
            (r#"{"done":{"id":"7","content_type":NaN}}"#, true),
            (r#"{"done":{"id":"7","content_type":"\ud800"}}"#, true),
            (r#"{"output":{"id":"7"},"bytes":-1}"#, false),
        ] {
            let FromWorker::Unreadable { id, what, is_answer: answers } = read_one(line) else { panic!("{line}") };
            assert_eq!((&*id, answers), ("7", is_answer), "{line}");
            assert!(
                what.starts_with("the worker sent a message that cannot be read (") && what.len() < 1_200,
                "{what}"
            );
        }
        let broken = r#"{"progress":{"id":"7","message":}}"#;
        assert_eq!(read_one(broken), FromWorker::Progress { id: "7".into(), fraction: None, message: String::new() });
    }

    #[test]
    fn bytes_that_follow_are_a_message_or_a_fault() {
        let codec = Messages { announced: 9, ..Messages::default() };
        let unknown_first = "{\"at\":5,\"done\":{\"id\":\"1\"}}\n";
        let progress = "{\"progress\":{\"id\":\"1\"}}\n";
        for bytes in ["", "{", "{\"do", "{\"done\":{", "{ \"bytes\" : 5", progress, unknown_first] {
            codec.check_next(bytes.as_bytes()).unwrap_or_else(|fault| panic!("{bytes}: {fault}"));
        }
        for bytes in [
            "\n",
            "é",
            " {\"done\":",
            "{}",
            "{\"a\":1}",
            "{\"a\":1}\n",
            " {\"done\":{}}\n",
            "{\"don't\"",
            "{\"done\"x",
            "[",
        ] {
            let fault = codec.check_next(bytes.as_bytes()).map_err(|fault| fault.to_string());
            assert!(fault.is_err_and(|fault| fault.contains("announces 9 bytes")), "{bytes}");
        }
    }

    #[test]
    fn what_breaks_the_protocol_is_told_with_its_begin() {
        let long = [&b"{"[..], &vec![b'x'; MAX_LINE]].concat();
        let cases: [(&[u8], &str, &str); 11] = [
            (b"hello\n", "not a JSON message of the protocol", "hello"),
            (b"\xff", "it does not begin with {", "\\xff"),
            (b"\n", "not a JSON message of the protocol", ""),
            (b"{\"nonsense\":{\"id\":\"x\"}}\n", "not a JSON message of the protocol", "nonsense"),
            (b"{\"bytes\":3}\nabc", "not a JSON message of the protocol", "bytes"),
            (b"{\"done\":{}}\n", "not a JSON message of the protocol", "done"),
            (b"{\"done\":null}\n", "not a JSON message of the protocol", "done"),
            (b"{\"done\":{\"id\":\"1\"},\"bytes\":9999999999}\n", "9999999999 bytes are to follow", "done"),
            (&long, "a line has more than 4194304 bytes", "{xxx"),
            (b"{\"done\":{", "closed within a message", "done"),
            (b"{\"done\":{\"id\":\"1\"},\"bytes\":4}\nabc", "closed within a message", ""),
        ];
        for (wire, told, begin) in cases {
            let fault = decode(&[wire]).expect_err("it is broken").to_string();
            assert!(fault.contains(told) && fault.contains(begin) && fault.len() < 1_200, "{fault}");
        }
        let mut line = long;
        line.push(b'\n');
        assert!(matches!(decode(&[&line]), Err(ProtocolFault::LongLine { .. })));
    }
}
