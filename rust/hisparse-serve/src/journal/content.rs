//! A journal's content: bytes to what they add up to, and back in as few records as can be.

use std::fs;
use std::io;
use std::path::Path;

use hisparse_core::error::{Problem, Problems};
use hisparse_core::journal::{Entry, Frames, Image, frame};

use crate::remembered::{Note, Remembered, this_boot};

/// What a journal said.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) image: Image,
    pub(crate) remembered: Remembered,
}

/// Reads the journal of an earlier start; `None` where there is none.
///
/// One of another boot is void, however far a machine that failed got with writing it down: damage in it is no error.
///
/// # Errors
/// It cannot be read, or is damaged: then what to do.
pub(crate) fn read(path: &Path) -> Result<Option<Found>, Problems> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => {
            let remedy = "let the server's user read it, or move it away: its leases are then lost";
            return Err(Problems::one(Problem::new("journal file", path.display(), error.to_string(), remedy)));
        }
    };
    left_behind(&bytes, &this_boot()).map_err(|rule| {
        let remedy = "stop the engine that uses the pool, if one does, then move the file away: the service begins anew \
                      and the leases in it are lost";
        Problems::one(Problem::new("journal file", path.display(), rule, remedy))
    })
}

/// What these bytes add up to, their torn end left out; `None` for none at all.
///
/// # Errors
/// From which byte on they cannot be believed, and why.
pub(super) fn understood(bytes: &[u8]) -> Result<Option<Found>, String> {
    let mut found = None;
    add_up(bytes, &mut found)?;
    Ok(found)
}

/// The same of an earlier start: in those of another boot than `boot`, all behind any damage is left out too.
///
/// # Errors
/// As [`understood`].
pub(super) fn left_behind(bytes: &[u8], boot: &str) -> Result<Option<Found>, String> {
    let mut found = None;
    // Zeros alone are what a machine that failed leaves of a file that had not reached the disk.
    let whole = if bytes.iter().all(|byte| *byte == 0) { Ok(()) } else { add_up(bytes, &mut found) };
    let of = found.as_ref().map_or("", |found| found.remembered.boot.as_str());
    let void = !of.is_empty() && of != boot;
    whole.or_else(|rule| if void { Ok(()) } else { Err(rule) })?;
    Ok(found)
}

fn add_up(bytes: &[u8], found: &mut Option<Found>) -> Result<(), String> {
    let mut frames = Frames::new(bytes);
    loop {
        let at = frames.tail().whole_bytes;
        let damaged = |detail: String| format!("cannot be believed from byte {at} on: {detail}");
        let Some(record) = frames.next_record().map_err(|damage| damaged(damage.to_string()))? else { break };
        let entry = Entry::decode(record).map_err(|error| damaged(error.to_string()))?;
        match found {
            None => {
                let image = Image::begin(&entry).map_err(|error| damaged(error.to_string()))?;
                *found = Some(Found { image, remembered: Remembered::default() });
            }
            Some(found) => {
                if let Entry::Note(words) = &entry {
                    let note = serde_json::from_slice(words).map_err(|error| damaged(error.to_string()))?;
                    found.remembered.apply(note);
                }
                found.image.apply(&entry).map_err(|error| damaged(error.to_string()))?;
            }
        }
    }
    Ok(())
}

/// The records of a whole state.
pub(super) fn write_state(image: &Image, remembered: &Remembered) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut entries = image.entries();
    // The node first, so that notes have something to be about.
    for entry in entries.next().into_iter().chain(remembered.notes().map(|note| entry_of(&note))).chain(entries) {
        frame(&mut bytes, |out| entry.encode(out));
    }
    bytes
}

pub(super) fn entry_of(note: &Note) -> Entry {
    // Plain data with text for keys: nothing of it can fail to be written.
    Entry::Note(serde_json::to_vec(note).unwrap_or_default())
}
