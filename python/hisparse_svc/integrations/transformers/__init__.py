"""Models of Hugging Face transformers that decode with their KV in host memory: `glm_moe_dsa` and `deepseek_v32`.

::

    generate(cache=…)  ┐                     ┌── prefill: rows of a layer to the host, in bulk
    ContinuousBatch    ┴── HostCache ────────┤
                             one forward     └── decode: DecodeSession.step, attention over hot rows

`HostKv` belongs to one model and one `DecodeSession`, `HostCache` to one batch of its requests. The model's code is not
changed: latents are taken before K and V are expanded from them, the attention function attends to them.
"""

from hisparse_svc import extras

with extras.needed(__name__, "transformers"):
    from hisparse_svc.integrations.transformers.batching import ContinuousBatch, Generation
    from hisparse_svc.integrations.transformers.cache import HostCache
    from hisparse_svc.integrations.transformers.hooks import cache_argument
    from hisparse_svc.integrations.transformers.kv import HostKv
    from hisparse_svc.integrations.transformers.shapes import config_json
    from hisparse_svc.integrations.transformers.tracing import record_picks

__all__ = ["ContinuousBatch", "Generation", "HostCache", "HostKv", "cache_argument", "config_json", "record_picks"]
