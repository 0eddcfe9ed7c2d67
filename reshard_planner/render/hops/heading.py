"""What stands above the picture of transfers: what is drawn, the sums, and what its words mean."""

from __future__ import annotations

from collections.abc import Iterator

from reshard_planner.render.hops.flows import SMALL
from reshard_planner.render.hops.scene import Scene
from reshard_planner.render.text import format_count, format_nbytes, format_shape, plain
from reshard_planner.transfer import Medium


def heading(scene: Scene) -> Iterator[str]:
    """The lines, those that always stand there first."""
    plan, choice, flows = scene.plan, scene.choice, scene.flows
    chosen = choice.tensors
    members = plan.spec.tensors if chosen is None else [plan.spec.tensors[at] for at in chosen]
    size = format_nbytes(sum(member.nbytes for member in members))
    what = f"{format_count(len(members), 'tensor')}, {size}"
    if len(members) == 1:
        what = f"{plain(members[0].name)}: {format_shape(members[0].shape)} {members[0].dtype}, {size}"
    yield f"Transfers of {what}"
    yield from choice.words
    total = {medium: sum(flow.nbytes for flow in flows.flows if flow.medium == medium) for medium in Medium}
    whole = choice.rank is None and choice.pieces is None and len(members) == len(plan.spec.tensors)
    least = ""
    if whole:
        minimum = plan.certificate.payload.minimum_network_nbytes
        same = minimum == total[Medium.NETWORK]
        least = " (the least possible)" if same else f" (least possible: {format_nbytes(minimum)})"
    sums = [f"network {format_nbytes(total[Medium.NETWORK])}{least}"]
    sums.append(f"NVLink {format_nbytes(total[Medium.NVLINK])}")
    if total[Medium.LOCAL]:
        sums.append(f"copies within ranks {format_nbytes(total[Medium.LOCAL])}")
    yield f"strategy {plain(plan.spec.options.strategy)}: {', '.join(sums)}"
    yield from _meanings(scene)
    yield from _left_out(scene)
    yield from choice.hints


def _meanings(scene: Scene) -> Iterator[str]:
    """What words and numbers mean, those that occur."""
    places = scene.flows.places
    words = []
    if any(place.holds for place in places):
        words.append("holds: has bytes before")
    if any(place.needs for place in places):
        words.append("needs: must have bytes after")
    if words:
        yield f"{'; '.join(words)}."
    if not scene.flows.strokes:
        yield "No bytes go from one node to another. 1 KiB = 1024 B."
        return
    slots = "; slot +n: n slots after its unit starts" if scene.choice.one_tree else ""
    what = "sender → receiver, role, bytes" if scene.flows.by_rank else "number of transfers, role, bytes"
    within = any(flow.src == flow.dst and flow.medium != Medium.LOCAL for flow in scene.flows.flows)
    inside = " In boxes, within: between ranks of the box." if within else ""
    yield f"On lines: {what} together (1 KiB = 1024 B){slots}.{inside}"


def _left_out(scene: Scene) -> Iterator[str]:
    """What is added up and what is not drawn."""
    flows = scene.flows
    if not flows.by_rank:
        lines = f"{format_count(flows.pairs, 'line')} between ranks" if flows.pairs else "single ranks"
        yield f"Added up by domain, as {lines} would be too many. {_closer(scene)}"
    if flows.left_out:
        count, nbytes = len(flows.left_out), sum(flow.nbytes for flow in flows.left_out)
        share = f"below {100 / SMALL:g} % of the bytes each, {format_nbytes(nbytes)} together"
        yield f"Not drawn: {format_count(count, 'line')} between ranks, {share}."
    if flows.idle:
        domains = format_count(flows.idle_domains, "whole domain")
        where = f", among them {domains}" if flows.idle_domains else ""
        yield f"Not drawn: {format_count(len(flows.idle), 'rank')} without transfers{where}."


def _closer(scene: Scene) -> str:
    """What is left to look closer by."""
    choice = scene.choice
    ways = {
        "tensor": choice.tensors is None and len(scene.plan.spec.tensors) > 1,
        "rank": choice.rank is None,
        "class": choice.pieces is None,
        "tree": choice.tensors is not None and not choice.one_tree,
    }
    *others, last = [way for way, left in ways.items() if left] or ["tree"]
    if choice.one_tree and choice.rank is not None:
        return ""
    return f"Look closer at one {', '.join(others)}{' or ' if others else ''}{last}."
