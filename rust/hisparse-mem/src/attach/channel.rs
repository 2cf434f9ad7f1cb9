//! One end of a connection: whole messages, with descriptors where they are expected and nowhere else.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, Shutdown, recv, recvmsg, sendmsg, shutdown,
};

use super::MAX_DESCRIPTORS;
use super::frame::{Frame, FrameError, MAX_FRAME_BYTES, Reason};

/// Why a message did not arrive or leave.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// The other end is gone.
    #[error("the other end closed the connection")]
    Closed,
    /// It said nothing in time, or the kernel refused.
    #[error("the connection failed: {0}")]
    Failed(#[from] Errno),
    /// It sent what is no message, or descriptors that were not expected.
    #[error("the other end broke the protocol: {0}")]
    Broken(String),
}

impl From<FrameError> for ChannelError {
    fn from(error: FrameError) -> Self {
        Self::Broken(error.to_string())
    }
}

/// A connected socket.
#[derive(Debug)]
pub(super) struct Channel(OwnedFd);

impl Channel {
    pub(super) const fn new(socket: OwnedFd) -> Self {
        Self(socket)
    }

    /// How long sending and receiving wait; `None` for ever.
    pub(super) fn set_patience(&self, patience: Option<Duration>) -> Result<(), Errno> {
        set_socket_timeout(&self.0, Timeout::Recv, patience)?;
        set_socket_timeout(&self.0, Timeout::Send, patience)
    }

    pub(super) fn send(&self, frame: &Frame, descriptors: &[BorrowedFd<'_>]) -> Result<(), ChannelError> {
        let bytes = frame.encode()?;
        let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(ChannelError::Failed(Errno::TOOBIG));
        }
        match sendmsg(&self.0, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL) {
            Ok(_) => Ok(()),
            Err(Errno::PIPE | Errno::CONNRESET) => Err(ChannelError::Closed),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Says no, in a way that arrives. A close over a message that was not read reaches the peer as a reset, in place of
    /// the reason; so no more are taken, and those that are there are thrown away.
    pub(super) fn refuse(&self, reason: Reason) {
        // A peer that is gone needs no reason.
        let _gone = self.send(&Frame::Refused(reason), &[]);
        let _ended = shutdown(&self.0, Shutdown::Read);
        while recv(&self.0, &mut [0_u8; 1], RecvFlags::DONTWAIT).is_ok_and(|(_, bytes)| bytes > 0) {}
    }

    /// Sends a message if that takes no waiting; else the peer reads too slowly.
    pub(super) fn send_at_once(socket: BorrowedFd<'_>, frame: &Frame) -> Result<(), ChannelError> {
        let (bytes, flags) = (frame.encode()?, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        sendmsg(socket, &[IoSlice::new(&bytes)], &mut SendAncillaryBuffer::default(), flags)?;
        Ok(())
    }

    /// The next message, and at most `most` descriptors that came with it; more are a breach.
    pub(super) fn receive(&self, most: usize) -> Result<(Frame, Vec<OwnedFd>), ChannelError> {
        let mut bytes = vec![0; MAX_FRAME_BYTES];
        let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        // Without room the kernel closes what was sent and says so.
        let room = if most == 0 { &mut [][..] } else { &mut space[..] };
        let mut control = RecvAncillaryBuffer::new(room);
        let received = loop {
            match recvmsg(&self.0, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC) {
                Err(Errno::INTR) => {}
                Err(Errno::CONNRESET) => return Err(ChannelError::Closed),
                done => break done?,
            }
        };
        let mut descriptors = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(files) = message {
                descriptors.extend(files);
            }
        }
        if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) || descriptors.len() > most {
            return Err(ChannelError::Broken("more bytes or descriptors than were expected".into()));
        }
        if received.bytes == 0 {
            return Err(ChannelError::Closed);
        }
        Ok((Frame::decode(&bytes[..received.bytes])?, descriptors))
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Ends a connection, or a listening socket, that another thread waits on.
pub(super) fn end(socket: BorrowedFd<'_>) {
    // Already ended is as good.
    let _ended = shutdown(socket, Shutdown::Both);
}
