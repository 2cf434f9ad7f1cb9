//! What a call is to the layers, by its path: how it is counted, and which roles may make it.
//!
//! | calls | counted as | role |
//! |---|---|---|
//! | Admit, BatchAdmit | admit | router |
//! | Extend | plain | router, engine |
//! | Commit, Renew, Release | head-room | router, engine |
//! | GetLease | plain | any of the three |
//! | ListLeases, GetOverview | bulk | any of the three |
//! | Publish, Reclaim, ReportUsage | head-room | engine |
//! | Drain | head-room | admin |
//! | Dump | bulk | admin |
//! | health Check, GetServerInfo | head-room | none |
//! | GetCapacity, WatchCapacity, BudgetService, reflection, anything else | plain | none |

use crate::role::Role;

/// How a call is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Takes memory: the first to be shed.
    Admit,
    /// Its answer is long.
    Bulk,
    /// Frees memory, keeps what was granted, or says how the service is: the last to be shed.
    HeadRoom,
    /// Anything else.
    Plain,
}

/// What a call is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Class {
    pub(crate) kind: Kind,
    /// One of these is needed; none where there are none.
    pub(crate) roles: &'static [Role],
}

/// The class of the call with this path.
pub(crate) fn of(path: &str) -> Class {
    use Role::{Admin, Engine, Router};
    let (service, method) = path.strip_prefix('/').and_then(|path| path.split_once('/')).unwrap_or_default();
    let (kind, roles): (_, &'static [Role]) = match (service, method) {
        ("hisparse.v1.AdmissionService", "Admit" | "BatchAdmit") => (Kind::Admit, &[Router]),
        ("hisparse.v1.AdmissionService", "Commit" | "Renew" | "Release") => (Kind::HeadRoom, &[Router, Engine]),
        ("hisparse.v1.AdmissionService", "GetLease") => (Kind::Plain, &Role::ALL),
        ("hisparse.v1.AdmissionService", "ListLeases") | ("hisparse.v1.AdminService", "GetOverview") => {
            (Kind::Bulk, &Role::ALL)
        }
        ("hisparse.v1.AdmissionService", _) => (Kind::Plain, &[Router, Engine]),
        ("hisparse.v1.EngineService", _) => (Kind::HeadRoom, &[Engine]),
        ("hisparse.v1.AdminService", "GetServerInfo") | ("grpc.health.v1.Health", "Check") => (Kind::HeadRoom, &[]),
        ("hisparse.v1.AdminService", "Dump") => (Kind::Bulk, &[Admin]),
        ("hisparse.v1.AdminService", _) => (Kind::HeadRoom, &[Admin]),
        _ => (Kind::Plain, &[]),
    };
    Class { kind, roles }
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;
    use crate::proto::DESCRIPTORS;

    #[test]
    fn what_changes_the_node_needs_a_role_and_what_looks_at_capacity_needs_none() {
        let all = prost_types::FileDescriptorSet::decode(DESCRIPTORS).unwrap();
        let open = ["GetCapacity", "WatchCapacity", "GetBudget", "Validate", "ListModels", "GetServerInfo"];
        let mut seen = 0;
        for service in all.file.iter().flat_map(|file| &file.service) {
            for method in &service.method {
                let path = format!("/hisparse.v1.{}/{}", service.name(), method.name());
                assert_eq!(of(&path).roles.is_empty(), open.contains(&method.name()), "{path}");
                seen += 1;
            }
        }
        assert!(seen >= 20, "{seen} methods");
    }

    #[test]
    fn freeing_and_health_have_head_room_and_a_health_watch_has_not() {
        for path in ["/hisparse.v1.AdmissionService/Release", "/hisparse.v1.AdmissionService/Renew"] {
            assert_eq!(of(path).kind, Kind::HeadRoom, "{path}");
        }
        assert_eq!(of("/grpc.health.v1.Health/Check").kind, Kind::HeadRoom);
        assert_eq!(of("/grpc.health.v1.Health/Watch").kind, Kind::Plain);
        for path in ["", "/", "Admit", "/x/Admit", "//Release", "/hisparse.v1.AdmissionService"] {
            assert_eq!(of(path), Class { kind: Kind::Plain, roles: &[] }, "{path:?}");
        }
    }
}
