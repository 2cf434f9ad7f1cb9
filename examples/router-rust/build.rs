//! Client code from `proto/`, without `protoc`: what a router of your own does with its copy of the files.

use std::env;
use std::error::Error;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn Error>> {
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("../../proto");
    println!("cargo::rerun-if-changed={}", root.join("hisparse").display());
    let files = ["admission", "capacity"].map(|name| root.join(format!("hisparse/v1/{name}.proto")));
    let descriptors = protox::compile(files, [&root])?;
    tonic_prost_build::configure().build_server(false).compile_fds(descriptors)?;
    Ok(())
}
