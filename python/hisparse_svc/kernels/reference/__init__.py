"""Slow and obvious: what every kernel must do, in plain torch on the CPU, one request at a time."""

from hisparse_svc.kernels.reference.backup import append, backup, backup_pages
from hisparse_svc.kernels.reference.decode import merge_lse, sparse_mla_decode
from hisparse_svc.kernels.reference.gather import gather
from hisparse_svc.kernels.reference.index import append_index_keys, index_logits, index_top_k, write_index_keys
from hisparse_svc.kernels.reference.resolve import newest_start, resolve
from hisparse_svc.kernels.reference.split import split_picks

__all__ = [
    "append",
    "append_index_keys",
    "backup",
    "backup_pages",
    "gather",
    "index_logits",
    "index_top_k",
    "merge_lse",
    "newest_start",
    "resolve",
    "sparse_mla_decode",
    "split_picks",
    "write_index_keys",
]
