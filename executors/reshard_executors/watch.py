"""The watch: ranks of one group see that the others live, and hear when one of them has failed.

Every rank has a thread that writes into the group's store twice a second, less often in large groups. While
a call waits for other ranks, it also reads: whether those that it depends on still write, and whether anyone
has said that it failed. No other thread uses the store, whose process may be the one that hangs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Final, Generic, TypeVar

from torch._C._distributed_c10d import Store

from reshard_executors.signs import (
    DEAD,
    DONE,
    FAILED,
    MOVING,
    SILENCE,
    STORE_GONE,
    Lost,
    has_left,
    is_last,
    left_early,
    lost_key,
    sign_key,
)
from reshard_executors.spelling import spell_ranks_have
from reshard_executors.threads import Helper

T = TypeVar("T")

BEAT_S: Final = 0.5
"""Seconds from one sign of life to the next, in groups of up to ``RANKS_PER_BEAT`` ranks."""

RANKS_PER_BEAT: Final = 512
"""In larger groups signs are rarer in proportion, so that one store serves them all."""

BEATS_TO_LOSE: Final = 3
"""A rank is lost after so many beats at the earliest."""

IDLE_PATIENCE: Final = 3
"""How many times longer a rank may be silent that has not begun the call: what it does may hold Python up."""

STORE_GRACE_S: Final = 2.0
"""How long a call may still end well after the store is gone or a rank has left: it may have ended first."""

ANSWER_S: Final = 1.5
"""How long to wait until a failure has been said in the store."""

WATCH_ALL: Final = 64
"""Ranks up to which everyone watches everyone; of more, everyone watches those that it depends on."""

RING: Final = 4
"""Ranks after the own one that are watched at any rate, so that somebody watches each."""

PAUSE_S: Final = 1.0
"""A caller that waits asks for trouble far more often than this."""

SILENT_BEATS: Final = 3
"""After a failure, a rank that has given no sign for so many beats is gone, if a connection to it failed."""

DOUBT_BEATS: Final = 6
"""For so many beats at most a rank waits for what others say of those that are silent, and have no failed
connection to it: such a rank may live, and be held up."""


@dataclass(slots=True)
class _Request(Generic[T]):
    """Something that the thread is asked to do with the store, and what came of it; None if it failed."""

    work: Callable[[], T]
    done: threading.Event = field(default_factory=threading.Event)
    answer: T | None = None

    def run(self) -> None:
        """Do it; in the thread."""
        self.answer = self.work()


@dataclass(slots=True)
class _Seen:
    """What is known of another rank: its last sign of life, when it came, and how many calls it has begun."""

    sign: bytes = b""
    at: float = 0.0
    calls: int = 0


class Watch:
    """Signs of life of one group; see the module."""

    def __init__(self, store: Store, position: int, size: int, lost_after_s: float) -> None:
        """Begin to give signs of life, once all ranks have met.

        Args:
            store: of the group alone, with a connection of its own; ranks have met in it.
            position: of this process in the group.
            size: of the group.
            lost_after_s: a rank without a sign of life for so many seconds is lost.

        Raises:
            RuntimeError: if the system allows no more threads.
        """
        self._store, self._position, self._size = store, position, size
        self._beat_s = BEAT_S * max(1.0, size / RANKS_PER_BEAT)
        self._lost_after_s = max(lost_after_s, BEATS_TO_LOSE * self._beat_s)
        self._requests: SimpleQueue[_Request[Any] | None] = SimpleQueue()
        self._watched: tuple[int, ...] = ()
        self._last_watched: tuple[int, ...] = ()
        self._failed = False
        self._seen: dict[int, _Seen] = {}
        self._calls = self._ended = 0
        self._met = False
        self._mute = False
        self._moves = self._told_moves = 0
        self._moving = b""
        self._began_at = self._moved_at = 0.0
        self._gone_at: float | None = None
        self._trouble: str | None = None
        self._looked_at = self._asked_at = time.monotonic()
        self._names: Sequence[int] = range(size)
        self._last_sign = DONE
        self._lost: set[int] = set()
        self._read_at = time.monotonic()
        self._thread = Helper("reshard watch", self._live)

    def begin(self, names: Sequence[int], peers: Sequence[int], *, met: bool) -> None:
        """Begin a call that waits for other ranks.

        Args:
            names: what each rank of the group is called in messages.
            peers: positions of those that the call depends on.
            met: whether all ranks have met just before, so that none is at something else.
        """
        now = time.monotonic()
        self._names, self._calls, self._met = names, self._calls + 1, met
        if not self._failed:  # what was thought of ranks in the last call says nothing of this one
            self._trouble, self._mute = None, False
            self._lost.clear()
        self._read_at = now
        self._began_at = self._moved_at = self._looked_at = self._asked_at = now
        ring = [(self._position + step) % self._size for step in range(1, RING + 1)]
        wanted = range(self._size) if self._size <= WATCH_ALL else {*peers, *ring}
        watched = tuple(sorted(set(wanted) - {self._position}))
        self._seen = {position: _Seen(at=now) for position in watched}
        self._watched = self._last_watched = watched

    def end(self, *, well: bool = True) -> None:
        """End the call; well if this rank has done all that the others need of it."""
        self._watched = ()
        if well:
            self._ended = self._calls

    def move(self) -> None:
        """Tell that this rank goes forward, so that those that wait for it know it is not stuck."""
        self._moves += 1

    @property
    def moved_at(self) -> float:
        """When some rank was last seen to go forward, or the call began; monotonic."""
        return self._moved_at

    def find_trouble(self) -> str | None:
        """Why a call cannot go on, in words; None as long as nothing is known. Asked again and again."""
        now = time.monotonic()
        if now > self._asked_at + PAUSE_S:  # this process was stopped, and has not had time to look
            self._looked_at = now
        self._asked_at = now
        if self._trouble is None and self._gone_at is not None and now > self._gone_at + STORE_GRACE_S:
            return STORE_GONE
        silent = self._gone_at is None and now > self._looked_at + self._lost_after_s + STORE_GRACE_S
        if self._trouble is None and silent:
            self._mute = True
            self._trouble = (
                f"the store of the process group has not answered for {self._lost_after_s:g} s;"
                " the process that keeps it hangs or cannot be reached"
            )
        return self._trouble

    @property
    def behind(self) -> list[int]:
        """Names of watched ranks that had the time to begin the call that this one is in, and have not."""
        if self._met or time.monotonic() < self._began_at + BEATS_TO_LOSE * self._beat_s:
            return []
        return [
            self._names[position]
            for position, seen in self._seen.items()
            if seen.sign and seen.calls < self._calls
        ]

    def announce(self, text: str) -> str | None:
        """Tell all ranks that this one has failed; what another one said before, None if none did."""
        mine = f"rank {self._names[self._position]}: {text}"
        first = self._ask(partial(self._say, mine))
        return None if first == mine else first

    @property
    def lost(self) -> list[int]:
        """Names of watched ranks that are silent, or have left before the call had ended well on them."""
        return sorted(self._names[position] for position in self._lost)

    @property
    def names(self) -> Sequence[int]:
        """What each rank of the group is called in messages."""
        return self._names

    @property
    def store_trouble(self) -> list[str]:
        """What is wrong with the store, in words; empty if nothing is known."""
        if self._gone_at is not None:
            return [STORE_GONE]
        return ["the store of the process group does not answer"] if self._mute else []

    def find_lost(self, suspects: Sequence[int]) -> Lost:
        """Find the watched ranks that are no longer in the group, and tell the others; takes a few beats.

        A rank that lives goes on for that long after a failure, and says how it leaves.

        Args:
            suspects: names of ranks to which a connection has failed.
        """
        begin = dict(self._signs(self._last_watched))
        last = dict(begin)
        silent = {position for position, sign in begin.items() if not is_last(sign)}
        suspected = {position for position in silent if self._names[position] in suspects}
        lost: set[int] = set()
        beats = 0.0
        while silent and beats < DOUBT_BEATS and self._gone_at is None and not self._mute:
            time.sleep(self._beat_s / 2)
            beats += 0.5
            now = dict(self._signs(sorted(silent)))
            last |= now
            silent = {position for position in silent if now.get(position) == begin[position]}
            found = silent & suspected if beats >= SILENT_BEATS else set()
            found |= set(self._ask(partial(self._said_lost, sorted(silent - suspected))) or ())
            for position in found:
                self._ask(partial(self._store.set, lost_key(position), ""))
            lost |= found
            silent -= found
        left = {position for position, sign in last.items() if has_left(sign)}
        self._lost |= lost | {position for position in left if left_early(last[position], self._calls)}
        return Lost(*(sorted(self._names[position] for position in each) for each in (lost, left)))

    def _said_lost(self, positions: Sequence[int]) -> list[int]:
        """Those of some ranks that others have found to be lost."""
        return [position for position in positions if self._store.check([lost_key(position)])]

    def _signs(self, watched: Sequence[int]) -> list[tuple[int, bytes]]:
        """Signs of life as they are in the store now; none if it does not answer."""
        found = self._ask(partial(self._read, watched))
        return [] if found is None else list(zip(watched, found, strict=True))

    def _ask(self, work: Callable[[], T]) -> T | None:
        """Have the thread do something with the store; None if that fails, or nothing comes of it in time."""
        if self._mute:
            return None
        request = _Request(work)
        self._requests.put(request)
        self._mute = not request.done.wait(ANSWER_S)
        return request.answer

    def join(self, patience_s: float) -> None:
        """Wait some seconds for the thread to end."""
        self._thread.join(patience_s)

    def close(self, last_sign: bytes = DONE) -> None:
        """End the thread, which says how this rank leaves; does not wait for it."""
        self._watched, self._last_sign = (), last_sign
        self._requests.put(None)

    def _live(self) -> None:
        beats = 0
        due = time.monotonic() + self._beat_s
        while True:
            try:
                request = self._requests.get(timeout=max(0.0, due - time.monotonic()))
            except Empty:
                beats += 1
                due = max(due, time.monotonic()) + self._beat_s
                self._guarded(partial(self._beat, beats))
                continue
            if request is None:
                self._guarded(self._part)
                return
            self._guarded(request.run)
            request.done.set()

    def _guarded(self, step: Callable[[], None]) -> None:
        if self._gone_at is not None:
            return
        try:
            step()
        except Exception:  # noqa: BLE001 - stores raise errors of many kinds, and all mean the same
            self._gone_at = time.monotonic()
        self._looked_at = time.monotonic()

    def _part(self) -> None:
        ended = f" {self._ended}" if self._last_sign == DONE else ""
        self._store.set(sign_key(self._position), self._last_sign.decode() + ended)

    def _say(self, text: str) -> str:
        said: bytes = self._store.compare_set(FAILED, "", text)
        return said.decode(errors="replace")

    def _read(self, watched: Sequence[int]) -> list[bytes]:
        found: list[bytes] = self._store.multi_get(list(map(sign_key, watched)))
        return found

    def _beat(self, beats: int) -> None:
        watched = self._watched
        self._store.set(sign_key(self._position), f"{beats} {self._calls}")
        if self._moves != self._told_moves:
            self._told_moves = self._moves
            self._store.set(MOVING, f"{self._position} {self._moves}")
        if not watched:
            return
        if self._store.check([FAILED]):
            self._trouble = self._store.get(FAILED).decode(errors="replace")
            self._failed = True
            return
        self._look(watched)

    def _look(self, watched: Sequence[int]) -> None:
        call, seen_of, names = self._calls, self._seen, self._names
        signs = self._store.multi_get([*map(sign_key, watched), MOVING])
        now = time.monotonic()
        late = now > self._read_at + self._beat_s + PAUSE_S  # this process was stopped, others may have been
        self._read_at = now
        if signs[-1] != self._moving:
            self._moving, self._moved_at = signs[-1], now
        lost: list[tuple[int, float]] = []
        left: list[int] = []
        dead: list[int] = []
        for position, sign in zip(watched, signs[:-1], strict=True):
            seen = seen_of.get(position)
            if seen is None:  # another call has begun meanwhile
                return
            if late:
                seen.at = now
            if sign != seen.sign:
                seen.sign, seen.at = sign, now
                seen.calls = call if is_last(sign) else int(sign.split()[1])
                continue
            silent_s = now - seen.at
            if is_last(sign):
                if silent_s > STORE_GRACE_S:
                    (dead if sign == DEAD else left).append(position)
                continue
            patience_s = self._lost_after_s * (1 if self._met or seen.calls >= call else IDLE_PATIENCE)
            if silent_s > patience_s:
                lost.append((position, silent_s))
        trouble = None
        if left:
            trouble = str(Lost([], [names[position] for position in left]))
        elif dead:
            trouble = f"{spell_ranks_have([names[position] for position in dead])} failed"
        elif lost:
            longest_s = max(silent_s for _, silent_s in lost)
            silent = [names[position] for position, _ in lost]
            trouble = f"{spell_ranks_have(silent)} {SILENCE} for {longest_s:.0f} s"
        if trouble is not None and self._calls == call and self._watched:
            self._lost.update(position for position, _ in lost)
            self._lost.update(position for position in left if left_early(seen_of[position].sign, call))
            self._trouble = trouble
            for position, _ in lost:
                self._store.set(lost_key(position), "")
