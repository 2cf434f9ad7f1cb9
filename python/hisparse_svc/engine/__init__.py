"""The engine's side of a node: its host pool, mapped into the engine's processes."""

from hisparse_svc.engine.host_pool import AttachFailed, HostPool

__all__ = ["AttachFailed", "HostPool"]
