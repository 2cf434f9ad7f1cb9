//! A router's half of admission: `router-rust [--request-id ID] [--deadline S] PROMPT_TOKENS MAX_NEW_TOKENS TARGET…`
//!
//! ```text
//!  place the request on a node ─► print where, as one line of JSON ─► hold it until stdin ends ─► Release
//!      └─ no node takes it: print why, exit code 4
//! ```
//! The same rules as `examples/router.py` and `examples/router-go`; `docs/routers.md` explains them.

mod node;
mod proto;
mod router;

use std::error::Error;
use std::io::{self, Read, Write};
use std::process::ExitCode;
use std::time::Duration;

use serde_json::{Value, json};

use crate::router::{Router, Tried};

const USAGE: &str = "router-rust [--request-id ID] [--deadline S] PROMPT_TOKENS MAX_NEW_TOKENS TARGET…";

/// What the command line says.
struct Asked {
    request_id: String,
    deadline: Duration,
    prompt_tokens: u64,
    max_new_tokens: u64,
    targets: Vec<String>,
}

impl Asked {
    fn read(mut words: impl Iterator<Item = String>) -> Result<Self, Box<dyn Error>> {
        let (mut request_id, mut deadline) = (router::random_name(), Duration::from_secs(10));
        let mut rest = Vec::new();
        while let Some(word) = words.next() {
            match word.as_str() {
                "--request-id" => request_id = words.next().ok_or(USAGE)?,
                "--deadline" => deadline = Duration::try_from_secs_f64(words.next().ok_or(USAGE)?.parse()?)?,
                _ => rest.push(word),
            }
        }
        let [prompt_tokens, max_new_tokens, targets @ ..] = rest.as_slice() else { return Err(USAGE.into()) };
        if targets.is_empty() {
            return Err(USAGE.into());
        }
        Ok(Self {
            request_id,
            deadline,
            prompt_tokens: prompt_tokens.parse()?,
            max_new_tokens: max_new_tokens.parse()?,
            targets: targets.to_vec(),
        })
    }
}

#[tokio::main]
async fn main() -> Result<ExitCode, Box<dyn Error>> {
    let asked = Asked::read(std::env::args().skip(1))?;
    let router = Router::new(&asked.targets)?;
    let placed = match router.place(&asked.request_id, asked.prompt_tokens, asked.max_new_tokens, asked.deadline).await
    {
        Ok(placed) => placed,
        Err(none) => {
            say(&json!({"refused": none.reason, "tried": shown(&none.tried)}))?;
            return Ok(ExitCode::from(4));
        }
    };
    say(&json!({"node": placed.target, "lease_id": placed.lease.id, "tried": shown(&placed.tried)}))?;
    let mut ended = tokio::task::spawn_blocking(|| io::stdin().read_to_end(&mut Vec::new()));
    // Here the request runs; the lease of a router lives by Renew.
    while tokio::time::timeout(node::TTL / 3, &mut ended).await.is_err() {
        router.renew(&placed).await;
    }
    router.release(&placed).await;
    Ok(ExitCode::SUCCESS)
}

fn shown(tried: &[Tried]) -> Vec<Value> {
    tried.iter().map(|each| json!({"node": each.target, "reason": each.reason})).collect()
}

fn say(line: &Value) -> io::Result<()> {
    writeln!(io::stdout(), "{line}")
}
