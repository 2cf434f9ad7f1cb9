//! The services on one route table, and their health.
//!
//! ```text
//!  standing   ""  readiness  AdmissionService      liveness, the other services
//!  granting   SERVING                              SERVING
//!  draining   NOT_SERVING                          SERVING
//!  stopping   NOT_SERVING, and health watches end  SERVING until the end
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
use crate::node::{Node, Standing};
use crate::proto;
use crate::proto::admin_service_server::AdminServiceServer;
use crate::proto::admission_service_server::AdmissionServiceServer;
use crate::proto::budget_service_server::BudgetServiceServer;
use crate::proto::capacity_service_server::CapacityServiceServer;

/// Names that say whether the node grants; the empty one is the server as a whole.
const READINESS: [&str; 3] = ["", "readiness", <AdmissionServiceServer<Admission> as NamedService>::NAME];
/// Names that say whether the server answers at all.
const LIVENESS: [&str; 4] = [
    "liveness",
    <BudgetServiceServer<Budget> as NamedService>::NAME,
    <CapacityServiceServer<Capacity> as NamedService>::NAME,
    <AdminServiceServer<Admin> as NamedService>::NAME,
];

/// Everything that is served. `EngineService` is not among it: it needs the attach socket.
pub(crate) fn routes(node: &Arc<Node>, stopping: &watch::Receiver<bool>) -> (Routes, Health) {
    macro_rules! bounded {
        ($server:ident, $service:expr) => {
            $server::new($service)
                .max_decoding_message_size(MAX_RECEIVED_BYTES)
                .max_encoding_message_size(MAX_SENT_BYTES)
        };
    }
    let (reporter, health) = tonic_health::server::health_reporter();
    let mut routes = Routes::new(health)
        .add_service(bounded!(CapacityServiceServer, Capacity::new(Arc::clone(node), stopping.clone())))
        .add_service(bounded!(AdmissionServiceServer, Admission::new(Arc::clone(node))))
        .add_service(bounded!(BudgetServiceServer, Budget::new(Arc::clone(node))))
        .add_service(bounded!(AdminServiceServer, Admin::new(Arc::clone(node))));
    let reflection = || {
        let served = READINESS.iter().chain(&LIVENESS).filter(|name| name.starts_with("hisparse."));
        let builder = tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(proto::DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
            .with_service_name("grpc.health.v1.Health");
        served.fold(builder, |builder, name| builder.with_service_name(*name))
    };
    routes = routes.add_service(reflection().build_v1().expect("the descriptors were compiled with this crate"));
    routes = routes.add_service(reflection().build_v1alpha().expect("the descriptors were compiled with this crate"));
    (routes.prepare(), Health { reporter, standing: node.standing(), stopping: stopping.clone() })
}

/// Keeps the health service in step with the node.
pub(crate) struct Health {
    reporter: HealthReporter,
    standing: watch::Receiver<Standing>,
    stopping: watch::Receiver<bool>,
}

impl Health {
    /// Sets every name as the node stands now. Done before the first connection is accepted.
    pub(crate) async fn begin(&mut self) {
        for name in LIVENESS {
            self.reporter.set_service_status(name, ServingStatus::Serving).await;
        }
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
        for name in READINESS.iter().chain(&LIVENESS) {
            self.reporter.clear_service_status(name).await;
        }
    }

    async fn follow_once(&mut self) {
        let granting = *self.standing.borrow_and_update() == Standing::Granting;
        let status = if granting { ServingStatus::Serving } else { ServingStatus::NotServing };
        for name in READINESS {
            self.reporter.set_service_status(name, status).await;
        }
    }
}
