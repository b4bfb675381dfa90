//! Messages that are larger inside than outside.

use bytes::Bytes;
use flate2::{Compress, Compression, FlushCompress};
use futures_util::future::join_all;
use tonic::Code;

use super::{
    connection::{Connection, code},
    frames::message,
    target::{CONFIG, MIB, Target},
};
use crate::service::Address;

/// Most that one bomb is made of.
const SENT: usize = 2 * MIB as usize;
/// Calls that bring it at once.
const CALLS: usize = 4;

/// A gigabyte of zeros: a megabyte of them, a thousand times. The end of the stream comes too late to matter.
fn gzip_bomb() -> Vec<u8> {
    let mut deflated = Vec::with_capacity(8 << 10);
    let zeros = vec![0; MIB as usize];
    Compress::new(Compression::best(), false).compress_vec(&zeros, &mut deflated, FlushCompress::Full).unwrap();
    let header = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff];
    [header.to_vec(), deflated.repeat(1024), vec![3, 0, 0, 0, 0, 0, 0, 0, 0, 0]].concat()
}

/// A gigabyte of zeros, 128 KiB in each block of four bytes (RFC 8878, 3.1.1.2), under a window that a decoder is to
/// keep of `window` (3.1.1.1.2).
fn zstd_bomb(window: u8) -> Vec<u8> {
    const RUN: u32 = 1;
    let block = ((128 << 10 << 3) | RUN << 1).to_le_bytes();
    let frame = [0x28, 0xb5, 0x2f, 0xfd, 0x00, window];
    [frame.as_slice(), &[block[0], block[1], block[2], 0].repeat(8192)].concat()
}

/// Windows of 128 KiB, of 128 MiB, and of 2 TiB, and the code of the answer.
const WINDOWS: [(u8, Code); 3] =
    [(7 << 3, Code::ResourceExhausted), (17 << 3, Code::ResourceExhausted), (31 << 3, Code::Internal)];

/// A message of some kilobytes that is a gigabyte when it is unpacked, by gzip and by zstd, on four calls at once.
///
/// Holds: each call is refused with RESOURCE_EXHAUSTED, or as damaged where its window is beyond all measure; memory
/// stays within the limit of a message for each of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn decompression_bombs() {
    let target = Target::serve(&CONFIG.replace(r#""1s""#, r#""30s""#)).await;
    let zstd = WINDOWS.map(|(window, code)| ("zstd", zstd_bomb(window), code));
    let bombs = [("gzip", gzip_bomb(), Code::ResourceExhausted)].into_iter().chain(zstd);
    let attack = async {
        for (encoding, bomb, code) in bombs {
            assert!(bomb.len() < SENT, "{encoding}: {} bytes", bomb.len());
            let answers = send(target.public(), encoding, message(true, &bomb)).await;
            assert_eq!(answers, [code; CALLS], "{encoding}");
        }
    };
    target.under(attack).await;
    target.recovers(192 * MIB).await;
}

/// Calls [`CALLS`] times at once, and returns the codes.
async fn send(address: Address, encoding: &str, message: Vec<u8>) -> Vec<Code> {
    let (mut connection, message) = (Connection::open(address).await, Bytes::from(message));
    let mut answers = Vec::new();
    for _ in 0..CALLS {
        answers.push(connection.submit(encoding, message.clone()).await.unwrap());
    }
    let codes = join_all(answers.into_iter().map(code)).await;
    codes.into_iter().map(Result::unwrap).collect()
}
