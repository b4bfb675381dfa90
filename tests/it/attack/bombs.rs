//! Compressed messages that decompress to a much larger size.

use bytes::Bytes;
use flate2::{Compress, Compression, FlushCompress};
use futures_util::future::join_all;
use tonic::Code;

use super::{
    SUBMIT,
    target::{CONFIG, MIB, Target, code},
};
use crate::{
    connections::{Client, end_of},
    service::{Address, frame},
};

/// Largest size of one compressed bomb.
const SENT: usize = 2 * MIB as usize;
/// Number of concurrent calls that send a bomb.
const CALLS: usize = 4;

/// A gigabyte of zeros: one compressed megabyte, repeated 1,024 times. The trailer is invalid, but the server stops
/// reading before it gets there.
fn gzip_bomb() -> Vec<u8> {
    let mut deflated = Vec::with_capacity(8 << 10);
    let zeros = vec![0; MIB as usize];
    Compress::new(Compression::best(), false).compress_vec(&zeros, &mut deflated, FlushCompress::Full).unwrap();
    let header = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff];
    [header.to_vec(), deflated.repeat(1024), vec![3, 0, 0, 0, 0, 0, 0, 0, 0, 0]].concat()
}

/// A gigabyte of zeros, with 128 KiB in each block of four bytes (RFC 8878, 3.1.1.2). `window` is the window descriptor
/// (3.1.1.1.2), which says how much memory a decoder must allocate.
fn zstd_bomb(window: u8) -> Vec<u8> {
    const RUN: u32 = 1;
    let block = ((128 << 10 << 3) | RUN << 1).to_le_bytes();
    let frame = [0x28, 0xb5, 0x2f, 0xfd, 0x00, window];
    [frame.as_slice(), &[block[0], block[1], block[2], 0].repeat(8192)].concat()
}

/// Window descriptors of 128 KiB, 128 MiB and 2 TiB, and the expected status code.
const WINDOWS: [(u8, Code); 3] =
    [(7 << 3, Code::ResourceExhausted), (17 << 3, Code::ResourceExhausted), (31 << 3, Code::Internal)];

/// A message of some kilobytes that decompresses to a gigabyte, with gzip and with zstd, on four concurrent calls.
///
/// Expected: each call fails with RESOURCE_EXHAUSTED, or with INTERNAL if its window is 2 TiB, which the decoder cannot
/// read. Each call uses at most the memory of one message of the maximum size.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn decompression_bombs_are_refused() {
    let target = Target::serve(&CONFIG.replace(r#""1s""#, r#""30s""#)).await;
    let zstd = WINDOWS.map(|(window, code)| ("zstd", zstd_bomb(window), code));
    let bombs = [("gzip", gzip_bomb(), Code::ResourceExhausted)].into_iter().chain(zstd);
    let attack = async {
        for (encoding, bomb, code) in bombs {
            assert!(bomb.len() < SENT, "{encoding}: {} bytes", bomb.len());
            let answers = send(target.public(), encoding, frame(1, &bomb)).await;
            assert_eq!(answers, [code; CALLS], "{encoding}");
        }
    };
    target.under(attack).await;
    target.recovers(192 * MIB).await;
}

/// Makes [`CALLS`] concurrent calls, and returns their status codes.
async fn send(address: Address, encoding: &str, message: Vec<u8>) -> Vec<Code> {
    let (mut client, message) = (Client::connect(address.0).await, Bytes::from(message));
    let mut answers = Vec::new();
    for _ in 0..CALLS {
        let (answer, mut body) = client.call_with(SUBMIT, &[("grpc-encoding", encoding)]).await;
        // h2 waits until the server's flow-control window allows it to send.
        body.send_data(message.clone(), true).unwrap();
        answers.push(answer);
    }
    join_all(answers.into_iter().map(end_of)).await.iter().map(code).collect()
}
