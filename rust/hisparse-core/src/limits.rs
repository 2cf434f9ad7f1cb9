//! Every bound and default of the product, once. The same names appear in proto comments, CLI help and the docs.

use std::time::Duration;

/// Tokens in one page, in every layer of every pool.
pub const PAGE_TOKENS: u64 = 64;

/// Largest hot buffer: its recency order holds signed 16-bit slots, and 40,000 wraps silently upstream.
pub const MAX_HOT_ROWS: u64 = 32_768;

/// Most layers a model may have; real ones have 61 to 78.
pub const MAX_LAYERS: u64 = 1_024;

/// Largest `config.json` read, in bytes; real ones are below 64 KiB.
pub const MAX_CONFIG_BYTES: usize = 4 << 20;

/// Most heads of one kind a config may claim.
pub const MAX_HEADS: u64 = 1 << 16;

/// Longest context a config may claim, in tokens (2^32: a thousand times today's longest).
pub const MAX_CONTEXT_TOKENS: u64 = 1 << 32;

/// Widest head, rank or hidden dimension a config may claim.
pub const MAX_DIMENSION: u64 = 1 << 20;

/// Largest memory figure accepted anywhere, in bytes (1 PiB).
pub const MAX_MEMORY_BYTES: u64 = 1 << 50;

/// Largest host-to-device ratio.
pub const MAX_RATIO: u64 = 10_000;

/// Compute capability (major × 10 + minor) where none is given: H100, H200.
pub const DEFAULT_SM: u64 = 90;

/// Lowest compute capability a request may name: the oldest that CUDA 12 compiles for.
pub const MIN_SM: u64 = 50;

/// Highest compute capability a request may name.
pub const MAX_SM: u64 = 999;

/// Tokens attended per step where neither a model nor a configuration says.
pub const DEFAULT_TOP_K: u64 = 2_048;

/// The ratio that a `--hisparse-config` text without one stands for: SGLang's documented default.
pub const CONFIG_RATIO: u64 = 2;

/// Longest `--hisparse-config` text, in bytes.
pub const MAX_HISPARSE_CONFIG_BYTES: usize = 64 << 10;

/// Fewest threads of a swap-in block: below 512 SGLang's hit scan has fewer warps than counts and adds stale ones.
pub const MIN_BLOCK_THREADS: u64 = 512;

/// Most threads of a swap-in block: a CUDA block has no more.
pub const MAX_BLOCK_THREADS: u64 = 1_024;

/// Threads of a swap-in block come in whole warps.
pub const BLOCK_THREADS_STEP: u64 = 32;

/// Fewest and most tokens of one request that the multi-token swap-in verifies at once.
pub const DRAFT_TOKENS: std::ops::RangeInclusive<u64> = 2..=4;

/// Smallest top-k of the multi-token swap-in.
pub const MIN_DRAFT_TOP_K: u64 = 1_024;

/// What `--host-pool auto` leaves to everything else on the machine: one part in this many of the headroom …
pub const AUTO_POOL_RESERVE_SHARE: u64 = 8;

/// … and at least these bytes (512 MiB), but never more than half of the headroom.
pub const AUTO_POOL_RESERVE_BYTES: u64 = 512 << 20;

/// Fewest bytes of GPU memory a plan accepts for KV (1 MiB): below it every answer is "nothing fits".
pub const MIN_KV_BYTES: u64 = 1 << 20;

/// GPU memory for KV where neither a GPU nor a size is named (20 GiB).
pub const DEFAULT_KV_BYTES: u64 = 20 << 30;

/// Host-to-device ratio where neither a ratio nor a host pool is named: four logical tokens per device token.
pub const DEFAULT_RATIO: u64 = 4;

/// Ranks of one kind (tensor, data, pipeline) a plan accepts.
pub const MAX_RANKS: u64 = 1_024;

/// Requests at once an engine may be set to.
pub const MAX_SEQS: u64 = 1 << 20;

/// Speculative tokens per step: a verify step of eight query rows is the widest any engine documents.
pub const MAX_SPECULATIVE_TOKENS: u64 = 7;

/// Speculative tokens per step that this project's own swap-in resolves as one union of query rows.
pub const MAX_NATIVE_SPECULATIVE_TOKENS: u64 = 4;

/// Draft layers a plan accepts.
pub const MAX_DRAFT_LAYERS: u64 = 64;

/// Context lengths of one plan's concurrency table.
pub const MAX_PLAN_CONTEXTS: usize = 1_024;

/// Tokens of one chunk of prefill an engine may be set to.
pub const MAX_PREFILL_CHUNK_TOKENS: u64 = 1 << 30;

/// Most pages of one host pool (2^24; of GLM-5.2 FP8, whose page is 3.45 MB, 10^6 are 3.4 TB).
pub const MAX_POOL_PAGES: u64 = 1 << 24;

/// Most tenants a node knows at one time; one that holds nothing makes room for a new one.
pub const MAX_TENANTS: u64 = 1_024;

/// Longest tenant name, in bytes.
pub const MAX_TENANT_BYTES: u64 = 64;

/// Longest request id, in bytes.
pub const MAX_REQUEST_ID_BYTES: u64 = 128;

/// Bytes of a page's prefix hash.
pub const PAGE_HASH_BYTES: usize = 32;

/// Most prefix hashes of one request.
pub const MAX_PREFIX_HASHES: u64 = 1 << 16;

/// Part of a pool, as a divisor, that is kept takeable by chilling the oldest cached pages.
pub const STOCK_SHARE: u64 = 8;

/// Cached pages chilled in one call in search of a run: bounds the part of the cache that an admission makes takeable.
pub const MAX_CHILLED_FOR_A_RUN: u32 = 512;

/// Most requests in one batch.
pub const MAX_BATCH_REQUESTS: u64 = 256;

/// Most lengths one `GetCapacity` may ask about.
pub const MAX_LENGTHS_ASKED: u64 = 64;

/// Most seats or request slots of one node.
pub const MAX_SEATS: u64 = 1 << 20;

/// Priorities run from minus this to this; 0 is the default.
pub const MAX_PRIORITY: i32 = 100;

/// Most requests that wait for room at one time. One tenant has at most as many of these places as are free: alone it has
/// half of them, and the next tenant finds room whatever the first one does.
pub const MAX_WAITERS: u64 = 4_096;

/// How long an Admit that does not wait, a `BatchAdmit` or an Extend is kept all the same, where it lacks nothing but zeroes:
/// pages that held another tenant's bytes, and are being overwritten.
pub const SCRUB_PATIENCE: Duration = Duration::from_millis(100);

/// Pages that one step of scrubbing ahead takes out of the free ones, …
pub const SCRUB_AHEAD_PAGES: u32 = 16;

/// … and pages that it looks at to find them.
pub const SCRUB_AHEAD_LOOK_PAGES: u32 = 4_096;

/// Scrubbing ahead takes at most one part in this many of one core's time.
pub const SCRUB_AHEAD_SHARE: u32 = 8;

/// Longest a request may ask to wait for room.
pub const MAX_WAIT: Duration = Duration::from_secs(600);

/// How long a lease lives that nobody commits, unless its request says otherwise.
pub const UNCOMMITTED_TTL: Duration = Duration::from_secs(30);

/// How long a lease lives that a router committed and nobody renews, unless its commit says otherwise.
pub const ROUTER_TTL: Duration = Duration::from_secs(600);

/// Shortest time to live that a caller may ask for.
pub const MIN_TTL: Duration = Duration::from_millis(1);

/// Longest time to live that a caller may ask for.
pub const MAX_TTL: Duration = Duration::from_secs(3_600);

/// How long pages stay quarantined after an expiry that nobody confirms.
pub const QUARANTINE_BOUND: Duration = Duration::from_secs(120);

/// Leases that one call ends because their time is over or their engine is gone: some 100 µs, so that no call waits long
/// for what others left behind. The rest is ended by the calls that follow.
pub const MAX_ENDINGS_PER_CALL: usize = 256;

/// Leases that one decision reads or hands on in a walk over all of them (`ListLeases`, `Dump`, `Reclaim`): some 100
/// µs.
pub const MAX_LEASES_PER_SLICE: u32 = 256;

/// Lines of the log that wait for its reader; more are dropped and counted.
pub const LOG_QUEUE_LINES: usize = 4_096;

/// How long a service that ends waits for the reader of its log.
pub const LOG_PATIENCE: Duration = Duration::from_secs(1);

/// Pages that one decision looks at in a survey of all of them: some 20 µs, and less than 100.
pub const MAX_PAGES_PER_SLICE: u32 = 4_096;

/// Leases that an overview lists: the oldest.
pub const MAX_OVERVIEW_LEASES: usize = 1_000;

/// Runs of pages that it lists of one lease: the first.
pub const MAX_OVERVIEW_EXTENTS: usize = 4;

/// Buckets of pages in its map.
pub const MAX_MAP_BUCKETS: u32 = 1_024;

/// Steps of its history of Admits, …
pub const HISTORY_STEPS: usize = 120;

/// … and the length of one.
pub const HISTORY_STEP: Duration = Duration::from_secs(5);

/// Viewers of the page at a time: each is a stream of the HTTP port.
pub const MAX_PAGE_VIEWERS: usize = 16;

/// Rest between two states of the node on the page.
pub const PAGE_REST: Duration = Duration::from_millis(500);

/// How long a viewer may take nothing before it loses its place.
pub const PAGE_SEND_TIMEOUT: Duration = Duration::from_secs(10);

/// Entries of one usage report.
pub const MAX_USAGE_ENTRIES: usize = 4_096;

/// How long a dead engine's leases wait for its successor.
pub const RECLAIM_WINDOW: Duration = Duration::from_secs(120);

/// Shortest journal that is worth compacting, in bytes (8 MiB).
pub const JOURNAL_COMPACT_BYTES: u64 = 8 << 20;

/// How much longer than its compacted form a journal gets before it is compacted again.
pub const JOURNAL_GROWTH: u64 = 2;

/// How finely a journal tells when its records were decided (1 s).
pub const JOURNAL_TIME_STEP: Duration = Duration::from_secs(1);

/// Largest segment of a host pool, in bytes (64 GiB): one registration of 512 GiB and more fails, and the driver's lock
/// is held for as long as one takes.
pub const MAX_SEGMENT_BYTES: u64 = 64 << 30;

/// Longest a replayed request waits for room, unless told otherwise.
pub const REPLAY_MAX_WAIT: Duration = Duration::from_secs(30);

/// Time a replayed request takes for one token, unless told otherwise.
pub const REPLAY_DECODE: Duration = Duration::from_millis(50);

/// Tokens a second that a replayed request prefills, unless told otherwise.
pub const REPLAY_PREFILL_TPS: u64 = 20_000;

/// Fastest prefill a replay accepts, in tokens a second.
pub const MAX_PREFILL_TOKENS_PER_SECOND: u64 = 1_000_000_000;

/// Samples of a replay's timeline, over the arrivals of its trace.
pub const REPLAY_SAMPLES: u64 = 720;

/// Latest arrival in a trace, in milliseconds (a year).
pub const MAX_TRACE_MS: u64 = 366 * 86_400_000;

/// Largest trace read, in bytes; Mooncake's are below 64 MiB.
pub const MAX_TRACE_BYTES: usize = 1 << 30;

/// Largest settings file of `serve`, in bytes.
pub const MAX_SETTINGS_BYTES: usize = 1 << 20;

/// Problems of a trace that are shown before the rest goes unread.
pub const MAX_TRACE_PROBLEMS: usize = 20;

/// Longest path of a Unix socket, in bytes: what `sockaddr_un` holds beside its closing zero.
pub const MAX_SOCKET_PATH_BYTES: usize = 107;

/// Longest a starting server waits for another one that is starting in the same folder.
pub const SOCKET_FOLDER_LOCK_WAIT: Duration = Duration::from_secs(1);

/// Threads that answer calls, by default; and the most.
pub const SERVE_THREADS: usize = 2;
/// See [`SERVE_THREADS`].
pub const MAX_SERVE_THREADS: usize = 64;

/// Largest message received, in bytes: a longest list of prefix hashes (34 bytes each on the wire) and room beside it.
pub const MAX_RECEIVED_BYTES: usize = (1 << 21) + (1 << 18);

/// Largest message sent, in bytes.
pub const MAX_SENT_BYTES: usize = 1 << 20;

/// Most calls of one connection at a time: those of a peer, and some with head-room.
pub const MAX_CALLS_PER_CONNECTION: u32 = 1_024 + 64;

/// Most connections of all listeners of gRPC together, unless configured otherwise.
pub const MAX_CONNECTIONS: usize = 2_048;

/// Most connections of one user (a uid, a certificate, an address), unless configured otherwise.
pub const MAX_CONNECTIONS_PER_USER: usize = 1_024;

/// Most calls of one peer (a process, a certificate, an address) at a time, unless configured otherwise. As many again
/// are kept for its calls that have head-room.
pub const MAX_CALLS_PER_PEER: usize = 1_024;

/// Most calls of all peers at a time: every waiter, every watch, and as many others besides.
pub const MAX_CALLS: usize = 8_192;

/// Places beyond [`MAX_CALLS`] for calls that have head-room: Release, Renew, Commit, health.
pub const HEAD_ROOM_CALLS: usize = 1_024;

/// Most calls of all peers at a time whose answers are long: `ListLeases`, `Dump`.
pub const MAX_BULK_CALLS: usize = 32;

/// Most of them of one peer.
pub const MAX_BULK_CALLS_PER_PEER: usize = 4;

/// Most calls that wait for one of the places above, …
pub const MAX_QUEUED_CALLS: usize = 256;

/// … and how long they do, before they are shed.
pub const MAX_QUEUED_TIME: Duration = Duration::from_millis(50);

/// Time that a refused call's message has to come in. Answered before, its stream would be reset under a message that is on
/// its way, and a thousand of those end the connection of a peer that did nothing but come too often.
pub const REFUSED_MESSAGE_TIME: Duration = Duration::from_secs(1);

/// No place became free for so long: calls are shed without a wait until one does.
pub const FAIL_FAST_AFTER: Duration = Duration::from_secs(1);

/// Highest rate of Admits that can be configured, in calls per second.
pub const MAX_ADMITS_PER_SECOND: u32 = 1_000_000;

/// Time an accepted connection has to become one: TLS handshake, and the first bytes of HTTP/2.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// A silent connection is asked for a sign of life this often, …
pub const KEEPALIVE: Duration = Duration::from_secs(30);

/// … and has this long to give it.
pub const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// Time a peer has to take what was sent to it, before its connection is closed.
pub const SEND_TIMEOUT: Duration = Duration::from_secs(20);

/// Life of a TLS connection, so that a withdrawn certificate ends some time; a twentieth more or less, so that not all
/// end at once.
pub const MAX_TLS_CONNECTION_AGE: Duration = Duration::from_secs(30 * 60);

/// How long the calls of an aged connection may finish.
pub const AGED_CONNECTION_GRACE: Duration = Duration::from_secs(30);

/// Streams that a peer may reset before they were accepted: more is an attack (CVE-2023-44487).
pub const MAX_PENDING_RESETS: usize = 20;

/// Window of one stream in bytes: what edge proxies use.
pub const STREAM_WINDOW_BYTES: u32 = 64 << 10;

/// Window of one connection in bytes: what edge proxies use.
pub const CONNECTION_WINDOW_BYTES: u32 = 1 << 20;

/// Largest header list of a call, in bytes.
pub const MAX_HEADER_LIST_BYTES: u32 = 8 << 10;

/// Most entries of an access list, and the most bytes of its text.
pub const MAX_ACCESS_ENTRIES: usize = 1_024;
/// See [`MAX_ACCESS_ENTRIES`].
pub const MAX_ACCESS_BYTES: usize = 1 << 18;

/// Largest PEM file of certificates or of a key, in bytes.
pub const MAX_PEM_BYTES: u64 = 1 << 20;

/// Different notices about peers that one process writes; after them, silence.
pub const MAX_NOTICES: usize = 1_024;

/// Most connections of the HTTP port; beyond them the oldest makes room.
pub const MAX_HTTP_CONNECTIONS: usize = 64;

/// Most watches at a time.
pub const MAX_WATCHES: usize = 1_024;

/// Longest resume token of a watch, in bytes.
pub const MAX_RESUME_TOKEN_BYTES: usize = 64;

/// How long the reader of a watch may take nothing before it loses its place.
pub const WATCH_SEND_TIMEOUT: Duration = Duration::from_secs(30);

/// Most messages of one watch, per second.
pub const MAX_WATCH_HZ: u32 = 20;

/// Time a call has where it brings no deadline of its own.
pub const DEFAULT_DEADLINE: Duration = Duration::from_secs(10);

/// Leases in one answer of `ListLeases`, by default; and the most.
pub const LIST_PAGE_LEASES: usize = 100;
/// See [`LIST_PAGE_LEASES`].
pub const MAX_LIST_PAGE_LEASES: usize = 1_000;

/// Largest encoded error details, in bytes: gRPC libraries refuse trailers of 8 KiB.
pub const MAX_ERROR_DETAIL_BYTES: usize = 4_096;

/// Shortest and longest retry delay that a refusal names.
pub const MIN_RETRY_DELAY: Duration = Duration::from_millis(50);
/// See [`MIN_RETRY_DELAY`].
pub const MAX_RETRY_DELAY: Duration = Duration::from_secs(5);

/// How long a stopping server lets calls finish before it ends them.
pub const STOP_GRACE: Duration = Duration::from_secs(5);

/// Size of the host pool of `serve`, by default, in bytes.
pub const SERVE_HOST_POOL_BYTES: u64 = 1 << 30;

/// Nodes one router follows, at most.
pub const MAX_FLEET_NODES: usize = 100_000;

/// Fitting nodes that one choice compares, where more fit: drawn from all of them, so that routers with the same
/// picture do not all choose the same node.
pub const FLEET_CHOICES: usize = 2;

/// Most nodes that one choice may be told to compare.
pub const MAX_FLEET_CHOICES: usize = 1_024;

/// Age from which a router's picture of a node is only used where no fresher one fits.
pub const FLEET_STALE_AFTER: Duration = Duration::from_secs(2);

/// Longest that one node may take over one `Admit` of a router before its outcome counts as unknown.
pub const FLEET_ATTEMPT: Duration = Duration::from_secs(1);

/// Life of a router's reservation without Commit; also the longest that an attempt nobody heard of can hold anything.
pub const FLEET_TTL: Duration = Duration::from_secs(10);

/// What a router waits beyond the ttl of an attempt before it counts the grant as ended.
pub const FLEET_SETTLE_MARGIN: Duration = Duration::from_millis(500);

/// Further attempts that each placed request earns, in thousandths …
pub const FLEET_RETRY_MILLI: u64 = 200;

/// … and those a router may make besides, each second.
pub const FLEET_RETRIES_PER_SECOND: u64 = 10;

/// Most further attempts that are saved up.
pub const FLEET_RETRY_SAVINGS: u64 = 100;

/// Failed calls in a row after which a router leaves a node alone.
pub const FLEET_FAILURES: u32 = 3;

/// First rest of a node that is left alone, and of a watch that broke; it doubles with every failed probe …
pub const FLEET_PROBE_FIRST: Duration = Duration::from_millis(250);

/// … up to this.
pub const FLEET_PROBE_MOST: Duration = Duration::from_secs(10);

/// First rest between two looks of a request that waits for room or was refused, and the longest; looks cost no call.
pub const FLEET_LOOK_FIRST: Duration = Duration::from_millis(20);
/// See [`FLEET_LOOK_FIRST`].
pub const FLEET_LOOK_MOST: Duration = Duration::from_millis(200);

/// Window within which a router goes for room that others see too, after one of its calls came too late; and the longest.
pub const FLEET_GATE_FIRST: Duration = Duration::from_millis(20);
/// See [`FLEET_GATE_FIRST`].
pub const FLEET_GATE_MOST: Duration = Duration::from_millis(500);

/// Most routers that one router reckons with when it takes its own calls off a node's room.
pub const FLEET_CROWD_MOST: u64 = 8;

/// Most nodes of a simulated fleet, and most routers: each router keeps a picture of each node, a third of a KiB.
pub const MAX_SIMULATED_NODES: usize = 10_000;
/// See [`MAX_SIMULATED_NODES`].
pub const MAX_SIMULATED_ROUTERS: usize = 100;

/// Longest virtual time that one simulation of a fleet plays, and the oldest view in it.
pub const MAX_SIMULATED_TIME: Duration = Duration::from_secs(3_600);

/// Most requests of one simulation of a fleet: each is kept until its end, in less than half a KiB.
pub const MAX_SIMULATED_REQUESTS: u64 = 2_000_000;

/// A router remembers where every so many pages of a prefix went (1,024 tokens).
pub const FLEET_PREFIX_STRIDE_PAGES: usize = 16;

/// Grants without a shared page where there should have been some, in a row, after which a router no longer prefers a node
/// for a prefix: it has no engine that publishes pages.
pub const FLEET_VAIN_PREFIXES: u32 = 3;

/// Places in prefixes that a router remembers.
pub const MAX_FLEET_PREFIXES: usize = 1 << 17;
