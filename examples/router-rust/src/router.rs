//! Several nodes, one lease per request.
//!
//! ```text
//!  request ─► nodes that answer, most room first ─► Admit on one
//!               ▲      refused ─► the next one
//!               │      unknown ─► settle that node first ─► the next one
//!               └───── all refused: rest as long as the soonest RetryInfo says, until the deadline
//! ```

use std::hash::{BuildHasher, Hasher};
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tonic::transport::Error;

use crate::node::{Ended, Node, TTL};
use crate::proto::Lease;

const NEVER_FITS: &str = "NEVER_FITS";
/// Rest between two tries to settle a node.
const SETTLE_REST: Duration = Duration::from_millis(100);
/// Rest where no refusal said how long.
const UNTOLD_REST: Duration = Duration::from_secs(1);

/// What became of one attempt.
#[derive(Debug)]
pub(crate) struct Tried {
    pub(crate) target: String,
    pub(crate) reason: String,
}

/// A request that has its memory.
#[derive(Debug)]
pub(crate) struct Placed {
    pub(crate) target: String,
    pub(crate) lease: Lease,
    pub(crate) tried: Vec<Tried>,
    node: Node,
}

/// No node took the request.
#[derive(Debug)]
pub(crate) struct NoNode {
    pub(crate) reason: String,
    pub(crate) tried: Vec<Tried>,
}

/// The nodes.
#[derive(Debug)]
pub(crate) struct Router {
    nodes: Vec<Node>,
}

impl Router {
    pub(crate) fn new(targets: &[String]) -> Result<Self, Error> {
        Ok(Self { nodes: targets.iter().map(|target| Node::new(target)).collect::<Result<_, _>>()? })
    }

    /// Reserves and commits on one node.
    pub(crate) async fn place(
        &self,
        request_id: &str,
        prompt_tokens: u64,
        max_new_tokens: u64,
        deadline: Duration,
    ) -> Result<Placed, NoNode> {
        let end = Instant::now() + deadline;
        let mut tried: Vec<Tried> = Vec::new();
        loop {
            let round_begins = tried.len();
            let mut rest: Option<Duration> = None;
            for node in self.ranked(prompt_tokens.saturating_add(max_new_tokens), &mut tried).await {
                let ended = match node.admit(request_id, prompt_tokens, max_new_tokens).await {
                    Ended::Granted(lease) => match node.commit(&lease).await {
                        Ended::Granted(()) => {
                            return Ok(Placed { target: node.target.clone(), lease, tried, node: node.clone() });
                        }
                        Ended::Refused { reason, retry } => Ended::Refused { reason, retry },
                        Ended::Unknown(why) => Ended::<Lease>::Unknown(why),
                    },
                    other => other,
                };
                let reason = match ended {
                    Ended::Refused { reason, retry } => {
                        rest = [rest, retry].into_iter().flatten().min();
                        reason
                    }
                    Ended::Unknown(why) => {
                        settle(node, request_id).await;
                        why.to_owned()
                    }
                    Ended::Granted(_) => continue,
                };
                tried.push(Tried { target: node.target.clone(), reason });
            }
            let never = tried[round_begins..].iter().all(|each| each.reason == NEVER_FITS);
            let rest = jittered(rest.unwrap_or(UNTOLD_REST));
            if never || Instant::now() + rest >= end {
                let reason = tried.last().map_or_else(String::new, |each| each.reason.clone());
                return Err(NoNode { reason, tried });
            }
            sleep(rest).await;
        }
    }

    /// Nodes that answer, by how often the request would fit, most first. A guess: only Admit decides.
    async fn ranked(&self, tokens: u64, tried: &mut Vec<Tried>) -> Vec<&Node> {
        let mut found = Vec::new();
        for node in &self.nodes {
            match node.room(tokens).await {
                Ended::Granted(count) => found.push((count, node)),
                // Not asked to admit anything: nothing to settle there.
                Ended::Refused { reason, .. } => tried.push(Tried { target: node.target.clone(), reason }),
                Ended::Unknown(why) => tried.push(Tried { target: node.target.clone(), reason: why.to_owned() }),
            }
        }
        found.sort_by_key(|(count, _)| std::cmp::Reverse(*count));
        found.into_iter().map(|(_, node)| node).collect()
    }

    /// Keeps a lease. An answer that is lost does not matter: the next one comes well before its end.
    pub(crate) async fn renew(&self, placed: &Placed) {
        let _ = placed.node.renew(&placed.lease).await;
    }

    /// Gives a lease back, for certain.
    pub(crate) async fn release(&self, placed: &Placed) {
        settle(&placed.node, &placed.lease.request_id).await;
    }
}

/// Makes sure that a node holds nothing for a request: Release until it has answered twice, as a call may reach it after
/// its release did; or until whatever it holds is past its ttl.
async fn settle(node: &Node, request_id: &str) {
    let over = Instant::now() + TTL;
    let mut answered = 0;
    while answered < 2 && Instant::now() < over {
        if let Ended::Granted(()) = node.release(request_id).await {
            answered += 1;
        }
        sleep(SETTLE_REST).await;
    }
}

/// Between 0.8 and 1.2 times as long, so that routers that were refused together do not come back together.
fn jittered(rest: Duration) -> Duration {
    let permille = 800 + u32::try_from(random() % 401).unwrap_or_default();
    rest.saturating_mul(permille) / 1_000
}

/// A name that nobody else has.
pub(crate) fn random_name() -> String {
    format!("{:016x}{:016x}", random(), random())
}

/// Good enough for names and jitter: each state has keys of its own.
#[expect(clippy::disallowed_types, reason = "a router is live: nothing here is replayed from a seed")]
fn random() -> u64 {
    std::hash::RandomState::new().build_hasher().finish()
}
