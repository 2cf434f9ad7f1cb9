"""The engine's side of a node: its host pool, mapped into the engine's processes."""

from hisparse_svc.engine.host_pool import AttachFailed, HostPool
from hisparse_svc.rpc.values import Reclaimed, Usage

__all__ = ["AttachFailed", "HostPool", "Reclaimed", "Usage"]
