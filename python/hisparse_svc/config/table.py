"""The table of settings: flags, variables and keys of the file are all made from this one dataclass."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from hisparse_svc.config import values
from hisparse_svc.rpc.target import default_socket

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def _setting(read: Callable[[str, Any], Any], metavar: str, text: str, default: Any = None, name: str = "") -> Any:
    metadata = {"read": read, "metavar": metavar, "help": text, "name": name}
    if callable(default):
        return dataclasses.field(default_factory=default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class ServeConfig:
    """What `serve` runs with."""

    model: str = _setting(values.text, "MODEL", "The model served: a preset, a config.json or its folder.", "glm-5.2")
    kv_dtype: str = _setting(
        values.word("bfloat16", "fp8_e4m3", "fp8_raw", "float32"),
        "bfloat16|fp8_e4m3|fp8_raw|float32",
        "How main KV is stored.",
        "fp8_e4m3",
    )
    host_pool_bytes: int | Literal["auto"] | None = _setting(
        values.size_or_auto, "SIZE|auto", "Size of the host pool.  [1GiB, unless --ratio is given]", name="host_pool"
    )
    ratio: str | None = _setting(values.ratio, "R", "Logical tokens per device token, instead of --host-pool.")
    hot_rows: int | None = _setting(values.whole, "N", "Rows of one hot buffer; a multiple of 64.")
    gpu: str | None = _setting(values.text, "NAME", "The GPU planned for: h200, b200, …")
    kv_bytes: int | None = _setting(values.size, "SIZE", "GPU memory left for KV, instead of --gpu.  [20GiB]")
    tp: int = _setting(values.whole, "N", "Ranks of tensor parallelism.", 1)
    context: int | None = _setting(
        values.whole,
        "N",
        "Longest context served, in tokens: GPU memory is split for it, as `plan --context` does. Longer requests are "
        "taken while they fit.  [the model's longest]",
    )
    seats: int | None = _setting(values.whole, "N", "Hot buffers, where fewer than fit are wanted.")
    max_requests: int = _setting(values.whole, "N", "Rows of the engine's request tables.", 1_024)
    backing: str = _setting(
        values.word("memory", "none"),
        "memory|none",
        "memory: this process owns the pool's bytes and engines attach. none: it counts pages, an engine owns them.",
        "memory",
    )
    state_dir: Path | None = _setting(
        values.path,
        "DIR",
        "Folder in memory (tmpfs, mode 0700) where pool and journal outlive this process and its engine.",
    )
    reclaim_window_s: int = _setting(
        values.window,
        "S",
        f"Seconds that a dead engine's leases wait for its successor, at most {values.MAX_WINDOW_S}.",
        120,
        name="reclaim_window",
    )
    assume_memory_bytes: int | None = _setting(
        values.size, "SIZE", "Go by this much host memory instead of what the machine reports.", name="assume_memory"
    )
    mlock: bool = _setting(values.truth, "", "Lock the pool into memory; only with --backing memory.", default=False)
    pages: str = _setting(
        values.word("auto", "huge", "thp", "plain"),
        "auto|huge|thp|plain",
        "The pool's pages: huge ones set aside, transparent huge ones, plain ones; auto takes the best there is.",
        "auto",
    )
    numa: str = _setting(
        values.text,
        "any|prefer:NODE|bind:NODE",
        "Memory node of the pool; segments take several (prefer:0,1) in turn. prefer falls back, bind does not.",
        "any",
    )
    allow_uid: tuple[int, ...] | None = _setting(
        values.uids,
        "UID[,UID…]",
        "Users that may attach besides this one; they reach the socket by its folder's mode. May be repeated.",
    )
    tenants: tuple[values.TenantPart, ...] = _setting(
        values.tenants,
        "QUOTAS",
        "What tenants may hold, as floor..ceiling per pool: 'search: seats=4..16; *: seats=..8'; * is each other one. "
        "May be repeated.",
        (),
    )
    layer_groups: str = _setting(
        values.word("auto", "off"),
        "auto|off",
        "Group layers that share an indexer; only with --backing memory.",
        "auto",
    )
    socket: Path = _setting(
        values.socket, "PATH", "The Unix socket.  [$XDG_RUNTIME_DIR/hisparse/hisparse.sock]", default_socket
    )
    listen: str | None = _setting(
        values.address, "HOST:PORT", "Serve gRPC on this TCP address too; other than loopback only with certificates."
    )
    tls_cert: Path | None = _setting(values.path, "FILE.pem", "The service's certificate for --listen, with its chain.")
    tls_key: Path | None = _setting(values.path, "FILE.pem", "The key of --tls-cert.")
    tls_client_ca: Path | None = _setting(
        values.path, "FILE.pem", "The authorities whose clients may connect to --listen."
    )
    access: str | None = _setting(
        values.entries,
        "WHO=ROLE…",
        "Who may do what, and nobody else anything: uid:1001=router, gid:2000=engine, cert:NAME=admin, …@TENANT. "
        "Entries have commas between them; may be repeated, which adds to the list.",
    )
    admits_per_second: int | None = _setting(values.whole, "N", "Most Admits per second; more are shed.  [no limit]")
    max_connections: int | None = _setting(values.whole, "N", "Most connections of gRPC.  [2048]")
    max_connections_per_user: int | None = _setting(
        values.whole, "N", "Most of one uid, certificate or address.  [1024]"
    )
    max_calls_per_peer: int | None = _setting(values.whole, "N", "Most calls of one process at a time.  [1024]")
    max_calls: int | None = _setting(values.whole, "N", "Most calls at a time.  [8192]")
    log: str = _setting(
        values.word("text", "json"),
        "text|json",
        "What stderr says: notices as text, or those, every call and every change of standing as JSON.",
        "text",
    )
    exemplars: bool = _setting(
        values.truth, "", "Keep callers' traces as exemplars of hisparse_admit_seconds, for OpenMetrics.", default=False
    )
    http: str | None = _setting(
        values.address,
        "HOST:PORT",
        "Where /healthz, /readyz, /metrics and, for this machine, the page are; off for nowhere.",
        "127.0.0.1:7412",
    )


def settings() -> dict[str, dataclasses.Field[Any]]:
    """Give the table by name: `host_pool` is `--host-pool`, `HISPARSE_HOST_POOL` and `host_pool = …`."""
    return {field.metadata["name"] or field.name: field for field in dataclasses.fields(ServeConfig)}
