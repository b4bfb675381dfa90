use super::*;
use crate::memory::Memory;

impl<S> HeldBack for http_body_util::StreamBody<S> {}

/// Reads a body that comes in pieces of `size`. Returns what is handed on.
async fn pass(bytes: &[u8], size: usize, trailers: bool, expected: Expected) -> Vec<Frame<Bytes>> {
    let mut frames: Vec<_> = bytes.chunks(size).map(Bytes::copy_from_slice).map(Frame::data).collect();
    frames.extend(trailers.then(|| Frame::trailers(http::HeaderMap::new())));
    let frames = frames.into_iter().map(Ok::<_, std::convert::Infallible>);
    let body = http_body_util::StreamBody::new(futures_util::stream::iter(frames));
    let mut upload = Upload::new(body, Memory::default().of(1), 1000, expected);
    let mut passed = Vec::new();
    while let Some(frame) = http_body_util::BodyExt::frame(&mut upload).await {
        passed.push(frame.expect("nothing gives way"));
    }
    passed
}

#[tokio::test]
async fn a_message_is_handed_on_when_it_is_whole() {
    let messages: Vec<_> = [0, 3, 1, 200, 0, 5]
        .map(|length: u8| [&[0, 0, 0, 0, length][..], &vec![length; length.into()]].concat())
        .into();
    let (all, cut) = (messages.concat(), [&messages.concat()[..], &[0, 0, 0, 0, 9, 9, 9]].concat());
    for size in 1..=all.len() {
        let passed = pass(&all, size, false, Expected::Many).await;
        let mut rest = messages.iter();
        for piece in &passed {
            let mut piece = &piece.data_ref().expect("data")[..];
            while !piece.is_empty() {
                piece = piece.strip_prefix(&rest.next().expect("no more than was sent")[..]).expect("whole messages");
            }
        }
        assert_eq!(rest.next(), None, "pieces of {size}");
        for trailers in [false, true] {
            let mut passed = pass(&cut, size, trailers, Expected::Many).await;
            assert_eq!(passed.pop_if(|frame| frame.is_trailers()).is_some(), trailers);
            let last = passed.pop().expect("the end").into_data().expect("data");
            assert_eq!(last, [0, 0, 0, 0, 9, 9, 9][..], "what stays unfinished is the codec's to refuse");
            assert_eq!(passed.iter().map(|frame| frame.data_ref().expect("data").len()).sum::<usize>(), all.len());
        }
    }
}

#[tokio::test]
async fn only_what_is_too_large_is_cut_however_it_comes() {
    let message = |flag: u8, length: u32| {
        let body = (0..length).map(|byte| byte as u8);
        [flag].into_iter().chain(length.to_be_bytes()).chain(body).collect::<Vec<u8>>()
    };
    let lengths = [0, 3, 1000, 1001, 7, 1, 2000, 70_000, 1000];
    let all = lengths.map(|length| message(0, length)).concat();
    let cut = |length: u32| if length > 1000 { message(CUT, length.min(KEPT_BYTES)) } else { message(0, length) };
    let expected = lengths.map(cut).concat();
    for size in [1, 2, 3, 5, 7, 64, 100, 1003, 16_384, all.len()] {
        let passed = pass(&all, size, false, Expected::ManyCut).await;
        let left = passed.iter().map(|frame| &frame.data_ref().expect("data")[..]).collect::<Vec<_>>().concat();
        assert_eq!(left, expected, "pieces of {size}");
    }
}
