//! Linearizability: do the answers of concurrent calls fit some order of the calls, one after the other?
//!
//! ```text
//!   a  ├────admit: seat────┤                         an order that explains it:  a, c, b
//!   b        ├───────admit: busy───────┤
//!   c            ├─free 0─┤                           call with no answer: may have happened, or not
//! ```
//! [`check`](check::check) knows nothing of nodes; [`node`] says what a node may answer.

pub mod check;
pub mod node;
