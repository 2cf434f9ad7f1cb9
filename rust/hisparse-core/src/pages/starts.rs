//! Where free runs start: a bitmap with a summary, to find the run that a page lies in.
//!
//! ```text
//!  summary   1               0               1            one bit per word below: any start in it?
//!  words     00100…00100     00000…00000     10000…       one bit per page
//! ```

#[derive(Debug)]
pub(super) struct Starts {
    words: Vec<u64>,
    summary: Vec<u64>,
}

impl Starts {
    pub(super) fn new(pages: u32) -> Self {
        let words = pages as usize / 64 + 1;
        Self { words: vec![0; words], summary: vec![0; words / 64 + 1] }
    }

    pub(super) fn set(&mut self, page: u32) {
        let word = page as usize / 64;
        self.words[word] |= 1 << (page % 64);
        self.summary[word / 64] |= 1 << (word % 64);
    }

    pub(super) fn clear(&mut self, page: u32) {
        let word = page as usize / 64;
        self.words[word] &= !(1 << (page % 64));
        if self.words[word] == 0 {
            self.summary[word / 64] &= !(1 << (word % 64));
        }
    }

    /// The last start at or before `page`.
    pub(super) fn at_or_before(&self, page: u32) -> Option<u32> {
        let word = page as usize / 64;
        let here = self.words[word] & (u64::MAX >> (63 - page % 64));
        if here != 0 {
            return Some(page - page % 64 + here.ilog2());
        }
        let mut group = word / 64;
        let mut left = self.summary[group] & ((1 << (word % 64)) - 1);
        while left == 0 {
            group = group.checked_sub(1)?;
            left = self.summary[group];
        }
        let word = group * 64 + left.ilog2() as usize;
        let first = u32::try_from(word * 64).ok()?;
        Some(first + self.words[word].ilog2())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn the_last_start_is_that_of_a_plain_set(steps in prop::collection::vec((0..20_000_u32, any::<bool>()), 1..60), asked in prop::collection::vec(0..20_000_u32, 20)) {
            let mut starts = Starts::new(20_000);
            let mut model = BTreeSet::new();
            for (page, set) in steps {
                if set { starts.set(page); model.insert(page); } else { starts.clear(page); model.remove(&page); }
            }
            for page in asked {
                prop_assert_eq!(starts.at_or_before(page), model.range(..=page).next_back().copied());
            }
        }
    }
}
