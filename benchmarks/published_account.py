"""Published refits simulated, and what their times are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import reshard_planner as rp
from benchmarks.published_models import build_simple
from benchmarks.published_rows import BENCHMARK, Published, Size
from benchmarks.whole import WHOLE, Whole, build_whole
from reshard_planner.errors import UnsupportedError
from reshard_planner.progress import Progress, silent, within
from reshard_planner.routing import hybrid
from reshard_planner.simulate import Prediction, phases_by_pattern, predict

STRATEGIES = ("optimal", "m2n-node-aware", "m2n-uniform", "direct", "hybrid")

OF_M2N = ("m2n-uniform", "direct")
"""Those that are simulated on rows of M2N's own benchmark alone."""

FITTED_TENSOR, FITTED_CALL = "qwen3-235b-h100", "qwen3-235b-m2n"
"""Rows on which the time per tensor of gathering and broadcasting, and that per call of M2N, are fitted."""


@dataclass(frozen=True, slots=True)
class Simulated:
    """A row by the topology's rates, efficiencies and latencies, nothing fitted.

    Attributes:
        row: the published refit.
        nbytes: size of the model.
        tensors: tensors of its checkpoint, every expert's counted.
        calls: tensors that M2N moves: all of them in its own benchmark, else the feed-forward ones.
        bound_s: T*, in seconds.
        busiest_s: time of the busiest NIC over the whole plan of ``optimal``, by the certificate.
        times_s: simulated times by strategy, all tensors together; that of ``hybrid`` in its two phases.
            Those that refuse are missing.
        refusals: their reasons.
        phased_s: times by strategy with the executor waiting after every pattern, as M2N's benchmark does.
        feed_forward_s: end of the first phase of ``hybrid``.
        collective_s: the size twice, gathered and broadcast by collectives of all GPUs; see
            :func:`collective_rate`.
        chain_s: the size once over one NIC, which is what the strategy ``gather-broadcast`` takes.
        stored: time of ``optimal`` between the frameworks' own buffers and T* of that refit, in seconds; None
            where they are not planned.
    """

    row: Published
    nbytes: int
    tensors: int
    calls: int
    bound_s: float
    busiest_s: float
    times_s: dict[str, float]
    refusals: dict[str, str]
    phased_s: dict[str, float]
    feed_forward_s: float
    collective_s: float
    chain_s: float
    stored: tuple[float, float] | None

    @property
    def unfitted_before_s(self) -> float:
        """What the first published figure is for, nothing fitted."""
        return self.phased_s["direct"] if self.row.before == BENCHMARK[0] else self.collective_s

    @property
    def unfitted_after_s(self) -> float:
        """What the second one is for."""
        return (self.phased_s if self.row.after == BENCHMARK[1] else self.times_s)[self.row.after]


@dataclass(frozen=True, slots=True)
class Fits:
    """The fitted parameters.

    Attributes:
        tensor_s: time per tensor of the checkpoint that gathering and broadcasting takes, in seconds.
        call_s: time per call of M2N, one call per tensor that it moves, in seconds.
    """

    tensor_s: float
    call_s: float

    def before_s(self, each: Simulated) -> float:
        """Predicted time of what the first published figure is for."""
        if each.row.before == BENCHMARK[0]:
            return each.unfitted_before_s + each.calls * self.call_s
        return each.unfitted_before_s + each.tensors * self.tensor_s

    def after_s(self, each: Simulated) -> float:
        """Predicted time of what the second one is for."""
        return each.unfitted_after_s + each.calls * self.call_s

    def speedup(self, each: Simulated) -> float:
        return self.before_s(each) / self.after_s(each)


def fit(simulated: Sequence[Simulated]) -> Fits:
    """Both parameters, each from one published figure of one row."""
    by_name = {each.row.name: each for each in simulated}
    tensor, call = by_name[FITTED_TENSOR], by_name[FITTED_CALL]
    return Fits(needed_tensor_s(tensor), (call.row.after_s - call.unfitted_after_s) / call.calls)


def needed_tensor_s(each: Simulated) -> float:
    """The time per tensor under which the first published figure of a row is met."""
    return (each.row.before_s - each.unfitted_before_s) / each.tensors


def simulate_row(row: Published, progress: Progress = silent) -> Simulated:
    """Compile and simulate all strategies of a row."""
    weights = list(row.weights())
    spec = build_simple(weights, row.spread)
    nbytes = sum(tensor.nbytes for tensor in spec.tensors)
    times: dict[str, float] = {}
    phased: dict[str, float] = {}
    refusals: dict[str, str] = {}
    bound_s, busiest_s, feed_forward_s = 0.0, 0.0, 0.0
    halves = hybrid.phases(spec)
    benchmark = row.after == BENCHMARK[1]
    for strategy in STRATEGIES if benchmark else (name for name in STRATEGIES if name not in OF_M2N):
        progress(strategy)
        try:
            plan = rp.compile(spec, strategy)
        except UnsupportedError as error:
            refusals[strategy] = str(error)
            continue
        bound_s = plan.certificate.bound.time_s
        if strategy == "optimal":
            busiest_s = plan.certificate.busiest_nic.time_s
        if strategy == "hybrid":
            found = _predict(plan, halves, progress)
            feed_forward_s = found.phase_ends_s[0]
        else:
            found = predict(plan, progress=within(strategy, progress))
        times[strategy] = found.elapsed_s
        if benchmark and strategy not in ("optimal", "hybrid"):
            phased[strategy] = _predict(plan, phases_by_pattern(spec), progress).elapsed_s
    stored = None
    if row.whole is not None:
        progress("optimal, own buffers")
        stored = own_buffers(WHOLE[row.whole])
    nic = spec.topology.nics[0].link
    return Simulated(
        row,
        nbytes,
        sum(tensors for *_, tensors in weights),
        len(spec.tensors) if benchmark else len(halves[0]),
        bound_s,
        busiest_s,
        times,
        refusals,
        phased,
        feed_forward_s,
        2 * nbytes / collective_rate(spec.topology),
        nbytes / (nic.bytes_per_s * nic.efficiency),
        stored,
    )


def own_buffers(whole: Whole) -> tuple[float, float]:
    """Simulated time of ``optimal`` between the frameworks' own buffers, and T*, in seconds."""
    plan = rp.compile(build_whole(whole))
    return predict(plan).elapsed_s, plan.certificate.bound.time_s


def _predict(plan: rp.Plan, phases: Sequence[Sequence[int]], progress: Progress) -> Prediction:
    return predict(plan, phases=phases, progress=within("phases", progress))


def collective_rate(topology: rp.Topology) -> float:
    """Bytes per second of a collective over all GPUs, as NCCL's rings reach them.

    A ring passes every GPU by NVLink and leaves a domain by all of its NICs; the slower of the two limits it.
    """
    domain, nics = topology.domains[0], topology.nics
    own = set(domain.gpus)
    leaving = sum(nic.link.bytes_per_s * nic.link.efficiency for nic in nics if own.issuperset(nic.gpus))
    return min(leaving, domain.link.bytes_per_s * domain.link.efficiency)


@dataclass(frozen=True, slots=True)
class Moved:
    """What a refit of a model moves.

    Attributes:
        size: what was published of it.
        nbytes: its size; that of the parameters where they are public.
        needed_nbytes: least network bytes of a reshard into all engines; the size where only that is known.
        broadcast_nbytes: network bytes of broadcasting it into every domain of engines; None likewise.
        about: the refit that both are for.
    """

    size: Size
    nbytes: int
    needed_nbytes: int
    broadcast_nbytes: int | None
    about: str


def moved(size: Size) -> Moved:
    """Payloads of a model; those of a reshard by the certificate of its plan."""
    if size.whole is None:
        nbytes = round(size.nbytes)
        return Moved(size, nbytes, nbytes, None, "one copy; layouts and parameters are not public")
    whole = WHOLE[size.whole]
    plan = rp.compile(build_whole(whole))
    nbytes = sum(tensor.nbytes for tensor in plan.spec.tensors)
    tilings = (tiling for tensor in plan.spec.tensors for tiling in tensor.tilings("dst"))
    after = {rank for tiling in tilings for rank in tiling.ranks.tolist()}
    domains = [set(domain.gpus) for domain in plan.spec.topology.domains]
    engines = sum(not after.isdisjoint(domain) for domain in domains)
    return Moved(size, nbytes, plan.certificate.payload.network_nbytes, engines * nbytes, str(whole))
