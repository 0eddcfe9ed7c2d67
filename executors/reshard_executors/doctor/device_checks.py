"""What is wrong with the devices of all ranks together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from reshard_executors.doctor.devices import Devices
from reshard_executors.doctor.findings import Finding, Level, alike, has_failure
from reshard_executors.doctor.hosts import Place
from reshard_executors.spelling import spell_count, spell_nbytes

CHECK: Final = "devices"


def judge(everyone: Sequence[Devices], places: Sequence[Place], backend: str | None = None) -> list[Finding]:
    """Compare the devices of all ranks.

    Args:
        everyone: by rank.
        places: likewise.
        backend: what the plan will be run with, if that is certain; ``gloo`` needs no CUDA devices.
    """
    with_gpu = backend != "gloo" and any(one.count for one in everyone)
    machines: dict[str, list[int]] = {}
    for rank, place in enumerate(places):
        machines.setdefault(place.machine, []).append(rank)
    hosts = [(places[ranks[0]].host, tuple(ranks)) for ranks in machines.values()]
    found = list((_judge_gpus if with_gpu else _judge_processors)(everyone, hosts))
    if not has_failure(found):
        found.insert(0, _all_right(everyone, with_gpu=with_gpu))
    return found


def _judge_gpus(
    everyone: Sequence[Devices], hosts: Sequence[tuple[str, tuple[int, ...]]]
) -> Iterator[Finding]:
    without = tuple(rank for rank, one in enumerate(everyone) if one.gpu is None)
    if without:
        one = everyone[without[0]]
        text = (
            f"no device is left for local rank {one.local_rank}, which sees {one.count} CUDA devices;"
            " expected one that works for each rank of the host, or else these ranks cannot start"
        )
        yield Finding(CHECK, Level.FAILURE, text, without)
    differing = {}
    for host, ranks in hosts:
        seen: dict[str, list[int]] = {}
        for rank in ranks:
            gpu = everyone[rank].gpu
            if gpu is not None:
                seen.setdefault(gpu.uuid, []).append(rank)
        for uuid, sharing in seen.items():
            if len(sharing) > 1:
                text = f"all use device {uuid}; expected one for each, since NCCL refuses two ranks on one"
                yield Finding(CHECK, Level.FAILURE, text, tuple(sharing))
        values = {everyone[rank].visible for rank in ranks}
        if len(values) > 1:
            differing[host] = (
                f"CUDA_VISIBLE_DEVICES has {len(values)} values; expected one, since ranks that do not see"
                " each other's devices cannot be checked for access between them, and some ways of NCCL are"
                " closed to them"
            )
    yield from alike(CHECK, Level.WARNING, differing)
    free = {rank: one.gpu.free_nbytes for rank, one in enumerate(everyone) if one.gpu is not None}
    short = tuple(rank for rank, nbytes in free.items() if nbytes < everyone[rank].need_nbytes)
    if short:
        worst = min(short, key=lambda rank: free[rank] - everyone[rank].need_nbytes)
        text = _too_little(f"the device of rank {worst}", free[worst], everyone[worst].need_nbytes)
        yield Finding(CHECK, Level.FAILURE, text, short)


def _judge_processors(
    everyone: Sequence[Devices], hosts: Sequence[tuple[str, tuple[int, ...]]]
) -> Iterator[Finding]:
    crowded, short = {}, {}
    for host, ranks in hosts:
        cores = {core for rank in ranks for core in everyone[rank].cores}
        if len(cores) < len(ranks):
            crowded[host] = (
                f"{len(ranks)} ranks share {spell_count(len(cores), 'processor')}; expected one for each rank"
                " or more, or else ranks wait for one another and measured times say little"
            )
        need = sum(everyone[rank].need_nbytes for rank in ranks)
        known = [one.free_nbytes for one in (everyone[rank] for rank in ranks) if one.free_nbytes is not None]
        if known and min(known) < need:
            short[host] = _too_little("the host", min(known), need)
    yield from alike(CHECK, Level.WARNING, crowded)
    yield from alike(CHECK, Level.FAILURE, short)


def _too_little(what: str, free_nbytes: int, need_nbytes: int) -> str:
    return (
        f"{what} has {spell_nbytes(free_nbytes)} of free memory, but the plan takes"
        f" {spell_nbytes(need_nbytes)} for destinations, staging and scratch; expected at least as much, or"
        " else the run ends for lack of memory"
    )


def _all_right(everyone: Sequence[Devices], *, with_gpu: bool) -> Finding:
    need = max(one.need_nbytes for one in everyone)
    takes = f"; the plan takes at most {spell_nbytes(need)} of a rank" if need else ""
    frees = [one.gpu.free_nbytes for one in everyone if one.gpu is not None]
    if with_gpu:
        text = (
            f"every rank has a CUDA device of its own, with {spell_nbytes(min(frees))} or more of free memory"
        )
    else:
        known = [one.free_nbytes for one in everyone if one.free_nbytes is not None]
        memory = f", and {spell_nbytes(min(known))} or more of free memory" if known else ""
        cores = min(len(one.cores) for one in everyone)
        text = f"no CUDA devices are used; every rank may use {cores} processors or more{memory}"
    return Finding(CHECK, Level.OK, text + takes)
