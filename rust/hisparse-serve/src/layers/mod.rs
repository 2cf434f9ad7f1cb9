//! What every call passes on its way in, one file per layer.

pub(crate) mod deadline;
