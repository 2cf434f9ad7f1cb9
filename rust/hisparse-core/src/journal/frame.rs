//! Records in a file, each with its length and its checksums: what a crash cuts off is told from what something broke.
//!
//! ```text
//!  length, 4 bytes │ checksum of the length, 4 │ record │ checksum of the record, 4 │ next …
//!
//!  the file ends inside a frame, or only zeroes follow      torn: the last write did not end; everything before counts
//!  a checksum is wrong                                      corrupt: nothing behind it can be believed
//! ```
//! A process that is killed leaves a beginning of what it was writing and never anything else. So a length that is
//! there and wrong is damage, and is told apart from a tear: otherwise a flipped bit would cut off what follows it.

/// Longest record, in bytes: far above any, far below what a wrong length could ask for.
const MAX_RECORD_BYTES: usize = 1 << 26;

const HEAD_BYTES: usize = 8;
const CHECK_BYTES: usize = 4;

/// Appends one record, which `write` appends to the same buffer, in its frame.
pub fn frame(out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; HEAD_BYTES]);
    write(out);
    let record = &out[start + HEAD_BYTES..];
    let length = u32::try_from(record.len()).unwrap_or(u32::MAX).to_le_bytes();
    let check = crc32(record).to_le_bytes();
    out.extend_from_slice(&check);
    out[start..start + 4].copy_from_slice(&length);
    out[start + 4..start + HEAD_BYTES].copy_from_slice(&crc32(&length).to_le_bytes());
}

/// Something broke the file; nothing from here on can be believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the record at byte {at} is damaged")]
pub struct Damage {
    /// Where its frame begins.
    pub at: u64,
}

/// How the records of a file end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tail {
    /// Bytes of whole records: what comes behind is to be cut off.
    pub whole_bytes: u64,
    /// Bytes of a last record that was not written to its end.
    pub torn_bytes: u64,
}

/// The records of a file, in order.
#[derive(Clone, Debug)]
pub struct Frames<'b> {
    bytes: &'b [u8],
    at: usize,
}

impl<'b> Frames<'b> {
    /// Those of these bytes.
    pub const fn new(bytes: &'b [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// How the file ends; to be asked when there is no next record.
    pub const fn tail(&self) -> Tail {
        Tail { whole_bytes: self.at as u64, torn_bytes: (self.bytes.len() - self.at) as u64 }
    }

    /// The next record; `None` at the end, or where the last one is torn.
    ///
    /// # Errors
    /// [`Damage`].
    pub fn next_record(&mut self) -> Result<Option<&'b [u8]>, Damage> {
        let damage = Damage { at: self.at as u64 };
        let left = &self.bytes[self.at..];
        let Some((head, behind)) = left.split_at_checked(HEAD_BYTES) else { return Ok(None) };
        let (length, check) = head.split_at(4);
        if crc32(length).to_le_bytes() != check {
            return if left.iter().all(|byte| *byte == 0) { Ok(None) } else { Err(damage) };
        }
        let length = u32::from_le_bytes(length.try_into().map_err(|_| damage)?);
        let length = usize::try_from(length).ok().filter(|length| *length <= MAX_RECORD_BYTES).ok_or(damage)?;
        let Some((record, behind)) = behind.split_at_checked(length) else { return Ok(None) };
        let Some(check) = behind.get(..CHECK_BYTES) else { return Ok(None) };
        if crc32(record).to_le_bytes() != check {
            return Err(damage);
        }
        self.at += HEAD_BYTES + length + CHECK_BYTES;
        Ok(Some(record))
    }
}

/// Bytes that a checksum takes in at once.
const STRIDE: usize = 16;

/// The checksum of Ethernet and zip (polynomial `0xEDB88320`, bits reversed), [`STRIDE`] bytes at a time.
fn crc32(bytes: &[u8]) -> u32 {
    let mut sum = !0_u32;
    let (chunks, rest) = bytes.as_chunks::<STRIDE>();
    for chunk in chunks {
        let mut mixed = *chunk;
        for (byte, sum) in mixed.iter_mut().zip(sum.to_le_bytes()) {
            *byte ^= sum;
        }
        sum = mixed.iter().zip(TABLES.iter().rev()).fold(0, |sum, (byte, table)| sum ^ table[usize::from(*byte)]);
    }
    for byte in rest {
        let [low, ..] = sum.to_le_bytes();
        sum = TABLES[0][usize::from(low ^ byte)] ^ (sum >> 8);
    }
    !sum
}

/// `TABLES[k][b]`: what the byte `b` adds when `k` more bytes follow it.
static TABLES: [[u32; 256]; STRIDE] = {
    let mut tables = [[0_u32; 256]; STRIDE];
    let mut byte = 0_u32;
    while byte < 256 {
        let mut sum = byte;
        let mut bit = 0;
        while bit < 8 {
            sum = if sum & 1 == 1 { (sum >> 1) ^ 0xEDB8_8320 } else { sum >> 1 };
            bit += 1;
        }
        tables[0][byte as usize] = sum;
        byte += 1;
    }
    let mut place = 1;
    while place < STRIDE {
        let mut byte = 0;
        while byte < 256 {
            let before = tables[place - 1][byte];
            tables[place][byte] = (before >> 8) ^ tables[0][(before & 0xFF) as usize];
            byte += 1;
        }
        place += 1;
    }
    tables
};

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn written(records: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for record in records {
            frame(&mut bytes, |out| out.extend_from_slice(record));
        }
        bytes
    }

    fn read(bytes: &[u8]) -> (Vec<Vec<u8>>, Result<Tail, Damage>) {
        let (mut frames, mut records) = (Frames::new(bytes), Vec::new());
        loop {
            match frames.next_record() {
                Ok(Some(record)) => records.push(record.to_vec()),
                Ok(None) => return (records, Ok(frames.tail())),
                Err(damage) => return (records, Err(damage)),
            }
        }
    }

    #[test]
    fn the_checksum_is_that_of_the_standard() {
        assert_eq!(crc32(b"123456789"), 0xCBF4_3926);
        assert_eq!(crc32(b""), 0);
    }

    fn some_records() -> impl Strategy<Value = Vec<Vec<u8>>> {
        prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..8)
    }

    proptest! {
        #[test]
        fn many_bytes_at_a_time_sum_to_what_single_bits_do(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let by_bit = bytes.iter().fold(!0_u32, |sum, byte| {
                (0..8).fold(sum ^ u32::from(*byte), |sum, _| (sum >> 1) ^ (0xEDB8_8320 & 0_u32.wrapping_sub(sum & 1)))
            });
            prop_assert_eq!(crc32(&bytes), !by_bit);
        }

        #[test]
        fn a_file_cut_anywhere_keeps_its_whole_records(records in some_records(), cut in any::<prop::sample::Index>()) {
            let bytes = written(&records);
            let cut = cut.index(bytes.len() + 1);
            let whole = (0..=records.len()).rev().find(|count| written(&records[..*count]).len() <= cut).unwrap();
            let kept = written(&records[..whole]).len();
            let tail = Tail { whole_bytes: kept as u64, torn_bytes: (cut - kept) as u64 };
            prop_assert_eq!(read(&bytes[..cut]), (records[..whole].to_vec(), Ok(tail)));
            let zeroes = [&bytes[..kept], &[0; 30]].concat();
            prop_assert_eq!(read(&zeroes).1, Ok(Tail { whole_bytes: kept as u64, torn_bytes: 30 }));
        }

        #[test]
        fn a_flipped_bit_is_damage_and_never_a_tear(records in some_records(), bit in any::<prop::sample::Index>()) {
            let mut bytes = written(&records);
            let bit = bit.index(bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            let (kept, end) = read(&bytes);
            prop_assert!(end.is_err(), "bit {} of {} records", bit, records.len());
            prop_assert_eq!(&kept[..], &records[..kept.len()]);
        }
    }
}
