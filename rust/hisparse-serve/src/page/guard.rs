//! Who may see the page, and what a browser may do with it.
//!
//! The HTTP port asks nobody who he is. So the page is for people at this machine, or with a tunnel to it (`ssh -L`,
//! `kubectl port-forward`), whom the access list, where there is one, lets look at leases over loopback:
//!
//! ```text
//!  peer not loopback ──────────────► 403      the port may be open to probes and scrapers of the network
//!  Host not localhost or 127.… ────► 403      a name that somebody else points here (DNS rebinding)
//!  asked for by another site ──────► 403      a page on the Internet that opens streams of ours
//!  no role for `loopback` ─────────► 403      as gRPC would refuse it
//! ```

use std::net::{IpAddr, SocketAddr};

use http::HeaderMap;
use http::header::HOST;

use crate::access::{Access, Credentials};
use crate::role::Role;

/// What the page may do: load its own parts and listen to its own stream, framed by nobody.
pub(super) const HEADERS: [(&str, &str); 5] = [
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'",
    ),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cross-origin-opener-policy", "same-origin"),
];

/// Whether this request may have the page.
///
/// # Errors
/// Why not, and what to do.
pub(super) fn check(peer: SocketAddr, headers: &HeaderMap, access: &Access) -> Result<(), &'static str> {
    if !peer.ip().to_canonical().is_loopback() {
        return Err(
            "this page is shown on this machine alone: come by `ssh -L 7412:127.0.0.1:7412` or `kubectl port-forward`\n",
        );
    }
    let host = headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    if !names_this_machine(host) {
        return Err("this page is at 127.0.0.1 or localhost, and under no other name\n");
    }
    // A link to the page may be followed from anywhere: it is the browser's user who does.
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let from_elsewhere = matches!(header("sec-fetch-site"), "cross-site" | "same-site");
    if from_elsewhere && header("sec-fetch-mode") != "navigate" {
        return Err("another site may not use this page\n");
    }
    let rights = access.rights(&Credentials::Loopback);
    if !rights.is_some_and(|rights| rights.has_any(&Role::ALL)) {
        return Err("the access list gives loopback no role: add `loopback=admin` to it, or use `hisparse-svc top`\n");
    }
    Ok(())
}

fn names_this_machine(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    name.eq_ignore_ascii_case("localhost") || bare.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(host: &str, more: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(HOST, host.parse().unwrap());
        for (name, value) in more {
            headers.insert(*name, value.parse().unwrap());
        }
        headers
    }

    fn here() -> SocketAddr {
        "127.0.0.1:5000".parse().unwrap()
    }

    #[test]
    fn the_page_is_for_this_machine_by_its_own_name() {
        let open = Access::default();
        for host in ["localhost", "LOCALHOST:7412", "127.0.0.1:7412", "127.0.0.9", "[::1]:7412", "[::1]"] {
            assert_eq!(check(here(), &asked(host, &[]), &open), Ok(()), "{host}");
        }
        for host in ["", "evil.example", "localhost.evil.example:7412", "10.0.0.7:7412", "127.0.0.1.evil.example", "::"]
        {
            assert!(check(here(), &asked(host, &[]), &open).is_err(), "{host}");
        }
        for peer in ["10.0.0.7:5000", "[fd00::1]:5000", "[::ffff:10.0.0.7]:5000"] {
            assert!(check(peer.parse().unwrap(), &asked("localhost", &[]), &open).is_err(), "{peer}");
        }
        assert_eq!(check("[::ffff:127.0.0.1]:1".parse().unwrap(), &asked("localhost", &[]), &open), Ok(()));
    }

    #[test]
    fn another_site_may_link_to_the_page_and_use_nothing_of_it() {
        let open = Access::default();
        let site = |site: &'static str, mode: &'static str| {
            check(here(), &asked("localhost", &[("sec-fetch-site", site), ("sec-fetch-mode", mode)]), &open).is_ok()
        };
        assert!(site("same-origin", "cors") && site("none", "navigate") && site("cross-site", "navigate"));
        assert!(!site("cross-site", "no-cors") && !site("cross-site", "cors") && !site("same-site", "cors"));
    }

    #[test]
    fn an_access_list_counts_for_the_page_as_for_calls() {
        for (list, allowed) in
            [("uid:0", false), ("loopback", false), ("loopback=admin", true), ("loopback=router", true)]
        {
            let access = Access::parse(list).unwrap();
            assert_eq!(check(here(), &asked("localhost", &[]), &access).is_ok(), allowed, "{list}");
        }
    }
}
