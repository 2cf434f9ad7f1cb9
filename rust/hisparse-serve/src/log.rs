//! The service's log: one JSON document per line, on stderr, written by a thread of its own.
//!
//! ```text
//!  call ends ─┐
//!  standing ──┼─► line ─► queue of 4,096 ─► thread ─► stderr
//!  notice ────┘             └─ full: dropped and counted (hisparse_log_dropped_total); nobody ever waits for a reader
//! ```
//! A line of a call says who asked, for which request, lease and trace, and what became of it. It never holds what a
//! prompt says: there is nothing of it in any message but page hashes, and those are left out.

use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hisparse_core::env::Clock;
use hisparse_core::limits::{LOG_PATIENCE, LOG_QUEUE_LINES};
use hisparse_core::printable::printable_json;
use serde::Serialize;

use crate::env::MachineClock;
use crate::wire;

/// How a line matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Level {
    Info,
    /// The operator should look at it; the line says what to do.
    Warning,
    /// The operator must do what the line says.
    Error,
}

/// Where the service says what it sees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogTo {
    /// Nowhere; [`Running::notices`](crate::Running::notices) tells the notices.
    #[default]
    Nowhere,
    /// Notices of peers that misbehave, as lines of text on stderr, each once.
    Text,
    /// Those, each call that changes something and each change of the node's standing, as JSON on stderr.
    Json,
}

/// One line.
#[derive(Debug, Serialize)]
struct Line<'a, T> {
    /// UTC, as RFC 3339 has it.
    time: String,
    level: Level,
    event: &'a str,
    #[serde(flatten)]
    told: T,
}

/// A log that is written somewhere.
#[derive(Debug)]
pub(crate) struct Log {
    clock: MachineClock,
    /// Taken at the end.
    lines: Mutex<Option<SyncSender<String>>>,
    dropped: Arc<AtomicU64>,
    /// Closed when the last line is out.
    done: Mutex<Receiver<()>>,
}

impl Log {
    /// Begins to write to stderr.
    ///
    /// # Errors
    /// No thread can be started.
    pub(crate) fn to_stderr(clock: MachineClock) -> io::Result<Self> {
        Self::to(clock, io::stderr())
    }

    fn to(clock: MachineClock, mut out: impl Write + Send + 'static) -> io::Result<Self> {
        let (lines, queue) = sync_channel::<String>(LOG_QUEUE_LINES);
        let (end, done) = sync_channel(0);
        let write = move || {
            for line in queue {
                // Nobody reads stderr: then nobody is told.
                let _ = out.write_all(line.as_bytes());
            }
            drop(end);
        };
        std::thread::Builder::new().name("hisparse-log".into()).spawn(write)?;
        Ok(Self { clock, lines: Mutex::new(Some(lines)), dropped: Arc::default(), done: Mutex::new(done) })
    }

    /// Writes a line, if there is room for it.
    pub(crate) fn write(&self, level: Level, event: &str, told: impl Serialize) {
        let time = wire::timestamp_to_proto(self.clock.wall(self.clock.now())).to_string();
        let Ok(line) = serde_json::to_string(&Line { time, level, event, told }) else { return };
        // Callers choose their names; a terminal must show them and not obey them.
        let mut line = printable_json(&line).into_owned();
        line.push('\n');
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.as_ref().is_none_or(|lines| lines.try_send(line).is_err()) {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Lines that found no room.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// The time now, for who measures a call.
    pub(crate) const fn clock(&self) -> MachineClock {
        self.clock
    }
}

impl Drop for Log {
    /// Lets the last lines out, and does not wait for ever for a reader that has stopped reading.
    fn drop(&mut self) {
        drop(self.lines.get_mut().unwrap_or_else(PoisonError::into_inner).take());
        let _ = self.done.get_mut().unwrap_or_else(PoisonError::into_inner).recv_timeout(LOG_PATIENCE);
    }
}

/// A length of time as a log has it, in whole microseconds.
pub(crate) fn us(took: Duration) -> u64 {
    u64::try_from(took.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::Sender;

    use serde_json::{Value, json};

    use super::*;

    /// Hands on what is written to it.
    struct Lines(Sender<Vec<u8>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.send(bytes.to_vec()).map_err(io::Error::other)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Takes nothing, for as long as it likes.
    struct Stuck(Receiver<()>);

    impl Write for Stuck {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.0.recv();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn each_line_is_one_document_and_the_last_one_is_written_before_the_end() {
        let (sender, written) = std::sync::mpsc::channel();
        let log = Log::to(MachineClock::start(), Lines(sender)).unwrap();
        log.write(Level::Info, "call", json!({"request_id": "a\nb\"}", "took_us": 7}));
        log.write(Level::Error, "standing", json!({"standing": "faulted"}));
        drop(log);
        let text: Vec<u8> = written.iter().flatten().collect();
        let lines: Vec<Value> = String::from_utf8(text).unwrap().lines().map(|l| l.parse().unwrap()).collect();
        assert_eq!(lines.len(), 2);
        assert_eq!((&lines[0]["request_id"], &lines[0]["level"]), (&json!("a\nb\"}"), &json!("info")));
        assert!(lines[0]["time"].as_str().unwrap().ends_with('Z'), "{}", lines[0]);
        assert_eq!((&lines[1]["event"], &lines[1]["level"]), (&json!("standing"), &json!("error")));
    }

    #[test]
    fn a_name_that_turns_the_direction_of_text_is_escaped_and_reads_back_as_it_was() {
        let (sender, written) = std::sync::mpsc::channel();
        let log = Log::to(MachineClock::start(), Lines(sender)).unwrap();
        log.write(Level::Info, "call", json!({"request_id": "\u{202e}txt.exe\u{200b}\u{9b}", "tenant": "größe"}));
        drop(log);
        let text = String::from_utf8(written.iter().flatten().collect()).unwrap();
        assert!(text.contains("\\u202etxt.exe\\u200b\\u009b") && text.contains("größe"), "{text}");
        let line: Value = text.parse().unwrap();
        assert_eq!(line["request_id"], json!("\u{202e}txt.exe\u{200b}\u{9b}"));
    }

    #[test]
    fn a_reader_that_stops_reading_holds_nobody_up_and_what_it_misses_is_counted() {
        let (release, gate) = sync_channel(0);
        let log = Log::to(MachineClock::start(), Stuck(gate)).unwrap();
        for _ in 0..LOG_QUEUE_LINES + 100 {
            log.write(Level::Info, "call", json!({}));
        }
        // One line is in the writer's hands, at most.
        assert!((99..=100).contains(&log.dropped()), "{}", log.dropped());
        drop(log); // after its patience, not for ever
        drop(release);
    }
}
