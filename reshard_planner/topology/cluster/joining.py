"""What two sources say of one thing, joined value by value."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from typing import Any, TypeVar

from reshard_planner.topology.cluster.facts import Fact, Finding, FindingKind, PortFacts
from reshard_planner.topology.cluster.hostlist import brief_names
from reshard_planner.topology.cluster.model import Gpu, HostNic, HostOverrides, HostPod, Switch
from reshard_planner.topology.cluster.speeds import find_link_speed

Device = TypeVar("Device", Gpu, HostNic)

_CAPABILITY = re.compile(r"sm_?[0-9]{2,3}a?", re.IGNORECASE)
"""How files that do not know a GPU's product call its generation."""


class Joiner:
    """Joins what two sources say, value by value, and notes conflicts."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []

    def fact(
        self, ours: Fact[Any] | None, theirs: Fact[Any] | None, place: str, field: str
    ) -> Fact[Any] | None:
        """The known one; of two that differ the more trustworthy one, of equal ones the first."""
        if ours is None or theirs is None:
            return ours or theirs
        newer = theirs.origin.trust > ours.origin.trust
        winner, loser = (theirs, ours) if newer else (ours, theirs)
        if winner.value != loser.value and winner.origin is loser.origin:
            self.conflict(place, field, winner.value, winner.source, loser.value, loser.source)
        return winner

    def conflict(self, place: str, field: str, kept: Any, by: str, dropped: Any, other: str) -> None:
        """Note that two sources differ, with what each says and their names."""
        text = (
            f"{by or 'the first source'} says {field} {_shown(kept)}, {other or 'a later one'}"
            f" {_shown(dropped)}; the first is taken"
        )
        self.findings.append(Finding(FindingKind.CONFLICT, place, text))

    def text(self, ours: str | None, theirs: str | None, place: str, field: str) -> str | None:
        """The known text, such as a uuid; the first where two differ, with a conflict."""
        if ours is not None and theirs is not None and ours != theirs:
            self.conflict(place, field, ours, "", theirs, "")
        return theirs if ours is None else ours

    def port(self, ours: PortFacts, theirs: PortFacts, place: str) -> PortFacts:
        """All that two sources say of the speed of one port, fact by fact."""
        return PortFacts(
            **{
                field.name: self.fact(
                    getattr(ours, field.name), getattr(theirs, field.name), place, field.name
                )
                for field in fields(PortFacts)
            }
        )

    def device(self, ours: Device, theirs: Device, place: str) -> Device:
        """Everything that two sources say of one GPU or NIC; the name is that of the first."""
        values: dict[str, Any] = {}
        for field in fields(ours):
            mine, other = getattr(ours, field.name), getattr(theirs, field.name)
            if field.name == "name":
                continue
            if isinstance(mine, PortFacts):
                values[field.name] = self.port(mine, other, place)
            elif field.name == "model":
                values[field.name] = self._model(mine, other, place)
            elif isinstance(mine, str) or isinstance(other, str):
                values[field.name] = self.text(mine, other, place, field.name)
            else:
                values[field.name] = self.fact(mine, other, place, field.name)
        return replace(ours, **values)

    def _model(self, ours: Fact[str] | None, theirs: Fact[str] | None, place: str) -> Fact[str] | None:
        """The product where the other source has its compute capability, such as ``sm90``."""
        if ours is not None and theirs is not None:
            speed = find_link_speed(ours.value)
            capabilities = [_CAPABILITY.fullmatch(model.value) is not None for model in (ours, theirs)]
            if any(capabilities) and speed is not None and speed is find_link_speed(theirs.value):
                return theirs if capabilities[0] else ours
        return self.fact(ours, theirs, place, "model")

    def switch(self, ours: Switch, theirs: Switch) -> Switch:
        """Everything that two sources say of one switch."""
        place = f"switch {ours.name}"
        return Switch(
            ours.name,
            tuple(dict.fromkeys((*ours.parents, *theirs.parents))),
            self.port(ours.uplink, theirs.uplink, place),
            self.port(ours.downlink, theirs.downlink, place),
        )

    def pod(self, ours: HostPod, theirs: HostPod) -> HostPod:
        """Everything that two sources say of one pod."""
        place = f"pod {ours.name}"
        if set(ours.hosts) != set(theirs.hosts):
            self.conflict(place, "hosts", brief_names(ours.hosts), "", brief_names(theirs.hosts), "")
        return HostPod(
            ours.name,
            ours.hosts,
            self.port(ours.uplink, theirs.uplink, place),
            self.fact(ours.oversubscription, theirs.oversubscription, place, "oversubscription"),
        )

    def host_overrides(self, ours: HostOverrides, theirs: HostOverrides, place: str) -> HostOverrides:
        """Overrides of all devices of some hosts; where they differ the first wins, with a conflict."""
        return HostOverrides(
            self.text(ours.gpu_model, theirs.gpu_model, place, "gpu_model"),
            self.port(ours.nic, theirs.nic, f"{place}, NICs"),
            self.port(ours.nvlink, theirs.nvlink, f"{place}, NVLink ports"),
        )


def _shown(value: object) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return text if len(text) <= 60 else text[:57] + "..."
