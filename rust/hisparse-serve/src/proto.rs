//! The generated types of `proto/hisparse/v1`, and their descriptors for reflection. Nothing here is written by hand.

#![allow(missing_docs, clippy::pedantic, unreachable_pub)] // generated: documented in the .proto files

tonic::include_proto!("hisparse.v1");

/// The compiled descriptors of the package.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/hisparse.v1.bin"));
