"""Reading traces that this project wrote back as timelines, and refusing all others.

``run --profile`` of the executors and ``simulate --trace`` write them. Every event comes back with the
numbers that it was written with, times to the nanosecond. A digest in the file covers all of them and the
notes, so that a damaged or edited trace is refused rather than misread.
"""

from __future__ import annotations

import stat
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from reshard_planner.errors import InputError, TableError
from reshard_planner.ir.plan import Plan
from reshard_planner.ir.timeline import NO_PEER, Activity, Timeline
from reshard_planner.ir.tracemark import FORMAT, VERSION, trace_mark
from reshard_planner.ir.tracetimes import MAX_TIME_S, NS_PER_S, NS_PER_US
from reshard_planner.transfer import Medium

Ints = NDArray[np.int64]
Form = TypeVar("Form")

MAX_TRACE_NBYTES: Final = 2**30
"""Largest file read, so that a wrong name cannot fill the memory; a trace has some 500 bytes per event."""

MAX_REASON: Final = 160
"""Most characters of the reason why a file is no JSON, which may quote it."""

Int32 = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Int64 = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Peer = Annotated[int, msgspec.Meta(ge=NO_PEER, le=2**31 - 1)]
OriginNs = Annotated[int, msgspec.Meta(ge=-MAX_TIME_S * NS_PER_S, le=0)]
TimeUs = Annotated[float, msgspec.Meta(ge=0, le=2 * MAX_TIME_S * NS_PER_S // NS_PER_US)]

CATEGORIES: Final = MappingProxyType(
    {
        f"{activity.label},{medium.label}": (int(activity), int(medium))
        for activity in Activity
        for medium in Medium
    }
)
"""Activity and medium of each category of events."""


class _Facts(msgspec.Struct, forbid_unknown_fields=True):
    rank: Int32
    slot: Int32
    nbytes: Int64
    peer: Peer = NO_PEER
    bytes_per_s: int | None = None


class _Slice(msgspec.Struct, tag_field="ph", tag="X", forbid_unknown_fields=True):
    name: str
    cat: str
    pid: int
    tid: int
    ts: TimeUs
    dur: TimeUs
    args: _Facts


class _Metadata(msgspec.Struct, tag_field="ph", tag="M"):
    pass


class _Leaves(msgspec.Struct, tag_field="ph", tag="s"):
    pass


class _Arrives(msgspec.Struct, tag_field="ph", tag="f"):
    pass


class _Counter(msgspec.Struct, tag_field="ph", tag="C"):
    pass


class _Mark(msgspec.Struct, forbid_unknown_fields=True):
    format: str
    version: int
    origin_ns: OriginNs
    digest: str


class _Document(msgspec.Struct):
    traceEvents: msgspec.Raw  # noqa: N815 - the format's own spelling
    otherData: dict[str, Any]  # noqa: N815
    timeline: _Mark


class _AnyDocument(msgspec.Struct):
    timeline: msgspec.Raw = msgspec.Raw(b"")


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """What a trace says.

    Attributes:
        timeline: its events, in the order in which they were written; times are whole nanoseconds.
        notes: further facts about the run, such as the digest of its plan.
    """

    timeline: Timeline
    notes: Mapping[str, Any]


def parse_trace(data: bytes) -> Trace:
    """Read the content of a trace.

    Raises:
        InputError: if it is no JSON, of another program or version, damaged or changed.
    """
    marked = _decode(data, _AnyDocument, "is no trace that this project wrote")
    if not bytes(marked.timeline):
        raise InputError(
            "has no field 'timeline', by which traces of this project are known; expected a file that"
            " 'reshard-executors run --profile' or 'reshard-planner simulate --trace' wrote"
        )
    document = _decode(data, _Document, "is damaged")
    mark = document.timeline
    if (mark.format, mark.version) != (FORMAT, VERSION):
        raise InputError(
            f"is of format {_short(mark.format)!r}, version {mark.version}; expected {FORMAT!r}, {VERSION}"
        )
    decoded = _decode(
        document.traceEvents, list[_Slice | _Metadata | _Leaves | _Arrives | _Counter], "is damaged"
    )
    slices = [event for event in decoded if isinstance(event, _Slice)]
    timeline, start_ns, end_ns = _timeline(slices, mark.origin_ns)
    expected = trace_mark(timeline, start_ns, end_ns, mark.origin_ns, document.otherData)
    if expected["digest"] != mark.digest:
        raise InputError("is damaged or was changed: its events or notes are not those of its digest")
    return Trace(timeline, MappingProxyType(document.otherData))


def read_trace(path: Path) -> Trace:
    """Read a trace.

    Raises:
        InputError: naming the file, if it cannot be read, is too large, or as of :func:`parse_trace`.
    """
    with _naming(path):
        return parse_trace(_content(path))


def measured_timeline(path: Path, plan: Plan) -> Timeline:
    """The events of a measured run of a plan.

    Args:
        path: a trace.
        plan: the plan that ran.

    Raises:
        InputError: naming the file, as of :func:`read_trace`, or as of :func:`check_measured`.
    """
    trace = read_trace(path)
    with _naming(path):
        check_measured(trace, plan)
    return trace.timeline


def check_measured(trace: Trace, plan: Plan) -> None:
    """Refuse a trace that is none of a measured run of a plan.

    A trace that names its plan must name this one. One that names none, as of a timeline that a caller wrote
    without notes, must fit: it has ranks and slots of the plan only.

    Raises:
        InputError: saying what does not fit.
    """
    if trace.notes.get("predicted"):
        raise InputError("is of a predicted run; expected one of a measured run")
    digest = trace.notes.get("digest", plan.digest)
    if digest != plan.digest:
        raise InputError(
            f"is of a plan with digest {_short(str(digest))}; expected the plan given, {plan.digest}"
        )
    timeline, ranks = trace.timeline, plan.ranks
    _check_ranks("rank", timeline.rank, ranks)
    _check_ranks("peer", timeline.peer[timeline.peer != NO_PEER], ranks)
    slots = plan.certificate.schedule.slots
    last = int(timeline.slot.max(initial=-1))
    if last >= slots:
        raise InputError(f"has slot {last}; expected slots of the plan, which has {slots}")


def _content(path: Path) -> bytes:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise InputError("is not a regular file")
        if status.st_size > MAX_TRACE_NBYTES:
            raise InputError(f"has {status.st_size} bytes; expected at most {MAX_TRACE_NBYTES}")
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}") from None
    except ValueError as error:  # names that cannot be
        raise InputError(f"cannot be read: {error}") from None


def _check_ranks(name: str, column: Ints, ranks: Collection[int]) -> None:
    strange = sorted(set(np.unique(column).tolist()).difference(ranks))
    if strange:
        raise InputError(f"has {name} {strange[0]}; expected ranks of the plan, which has {len(ranks)}")


def _timeline(slices: Sequence[_Slice], origin_ns: int) -> tuple[Timeline, Ints, Ints]:
    """The events of slices, and their times in nanoseconds."""
    pairs = [CATEGORIES.get(each.cat) for each in slices]
    if None in pairs:
        at = pairs.index(None)
        raise InputError(
            f"is damaged: cat of slice {at} is {_short(slices[at].cat)!r}; expected an activity and a medium"
        )
    activity, medium = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    start_us = np.array([each.ts for each in slices], dtype=np.float64)
    took_us = np.array([each.dur for each in slices], dtype=np.float64)
    start_ns = np.rint(start_us * NS_PER_US).astype(np.int64) + origin_ns
    end_ns = start_ns + np.rint(took_us * NS_PER_US).astype(np.int64)
    facts = [(each.args.rank, each.args.slot, each.args.peer, each.args.nbytes) for each in slices]
    rank, slot, peer, nbytes = np.array(facts, dtype=np.int64).reshape(-1, 4).T
    try:
        timeline = Timeline(
            rank, activity, medium, slot, peer, nbytes, start_ns / NS_PER_S, end_ns / NS_PER_S
        )
    except TableError as error:
        raise InputError(f"is damaged: {error}") from None
    return timeline, start_ns, end_ns


def _decode(data: bytes | msgspec.Raw, form: type[Form], otherwise: str) -> Form:
    """JSON of a form.

    Raises:
        InputError: beginning with what the trace is if it has another one.
    """
    try:
        return msgspec.json.decode(data, type=form)
    except (msgspec.DecodeError, ValueError, OverflowError) as error:
        raise InputError(f"{otherwise}: {_short(str(error))}") from None
    except RecursionError:
        raise InputError(f"{otherwise}: it nests too deeply") from None


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Begin the sentence of an input error with the name of the trace."""
    try:
        yield
    except InputError as error:
        raise InputError(f"trace {_short(str(path))} {error}") from None


def _short(words: str) -> str:
    """Text of a file in a sentence: on one line, and not too long."""
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in words)
    return shown if len(shown) <= MAX_REASON else f"{shown[: MAX_REASON // 2]}...{shown[-MAX_REASON // 2 :]}"
