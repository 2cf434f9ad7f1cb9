//! A lease: one granted reservation over all pools, and the states it goes through.
//!
//! ```text
//!           admit             commit                        release
//!   ────────────► reserved ───────────► committed ─────────────────────────► released
//!                    │ ttl over            │ renewals missed, session lost      ▲
//!                    └──────► quarantined ◄┘                                    │
//!                                  └── confirmation, or the quarantine bound ───┘
//! ```
//! Quarantined pages are nobody's: a transfer may still touch them. Only a word from the holder, or a bound on how
//! long a transfer can last, makes them free. A release of a lease that others still fill quarantines it too.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Serialize, Serializer};

use crate::env::Moment;
use crate::pages::Extents;
use crate::units::Tokens;

/// Generation of a pool: it grows with every restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct Epoch(u64);

impl Epoch {
    /// The epoch of a pool that was never restarted.
    pub const FIRST: Self = Self(1);

    /// Epochs fit the first ten digits of a [`LeaseId`]: counted in milliseconds they last 34 years.
    pub const MAX: u64 = (1 << LeaseId::PART_BITS) - 1;

    /// The epoch of this number; `None` for 0, which stands for "any" on the wire, and beyond [`Epoch::MAX`].
    pub const fn new(number: u64) -> Option<Self> {
        if number >= 1 && number <= Self::MAX { Some(Self(number)) } else { None }
    }

    /// Its number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// Name of a lease, unique over all epochs: the epoch it was granted in, then a serial number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId {
    epoch: u64,
    serial: u64,
}

impl LeaseId {
    /// Bits of either part: 10^12 epochs of 10^12 leases.
    const PART_BITS: u32 = 40;
    /// Hexadecimal digits of either part.
    const PART_DIGITS: usize = 10;

    pub(super) const fn new(epoch: Epoch, serial: u64) -> Option<Self> {
        if serial >> Self::PART_BITS == 0 { Some(Self { epoch: epoch.0, serial }) } else { None }
    }

    /// The epoch it was granted in, and its number within that.
    pub(crate) const fn parts(self) -> (u64, u64) {
        (self.epoch, self.serial)
    }

    /// The name of these parts; `None` where one of them is out of range.
    pub(crate) const fn of_parts(epoch: u64, serial: u64) -> Option<Self> {
        match Epoch::new(epoch) {
            Some(epoch) => Self::new(epoch, serial),
            None => None,
        }
    }

    /// As a bare number, in order of grant.
    pub fn get(self) -> u128 {
        u128::from(self.epoch) << Self::PART_BITS | u128::from(self.serial)
    }
}

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:0digits$x}{:0digits$x}", self.epoch, self.serial, digits = Self::PART_DIGITS)
    }
}

impl FromStr for LeaseId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        let parts = text.split_at_checked(Self::PART_DIGITS).filter(|_| text.bytes().all(digit));
        let part = |text: &str| u64::from_str_radix(text, 16).ok().filter(|_| text.len() == Self::PART_DIGITS);
        let id = parts.and_then(|(epoch, serial)| Some(Self { epoch: part(epoch)?, serial: part(serial)? }));
        id.ok_or_else(|| format!("a lease id is {} hexadecimal digits, as Admit gave it", 2 * Self::PART_DIGITS))
    }
}

impl Serialize for LeaseId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// An attached engine process, by the number of its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct SessionId(pub u64);

/// Where a lease stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LeaseState {
    /// Granted, not yet in use.
    Reserved,
    /// In use.
    Committed,
    /// Its holder fell silent or died; its pages are kept from everyone for a while.
    Quarantined,
    /// Given back.
    Released,
}

impl fmt::Display for LeaseState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reserved => "reserved",
            Self::Committed => "committed",
            Self::Quarantined => "quarantined",
            Self::Released => "released",
        })
    }
}

/// Who keeps a committed lease alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Holder {
    /// An attached engine, for as long as its session lives.
    Session(SessionId),
    /// A router, by renewing.
    Router,
}

/// A lease as callers see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Its name; `None` only for the answer to a validation, which grants nothing.
    pub id: Option<LeaseId>,
    /// What the caller called the request; empty where it did not.
    pub request_id: Arc<str>,
    /// Whose it is.
    pub tenant: Arc<str>,
    /// Where it stands.
    pub state: LeaseState,
    /// The pool's epoch, to be carried by Commit, Renew and Extend.
    pub epoch: Epoch,
    /// Priority of its request.
    pub priority: i32,
    /// Whole length in tokens.
    pub tokens: Tokens,
    /// Pages in all.
    pub pages: u32,
    /// Those at its start that come from the prefix index.
    pub shared_pages: u32,
    /// Those from its start that are durable in host memory: where a successor resumes.
    pub durable_pages: u32,
    /// Page numbers in token order, the shared ones first. Empty for a validation.
    pub extents: Extents,
    /// When it ends unless committed or renewed; `None` while a session keeps it.
    pub expires_at: Option<Moment>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_id_reads_back_from_its_text() {
        let id = LeaseId::new(Epoch::new(3).unwrap(), 77).unwrap();
        assert_eq!(id.to_string(), "0000000003000000004d");
        assert_eq!(id.to_string().parse(), Ok(id));
        for text in [
            "",
            "77",
            "0000000003000000004D",
            "+000000003000000004d",
            "000000000300000000004d",
            "000003000000004d",
            "日本語日本語日本",
        ] {
            assert!(text.parse::<LeaseId>().is_err(), "{text}");
        }
    }

    #[test]
    fn ids_of_a_later_epoch_are_larger_than_all_before() {
        let last = LeaseId::new(Epoch::new(1).unwrap(), (1 << 40) - 1).unwrap();
        assert!(LeaseId::new(Epoch::new(2).unwrap(), 0).unwrap() > last);
        assert_eq!(LeaseId::new(Epoch::new(1).unwrap(), 1 << 40), None);
    }
}
