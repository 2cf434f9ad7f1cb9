//! Accepting connections: bounded in number, patient with a machine that is out of descriptors.
//!
//! ```text
//!  listener ──accept──► [permit] connection ──► channel of one ──► tonic
//!     └─ error: rest, try again        the permit goes back when the connection closes
//! ```
//! tonic sets no socket options on connections handed to it, so `TCP_NODELAY` is set here: without it a reply and its
//! trailers are two segments and wait 40 ms for each other.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::Connected;

/// Rest after a failed accept: out of descriptors, most likely.
const REST: Duration = Duration::from_millis(100);

/// A connection and its place among those allowed.
#[derive(Debug)]
pub(crate) struct Connection<S> {
    stream: S,
    _permit: OwnedSemaphorePermit,
}

/// What a listener of any kind does.
pub(crate) trait Accept: Send + 'static {
    /// What it accepts.
    type Stream: Send;

    /// The next connection.
    fn accept(&self) -> impl Future<Output = io::Result<Self::Stream>> + Send;
}

impl Accept for UnixListener {
    type Stream = UnixStream;

    async fn accept(&self) -> io::Result<UnixStream> {
        Ok(self.accept().await?.0)
    }
}

impl Accept for TcpListener {
    type Stream = TcpStream;

    async fn accept(&self) -> io::Result<TcpStream> {
        let stream = self.accept().await?.0;
        stream.set_nodelay(true)?;
        Ok(stream)
    }
}

/// The connections of a listener, for as long as the stream is kept. While all places are taken new connections wait in
/// the kernel's queue.
pub(crate) fn connections<L: Accept>(
    listener: L,
    places: Arc<Semaphore>,
) -> ReceiverStream<io::Result<Connection<L::Stream>>> {
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        while let Ok(permit) = Arc::clone(&places).acquire_owned().await {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = sender.closed() => return,
            };
            match accepted {
                Ok(stream) => {
                    if sender.send(Ok(Connection { stream, _permit: permit })).await.is_err() {
                        return;
                    }
                }
                Err(_) => tokio::time::sleep(REST).await,
            }
        }
    });
    ReceiverStream::new(receiver)
}

impl<S: Connected> Connected for Connection<S> {
    type ConnectInfo = S::ConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.stream.connect_info()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Connection<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Connection<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
