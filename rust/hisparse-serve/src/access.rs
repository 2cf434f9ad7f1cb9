//! Who may do what: the access list.
//!
//! ```text
//!  uid:1001=router    gid:2000=engine+router    cert:spiffe://here/gateway=router@team-a    loopback    ← the list
//!     │ any entry that names the peer                    roles ─┘       └─ tenants it is held to
//!     ▼
//!  rights ─── none: the connection is closed
//!     └────── roles ──► each call needs one of a few (layers::class); looking at capacity needs none
//! ```
//! Without a list everybody who can connect on this machine may do everything: the socket's mode is the list then.
//! With one, it alone counts: nobody is let in whom it does not name, root and the server's own user included.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use hisparse_core::error::{Problem, Problems};
use hisparse_core::ledger::tenant_or_default;
use hisparse_core::limits::{MAX_ACCESS_BYTES, MAX_ACCESS_ENTRIES, MAX_TENANT_BYTES};

use crate::error::Refusal;
use crate::role::Role;

/// Whom an entry names.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Who {
    /// `uid:1001`: a process of this user, on the Unix socket.
    Uid(u32),
    /// `gid:2000`: a process whose effective group it is, on the Unix socket.
    Gid(u32),
    /// `loopback`: whoever connects over plaintext TCP on this machine.
    Loopback,
    /// `cert:NAME`: whose certificate has this URI or DNS name among its alternative names.
    Certificate(String),
}

#[derive(Clone, Debug)]
struct Entry {
    who: Who,
    roles: BTreeSet<Role>,
    /// `None`: any.
    tenants: Option<BTreeSet<String>>,
}

/// An access list; by default there is none.
#[derive(Clone, Debug, Default)]
pub struct Access(Option<Vec<Entry>>);

/// Whom the system, or a certificate, says a peer is.
#[derive(Clone, Debug)]
pub(crate) enum Credentials {
    Unix { uid: u32, gid: u32 },
    Loopback,
    Certificate(Vec<String>),
}

/// What a peer may do.
#[derive(Clone, Debug)]
pub(crate) struct Rights {
    roles: BTreeSet<Role>,
    tenants: Option<Arc<BTreeSet<String>>>,
}

impl Access {
    /// Reads a list: entries `WHO[=ROLE[+ROLE…]][@TENANT[+TENANT…]]` with commas, spaces or newlines between them.
    ///
    /// # Errors
    /// Every entry that cannot be read.
    pub fn parse(text: &str) -> Result<Self, Problems> {
        if text.len() > MAX_ACCESS_BYTES {
            let rule = format!("must be at most {MAX_ACCESS_BYTES} bytes");
            return Err(problem(text.len(), &rule, "name groups instead of users"));
        }
        let mut problems = Problems::new();
        let words = || text.split(|c: char| c == ',' || c.is_whitespace()).filter(|word| !word.is_empty());
        if !(1..=MAX_ACCESS_ENTRIES).contains(&words().count()) {
            let rule = format!("must have 1 to {MAX_ACCESS_ENTRIES} entries");
            return Err(problem(words().count(), &rule, "write uid:1001=router, or leave the list out"));
        }
        let mut entries = Vec::new();
        for word in words() {
            match Entry::parse(word) {
                Ok(entry) => entries.push(entry),
                Err((rule, remedy)) => problems.push(Problem::new("access", format!("{word:.80}"), rule, remedy)),
            }
        }
        problems.into_result(Self(Some(entries)))
    }

    /// Whether some entry names a certificate: without one nobody could use a TLS listener.
    pub(crate) fn names_certificates(&self) -> bool {
        self.0.iter().flatten().any(|entry| matches!(entry.who, Who::Certificate(_)))
    }

    /// What a peer may do: all that any entry that names it gives. `None`: no entry does.
    pub(crate) fn rights(&self, peer: &Credentials) -> Option<Rights> {
        let Some(entries) = &self.0 else {
            let local = !matches!(peer, Credentials::Certificate(_));
            return local.then(|| Rights { roles: Role::ALL.into(), tenants: None });
        };
        let mut named = entries.iter().filter(|entry| entry.who.names(peer)).peekable();
        named.peek()?;
        let mut rights = Rights { roles: BTreeSet::new(), tenants: None };
        let mut tenants = Some(BTreeSet::new());
        for entry in named {
            rights.roles.extend(&entry.roles);
            match (&mut tenants, &entry.tenants) {
                (Some(all), Some(more)) => all.extend(more.iter().cloned()),
                _ => tenants = None,
            }
        }
        rights.tenants = tenants.map(Arc::new);
        Some(rights)
    }
}

impl Who {
    fn names(&self, peer: &Credentials) -> bool {
        match (self, peer) {
            (Self::Uid(named), Credentials::Unix { uid, .. }) => named == uid,
            (Self::Gid(named), Credentials::Unix { gid, .. }) => named == gid,
            (Self::Loopback, Credentials::Loopback) => true,
            (Self::Certificate(named), Credentials::Certificate(shown)) => shown.contains(named),
            _ => false,
        }
    }
}

impl Entry {
    fn parse(word: &str) -> Result<Self, (String, &'static str)> {
        const WHO: &str = "begin with uid:NUMBER, gid:NUMBER, cert:NAME or loopback";
        // A name may hold `@` or `=` of its own only before the last one.
        let (rest, tenants) = word.rsplit_once('@').map_or((word, None), |(rest, tenants)| (rest, Some(tenants)));
        let (who, roles) = rest.rsplit_once('=').map_or((rest, None), |(who, roles)| (who, Some(roles)));
        let number = |digits: &str| digits.parse().map_err(|_| (format!("{digits:?} is no number of a user"), WHO));
        let who = match who.split_once(':') {
            Some(("uid", digits)) => Who::Uid(number(digits)?),
            Some(("gid", digits)) => Who::Gid(number(digits)?),
            Some(("cert", name)) if !name.is_empty() => Who::Certificate(name.to_owned()),
            None if who == "loopback" => Who::Loopback,
            _ => return Err(("names nobody".into(), WHO)),
        };
        let role = |name: &str| {
            let found = Role::ALL.into_iter().find(|role| role.name() == name);
            found.ok_or_else(|| (format!("{name:?} is no role"), "use router, engine or admin, with + between them"))
        };
        let roles = roles.map(|roles| roles.split('+').map(role).collect()).transpose()?.unwrap_or_default();
        let tenant = |name: &str| {
            let fits = !name.is_empty() && name.len() as u64 <= MAX_TENANT_BYTES;
            fits.then(|| name.to_owned()).ok_or_else(|| (format!("{name:?} is no tenant"), "write @team-a+team-b"))
        };
        let tenants = tenants.map(|tenants| tenants.split('+').map(tenant).collect()).transpose()?;
        Ok(Self { who, roles, tenants })
    }
}

impl Rights {
    /// Whether one of these roles is among its own; none needed is one had.
    pub(crate) fn has_any(&self, roles: &[Role]) -> bool {
        roles.is_empty() || roles.iter().any(|role| self.roles.contains(role))
    }

    /// That it may act for this tenant (empty: the default one).
    ///
    /// # Errors
    /// It is held to others.
    pub(crate) fn act_for(&self, tenant: &str) -> Result<(), Refusal> {
        let tenant = tenant_or_default(tenant);
        match &self.tenants {
            Some(tenants) if !tenants.contains(tenant) => Err(Refusal::NotYourTenant { yours: Arc::clone(tenants) }),
            _ => Ok(()),
        }
    }

    /// That it may see what all tenants have.
    ///
    /// # Errors
    /// It is held to some.
    pub(crate) fn act_for_all(&self) -> Result<(), Refusal> {
        self.tenants.as_ref().map_or(Ok(()), |yours| Err(Refusal::NotYourTenant { yours: Arc::clone(yours) }))
    }

    /// The tenants that it is held to; `None` for all.
    pub(crate) fn tenants(&self) -> Option<&BTreeSet<String>> {
        self.tenants.as_deref()
    }
}

fn problem(value: impl fmt::Display, rule: &str, remedy: &str) -> Problems {
    Problems::one(Problem::new("access", value, rule, remedy))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rights(list: &str, peer: &Credentials) -> Option<(Vec<&'static str>, Option<Vec<String>>)> {
        let rights = Access::parse(list).unwrap().rights(peer)?;
        let tenants = rights.tenants().map(|tenants| tenants.iter().cloned().collect());
        Some((rights.roles.iter().map(|role| role.name()).collect(), tenants))
    }

    #[test]
    fn a_peer_has_what_any_entry_that_names_it_gives() {
        let list = "uid:1001=router@a+b, gid:2000=engine@c\nuid:7 cert:spiffe://here/gw=router+admin,loopback=router";
        let unix = |uid, gid| Credentials::Unix { uid, gid };
        let named = |names: &[&str]| Some(names.iter().map(|name| (*name).to_owned()).collect());
        assert_eq!(rights(list, &unix(1001, 5)), Some((vec!["router"], named(&["a", "b"]))));
        assert_eq!(rights(list, &unix(1001, 2000)), Some((vec!["router", "engine"], named(&["a", "b", "c"]))));
        assert_eq!(rights(list, &unix(7, 2000)), Some((vec!["engine"], None)), "one entry without tenants lifts them");
        assert_eq!(rights(list, &unix(7, 7)), Some((vec![], None)));
        assert_eq!(rights(list, &unix(0, 0)), None, "root is nobody special");
        assert_eq!(rights(list, &Credentials::Loopback), Some((vec!["router"], None)));
        let certificate = |name: &str| Credentials::Certificate(vec!["other".into(), name.into()]);
        assert_eq!(rights(list, &certificate("spiffe://here/gw")), Some((vec!["router", "admin"], None)));
        assert_eq!(rights(list, &certificate("spiffe://here/gw2")), None);
    }

    #[test]
    fn without_a_list_only_certificates_are_turned_away() {
        let none = Access::default();
        assert!(none.rights(&Credentials::Unix { uid: 1, gid: 1 }).unwrap().has_any(&[Role::Admin]));
        assert!(none.rights(&Credentials::Loopback).unwrap().has_any(&[Role::Engine]));
        assert!(none.rights(&Credentials::Certificate(vec!["x".into()])).is_none());
    }

    #[test]
    fn every_entry_at_fault_is_named() {
        let refusal = Access::parse("uid:x=router, bob, uid:1=boss, uid:2=router@, cert:=admin").unwrap_err();
        let rules: Vec<_> = refusal.iter().map(|problem| problem.rule.clone()).collect();
        let said = ["\"x\" is no number", "names nobody", "\"boss\" is no role", "\"\" is no tenant", "names nobody"];
        assert_eq!(rules.len(), said.len(), "{rules:?}");
        assert!(rules.iter().zip(said).all(|(rule, said)| rule.contains(said)), "{rules:?}");
        assert!(Access::parse(" , ").is_err());
    }
}
