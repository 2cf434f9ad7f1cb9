"""Memory, from the core's own report: how large a host pool can be here, and what would make it faster."""

from __future__ import annotations

from typing import Any

from hisparse_svc._core import machine, show_size
from hisparse_svc.doctor.check import Check, unknown_reason

__all__ = ["memory_checks"]

SHM = "/dev/shm"  # noqa: S108 - a subject of the examination, not a place to write to


def memory_checks(assume_memory: int | None = None) -> list[Check]:
    """Look at memory, limits and pages."""
    report = machine(assume_memory)
    return [
        pool(report["headroom"]),
        memory(report["memory"]),
        cgroup(report["cgroup"]),
        memlock(report["memlock"]),
        shm(report["shm"]),
        hugepages(report["hugepages"]),
        transparent_hugepages(report["transparent_hugepages"]),
        numa(report["numa"]),
        policies(report["memory_policies"]),
        open_files(report["open_files"]),
    ]


def size(finding: Any) -> str:
    """Write a byte count, or why it is not known."""
    reason = unknown_reason(finding)
    if reason is not None:
        return f"unknown ({reason})"
    return "unlimited" if finding is None else show_size(finding)


def pool(headroom: dict[str, Any]) -> Check:
    """Say how large a host pool fits, which is what all the rest is for."""
    if "usable_bytes" not in headroom:
        limit = headroom.get("limit")
        if limit is None:
            return Check("host pool", "unknown", "no limit can be read", "no pool is made", "give --assume-memory SIZE")
        return Check("host pool", "note", f"no room: {limit['source']}", "no pool fits here", limit["remedy"])
    bound = headroom["limits"][0]
    found = f"up to {show_size(headroom['usable_bytes'])}, bound by {bound['source']}"
    meaning = f"`--host-pool auto` takes {show_size(headroom['auto_bytes'])} and leaves the rest to the system"
    return Check("host pool", "ok", found, meaning, bound["remedy"])


def memory(report: dict[str, Any]) -> Check:
    """Say what the machine has."""
    found = f"{size(report['available_bytes'])} available of {size(report['total_bytes'])}"
    if unknown_reason(report["available_bytes"]):
        return Check("memory", "unknown", found, "the pool's size cannot be checked", "give --assume-memory SIZE")
    swap = report["swap_total_bytes"]
    if isinstance(swap, int) and swap > 0:
        meaning = "idle pages of the pool may be written to disk"
        return Check(
            "memory", "note", f"{found}, {size(swap)} of swap", meaning, "turn swap off, or serve with --mlock"
        )
    return Check("memory", "ok", found, "the pool takes its pages from here, once per node and not per rank")


def cgroup(report: dict[str, Any]) -> Check:
    """Say what a container or a service manager allows."""
    limits = report["limits"]
    if limits:
        tightest = min(limits, key=lambda limit: int(limit["limit_bytes"]))
        found = f"limit {size(tightest['limit_bytes'])}, {size(tightest['used_bytes'])} used ({tightest['file']})"
        remedy = "raise the pod's or unit's memory limit (resources.limits.memory, MemoryMax=)"
        return Check("cgroup", "ok", found, "pool pages are charged to this group", remedy)
    reason = unknown_reason(report["groups"])
    if reason:
        return Check("cgroup", "unknown", reason, "a container limit may exist that is not seen")
    versions = ", ".join(sorted({group["version"] for group in report["groups"]})) or "none"
    return Check("cgroup", "ok", f"no memory limit (groups: {versions})", "no container limit binds the pool")


def memlock(report: dict[str, Any]) -> Check:
    """Say what may be locked."""
    soft = report["soft_bytes"]
    found = size(soft)
    if report["exempt"] is True:
        return Check("memlock", "ok", f"{found}, not binding (CAP_IPC_LOCK)", "`serve --mlock` may lock any pool")
    if unknown_reason(soft):
        return Check("memlock", "unknown", found, "`serve --mlock` may be refused")
    if soft is None:
        return Check("memlock", "ok", found, "`serve --mlock` may lock any pool")
    meaning = "does not bind the pool itself; `serve --mlock` needs as much as the pool"
    return Check("memlock", "note", found, meaning, "`ulimit -l unlimited`, LimitMEMLOCK=infinity, or CAP_IPC_LOCK")


def shm(report: dict[str, Any]) -> Check:
    """Say what `/dev/shm` holds, which matters only as a state directory."""
    found = f"{size(report['available_bytes'])} free of {size(report['total_bytes'])}"
    reason = unknown_reason(report["available_bytes"])
    if reason:
        return Check(SHM, "unknown", found, "matters only where --state-dir lies on it")
    meaning = "bounds the pool only where --state-dir lies on it; memfd segments do not use it"
    return Check(SHM, "ok", found, meaning, f"mount -o remount,size=SIZE {SHM}, or an emptyDir with a sizeLimit")


def hugepages(pools: list[dict[str, Any]]) -> Check:
    """Say how many huge pages are set aside."""
    held = [
        f"{pool['free_pages']} of {pool['total_pages']} x {show_size(pool['page_bytes'])} free"
        for pool in pools
        if pool["total_pages"]
    ]
    if held:
        return Check("hugepages", "ok", "; ".join(held), "segments use them first: fewer TLB misses, no splitting")
    if not pools:
        return Check("hugepages", "unknown", "no sizes are listed", "segments use ordinary pages")
    sizes = ", ".join(show_size(pool["page_bytes"]) for pool in pools)
    remedy = "write a count to /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"
    return Check("hugepages", "note", f"none set aside ({sizes})", "segments use ordinary pages", remedy)


def transparent_hugepages(report: dict[str, Any]) -> Check:
    """Say whether the kernel makes huge pages of shared memory."""
    shared = report["shared"]
    if unknown_reason(shared):
        return Check("THP", "unknown", size(shared), "populating the pool may be slower")
    found = f"shared memory: {shared}"
    if shared in ("advise", "always", "within_size", "force"):
        return Check("THP", "ok", found, "populating the pool is about three times faster")
    remedy = "write `advise` to /sys/kernel/mm/transparent_hugepage/shmem_enabled"
    return Check("THP", "note", found, "the kernel ignores advice on segments; populating takes longer", remedy)


def numa(nodes: Any) -> Check:
    """Say how memory is spread over nodes."""
    reason = unknown_reason(nodes)
    if reason or not nodes:
        return Check("NUMA", "unknown", reason or "no node is listed", "pages are placed where they are first touched")
    each = ", ".join(f"node {node['id']}: {size(node['total_bytes'])}, CPUs {node['cpus']}" for node in nodes)
    if not all(node["allowed"] for node in nodes):
        remedy = "widen the cpuset (cpuset.mems) of this container"
        return Check("NUMA", "note", each, "the cpuset leaves some nodes out; a pool cannot use them", remedy)
    if len(nodes) == 1:
        return Check("NUMA", "ok", each, "one node: nothing to place")
    return Check(
        "NUMA", "ok", each, "`serve --numa prefer:NODE` or bind:NODE puts the pool beside the GPU that reads it"
    )


def policies(allowed: Any) -> Check:
    """Say whether the kernel lets us choose where pages come from, which seccomp profiles often refuse."""
    reason = unknown_reason(allowed)
    if reason:
        return Check("placement", "unknown", reason, "`serve --numa` may have to place pages by first touch")
    if allowed:
        return Check("placement", "ok", "mbind is allowed", "`serve --numa` is kept to by the kernel")
    meaning = "`serve --numa` makes pages on threads kept on the node's CPUs instead, and says where they came to lie"
    remedy = "allow mbind in the container's seccomp profile, or grant CAP_SYS_NICE"
    return Check("placement", "note", "mbind is refused", meaning, remedy)


FILES_WANTED = 1_024
"""Open files that 256 connections of each kind, the segments of a large pool and their readers' descriptors need."""


def open_files(report: dict[str, Any]) -> Check:
    """Say how many descriptors a service or an engine may hold: one per segment, one per connection."""
    soft, hard = report["soft"], report["hard"]
    reason = unknown_reason(soft)
    if reason:
        return Check("open files", "unknown", reason, "each segment and each connection takes one")
    shown = ["unlimited" if limit is None else f"{limit:,}" for limit in (soft, hard)]
    found = f"{shown[0]} (at most {shown[1]})"
    meaning = "each segment (64 GiB of the pool) and each connection takes one"
    if soft is not None and soft < FILES_WANTED:
        return Check("open files", "note", found, meaning, f"`ulimit -n {FILES_WANTED}`, LimitNOFILE={FILES_WANTED}")
    return Check("open files", "ok", found, meaning)
