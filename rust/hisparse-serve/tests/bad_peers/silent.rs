//! Peers that say nothing, or nothing that is HTTP/2, or come too often.

use std::time::{Duration, Instant};

use hisparse_serve::ServeLimits;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::{Neighbour, Target, thorough};

/// Waits until the other side has closed the connection, at most so long.
async fn closed_within(stream: &mut TcpStream, longest: Duration) -> bool {
    let mut rest = Vec::new();
    tokio::time::timeout(longest, stream.read_to_end(&mut rest)).await.is_ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_open_connections_are_closed_after_five_seconds_and_noticed_once() {
    let target = Target::start(ServeLimits::default()).await;
    let neighbour = Neighbour::start(&target).await;
    let mut silent = Vec::new();
    for number in 0..100 {
        let mut stream = TcpStream::connect(target.tcp()).await.unwrap();
        // Some begin, and never come to an end.
        stream.write_all(&b"PRI * HTTP/2.0\r\n\r\nSM\r\n"[..number % 23]).await.unwrap();
        silent.push(stream);
    }
    target.metric_becomes("hisparse_connections", 101, Duration::from_secs(2)).await;
    let began = Instant::now();
    for stream in &mut silent {
        assert!(closed_within(stream, Duration::from_secs(10)).await, "still open after {:?}", began.elapsed());
    }
    neighbour.was_unaffected("100 half-open connections").await;
    drop(silent);
    target.metric_becomes("hisparse_connections", 0, Duration::from_secs(2)).await;
    assert_eq!(target.noticed("said nothing"), 1, "{:?}", target.running.notices());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_that_are_no_http2_close_their_connection_alone() {
    let target = Target::start(ServeLimits::default()).await;
    let neighbour = Neighbour::start(&target).await;
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    // Each after the preface: a frame of 16 MiB, a frame on a stream that is not open, headers without end, SETTINGS with a
    // length that is none.
    let frames: [&[u8]; 4] = [
        &[0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1],
        &[0, 0, 1, 0, 0, 0, 0, 0, 9, 0],
        &[0, 0, 1, 1, 0, 0, 0, 0, 0, 0x82],
        &[0, 0, 5, 4, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5],
    ];
    let mut attacks: Vec<Vec<u8>> = frames.iter().map(|frame| [&preface[..], frame].concat()).collect();
    attacks.push(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n".to_vec());
    attacks.push(vec![0; 4_096]);
    let rounds = if thorough() { 200 } else { 5 };
    for attack in attacks.iter().cycle().take(rounds * attacks.len()) {
        let mut stream = TcpStream::connect(target.tcp()).await.unwrap();
        let _ = stream.write_all(attack).await; // it may be closed before all is written
        assert!(closed_within(&mut stream, Duration::from_secs(5)).await, "{:?}", &attack[..attack.len().min(40)]);
    }
    neighbour.was_unaffected("bytes that are no HTTP/2").await;
    target.metric_becomes("hisparse_connections", 0, Duration::from_secs(2)).await;
    assert_eq!(target.noticed("broke HTTP/2"), 1, "{:?}", target.running.notices());
    assert!(target.metric("hisparse_turned_away_total{gate=\"protocol\"}").await >= 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_connections_than_one_user_may_have_are_closed_and_other_users_still_come_in() {
    let target = Target::start(ServeLimits { connections_per_user: 20, ..ServeLimits::default() }).await;
    let neighbour = Neighbour::start(&target).await;
    let mut open = Vec::new();
    for _ in 0..20 {
        let mut stream = TcpStream::connect(target.tcp()).await.unwrap();
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
        open.push(stream);
    }
    target.metric_becomes("hisparse_connections", 21, Duration::from_secs(2)).await;
    for _ in 0..50 {
        let mut stream = TcpStream::connect(target.tcp()).await.unwrap();
        assert!(closed_within(&mut stream, Duration::from_secs(2)).await, "one too many was let in");
    }
    let _another_user = target.client().await;
    neighbour.was_unaffected("70 connections of a user that may have 20").await;
    assert_eq!(target.noticed("the most of one user"), 1, "{:?}", target.running.notices());
    assert_eq!(target.metric("hisparse_turned_away_total{gate=\"connections\"}").await, 50);
}
