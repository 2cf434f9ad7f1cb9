"""Shape of what one rank decodes, and the device memory that comes of it.

::

    plan ──► DecodeShape ──► HotCache (hot, tables, maps, side)  and  one IndexKeys per group (indexer)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hisparse_svc.engine.hot_cache import HotCache, layer_group_problems, pool_row_problems
from hisparse_svc.engine.rows import RowFormat
from hisparse_svc.errors import InvalidInput, Problem
from hisparse_svc.kernels import INDEX_FP8, PAGE_ROWS, Geometry
from hisparse_svc.kernels.index.keys import INDEX_FORMATS, IndexFormat
from hisparse_svc.kernels.kinds import demand_kinds, each

if TYPE_CHECKING:
    from hisparse_svc._core import Model, Plan

__all__ = ["DecodeShape"]


@dataclass(frozen=True)
class DecodeShape:
    """Shape of one rank's decoding.

    Attributes:
        geometry: Seats, hot rows, picks and the longest request.
        layer_groups: Layers of each group, in the order of the model: one that has an indexer, and those behind it
            that use its picks.
        row_format: How rows of main KV are stored.
        pages: Pages of index keys on the device, a plan's `logical_tokens` by 64: pages have the numbers that they have
            in the host pool.
        pool_rows: Hot rows of each layer to allocate, a plan's `device_tokens`; 0: what the seats take.
        index_format: How index keys are stored.
        tokens_per_key: Tokens that one index key stands for, a divisor of a page's 64; a session decodes 1 alone.

    Raises:
        InvalidInput: No group, a group without layers, no pages, fewer hot rows than the seats take, pools of keys that
            cross pages, or a part of another type.
    """

    geometry: Geometry
    layer_groups: tuple[int, ...]
    row_format: RowFormat
    pages: int
    pool_rows: int = 0
    index_format: IndexFormat = INDEX_FP8
    tokens_per_key: int = 1

    def __post_init__(self) -> None:
        demand_kinds(
            each(Geometry, geometry=self.geometry),
            each(tuple, layer_groups=self.layer_groups),
            each(RowFormat, row_format=self.row_format),
            each(int, pages=self.pages, pool_rows=self.pool_rows, tokens_per_key=self.tokens_per_key),
            each(IndexFormat, index_format=self.index_format),
        )
        problems = layer_group_problems(self.layer_groups) + pool_row_problems(self.geometry, self.pool_rows)
        if self.pages < 1:
            problems.append(Problem("pages", str(self.pages), "must be at least 1", "give the plan's logical pages"))
        if self.tokens_per_key < 1 or PAGE_ROWS % self.tokens_per_key:
            rule = f"must divide {PAGE_ROWS}, the tokens of a page"
            problems.append(Problem("tokens_per_key", str(self.tokens_per_key), rule, "give the plan's"))
        if problems:
            raise InvalidInput(problems)

    @staticmethod
    def of_plan(plan: Plan, model: Model) -> DecodeShape:
        """Take the shape that a plan of the native engine has.

        Args:
            plan: The plan.
            model: Its model.

        Raises:
            InvalidInput: The plan keeps state that a session does not: draft layers, windows or compressors; its first
                layers reuse picks of another stage; or its index keys are of no format that is scored here.

        Example:
            >>> import hisparse_svc
            >>> from hisparse_svc.engine import DecodeShape
            >>> plan = hisparse_svc.plan("glm-5.2", kv_dtype="fp8_e4m3", ratio=4)
            >>> shape = DecodeShape.of_plan(plan, hisparse_svc.load_model("glm-5.2"))
            >>> shape.device_bytes["indexer"] == plan.device_bytes.indexer
            True
        """
        problems = [
            Problem(f"device_bytes.{name}", str(value), "must be 0", "plan a model or a stage without them")
            for name in ("draft", "resident")
            if (value := getattr(plan.device_bytes, name))
        ]
        groups, heads = len(plan.model.layer_groups), plan.model.indexer_layers
        if groups != heads:
            rule = f"must be {groups}, one for each group of layers: the first ones reuse picks of the stage before"
            problems.append(Problem("indexer_layers", str(heads), rule, "plan a stage that begins with an indexer"))
        key_bytes = plan.layout.indexer_bytes
        index_format = next((one for one in INDEX_FORMATS.values() if one.key_bytes == key_bytes), None)
        if index_format is None:
            known = " or ".join(str(one.key_bytes) for one in INDEX_FORMATS.values())
            rule = f"must be {known}, a key that the indexer here scores"
            remedy = "decode this model by an engine with an indexer of its own"
            problems.append(Problem("layout.indexer_bytes", str(key_bytes), rule, remedy))
        if problems or index_format is None:
            raise InvalidInput(problems)
        return DecodeShape(
            geometry=Geometry(
                seats=plan.seats,
                hot_rows=plan.hot_rows,
                top_k=plan.model.picks_per_row,
                context_tokens=model.context_tokens,
            ),
            layer_groups=tuple(plan.model.layer_groups),
            row_format=RowFormat(plan.layout.kv_dtype, plan.layout.row_bytes),
            pages=plan.logical_tokens // plan.page_tokens,
            pool_rows=plan.device_tokens,
            index_format=index_format,
            tokens_per_key=plan.model.tokens_per_index_key,
        )

    @property
    def layers(self) -> int:
        """Layers of the model."""
        return sum(self.layer_groups)

    @property
    def key_page_bytes(self) -> int:
        """Bytes of one page's index keys in one group."""
        return self.index_format.page_bytes // self.tokens_per_key

    @property
    def index_bytes(self) -> int:
        """Bytes of the index keys on the device."""
        return len(self.layer_groups) * self.pages * self.key_page_bytes

    def check_decodes(self) -> None:
        """Check that a session can decode this: its indexer scores a key of each token.

        Raises:
            InvalidInput: Keys are pooled.
        """
        if self.tokens_per_key != 1:
            rule = "must be 1 in a session, whose indexer scores a key of each token"
            remedy = "decode this model by an engine with an indexer of its own"
            raise InvalidInput([Problem("tokens_per_key", str(self.tokens_per_key), rule, remedy)])

    @property
    def device_bytes(self) -> dict[str, int]:
        """What a session of this shape allocates that grows with it, under the names of a plan's `device_bytes`."""
        cache = HotCache(self.geometry, self.layer_groups, self.row_format, "meta", pool_rows=self.pool_rows)
        return {**cache.device_bytes, "indexer": self.index_bytes, "draft": 0, "resident": 0}

    def place(self, layer: int) -> tuple[int, int]:
        """Give the group of a layer, and its place in it: place 0 has the indexer.

        Raises:
            InvalidInput: There is no such layer.
        """
        demand_kinds(each(int, layer=layer))
        before = 0
        for group, layers in enumerate(self.layer_groups):
            if before <= layer < before + layers:
                return group, layer - before
            before += layers
        raise InvalidInput([Problem("layer", str(layer), f"must be 0 to {self.layers - 1}", "count from 0")])
