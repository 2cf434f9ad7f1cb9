//! What a family's reader is given of a `config.json`, and what all of them ask of its fields.

use crate::input::Fields;

/// The object being read, and what was learnt before its family was known.
pub(super) struct Source<'a> {
    /// The language model's own fields.
    pub fields: Fields<'a>,
    /// Name of the model for plans and messages.
    pub name: String,
    /// First `architectures` entry, or empty.
    pub architecture: String,
    /// Whether it is of GLM-5.3-Flash's class, which has linear layers between the sparse ones.
    pub glm5_next: bool,
}

/// A whole number with a default where the file does not say.
pub(super) fn optional(fields: &mut Fields<'_>, name: &str, min: u64, max: u64, default: u64) -> Option<u64> {
    if fields.raw(name).is_none() { Some(default) } else { fields.whole(name, min, max) }
}

/// Number of entries a list must have, as a problem where it has another.
pub(super) fn check_length(fields: &mut Fields<'_>, name: &str, found: usize, layers: u64) -> bool {
    let fits = u64::try_from(found) == Ok(layers);
    if !fits {
        fields.problem(
            name,
            format!("must have one entry for each of the {layers} layers, not {found}"),
            "write one entry per layer",
        );
    }
    fits
}
