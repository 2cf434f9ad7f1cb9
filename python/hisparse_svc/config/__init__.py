"""How `serve` is configured: one table of settings, and three places that they may come from.

::

    values   how one value is read        table   which settings there are        sources   where each comes from
"""

from hisparse_svc.config.sources import PREFIX, check_environment, load, read
from hisparse_svc.config.table import ServeConfig, settings
from hisparse_svc.config.values import TenantPart

__all__ = ["PREFIX", "ServeConfig", "TenantPart", "check_environment", "load", "read", "settings"]
