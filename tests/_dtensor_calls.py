"""What the processes of ``_ranks`` are asked to do with DTensors; tests give and get plain values."""

from __future__ import annotations

import resource
from collections.abc import Sequence
from datetime import timedelta
from math import prod
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from reshard_executors import dtensor, groups
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

import reshard_planner as rp

State = dict[str, Any]
Side = tuple[Any, Sequence[str]]
"""A mesh as nested list of ranks, and its placements."""

TIMEOUT = timedelta(seconds=20)


def as_placements(texts: Sequence[str]) -> list[Any]:
    found: list[Any] = []
    for text in texts:
        if text == "P":
            found.append(Partial())
            continue
        placement = rp.layout.parse_placement(text)
        if isinstance(placement, rp.Shard):
            found.append(Shard(placement.dim))
        elif isinstance(placement, rp.StridedShard):
            found.append(_StridedShard(placement.dim, split_factor=placement.split_factor))
        else:
            found.append(Replicate())
    return found


def as_mesh(ranks: Any) -> DeviceMesh:
    """A mesh without process groups, which these tests do not use."""
    return DeviceMesh("cpu", ranks, _init_backend=False)


def whole(shape: Sequence[int], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (torch.arange(prod(shape)) + 1).reshape(tuple(shape)).to(dtype)


def cut(full: torch.Tensor, side: Side) -> DTensor:
    """A whole tensor as torch itself distributes it, by cutting alone."""
    mesh, placements = as_mesh(side[0]), as_placements(side[1])
    replicated = DTensor.from_local(full, mesh, [Replicate()] * mesh.ndim, run_check=False)
    if mesh.get_coordinate() is None:
        local = torch.empty(0, dtype=full.dtype)
        return DTensor.from_local(
            local, mesh, placements, run_check=False, shape=full.shape, stride=full.stride()
        )
    return replicated.redistribute(mesh, placements)


def differences(found: DTensor | None, full: torch.Tensor, side: Side) -> list[str]:
    """What is wrong with a result, on this rank."""
    wanted = cut(full, side)
    if wanted.device_mesh.get_coordinate() is None:
        return [] if found is None else ["a result outside of the mesh"]
    if found is None:
        return ["no result"]
    pairs = {
        "shape": (found.shape, wanted.shape),
        "stride": (found.stride(), full.stride()),
        "dtype": (found.dtype, wanted.dtype),
        "mesh": (found.device_mesh, wanted.device_mesh),
        "placements": (tuple(found.placements), tuple(wanted.placements)),
        "local shape": (found.to_local().shape, wanted.to_local().shape),
        "gradient": (found.requires_grad, False),
        "values": (found.to_local().tolist(), wanted.to_local().tolist()),
    }
    return [f"{name}: {ours} is not {theirs}" for name, (ours, theirs) in pairs.items() if ours != theirs]


def keep(state: State, kept: int = 8, timeout_s: float = 20.0) -> None:
    """Build a Redistributor, and keep it in place of another."""
    drop(state)
    state["front"] = dtensor.Redistributor(timeout=timedelta(seconds=timeout_s), kept=kept)


def keep_within(state: State, members: Sequence[int]) -> None:
    """The same over a group of some members; called in all processes."""
    drop(state)
    state["group"] = group = dist.new_group(list(members))
    if state["rank"] in members:
        state["front"] = dtensor.Redistributor(group, timeout=TIMEOUT)


def drop(state: State) -> None:
    """Close the kept Redistributor."""
    if "front" in state:
        state.pop("front").close()


def redistribute(
    state: State, shape: Sequence[int], src: Side, dst: Side, outside: str = "none", strides: str = ""
) -> list[str]:
    """Redistribute; what is wrong with the result. ``outside`` is what ranks give that hold nothing."""
    full = whole(shape)
    source: Any = cut(full, src)
    inside = source.device_mesh.get_coordinate() is not None
    if strides == "transposed" and inside and full.ndim > 1:
        local = source.to_local().transpose(0, 1).contiguous().transpose(0, 1)
        source = DTensor.from_local(
            local,
            source.device_mesh,
            source.placements,
            run_check=False,
            shape=full.shape,
            stride=full.stride(),
        )
    if not inside and outside == "none":
        source = None
    elif not inside and outside == "described":
        source = dtensor.Described(tuple(shape), full.dtype, source.device_mesh, source.placements)
    else:
        source.requires_grad_()
    return differences(state["front"].redistribute(source, as_mesh(dst[0]), as_placements(dst[1])), full, dst)


def redistribute_within(state: State, *arguments: Any) -> list[str] | None:
    """Redistribute, on ranks that have kept a Redistributor."""
    return redistribute(state, *arguments) if "front" in state else None


def redistribute_unless(state: State, absent: int) -> list[str] | None:
    """Redistribute, but not on one rank."""
    if state["rank"] == absent:
        return None
    return redistribute(state, (4,), ([0], ["R"]), ([2], ["R"]))


def redistribute_as(
    state: State, shape: Sequence[int], dtype: str, src: Side, dst: Side, local_shape: Sequence[int]
) -> None:
    """Redistribute something that may be wrong on this rank."""
    mesh, placements = as_mesh(src[0]), as_placements(src[1])
    source = None
    if mesh.get_coordinate() is not None:
        local = torch.zeros(tuple(local_shape), dtype=getattr(torch, dtype))
        source = DTensor.from_local(
            local, mesh, placements, run_check=False, shape=torch.Size(shape), stride=whole(shape).stride()
        )
    state["front"].redistribute(source, as_mesh(dst[0]), as_placements(dst[1]))


def redistribute_once(_: State, shape: Sequence[int], src: Side, dst: Side) -> list[str]:
    """Redistribute without keeping anything."""
    full = whole(shape)
    found = dtensor.redistribute(cut(full, src), as_mesh(dst[0]), as_placements(dst[1]))
    return differences(found, full, dst)


def transfer(
    state: State, position: int, shape: Sequence[int], src: Side, dst: Side, group: Any
) -> list[str]:
    """Transfer in place within a group, between meshes of its positions; what is wrong with the result."""
    full = whole(shape)
    sides = []
    for mesh, placements in (src, dst):
        layout = rp.Layout(rp.Mesh(mesh), placements)
        if position not in layout.mesh.ranks:
            sides.append(None)
            continue
        per_dim = layout.partition(tuple(shape)).intervals(position)
        local = full
        for dim, intervals in enumerate(per_dim):
            local = torch.cat(
                [local.narrow(dim, 0, 0), *(local.narrow(dim, lo, hi - lo) for lo, hi in intervals)], dim
            )
        sides.append(SimpleNamespace(shape=torch.Size(shape), _local_tensor=local.clone()))
    source, destination = sides
    wanted = None
    if destination is not None:
        wanted = destination._local_tensor.clone()  # noqa: SLF001 - the interface under test
        room = torch.full((*wanted.shape, 2), -1.0)  # every other element of a buffer
        destination._local_tensor = room[..., 0]  # noqa: SLF001 - as above
    state["front"].xferdtensor(
        source,
        SimpleNamespace(mesh=torch.tensor(src[0])),
        as_placements(src[1]),
        destination,
        SimpleNamespace(mesh=torch.tensor(dst[0])),
        as_placements(dst[1]),
        group,
    )
    if destination is None:
        return []
    wrong = [] if torch.equal(room[..., 0], wanted) else ["values"]
    return wrong if bool((room[..., 1] == -1).all()) else [*wrong, "bytes between the elements"]


def transfer_in_world(state: State, shape: Sequence[int], src: Side, dst: Side) -> list[str]:
    """Transfer within the world."""
    return transfer(state, state["rank"], shape, src, dst, None)


def transfer_within(state: State, *arguments: Any) -> list[str] | None:
    """Transfer within the group of the kept Redistributor, on ranks that have one."""
    if "front" not in state:
        return None
    return transfer(state, dist.get_rank(state["group"]), *arguments, None)


def redistribute_a_plain_tensor(state: State, culprit: int) -> None:
    """Redistribute what is no DTensor on one rank."""
    source: Any = torch.zeros(4) if state["rank"] == culprit else cut(whole((4,)), ([0], ["R"]))
    state["front"].redistribute(source, as_mesh([1]), [Replicate()])


def transfer_nothing(state: State) -> None:
    """Transfer where no rank has a tensor."""
    mesh = SimpleNamespace(mesh=[0])
    state["front"].xferdtensor(None, mesh, [Replicate()], None, mesh, [Replicate()])


def transfer_wrongly(
    state: State, src_like: tuple[Sequence[int], str], dst_like: tuple[Sequence[int], str]
) -> None:
    """Transfer from rank 0 to rank 1, which may not expect the same."""
    given = []
    for rank, (shape, dtype) in enumerate((src_like, dst_like)):
        local = torch.zeros(tuple(shape), dtype=getattr(torch, dtype))
        mine = SimpleNamespace(shape=local.shape, _local_tensor=local)
        given.append(mine if state["rank"] == rank else None)
    source, destination = given
    meshes = [SimpleNamespace(mesh=[rank]) for rank in (0, 1)]
    state["front"].xferdtensor(source, meshes[0], [Replicate()], destination, meshes[1], [Replicate()], None)


def transfer_on_one_rank(state: State, src_shape: Sequence[int], dst_shape: Sequence[int]) -> None:
    """Transfer where every rank has both sides."""
    mesh = SimpleNamespace(mesh=list(range(dist.get_world_size())))
    source, destination = (
        SimpleNamespace(shape=tuple(shape), _local_tensor=torch.zeros(tuple(shape)))
        for shape in (src_shape, dst_shape)
    )
    state["front"].xferdtensor(source, mesh, [Replicate()], destination, mesh, [Replicate()])


def count_compiled(state: State, cases: Sequence[tuple[Sequence[int], Side, Side]]) -> tuple[int, list[str]]:
    """Redistribute again and again; how often a plan was compiled, and what is wrong with the results."""
    plans: list[rp.Plan] = []
    really = dtensor.compile_plan

    def counting(spec: rp.ReshardSpec) -> rp.Plan:
        plans.append(really(spec))
        return plans[-1]

    dtensor.compile_plan = counting  # type: ignore[assignment]
    try:
        wrong = [text for case in cases for text in redistribute(state, *case)]
    finally:
        dtensor.compile_plan = really
    return len(plans), wrong


def use_after_closing(state: State) -> None:
    """Close the kept Redistributor and use it."""
    state["front"].close()
    state["front"].close()
    redistribute(state, (4,), ([0], ["R"]), ([1], ["R"]))


def build_with(_: State, options: rp.Options | None, kept: int) -> None:
    """Build a Redistributor."""
    dtensor.Redistributor(options=options, kept=kept, timeout=TIMEOUT).close()


def build_over(_: State, members: Sequence[int]) -> int:
    """Build a Redistributor over a group of some members, in all processes; the size of its group."""
    with dtensor.Redistributor(dist.new_group(list(members))):
        return len(members)


def add_up(_: State, value: int) -> float:
    """Use the world's own group."""
    total = torch.tensor([float(value)])
    dist.all_reduce(total)
    return total.item()


# -- several jobs ----------------------------------------------------------------------------------------


def join(state: State, address: str, position: int, count: int, timeout_s: float = 20.0) -> Any:
    """Join other jobs; what torch.distributed then says of the group."""
    timeout = timedelta(seconds=timeout_s)
    group = groups.join_jobs(address, position, count, timeout=timeout)
    state["joint"] = group
    total = torch.tensor([position])
    dist.all_reduce(total, group=group)
    gathered: list[Any] = [None] * count
    dist.all_gather_object(gathered, position, group=group)
    said = [position]
    dist.broadcast_object_list(said, group=group, group_src=count - 1)
    got = torch.zeros(1)
    ops = [
        dist.P2POp(
            dist.isend, torch.tensor([float(position)]), group=group, group_peer=(position + 1) % count
        ),
        dist.P2POp(dist.irecv, got, group=group, group_peer=(position - 1) % count),
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return (
        dist.get_rank(group),
        dist.get_world_size(group),
        groups.position_in(group),
        groups.members_of(group),
        total.item(),
        gathered,
        said[0],
        got.item(),
    )


def join_with(_: State, change: dict[str, Any]) -> None:
    """Join with arguments of which some are wrong."""
    arguments = {"address": "tcp://127.0.0.1:1", "rank": 0, "world_size": 1, **change}
    groups.join_jobs(**arguments)


def transfer_between_jobs(state: State, shape: Sequence[int], src: Side, dst: Side) -> list[str]:
    """Transfer within the joint group, by a Redistributor that is made for it."""
    group = state["joint"]
    with dtensor.Redistributor(group, timeout=TIMEOUT) as front:
        state["front"] = front
        wrong = [transfer(state, dist.get_rank(group), shape, src, dst, group) for _ in range(2)]
    del state["front"]
    return [text for each in wrong for text in each]


def visit(address: str, position: int, count: int, *transfers: Any) -> None:
    """Join from a process without a world, transfer, and leave; prints what is wrong."""
    state: State = {}
    seen = join(state, address, position, count)
    wrong = [text for each in transfers for text in transfer_between_jobs(state, *each)]
    print(seen[:4], dist.get_rank(), wrong, leave(state))  # noqa: T201 - for the test that started it


def leave(state: State) -> bool:
    """Leave the joint group."""
    dist.destroy_process_group(state.pop("joint"))
    return dist.is_initialized()


def leave_if_joined(state: State) -> None:
    """Leave the joint group, where there is one."""
    if "joint" in state:
        leave(state)


def redistribute_with_little_memory(state: State, victim: int) -> bool:
    """Make a large replica; on one rank while the process may not grow. Whether the front is closed then."""
    full = whole((4096, 4096))
    source = cut(full, ([0, 1], ["S(0)"]))
    inside = source.device_mesh.get_coordinate() is not None
    before = resource.getrlimit(resource.RLIMIT_AS)
    if state["rank"] == victim:
        with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123 - not a file of the project
            pages = int(file.read().split()[0])
        limit = pages * resource.getpagesize() + 2**24
        resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))
    try:
        return state["front"].redistribute(
            source if inside else None, as_mesh([0, 1, 2]), as_placements(["R"])
        )
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
