//! Peers that speak HTTP/2 and mean harm: resets, windows that stay shut, headers without end, bodies without end.

use std::time::{Duration, Instant};

use bytes::{BufMut, Bytes, BytesMut};
use h2::client::{Builder, SendRequest};
use hisparse_serve::ServeLimits;
use hisparse_serve::proto::{AdmitRequest, ReleaseRequest};
use http::Request;
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::{Neighbour, Target, thorough};

/// A connection of the attacker; its driver ends with it, or before.
async fn dial(target: &Target, window_bytes: u32) -> (SendRequest<Bytes>, tokio::task::JoinHandle<()>) {
    let stream = TcpStream::connect(target.tcp()).await.unwrap();
    let mut builder = Builder::new();
    builder.initial_window_size(window_bytes).initial_max_send_streams(10_000);
    let (sender, connection) = builder.handshake(stream).await.unwrap();
    let driver = tokio::spawn(async move {
        let _ = connection.await; // how it ends is what the test looks at elsewhere
    });
    (sender, driver)
}

fn request(method: &str) -> Request<()> {
    let path = format!("http://localhost/hisparse.v1.AdmissionService/{method}");
    let request = Request::post(path).header("content-type", "application/grpc").header("te", "trailers");
    request.body(()).unwrap()
}

fn framed(message: &impl Message) -> Bytes {
    let mut bytes = BytesMut::new();
    bytes.put_u8(0);
    bytes.put_u32(u32::try_from(message.encoded_len()).unwrap());
    message.encode(&mut bytes).unwrap();
    bytes.freeze()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rapid_resets_hold_no_place_and_take_no_page() {
    let target = Target::start(ServeLimits::default()).await;
    let neighbour = Neighbour::start(&target).await;
    let message = framed(&AdmitRequest { prompt_tokens: 64, ..AdmitRequest::default() });
    let (rounds, mut sent, mut cut_off) = (if thorough() { 100_000 } else { 10_000 }, 0_u32, 0_u32);
    let began = Instant::now();
    while sent < rounds {
        let (mut sender, driver) = dial(&target, 65_535).await;
        while sent < rounds {
            let Ok(ready) = sender.clone().ready().await else {
                cut_off += 1;
                break;
            };
            sender = ready;
            sent += 1;
            let Ok((_answer, mut stream)) = sender.send_request(request("Admit"), false) else {
                cut_off += 1;
                break;
            };
            if sent % 2 == 0 {
                let _ = stream.send_data(message.clone(), true); // the connection may be gone
            }
            stream.send_reset(h2::Reason::CANCEL);
            if sent % 256 == 0 {
                tokio::task::yield_now().await;
            }
        }
        driver.abort();
    }
    println!("{sent} resets in {:?}, cut off {cut_off} times", began.elapsed());
    neighbour.was_unaffected("rapid resets").await;
    target.metric_becomes("hisparse_calls", 0, Duration::from_secs(5)).await;
    // What was granted before its reset came was given back, or ends with its caller's release by name: no page is lost.
    target.metric_becomes("hisparse_waiters", 0, Duration::from_secs(5)).await;
    assert!(target.noticed("broke HTTP/2") <= 1, "{:?}", target.running.notices());
}

/// One HTTP/2 frame.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// The headers of an Admit, each name and value as it is.
fn admit_headers() -> Vec<u8> {
    let path = "/hisparse.v1.AdmissionService/Admit";
    let fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "localhost"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ];
    let text = |text: &str| [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
    fields.iter().flat_map(|(name, value)| [vec![0], text(name), text(value)].concat()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_is_shed_while_its_messages_are_on_their_way_keeps_its_connection() {
    const DATA: u8 = 0;
    const HEADERS: u8 = 1;
    const SETTINGS: u8 = 4;
    const PING: u8 = 6;
    const GOAWAY: u8 = 7;
    let target = Target::start(ServeLimits { admits_per_second: Some(1), ..ServeLimits::default() }).await;
    let message = framed(&AdmitRequest { prompt_tokens: 64, ..AdmitRequest::default() });
    let (mut reading, mut writing) = TcpStream::connect(target.tcp()).await.unwrap().into_split();
    let begin = [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &frame(SETTINGS, 0, 0, &[])].concat();
    writing.write_all(&begin).await.unwrap();
    let (answered, mut answers) = tokio::sync::watch::channel(0);
    let seen = tokio::spawn(async move {
        let mut head = [0; 9];
        loop {
            reading.read_exact(&mut head).await.unwrap();
            let mut payload = vec![0; usize::from(head[1]) << 8 | usize::from(head[2])];
            reading.read_exact(&mut payload).await.unwrap();
            match head[3] {
                PING | GOAWAY => return head[3],
                HEADERS => answered.send_modify(|count| *count += 1),
                _ => {}
            }
        }
    });
    let headers = admit_headers();
    for batch in 0..6 {
        let streams = || (0..500).map(|number| (batch * 500 + number) * 2 + 1);
        let first: Vec<_> = streams().flat_map(|stream| frame(HEADERS, 4, stream, &headers)).collect();
        writing.write_all(&first).await.unwrap();
        // They are refused by now. Their messages were on the way all the same, as a peer sends them without waiting.
        tokio::time::sleep(Duration::from_millis(5)).await;
        let rest: Vec<_> = streams().flat_map(|stream| frame(DATA, 1, stream, &message)).collect();
        writing.write_all(&rest).await.unwrap();
        // No more at a time than the service says it takes.
        if answers.wait_for(|count| *count >= (batch + 1) * 500).await.is_err() {
            break; // it was cut off
        }
    }
    let _ = writing.write_all(&frame(PING, 0, 0, &[7; 8])).await; // it may be closed
    let answer = tokio::time::timeout(Duration::from_secs(20), seen).await.expect("no answer").unwrap();
    assert_eq!(answer, PING, "3,000 refusals are no reason to be cut off: {:?}", target.running.notices());
    assert_eq!(target.noticed("broke HTTP/2"), 0, "{:?}", target.running.notices());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_reads_nothing_gets_few_long_answers_and_is_closed_in_the_end() {
    let target = Target::start(ServeLimits::default()).await;
    let mut client = target.client().await;
    let mut leases = Vec::new();
    for number in 0..500 {
        let request = AdmitRequest { request_id: format!("{number:0>128}"), prompt_tokens: 64, ..Default::default() };
        leases.push(client.admit(request).await.unwrap().into_inner().lease.unwrap());
    }
    let neighbour = Neighbour::start(&target).await;
    let (sender, driver) = dial(&target, 0).await;
    let list = framed(&hisparse_serve::proto::ListLeasesRequest { page_size: 1_000, ..Default::default() });
    let mut answers = Vec::new();
    for _ in 0..300 {
        let mut sender = sender.clone().ready().await.unwrap();
        let (answer, mut stream) = sender.send_request(request("ListLeases"), false).unwrap();
        stream.send_data(list.clone(), true).unwrap();
        answers.push((answer, stream));
    }
    let mut refused = 0;
    for (answer, _) in &mut answers {
        let answer = answer.await.unwrap();
        // A refusal is headers alone, and those pass a shut window.
        refused += usize::from(answer.headers().get("grpc-status").is_some_and(|status| status == "14"));
    }
    assert_eq!(refused, 296, "four of 300 are kept for a peer that reads none");
    // A call of the neighbour may be among them for a moment.
    target.metric_becomes("hisparse_calls", 4, Duration::from_secs(2)).await;
    if thorough() {
        tokio::time::timeout(Duration::from_secs(40), driver).await.expect("it was to be closed").unwrap();
        target.metric_becomes("hisparse_calls", 0, Duration::from_secs(2)).await;
        assert_eq!(target.noticed("took no answers"), 1, "{:?}", target.running.notices());
    }
    neighbour.was_unaffected("a slow reader").await;
    for lease in leases {
        client.release(ReleaseRequest { lease_id: lease.id, ..Default::default() }).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn headers_and_messages_beyond_their_bounds_are_refused_each_by_itself() {
    let target = Target::start(ServeLimits::default()).await;
    let neighbour = Neighbour::start(&target).await;
    let (mut sender, _driver) = dial(&target, 65_535).await;
    let mut long = request("Admit");
    for number in 0..20 {
        let name: http::HeaderName = format!("x-long-{number}").parse().unwrap();
        long.headers_mut().insert(name, "v".repeat(1_000).parse().unwrap());
    }
    let (answer, _) = sender.send_request(long, true).unwrap();
    let refused = answer.await.map(|answer| answer.status());
    assert!(refused.is_err() || refused.is_ok_and(|status| status == 431), "headers of 20 kB were taken");

    let rounds = if thorough() { 200 } else { 20 };
    for length in [u32::MAX, 64 << 20, 3 << 20].into_iter().cycle().take(rounds) {
        let (sender, _driver) = dial(&target, 65_535).await;
        let mut sender = sender.ready().await.unwrap();
        let (answer, mut stream) = sender.send_request(request("Admit"), false).unwrap();
        let mut bytes = BytesMut::new();
        bytes.put_u8(0);
        bytes.put_u32(length);
        bytes.put_bytes(0x0a, 1_000);
        stream.send_data(bytes.freeze(), false).unwrap();
        // Refused by what its length says, long before so much is sent.
        let answer = tokio::time::timeout(Duration::from_secs(5), answer).await.expect("it waits for more").unwrap();
        let status = answer.headers().get("grpc-status").map(|status| status.to_str().unwrap().to_owned());
        assert_eq!(status.as_deref(), Some("11"), "{length} bytes: {answer:?}");
    }
    neighbour.was_unaffected("oversize headers and messages").await;
    target.metric_becomes("hisparse_calls", 0, Duration::from_secs(5)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_never_ends_holds_its_place_no_longer_than_its_deadline() {
    let target = Target::start(ServeLimits { calls_per_peer: 50, ..ServeLimits::default() }).await;
    let neighbour = Neighbour::start(&target).await;
    let (sender, _driver) = dial(&target, 65_535).await;
    let mut open = Vec::new();
    let mut refused = 0;
    for _ in 0..200 {
        let mut sender = sender.clone().ready().await.unwrap();
        let mut endless = request("Admit");
        endless.headers_mut().insert("grpc-timeout", "2S".parse().unwrap());
        let (answer, stream) = sender.send_request(endless, false).unwrap();
        open.push((answer, stream));
    }
    let mut late = 0;
    for (answer, _) in &mut open {
        let answer = answer.await.unwrap();
        match answer.headers()["grpc-status"].to_str().unwrap() {
            "14" => refused += 1,
            "4" => late += 1,
            other => panic!("status {other}"),
        }
    }
    assert_eq!((late, refused), (50, 150));
    neighbour.was_unaffected("200 bodies without end").await;
    target.metric_becomes("hisparse_calls", 0, Duration::from_secs(2)).await;
    assert_eq!(target.noticed("calls of one peer"), 1, "{:?}", target.running.notices());
}
