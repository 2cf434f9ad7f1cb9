"""Slow and obvious: what every kernel must do, in plain torch on the CPU, one request at a time."""

from hisparse_svc.kernels.reference.backup import append, backup, backup_pages
from hisparse_svc.kernels.reference.decode import merge_lse, sparse_mla_decode
from hisparse_svc.kernels.reference.gather import gather
from hisparse_svc.kernels.reference.resolve import newest_start, resolve

__all__ = ["append", "backup", "backup_pages", "gather", "merge_lse", "newest_start", "resolve", "sparse_mla_decode"]
