//! The services on one route table, and their health.
//!
//! ```text
//!  standing   ""  readiness  AdmissionService      liveness, the other services
//!  granting   SERVING                              SERVING      (overloaded too: only the calls beyond a bound are shed)
//!  making     NOT_SERVING                          SERVING      (the pool's pages; also when that failed)
//!  draining   NOT_SERVING                          SERVING
//!  stopping   NOT_SERVING, and health watches end  SERVING until the end
//!  broken     NOT_SERVING                          NOT_SERVING  (only a new start helps)
//! ```

use std::sync::Arc;

use hisparse_core::limits::{MAX_RECEIVED_BYTES, MAX_SENT_BYTES};
use tokio::sync::watch;
use tonic::server::NamedService;
use tonic::service::Routes;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use crate::admin::Admin;
use crate::admission::Admission;
use crate::budget::Budget;
use crate::capacity::Capacity;
use crate::engine::Engine;
use crate::handover::HandingOver;
use crate::node::{Node, Standing};
use crate::proto;
use crate::proto::admin_service_server::AdminServiceServer;
use crate::proto::admission_service_server::AdmissionServiceServer;
use crate::proto::budget_service_server::BudgetServiceServer;
use crate::proto::capacity_service_server::CapacityServiceServer;
use crate::proto::engine_service_server::EngineServiceServer;

/// Names that say whether the node grants; the empty one is the server as a whole.
const READINESS: [&str; 3] = ["", "readiness", <AdmissionServiceServer<Admission> as NamedService>::NAME];
/// Names that say whether the server answers at all.
const LIVENESS: [&str; 4] = [
    "liveness",
    <BudgetServiceServer<Budget> as NamedService>::NAME,
    <CapacityServiceServer<Capacity> as NamedService>::NAME,
    <AdminServiceServer<Admin> as NamedService>::NAME,
];

/// What is served, by kind of listener.
pub(crate) struct Served {
    /// On every listener.
    pub(crate) everywhere: Routes,
    /// On the Unix socket: the same, and `EngineService` where there is a pool to attach to.
    pub(crate) unix: Routes,
    /// Health alone, for probes.
    pub(crate) probes: Routes,
    pub(crate) health: Health,
}

/// Served on the Unix socket alone, and only beside the attach socket.
const ENGINE: &str = <EngineServiceServer<Engine> as NamedService>::NAME;

/// Everything that is served.
pub(crate) fn routes(node: &Arc<Node>, stopping: &watch::Receiver<bool>) -> Served {
    macro_rules! bounded {
        ($server:ident, $service:expr) => {
            $server::new($service)
                .max_decoding_message_size(MAX_RECEIVED_BYTES)
                .max_encoding_message_size(MAX_SENT_BYTES)
        };
    }
    let (reporter, health) = tonic_health::server::health_reporter();
    let probes = Routes::new(health.clone()).prepare();
    let routes = Routes::new(health)
        .add_service(bounded!(CapacityServiceServer, Capacity::new(Arc::clone(node), stopping.clone())))
        .add_service(HandingOver(bounded!(AdmissionServiceServer, Admission::new(Arc::clone(node)))))
        .add_service(bounded!(BudgetServiceServer, Budget::new(Arc::clone(node))))
        .add_service(bounded!(AdminServiceServer, Admin::new(Arc::clone(node))));
    let unix = match node.hosting() {
        Some(_) => reflected(
            routes.clone().add_service(bounded!(EngineServiceServer, Engine::new(Arc::clone(node)))),
            Some(ENGINE),
        ),
        None => reflected(routes.clone(), None),
    };
    let engine = node.hosting().map(|_| ENGINE);
    let health = Health { reporter, engine, standing: node.standing(), stopping: stopping.clone() };
    Served { everywhere: reflected(routes, None), unix, probes, health }
}

/// These routes with a description of what they serve.
fn reflected(routes: Routes, engine: Option<&'static str>) -> Routes {
    let reflection = || {
        let served = READINESS.iter().chain(&LIVENESS).chain(&engine).filter(|name| name.starts_with("hisparse."));
        let builder = tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(proto::DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
            .with_service_name("grpc.health.v1.Health");
        served.fold(builder, |builder, name| builder.with_service_name(*name))
    };
    routes
        .add_service(reflection().build_v1().expect("the descriptors were compiled with this crate"))
        .add_service(reflection().build_v1alpha().expect("the descriptors were compiled with this crate"))
        .prepare()
}

/// Keeps the health service in step with the node.
pub(crate) struct Health {
    reporter: HealthReporter,
    engine: Option<&'static str>,
    standing: watch::Receiver<Standing>,
    stopping: watch::Receiver<bool>,
}

impl Health {
    /// Sets every name as the node stands now. Done before the first connection is accepted.
    pub(crate) async fn begin(&mut self) {
        self.follow_once().await;
    }

    /// Follows the node until the server stops, then ends every health watch: an open one would hold up the stop.
    pub(crate) async fn follow(mut self) {
        loop {
            tokio::select! {
                biased;
                _ = self.stopping.wait_for(|stopping| *stopping) => break,
                changed = self.standing.changed() => if changed.is_err() { break },
            }
            self.follow_once().await;
        }
        self.follow_once().await;
        for name in READINESS.iter().chain(&LIVENESS).chain(&self.engine) {
            self.reporter.clear_service_status(name).await;
        }
    }

    async fn follow_once(&mut self) {
        let standing = *self.standing.borrow_and_update();
        let served = |well| if well { ServingStatus::Serving } else { ServingStatus::NotServing };
        for name in READINESS {
            self.reporter.set_service_status(name, served(standing == Standing::Granting)).await;
        }
        for name in LIVENESS.iter().chain(&self.engine) {
            self.reporter.set_service_status(*name, served(standing != Standing::Broken)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use hisparse_core::env::Clock;
    use hisparse_core::ledger::{Epoch, NodeCapacity};
    use tonic_health::pb::HealthCheckRequest;
    use tonic_health::pb::health_client::HealthClient;

    use super::*;
    use crate::env::MachineClock;
    use crate::node::NodeConfig;
    use crate::pool_bytes::PoolBytes;

    /// Whether it is (alive, ready), to who asks over gRPC.
    async fn asked(probes: &Routes) -> (bool, bool) {
        let mut client = HealthClient::new(probes.clone());
        let mut serves = async |service: &str| {
            let check = HealthCheckRequest { service: service.into() };
            client.check(check).await.unwrap().into_inner().status == ServingStatus::Serving as i32
        };
        (serves("liveness").await, serves("readiness").await)
    }

    #[tokio::test]
    async fn each_standing_has_its_liveness_and_readiness() {
        let learning = |state: &mut crate::node::State, until| state.learning_until = until;
        let bring_about = |node: &Arc<Node>, standing: Standing| {
            let later = node.clock.now().saturating_add(std::time::Duration::from_secs(60));
            let decided = match standing {
                Standing::Granting => Ok(()),
                Standing::Draining => node.decide(None, |state, _| state.ledger.set_draining(true)),
                Standing::Learning => node.decide(None, |state, _| learning(state, Some(later))),
                Standing::Making => node.decide(None, |state, _| state.pool = PoolBytes::Making),
                Standing::Elsewhere => node.decide(None, |state, _| state.pool = PoolBytes::Elsewhere),
                Standing::Failed => node.decide(None, |state, _| state.pool = PoolBytes::Failed),
                Standing::Stopping => {
                    node.stop();
                    Ok(())
                }
                // No fault of the ledger's can be planted from here.
                Standing::Faulted => return false,
                Standing::Broken => {
                    let half = || node.decide(None, |_, _| panic!("a decision that the test breaks"));
                    catch_unwind(AssertUnwindSafe(half)).unwrap_err();
                    Ok(())
                }
            };
            decided.unwrap();
            true
        };
        for standing in Standing::ALL {
            let config = NodeConfig::of_capacity("test", NodeCapacity::of_host_pages(10, 2));
            let node = Node::new(config, MachineClock::start(), Epoch::FIRST, Vec::new(), None).unwrap();
            let node = Arc::new(node);
            let (_stopped, stopping) = watch::channel(false);
            let Served { probes, mut health, .. } = routes(&node, &stopping);
            health.begin().await;
            if !bring_about(&node, standing) {
                continue;
            }
            if standing == Standing::Broken {
                Arc::clone(&node).keep_time().await; // notices it, and ends
            }
            assert_eq!(node.stands(), standing);
            health.follow_once().await;
            let wanted = (standing != Standing::Broken, standing == Standing::Granting);
            assert_eq!(asked(&probes).await, wanted, "over gRPC, {standing:?}");
            assert_eq!((node.not_alive().is_none(), node.not_ready().is_none()), wanted, "over HTTP, {standing:?}");
        }
    }
}
