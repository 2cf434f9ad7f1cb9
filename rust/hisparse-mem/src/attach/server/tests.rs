//! Attaching for real: rows shared, sessions ended by death, and peers that misbehave.

use std::sync::mpsc::{Receiver, Sender, channel};

use hisparse_core::layout::pool::Content;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, bind, connect, socket_with};

use super::*;
use crate::attach::MAX_DESCRIPTORS;
use crate::attach::channel::ChannelError;
use crate::attach::client::{AttachError, AttachedPool};
use crate::attach::frame::{Hello, PROTOCOL, Resume, Role, Token};
use crate::pool::{small_pool, small_shared_pool};
use crate::rows::{PoolMemory, RowError};
use crate::session_lock::SessionLock;

struct Told(Mutex<Sender<(&'static str, Session)>>);

impl Watcher for Told {
    fn token(&self) -> Token {
        Token([5; 16])
    }

    fn opened(&self, session: &Session) {
        let _gone = self.0.lock().unwrap().send(("opened", session.clone()));
    }

    fn closed(&self, session: &Session) {
        let _gone = self.0.lock().unwrap().send(("closed", session.clone()));
    }
}

struct Service {
    server: AttachServer,
    pool: Arc<HostPool>,
    told: Receiver<(&'static str, Session)>,
    folder: tempfile::TempDir,
}

impl Service {
    fn new(pool: HostPool) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (tell, told) = channel();
        let pool = Arc::new(pool);
        let terms = Terms { epoch: 7, uids: Vec::new(), lock: None, last_session: 0, engine_id: None };
        let watcher = Arc::new(Told(Mutex::new(tell)));
        let server =
            AttachServer::start(&folder.path().join("a.sock"), Share::Pool(Arc::clone(&pool)), terms, watcher).unwrap();
        Self { server, pool, told, folder }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("a.sock")
    }

    fn attach(&self, engine: &str, rank: u32, role: Role) -> Result<AttachedPool, AttachError> {
        AttachedPool::attach(&self.path(), engine, rank, role)
    }

    /// Attaches in the place of a writer that has gone. The watcher is told first, so the place may be taken for a moment
    /// more.
    fn succeed(&self, engine: &str) -> Result<AttachedPool, AttachError> {
        loop {
            match self.attach(engine, 0, Role::Writer) {
                Err(AttachError::Refused(Reason::WriterTaken)) => std::thread::yield_now(),
                attached => return attached,
            }
        }
    }

    /// Waits for the next word on a session.
    fn told(&self) -> (&'static str, u64) {
        let (what, session) = self.told.recv_timeout(Duration::from_secs(20)).expect("word of a session");
        (what, session.number)
    }

    fn raw(&self) -> Channel {
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        connect(&socket, &SocketAddrUnix::new(self.path()).unwrap()).unwrap();
        Channel::new(socket)
    }
}

#[test]
fn a_row_written_by_one_rank_is_read_by_the_others() {
    let service = Service::new(small_shared_pool(20));
    let writer = service.attach("e", 0, Role::Writer).unwrap();
    let reader = service.attach("e", 1, Role::Reader).unwrap();
    assert_eq!((writer.epoch(), writer.layout()), (7, service.pool.layout()));
    writer.write_row(Content::Main, 2, 19, 63, &[5; 656]).unwrap();
    let mut row = [0; 656];
    reader.read_row(Content::Main, 2, 19, 63, &mut row).unwrap();
    assert_eq!(row, [5; 656]);
    service.pool.read_row(Content::Main, 2, 19, 63, &mut row).unwrap();
    assert_eq!(row, [5; 656], "the service maps the same copy");
    assert_eq!(reader.write_row(Content::Main, 0, 0, 0, &row), Err(RowError::ReadOnly));
}

#[test]
fn the_end_of_the_connection_is_the_end_of_the_session() {
    let service = Service::new(small_shared_pool(1));
    let rank = service.attach("e", 0, Role::Writer).unwrap();
    let number = rank.session();
    assert_eq!(service.told(), ("opened", number));
    assert_eq!(service.server.sessions(), 1);
    drop(rank);
    assert_eq!(service.told(), ("closed", number));
    let successor = service.succeed("e").unwrap();
    assert!(successor.session() > number, "numbers are not used again");
}

#[test]
fn one_engine_and_one_writer_at_a_time() {
    let service = Service::new(small_shared_pool(1));
    let _writer = service.attach("e", 0, Role::Writer).unwrap();
    let refused = |engine, role| match service.attach(engine, 1, role) {
        Err(AttachError::Refused(reason)) => reason,
        other => panic!("{other:?}"),
    };
    assert_eq!(refused("e", Role::Writer), Reason::WriterTaken);
    assert_eq!(refused("another", Role::Reader), Reason::OtherEngine);
    assert!(service.attach("e", 1, Role::Reader).is_ok());
}

#[test]
fn importers_write_beside_the_writer() {
    let service = Service::new(small_shared_pool(20));
    let writer = service.attach("e", 0, Role::Writer).unwrap();
    let importers = [1, 2].map(|rank| service.attach("e", rank, Role::Importer).unwrap());
    for (importer, byte) in importers.iter().zip([3, 4]) {
        importer.write_row(Content::Main, 0, 5, u64::from(byte), &[byte; 656]).unwrap();
    }
    let mut row = [0; 656];
    for byte in [3, 4] {
        writer.read_row(Content::Main, 0, 5, u64::from(byte), &mut row).unwrap();
        assert_eq!(row, [byte; 656]);
    }
}

#[test]
fn a_pool_stays_its_first_engines_when_that_has_gone() {
    let service = Service::new(small_shared_pool(1));
    drop(service.attach("e", 0, Role::Writer).unwrap());
    assert_eq!([service.told().0, service.told().0], ["opened", "closed"]);
    for role in [Role::Writer, Role::Reader] {
        let refused = service.attach("another", 0, role);
        assert!(matches!(refused, Err(AttachError::Refused(Reason::OtherEngine))), "{refused:?}");
    }
    assert!(service.attach("e", 0, Role::Reader).is_ok());
}

#[test]
fn a_pool_on_the_heap_cannot_be_shared_and_says_so() {
    let service = Service::new(small_pool(1));
    for role in [Role::Writer, Role::Reader] {
        let error = service.attach("e", 0, role).unwrap_err();
        assert!(error.to_string().contains("--backing memory"), "{error}");
    }
}

#[test]
fn a_peer_that_breaks_the_protocol_loses_its_own_connection_alone() {
    let service = Service::new(small_shared_pool(1));
    let rank = service.attach("e", 0, Role::Writer).unwrap();
    assert_eq!(service.told().0, "opened");
    let file = service.pool.segments()[0].writer().unwrap();
    let hello = Hello { protocols: vec![PROTOCOL], role: Role::Reader, engine_id: "e".into(), rank: 1, resume: None };
    for (what, frame, files) in [
        ("no greeting", Frame::Ready, vec![]),
        ("descriptors with the greeting", Frame::Hello(hello.clone()), vec![file; 3]),
        ("as many as the kernel takes", Frame::Hello(hello.clone()), vec![file; MAX_DESCRIPTORS]),
    ] {
        let peer = service.raw();
        peer.set_patience(Some(Duration::from_secs(20))).unwrap();
        peer.send(&frame, &files).unwrap();
        assert!(matches!(peer.receive(MAX_DESCRIPTORS), Err(ChannelError::Closed)), "{what}");
    }
    let strange = service.raw();
    strange.send(&Frame::Hello(Hello { protocols: vec![99], ..hello.clone() }), &[]).unwrap();
    assert_eq!(strange.receive(0).unwrap().0, Frame::Refused(Reason::Protocol));
    // One that greets and goes while the pool is being sent was never a session.
    service.raw().send(&Frame::Hello(hello), &[]).unwrap();
    drop(rank);
    assert_eq!(service.told().0, "closed", "no word of the others");
    service.succeed("e").expect("the service goes on");
}

#[test]
fn one_too_many_is_told_so_whether_it_has_greeted_or_not() {
    let service = Service::new(small_shared_pool(1));
    let _silent: Vec<Channel> = (0..MAX_CONNECTIONS).map(|_| service.raw()).collect();
    for attempt in 0..100 {
        let refused = service.attach("e", 0, Role::Reader).unwrap_err();
        assert!(matches!(refused, AttachError::Refused(Reason::TooMany)), "attempt {attempt}: {refused}");
    }
}

#[test]
fn silent_peers_do_not_keep_others_waiting() {
    let service = Service::new(small_shared_pool(1));
    let _silent: Vec<Channel> = (0..20).map(|_| service.raw()).collect();
    assert!(service.attach("e", 0, Role::Writer).is_ok());
}

#[test]
fn stopping_ends_every_session_and_removes_the_socket() {
    let Service { server, told, folder, .. } = Service::new(small_shared_pool(1));
    let path = folder.path().join("a.sock");
    let rank = AttachedPool::attach(&path, "e", 0, Role::Writer).unwrap();
    drop(server);
    assert!(!path.exists());
    let words: Vec<_> = told.iter().map(|(what, _)| what).collect();
    assert_eq!(words, ["opened", "closed"]);
    rank.write_row(Content::Main, 0, 0, 0, &[1; 656]).unwrap();
    assert!(matches!(AttachedPool::attach(&path, "e", 0, Role::Writer), Err(AttachError::Unreachable { .. })));
}

#[test]
fn a_dead_services_socket_is_replaced_and_a_living_ones_is_not() {
    let service = Service::new(small_shared_pool(1));
    let start = |path: &Path| {
        let terms = Terms { epoch: 1, uids: Vec::new(), lock: None, last_session: 0, engine_id: None };
        let watcher = Arc::new(Told(Mutex::new(channel().0)));
        AttachServer::start(path, Share::Pool(Arc::clone(&service.pool)), terms, watcher)
    };
    assert!(matches!(start(&service.path()), Err(ListenError::InUse(_))));
    let dead = service.folder.path().join("dead.sock");
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    bind(&socket, &SocketAddrUnix::new(&dead).unwrap()).unwrap();
    drop(socket);
    assert!(start(&dead).is_ok());
    assert!(matches!(start(&service.folder.path().join("x".repeat(120))), Err(ListenError::TooLong(_))));
}

/// Knows the session of `Told`'s one secret.
struct Knows;

impl Watcher for Knows {
    fn token(&self) -> Token {
        Token([5; 16])
    }

    fn opened(&self, _session: &Session) {}

    fn closed(&self, _session: &Session) {}

    fn knows(&self, _hello: &Hello, resume: &Resume) -> bool {
        resume.session == 1 && resume.token == Token([5; 16])
    }
}

fn terms(epoch: u64, lock: &SessionLock) -> Terms {
    Terms { epoch, uids: Vec::new(), lock: Some(lock.clone()), last_session: epoch, engine_id: None }
}

fn notice(engine: &AttachedPool) -> Notice {
    engine.next_notice(Duration::from_secs(20)).expect("word of the service")
}

#[test]
fn an_engine_whose_service_dies_goes_on_and_hands_the_pool_back_to_the_next_one() {
    let home = tempfile::tempdir().unwrap();
    let (path, lock) = (home.path().join("a.sock"), SessionLock::at(&home.path().join("sessions")));
    let pool = Arc::new(small_shared_pool(20));
    let (layout, segments) = (pool.layout().clone(), pool.kept().unwrap());
    let first = AttachServer::start(&path, Share::Pool(pool), terms(0, &lock), Arc::new(Knows)).unwrap();
    let writer = AttachedPool::attach(&path, "e", 0, Role::Writer).unwrap();
    writer.write_row(Content::Main, 0, 3, 4, &[7; 656]).unwrap();
    drop(first);
    assert!(lock.is_held(), "the engine says that the pool is in use");
    writer.write_row(Content::Main, 0, 3, 5, &[8; 656]).unwrap();

    let wanted = Wanted { layout, segments, lock: false };
    let second = AttachServer::start(&path, Share::Wanted(wanted), terms(9, &lock), Arc::new(Knows)).unwrap();
    let back = second.pool(Duration::from_secs(20));
    let back = back.unwrap_or_else(|| panic!("the engine hands it back: {:?}", writer.standing()));
    assert_eq!(notice(&writer), Notice::Resumed { epoch: 9 });
    assert_eq!((writer.session(), writer.epoch()), (1, 9));
    for (row, mark) in [(4, 7), (5, 8)] {
        let mut found = [0; 656];
        back.read_row(Content::Main, 0, 3, row, &mut found).unwrap();
        assert_eq!(found, [mark; 656]);
    }
    let reader = AttachedPool::attach(&path, "e", 1, Role::Reader).unwrap();
    assert_eq!(reader.session(), 11, "numbers count on; the engine's own connection took one");
    second.herald().tell(&Notice::Quarantined { lease_id: "l".into() });
    for engine in [&writer, &reader] {
        assert_eq!(notice(engine), Notice::Quarantined { lease_id: "l".into() });
    }
    drop((writer, reader));
    assert!(!lock.is_held());
}

#[test]
fn a_stranger_gets_no_pool_while_its_own_engine_is_waited_for_and_other_files_are_not_taken() {
    let home = tempfile::tempdir().unwrap();
    let (path, lock) = (home.path().join("a.sock"), SessionLock::at(&home.path().join("sessions")));
    let (pool, other) = (Arc::new(small_shared_pool(20)), small_shared_pool(20));
    let first = AttachServer::start(&path, Share::Pool(Arc::clone(&pool)), terms(0, &lock), Arc::new(Knows)).unwrap();
    let writer = AttachedPool::attach(&path, "e", 0, Role::Writer).unwrap();
    drop(first);
    let wanted = Wanted { layout: pool.layout().clone(), segments: other.kept().unwrap(), lock: false };
    let second = AttachServer::start(&path, Share::Wanted(wanted), terms(9, &lock), Arc::new(Knows)).unwrap();
    let refused = AttachedPool::attach(&path, "e", 1, Role::Reader).unwrap_err();
    assert!(matches!(refused, AttachError::Refused(Reason::Recovering | Reason::OtherEngine)), "{refused}");
    let Notice::Ended { reason } = notice(&writer) else { panic!("its pool is not the one") };
    assert!(reason.contains("what was handed back is another pool"), "{reason}");
    assert!(second.pool(Duration::ZERO).is_none() && !lock.is_held());
}

#[test]
fn an_engine_that_does_not_read_what_it_is_told_loses_its_session() {
    let service = Service::new(small_shared_pool(20));
    let channel = service.raw();
    let hello = Hello { protocols: vec![PROTOCOL], role: Role::Reader, engine_id: "e".into(), rank: 0, resume: None };
    channel.send(&Frame::Hello(hello), &[]).unwrap();
    while channel.receive(MAX_DESCRIPTORS).unwrap().0 != Frame::Descriptors {}
    channel.send(&Frame::Ready, &[]).unwrap();
    assert_eq!(service.told().0, "opened");
    let herald = service.server.herald();
    let ended = (0..200_000).any(|_| {
        herald.tell(&Notice::Quarantined { lease_id: "l".repeat(1_000) });
        service.told.try_recv().is_ok_and(|(what, _)| what == "closed")
    });
    assert!(ended || service.told().0 == "closed");
}
