//! Numbers and texts as bytes: small numbers take one, and nothing that is read is trusted.

use crate::pages::{Extent, Extents};

/// Bytes that do not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unreadable(pub(super) &'static str);

/// Appends a number, seven bits to a byte, the lowest first.
pub(super) fn put_number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(u8::try_from(number & 0x7F).unwrap_or(0) | 0x80);
        number >>= 7;
    }
    out.push(u8::try_from(number).unwrap_or(0));
}

pub(super) fn put_text(out: &mut Vec<u8>, text: &str) {
    put_number(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

pub(super) fn put_extents(out: &mut Vec<u8>, extents: &Extents) {
    put_number(out, extents.len() as u64);
    for extent in extents.iter() {
        put_number(out, extent.start.into());
        put_number(out, extent.pages.into());
    }
}

/// Reads from the front of some bytes.
#[derive(Debug)]
pub(super) struct Take<'b>(pub(super) &'b [u8]);

impl<'b> Take<'b> {
    pub(super) fn byte(&mut self) -> Result<u8, Unreadable> {
        let (first, rest) = self.0.split_first().ok_or(Unreadable("it ends too early"))?;
        self.0 = rest;
        Ok(*first)
    }

    pub(super) fn slice(&mut self, length: usize) -> Result<&'b [u8], Unreadable> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(Unreadable("it ends too early"))?;
        self.0 = rest;
        Ok(taken)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], Unreadable> {
        self.slice(N)?.try_into().map_err(|_| Unreadable("it ends too early"))
    }

    pub(super) fn word(&mut self) -> Result<u64, Unreadable> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub(super) fn number(&mut self) -> Result<u64, Unreadable> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7F);
            if (bits << shift) >> shift != bits {
                break;
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                // One spelling for each number: a last byte of nothing is none of ours.
                return if byte == 0 && shift > 0 { Err(Unreadable("a number is spelt too long")) } else { Ok(number) };
            }
        }
        Err(Unreadable("a number is larger than any"))
    }

    pub(super) fn small<T: TryFrom<u64>>(&mut self) -> Result<T, Unreadable> {
        T::try_from(self.number()?).map_err(|_| Unreadable("a number is larger than it can be"))
    }

    pub(super) fn text(&mut self) -> Result<&'b str, Unreadable> {
        let length = self.small()?;
        str::from_utf8(self.slice(length)?).map_err(|_| Unreadable("a name is not text"))
    }

    pub(super) fn extents(&mut self) -> Result<Extents, Unreadable> {
        let count: usize = self.small()?;
        let mut extents = Extents::new();
        for _ in 0..count {
            let (start, pages) = (self.small::<u32>()?, self.small::<u32>()?);
            if pages == 0 || start.checked_add(pages).is_none() {
                return Err(Unreadable("a run of pages is empty or without an end"));
            }
            extents.push(Extent::new(start, pages));
        }
        Ok(extents)
    }

    pub(super) fn end(&self) -> Result<(), Unreadable> {
        if self.0.is_empty() { Ok(()) } else { Err(Unreadable("it goes on beyond its end")) }
    }
}
