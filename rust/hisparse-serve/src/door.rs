//! What the listeners of one server share, and whom it lets in.

use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::access::{Access, Credentials};
use crate::layers::Shared;
use crate::metrics::Gate;
use crate::node::Node;
use crate::notices::{Kind, Notices};
use crate::peer::{Peer, Peers, User};

/// What the listeners of one server share.
#[derive(Debug)]
pub(crate) struct Door {
    pub(crate) node: Arc<Node>,
    pub(crate) access: Access,
    pub(crate) shared: Shared,
    pub(crate) peers: Arc<Peers>,
    pub(crate) notices: Arc<Notices>,
    pub(crate) places: Arc<Semaphore>,
}

impl Door {
    /// The peer, if the access list and the bounds let it in.
    pub(crate) fn let_in(&self, who: &Credentials, user: &User, pid: Option<i32>) -> Option<Arc<Peer>> {
        let turned_away = |gate, kind, user: &User, what: &str| {
            self.node.counters().turned_away(gate);
            self.notices.once(kind, user, || what.to_owned());
        };
        let Some(rights) = self.access.rights(who) else {
            turned_away(Gate::Access, Kind::Stranger, user, "a connection was refused: not on the access list");
            return None;
        };
        let most = self.shared.limits.connections_per_user;
        let peer = self.peers.connected(user.clone(), pid, rights, most);
        if peer.is_none() {
            let what = format!("a connection was refused: it has {most} already, the most of one user");
            turned_away(Gate::Connections, Kind::Connections, user, &what);
        }
        peer.map(Arc::new)
    }
}
