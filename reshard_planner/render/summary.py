"""What a plan does, on one screen of text."""

from __future__ import annotations

from reshard_planner.ir.certificate import Busiest, Certificate
from reshard_planner.ir.plan import Plan
from reshard_planner.render.text import format_count, format_nbytes, format_rate, format_s, plain
from reshard_planner.spec.values import Side


def summarize(plan: Plan) -> str:
    """Describe a plan by its certificate, one fact per line, without looking at its transfers.

    Returns:
        Lines without a newline at the end; the same text for the same plan.
    """
    rows = facts(plan)
    width = max(len(name) for name, _ in rows)
    return "\n".join((f"Plan {plan.digest[:12]}", *(f"  {name:<{width}}  {value}" for name, value in rows)))


def facts(plan: Plan) -> list[tuple[str, str]]:
    """Names and values of what a reader asks of a plan first, in human units."""
    spec, claims = plan.spec, plan.certificate
    payload, schedule = claims.payload, claims.schedule
    size = format_nbytes(sum(tensor.nbytes for tensor in spec.tensors))
    sides = f"{_storing(plan, 'src')} before, {_storing(plan, 'dst')} after, {len(plan.ranks)} in all"
    moved = claims.transfers_by_medium
    network = _moved(payload.network_nbytes, moved.network)
    least = format_nbytes(payload.minimum_network_nbytes)
    messages = format_count(schedule.messages, "message")
    uplink = [("busiest uplink", _busiest(claims.busiest_uplink))] if spec.topology.pods else []
    rails = (
        [] if claims.rail_nbytes is None else [("rails", _rails(claims.rail_nbytes, payload.network_nbytes))]
    )
    return [
        ("tensors", f"{len(spec.tensors):,} of {size} together"),
        ("ranks", sides),
        ("strategy", plain(spec.options.strategy)),
        ("network", f"{network}; minimum {least}"),
        *rails,
        ("NVLink", _moved(payload.nvlink_nbytes, moved.nvlink)),
        ("local", _moved(payload.local_nbytes, moved.local)),
        ("bound T*", _bound(plan)),
        ("busiest NIC", _busiest(claims.busiest_nic)),
        ("busiest NVLink", _busiest(claims.busiest_nvlink)),
        *uplink,
        ("gap", f"busiest port {_gap(claims.gap)}"),
        ("schedule", f"{format_count(schedule.slots, 'slot')}, {messages}"),
        ("schedule time", f"{format_s(schedule.time_s)} with start-up; without, {_gap(schedule.gap)}"),
        ("peers", _peers(claims)),
        ("staging", f"{format_nbytes(claims.staging_nbytes)} on the rank that needs most"),
    ]


def _storing(plan: Plan, side: Side) -> int:
    meshes = {layout.mesh for tensor in plan.spec.tensors for layout in tensor.layouts(side)}
    return len({rank for mesh in meshes for rank in mesh.ranks})


def _peers(claims: Certificate) -> str:
    peers = claims.peers
    return (
        f"at most {peers.network_max:,} over the network and {peers.nvlink_max:,} over NVLink,"
        f" {claims.schedule.peers_in_slot_max:,} in one slot; about {format_nbytes(peers.connection_nbytes)}"
        " for connections"
    )


def _rails(nbytes: int, network_nbytes: int) -> str:
    share = nbytes / network_nbytes if network_nbytes else 1.0
    return f"{share * 100:.1f} % of the network's bytes stay on their rail"


def _moved(nbytes: int, transfers: int) -> str:
    return f"{format_nbytes(nbytes)} in {format_count(transfers, 'transfer')}"


def _bound(plan: Plan) -> str:
    bound = plan.certificate.bound
    if not bound.cut_nbytes:
        return f"{format_s(bound.time_s)}: no bytes have to leave a rank"
    what = format_nbytes(bound.cut_nbytes) + (" by weight" if bound.cut_weights else "")
    text = (
        f"{format_s(bound.time_s)}: {what} through {bound.resource}"
        f" ({bound.term.replace('_', ' ')}) at {format_rate(bound.cut_bytes_per_s)}"
    )
    if bound.t0_s > bound.time_s:
        text += f"; T0 {format_s(bound.t0_s)}"
    return text


def _busiest(port: Busiest) -> str:
    if not port.nbytes:
        return "none is used"
    return f"{port.resource}: {format_nbytes(port.nbytes)} in {format_s(port.time_s)}"


def _gap(gap: float | None) -> str:
    """Distance to T* in words; None stands for a bound of zero that is not met."""
    if gap is None:
        return "above T*, which is 0"
    if gap < 0:  # T* bounds plans of least payload, and a baseline may move more over a faster medium
        return f"{-gap * 100:.1f} % below T*, which bounds plans of least payload only"
    return f"{gap * 100:.1f} % above T*"
