//! The control plane of a node: gRPC `hisparse.v1`, in threads of its own.

pub mod proto;
