//! Bytes as calls: decoded, read, decided and answered by the service itself, without a network.
//!
//! ```text
//!  byte 0: which call     the rest: the message, as it may lie in any frame
//! ```
//! Found at fault: a panic anywhere on the way, an answer without a status, details of a refusal beyond their bound, books
//! that do not add up.

#![no_main]

use std::sync::LazyLock;

use hisparse_serve::fuzzing::Service;
use libfuzzer_sys::fuzz_target;

static SERVICE: LazyLock<Service> = LazyLock::new(Service::new);

fuzz_target!(|bytes: &[u8]| {
    if let Some((which, message)) = bytes.split_first() {
        SERVICE.call(usize::from(*which), message);
    }
});
