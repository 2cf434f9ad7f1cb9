//! Who is at the other end of a socket, by the kernel's word.
//!
//! ```text
//!  peer in this process namespace, or one below it   uid, pid
//!  peer elsewhere: another container of the pod      uid, no pid: it has no number here
//! ```

use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;

use crate::bind::last_errno;

/// The process that connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Peer {
    pub(super) uid: u32,
    /// `None` where it lies in a process namespace that this one does not see.
    pub(super) pid: Option<i32>,
}

/// Asks the kernel.
///
/// # Errors
/// It is no connected socket.
pub(super) fn of(socket: impl AsFd) -> Result<Peer, Errno> {
    let mut who = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = libc::socklen_t::try_from(size_of_val(&who)).map_err(|_| Errno::INVAL)?;
    // SAFETY: needed because rustix has a pid that cannot be 0 here, and the kernel says 0 of a process in another
    // namespace (`test_an_engine_of_another_container_attaches_and_keeps_its_leases` would notice). Sound because the descriptor is borrowed for
    // the call, and the kernel writes at most `length` bytes to `who`, which is that long and valid for any of them.
    let done = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut who).cast(),
            &raw mut length,
        )
    };
    if done != 0 {
        return Err(last_errno());
    }
    Ok(Peer { uid: who.uid, pid: Some(who.pid).filter(|pid| *pid > 0) })
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn the_kernel_names_this_process() {
        let (here, _there) = UnixStream::pair().unwrap();
        let uid = rustix::process::getuid().as_raw();
        let pid = i32::try_from(std::process::id()).ok();
        assert_eq!(of(&here), Ok(Peer { uid, pid }));
        assert_eq!(of(std::fs::File::open("/proc/self/stat").unwrap()), Err(Errno::NOTSOCK));
    }
}
