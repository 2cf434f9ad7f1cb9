//! Rust types from `proto/`, without `protoc`: protox compiles the files, tonic writes the code.

use std::env;
use std::error::Error;
use std::fs;
use std::path::PathBuf;

use protox::prost::Message as _;

const FILES: [&str; 6] = ["types", "capacity", "admission", "budget", "engine", "admin"];

fn main() -> Result<(), Box<dyn Error>> {
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("../../proto");
    println!("cargo::rerun-if-changed={}", root.join("hisparse").display());
    let files = FILES.map(|name| root.join(format!("hisparse/v1/{name}.proto")));
    let descriptors = protox::compile(files, [&root])?;

    // Reflection serves what was compiled, comments left out.
    let mut served = descriptors.clone();
    for file in &mut served.file {
        file.source_code_info = None;
    }
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("hisparse.v1.bin"), served.encode_to_vec())?;

    tonic_prost_build::configure().build_client(true).codec_path("crate::codec::WireCodec").compile_fds(descriptors)?;
    Ok(())
}
