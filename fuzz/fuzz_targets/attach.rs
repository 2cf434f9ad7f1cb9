//! Bytes as messages of the attach socket.
//!
//! ```text
//!  byte 0: 0 ─► the rest is a message     else ─► a message of that kind, with the rest for a body
//! ```
//! Found at fault: a panic, or a message that does not read back as it was written.

#![no_main]

use hisparse_mem::attach::frame::Frame;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some((kind, rest)) = bytes.split_first() else { return };
    let message = if *kind == 0 { rest.to_vec() } else { [b"HSP1", &[kind % 16][..], rest].concat() };
    if let Ok(frame) = Frame::decode(&message) {
        let again = frame.encode().expect("what was read can be written");
        assert_eq!(Frame::decode(&again), Ok(frame));
    }
});
