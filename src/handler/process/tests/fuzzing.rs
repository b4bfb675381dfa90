//! Fuzz target for the messages of workers: see [`crate::fuzzing`].

use bytes::BytesMut;
use tokio_util::codec::Decoder;

use super::protocol::{Frame, FromWorker, MAX_BYTES, MAX_LINE, Messages};

/// What a worker writes: the same wherever it is cut, never more than was written, and never held without a bound.
pub fn worker(data: &[u8]) {
    let Some((cut, written)) = data.split_first() else { return };
    let cut = usize::from(*cut).min(written.len());
    let [(whole, whole_fault), (parts, parts_fault)] = [read(&[written]), read(&[&written[..cut], &written[cut..]])];
    assert_eq!((&whole, whole_fault), (&parts, parts_fault));
    let bytes: usize = whole.iter().map(|(_, bytes)| bytes.len()).sum();
    assert!(bytes <= written.len());
}

/// The messages with their bytes, and whether a fault ended them.
fn read(chunks: &[&[u8]]) -> (Vec<(FromWorker, Vec<u8>)>, bool) {
    let (mut codec, mut buffer, mut read) = (Messages::<FromWorker>::default(), BytesMut::new(), Vec::new());
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
