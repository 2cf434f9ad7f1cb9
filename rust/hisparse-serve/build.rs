//! Rust types from `proto/`, without `protoc`: protox compiles the files, tonic writes the code.

use std::env;
use std::error::Error;
use std::fs;
use std::path::PathBuf;

use protox::prost::Message as _;

const FILES: [&str; 7] = ["types", "capacity", "admission", "budget", "engine", "overview", "admin"];

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

    let mut code = tonic_prost_build::configure().build_client(true).codec_path("crate::codec::WireCodec");
    // What the page shows is the message as JSON: see `plain`.
    for message in SHOWN {
        code = code.type_attribute(format!("hisparse.v1.{message}"), "#[derive(serde::Serialize)]");
    }
    for (field, way) in SHOWN_BY {
        code = code.field_attribute(field, format!("#[serde(serialize_with = \"crate::plain::{way}\")]"));
    }
    code.compile_fds(descriptors)?;
    Ok(())
}

/// `GetOverviewResponse`, and every message in it.
const SHOWN: [&str; 11] = [
    "GetOverviewResponse",
    "Capacity",
    "Pool",
    "Fit",
    "Extent",
    "LeaseGlance",
    "PageMap",
    "AdmitHistory",
    "AdmitSeries",
    "SwapInTotals",
    "NumaShare",
];

/// Their fields that are no plain numbers or texts.
const SHOWN_BY: [(&str, &str); 6] = [
    ("hisparse.v1.Capacity.observed_at", "timestamp"),
    ("hisparse.v1.GetOverviewResponse.uptime", "duration"),
    ("hisparse.v1.AdmitHistory.step", "duration"),
    ("hisparse.v1.LeaseGlance.age", "duration"),
    ("hisparse.v1.LeaseGlance.expires_in", "duration"),
    ("hisparse.v1.LeaseGlance.state", "lease_state"),
];
