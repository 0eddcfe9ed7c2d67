"""Why a class is relayed: what that spares those who held it, and the uplinks of pods."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from reshard_planner.render.explain.facts import ClassFacts, Facts
from reshard_planner.render.explain.words import percent_text
from reshard_planner.render.text import format_nbytes
from reshard_planner.transfer import Medium


def relay_sentences(facts: Facts, entry: ClassFacts) -> Iterator[str]:
    """What relays spare, by the loads of the whole plan; nothing where too much crosses the network."""
    network = entry.moves.medium == Medium.NETWORK
    own = network & np.isin(entry.moves.src, entry.holders)
    total, emitted = (int(entry.moves.nbytes[chosen].sum()) for chosen in (network, own))
    if not (entry.relaying and emitted and total > emitted) or entry.excess.total:
        return
    yield (
        f"So those who held it emit {format_nbytes(emitted)} over their NICs, not all {format_nbytes(total)}."
    )
    holding = list(facts.groups(np.array(entry.holders, dtype=np.int64)))
    out, rates = facts.nics.nbytes[0], facts.ports.nic_bytes_per_s
    alone_s = (int(out[holding].sum()) + total - emitted) / int(rates[holding].sum())
    bound_s = facts.plan.certificate.bound.time_s
    busy, relays = facts.nics.out[holding], facts.nics.out[list(entry.relaying)]
    if bound_s and alone_s > bound_s:
        yield (
            "The relays spare the NICs of the holders: with all of it these would be busy for"
            f" {alone_s / bound_s:.2f} times T* on average."
        )
    else:
        yield (
            f"The NICs of the holders, busy to {percent_text(busy)}, had time for the rest of this class;"
            f" relayed, it goes over NICs that are busy to {percent_text(relays)}, so that loads are spread"
            " over more of them."
        )
    inside = _within_pods(facts, entry, network & ~own)
    if inside:
        yield (
            f"{format_nbytes(inside)} of the relayed bytes stay within a pod that nobody held it in, and so"
            " spare its uplink."
        )


def _within_pods(facts: Facts, entry: ClassFacts, relayed: NDArray[np.bool_]) -> int:
    """Relayed bytes between ranks of one pod without holders."""
    if not facts.plan.spec.topology.pods:
        return 0
    pod = facts.ports.pod
    src, dst = pod[entry.moves.src], pod[entry.moves.dst]
    held = np.unique(pod[list(entry.holders)])
    same = relayed & (src >= 0) & (src == dst) & ~np.isin(src, held)
    return int(entry.moves.nbytes[same].sum())
