"""Published refit times: one table of figures, each with its source, and how each refit is planned here."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from benchmarks.published_models import Spread, Weights, checkpoint, nemotron_ultra, quantized

ARTICLE = "NVIDIA's article on Reshard in NeMo RL"
M2N_README = "NVIDIA/nccl-extensions, nccl_m2n/README.md (historical builds, every layer timed)"
NEMO_PAGE = "NVIDIA-NeMo/RL, docs/design-docs/nccl-reshard-refit.md"


@dataclass(frozen=True, slots=True)
class Published:
    """A refit that NVIDIA published.

    Attributes:
        name: short name.
        about: machine and model.
        before: what the first figure is for: ``gather-broadcast`` or ``direct``.
        before_s: that figure, in seconds.
        after: what the second figure is for: ``hybrid`` or ``m2n-node-aware``.
        after_s: that figure, in seconds.
        source: where both were published.
        spread: how the model is spread.
        spread_source: where that stands, and what is inferred.
        weights: the parameters.
        whole: the same refit between the frameworks' own buffers, a name of :data:`benchmarks.whole.WHOLE`.
    """

    name: str
    about: str
    before: str
    before_s: float
    after: str
    after_s: float
    source: str
    spread: Spread
    spread_source: str
    weights: Callable[[], Iterable[Weights]]
    whole: str | None = None

    @property
    def speedup(self) -> float:
        return self.before_s / self.after_s


REFIT = "gather-broadcast", "hybrid"
BENCHMARK = "direct", "m2n-node-aware"

H100, GB200 = "dgx-h100", "gb200-nvl72"

ALLOCATION = 64
"""GPUs of a domain of GB200: 16 trays, a common allocation."""


def _deepseek_fp8() -> Iterable[Weights]:
    return quantized(checkpoint("DeepSeek-V3"))


PUBLISHED: tuple[Published, ...] = (
    Published(
        "qwen3-235b-h100", "DGX H100, Qwen3-235B",
        REFIT[0], 6.4, REFIT[1], 1.9, ARTICLE,
        Spread(4, 16, 8, 16, 8, 16, H100),
        "NVIDIA-NeMo/RL pull request 2413; that the figures belong to this layout is inferred",
        partial(checkpoint, "Qwen3-235B-A22B"), "qwen3-235b",
    ),
    Published(
        "deepseek-v3-h100", "DGX H100, DeepSeek-V3",
        REFIT[0], 14.9, REFIT[1], 2.6, ARTICLE,
        Spread(1, 16, 16, 16, 32, 8, H100),
        f"{NEMO_PAGE}, which has 2.39 to 2.83 s for it",
        partial(checkpoint, "DeepSeek-V3"), "deepseek-v3",
    ),
    Published(
        "deepseek-v3-gb200", "DGX GB200, DeepSeek-V3",
        REFIT[0], 6.1, REFIT[1], 2.3, ARTICLE,
        Spread(1, 16, 16, 16, 32, 8, GB200, ALLOCATION),
        f"{NEMO_PAGE}, which has 1.93 to 2.59 s for it; the public recipe for GB200 has half as many GPUs",
        partial(checkpoint, "DeepSeek-V3"), "deepseek-v3-nvl64",
    ),
    Published(
        "nemotron-ultra-gb200", "DGX GB200, Nemotron Ultra v3",
        REFIT[0], 8.2, REFIT[1], 2.3, ARTICLE,
        Spread(8, 32, 2, 32, 8, 8, GB200, ALLOCATION),
        f"{NEMO_PAGE}, which has 2.32 s for it; the number of GPUs and the order of blocks are assumed",
        nemotron_ultra,
    ),
    Published(
        "deepseek-v3-m2n", "256 GB200, DeepSeek-V3 in float8",
        BENCHMARK[0], 3.83774, BENCHMARK[1], 1.44744, M2N_README,
        Spread(1, 16, 4, 32, 8, 16, GB200, ALLOCATION),
        "the same page",
        _deepseek_fp8,
    ),
    Published(
        "qwen3-235b-m2n", "128 GB200, Qwen3-235B",
        BENCHMARK[0], 2.17516, BENCHMARK[1], 0.98875, M2N_README,
        Spread(2, 16, 4, 16, 8, 8, GB200, ALLOCATION),
        "the same page",
        partial(checkpoint, "Qwen3-235B-A22B"),
    ),
)  # fmt: skip
"""The rows, in the order of the page."""


@dataclass(frozen=True, slots=True)
class Size:
    """A model of which NVIDIA published what a refit moves.

    Attributes:
        about: its name.
        nbytes: its size, as published.
        logical_nbytes: what gather-and-broadcast moves, in NVIDIA's counting.
        after_s: published time of a refit by Reshard, in seconds; None without one.
        whole: a refit of it, a name of :data:`benchmarks.whole.WHOLE`; None where parameters are not public.
    """

    about: str
    nbytes: float
    logical_nbytes: float
    after_s: float | None
    whole: str | None


SIZES: tuple[Size, ...] = (
    Size("Kimi K3", 5.6e12, 11.2e12, None, "kimi-k3"),
    Size("Qwen3.8 2.4T in bfloat16", 4.8e12, 9.6e12, 4.3, None),
)
"""Published by the article."""
