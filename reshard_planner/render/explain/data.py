"""The facts about one tensor in plain JSON types."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reshard_planner.render.explain.facts import ClassFacts, Facts
from reshard_planner.render.explain.moves import UNNEEDED, ClassMoves, number_rows
from reshard_planner.render.explain.rank import Exchanged, tell_rank
from reshard_planner.render.kinds import medium_name, role_name
from reshard_planner.transfer import Medium


def explain_data(facts: Facts, rank: int | None = None) -> dict[str, Any]:
    """What :func:`reshard_planner.render.explain.sentences.explain` says, complete and as data.

    Args:
        facts: about the tensor.
        rank: the one rank that is asked about; None for all classes.

    Raises:
        InputError: if the plan has no such rank.
    """
    tensor, plan, claims = facts.tensor, facts.plan, facts.plan.certificate
    data: dict[str, Any] = {
        "digest": plan.digest,
        "strategy": plan.spec.options.strategy,
        "tensor": tensor.name,
        "shape": list(tensor.shape),
        "src_dtype": tensor.dtype,
        "wire_dtype": tensor.wire_dtype,
        "dst_dtype": tensor.dst_dtype,
        "nbytes": tensor.nbytes,
        "operations": len(facts.ops),
        "network_nbytes": facts.moved(Medium.NETWORK),
        "minimum_network_nbytes": facts.least_nbytes,
        "nvlink_nbytes": facts.moved(Medium.NVLINK),
        "local_nbytes": facts.moved(Medium.LOCAL),
        "bound": {
            "time_s": claims.bound.time_s,
            "term": claims.bound.term,
            "resource": claims.bound.resource,
            "members": list(claims.bound.cut_members),
            "nbytes": claims.bound.cut_nbytes,
            "bytes_per_s": claims.bound.cut_bytes_per_s,
            "tensor_nbytes": facts.cut_nbytes(),
        },
        "busiest_nic": asdict(claims.busiest_nic),
        "busiest_nvlink": asdict(claims.busiest_nvlink),
    }
    if plan.spec.topology.pods:
        data["busiest_uplink"] = asdict(claims.busiest_uplink)
    if rank is None:
        data["classes"] = [_class(facts, facts.class_facts(number)) for number in facts.order]
        data["unneeded"] = _moves(facts.unneeded())
    else:
        data["rank"] = _rank(facts, rank)
    return data


def _class(facts: Facts, entry: ClassFacts) -> dict[str, Any]:
    nbytes = {medium: int(entry.moves.nbytes[entry.moves.medium == medium].sum()) for medium in (*Medium,)}
    return {
        "number": entry.number,
        "nbytes": entry.nbytes,
        "boxes": facts.boxes(entry.number).tolist(),
        "holders": list(entry.holders),
        "needers": list(entry.needers),
        "holder_domains": list(entry.holder_domains),
        "needing_domains": list(entry.needing_domains),
        "needing_pods": list(entry.needing_pods),
        "copies": entry.copies,
        "minimum_network_nbytes": entry.least_nbytes,
        "network_nbytes": nbytes[Medium.NETWORK],
        "nvlink_nbytes": nbytes[Medium.NVLINK],
        "local_nbytes": nbytes[Medium.LOCAL],
        "excess": asdict(entry.excess),
        "proxies": list(entry.proxies),
        "nics": {
            "injecting": _nics(facts, entry.injecting, facts.nics.out),
            "relaying": _nics(facts, entry.relaying, facts.nics.out),
            "idle": _nics(facts, entry.idle, facts.nics.out),
            "receiving": _nics(facts, entry.receiving, facts.nics.into),
        },
        "cut_nbytes": entry.cut_nbytes,
        "moves": _moves(entry.moves),
    }


def _nics(facts: Facts, groups: Sequence[int], busy: NDArray[np.float64]) -> dict[str, float]:
    """Time of some NICs over that of the plan's busiest, by name."""
    return {facts.ports.nic_name[group]: float(busy[group]) for group in groups}


def _moves(moves: ClassMoves) -> list[dict[str, Any]]:
    """Moves of a class, one entry for each kind, with all pairs of ranks as ``[src, dst, nbytes]``."""
    number, sample = number_rows([moves.medium, moves.role, moves.forwarded, moves.scratch])
    found = []
    for kind, at in enumerate(sample.tolist()):
        mine = moves.select(number == kind)
        found.append(
            {
                "medium": medium_name(int(moves.medium[at])),
                "role": role_name(int(moves.role[at])),
                "forwarded": bool(moves.forwarded[at]),
                "scratch": bool(moves.scratch[at]),
                "nbytes": int(mine.nbytes.sum()),
                "slots": [int(mine.first.min()), int(mine.last.max())],
                "pairs": np.stack([mine.src, mine.dst, mine.nbytes], axis=1).tolist(),
            }
        )
    return found


def _rank(facts: Facts, rank: int) -> dict[str, Any]:
    entry = tell_rank(facts, rank)
    group = int(facts.ports.nic_group[rank])
    sizes = facts.atoms.nbytes
    return {
        "rank": rank,
        "gpu": facts.plan.spec.topology.gpu_of(rank),
        "domain": int(facts.ports.domain[rank]),
        "nic": None if group < 0 else facts.ports.nic_name[group],
        "nic_busy": None
        if group < 0
        else {"out": float(facts.nics.out[group]), "in": float(facts.nics.into[group])},
        "held_classes": list(entry.held),
        "held_nbytes": entry.held_nbytes,
        "needed_classes": list(entry.needed),
        "needed_nbytes": sum(sizes[number] for number in entry.needed),
        "passing_nbytes": entry.passing_nbytes,
        "received": [_exchanged(each) for each in entry.received],
        "sent": [_exchanged(each) for each in entry.sent],
        "copied": [_exchanged(each) for each in entry.copied],
    }


def _exchanged(each: Exchanged) -> dict[str, Any]:
    return {
        "peer": each.peer,
        "medium": medium_name(each.medium),
        "role": role_name(each.role),
        "forwarded": each.forwarded,
        "scratch": each.scratch,
        "nbytes": each.nbytes,
        "operations": each.operations,
        "slots": list(each.slots),
        "classes": [number for number in each.classes if number != UNNEEDED],
        "unneeded": UNNEEDED in each.classes,
    }
