//! The generated client of `proto/hisparse/v1`.

#![allow(missing_docs, clippy::pedantic, unreachable_pub, dead_code)] // generated, and a router uses part of it

tonic::include_proto!("hisparse.v1");
