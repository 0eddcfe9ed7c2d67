"""The strategy ``hybrid``: feed-forward weights by reshard, others by gather and broadcast, as a baseline.

That is how NeMo RL refits by ``nccl_reshard``. The weights of dense and routed feed-forward projections, most
of the bytes of most models, are moved as by ``m2n-node-aware`` where NCCL M2N accepts them, in a communicator
of all ranks of the spec, else as by ``striped``; shared experts, routers, attention, norms, embeddings and
drafters as by ``gather-broadcast``. A weight's kind is read off its name, as the checkpoints of Hugging Face
have it; names that say nothing are others. NeMo RL copies weights together that lie apart, such as experts
with a buffer each, before NCCL M2N moves them; here NCCL M2N is given them as they lie, and refuses those.

NeMo RL moves the others when all feed-forward weights have arrived. A plan's rounds have no such order: they
bring both side by side. :func:`phases` says which tensors belong together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from reshard_planner.demand import Member, find_demands, find_geometries
from reshard_planner.routing import gather_broadcast, m2n_node_aware, striped
from reshard_planner.routing.forest import Forest
from reshard_planner.routing.m2n_limits import M2nLimits
from reshard_planner.routing.problem import Problem, Strategy
from reshard_planner.spec import ReshardSpec

PROJECTIONS = frozenset(("gate_proj", "up_proj", "down_proj"))
"""Weights of dense and of routed feed-forward parts."""

EXPERT_PROJECTIONS = PROJECTIONS | {"gate_up_proj", "w1", "w2", "w3"}
"""The same of routed experts, by all of their names."""

DRAFTER = "eh_proj.weight"
"""Weight that only a layer of multi-token prediction has; its other names are those of decoder layers."""


def is_feed_forward(name: str) -> bool:
    """Whether a parameter of this name is a projection of a dense or routed feed-forward part.

    >>> is_feed_forward("model.layers.0.mlp.experts.7.down_proj.weight")
    True
    >>> is_feed_forward("model.layers.0.mlp.shared_expert.down_proj.weight")
    False
    """
    *path, last = name.split(".")
    if any(part.startswith("shared_expert") for part in path) or path[:1] == ["mtp"]:
        return False
    if last == "weight":
        *path, last = path or [""]
    elif path[-1:] != ["experts"]:  # experts in one tensor have no weight in their names
        return False
    return last in (EXPERT_PROJECTIONS if "experts" in path else PROJECTIONS)


def phases(spec: ReshardSpec) -> tuple[tuple[int, ...], ...]:
    """Positions of the tensors that are moved together, each phase after the one before.

    Returns the feed-forward tensors, then all others, each ascending; a phase without tensors is left out.
    """
    return tuple(filter(None, _by_kind(spec)))


def _by_kind(spec: ReshardSpec) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Positions of the feed-forward tensors and of the others."""
    names = [tensor.name for tensor in spec.tensors]
    drafters = tuple(name.removesuffix(DRAFTER) for name in names if name.endswith(f".{DRAFTER}"))
    feed_forward: list[int] = []
    others: list[int] = []
    for at, name in enumerate(names):
        if is_feed_forward(name) and not name.startswith(drafters):
            feed_forward.append(at)
        else:
            others.append(at)
    return tuple(feed_forward), tuple(others)


def route(problem: Problem) -> list[Forest]:
    """Route every tensor by its kind; see the module's text.

    Raises:
        UnsupportedError: if bytes must cross the network at ranks without a NIC.
    """
    feed_forward, others = _by_kind(problem.spec)
    limits = M2nLimits(problem.ports, m2n_node_aware.deal)
    accepted: list[int] = []
    refused: list[int] = []
    for at in feed_forward:
        if limits.why_refused(problem.spec.tensors[at]) is None:
            accepted.append(at)
        else:
            refused.append(at)
    return [
        *_route_as(m2n_node_aware.STRATEGY, problem, accepted),
        *_route_as(striped.STRATEGY, problem, refused),
        *_route_as(gather_broadcast.STRATEGY, problem, others),
    ]


def _route_as(strategy: Strategy, problem: Problem, positions: Sequence[int]) -> Iterator[Forest]:
    """Route some tensors as the strategy routes a spec of them alone, on all ranks of the whole spec."""
    if not positions:
        return
    whole = problem.spec
    spec = ReshardSpec((whole.tensors[at] for at in positions), whole.topology, whole.options)
    geometries = find_geometries(spec, problem.ports)
    demands = find_demands(geometries, problem.ports)
    # baselines do not look at the bound, which is that of all tensors
    for forest in strategy.route(Problem(spec, problem.ports, geometries, demands, problem.bound)):
        members = (Member(tuple(positions[at] for at in each.tensors), each.ranks) for each in forest.members)
        yield replace(forest, members=tuple(members))


STRATEGY = Strategy(
    "hybrid",
    route,
    claims_least=False,
    summary="NeMo RL's refit: feed-forward weights by m2n-node-aware or striped, others by gather-broadcast",
)
