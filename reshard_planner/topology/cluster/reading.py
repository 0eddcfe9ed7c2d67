"""From the forms of a cluster file to the cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from reshard_planner.errors import SpecError, TopologyError
from reshard_planner.forms import convert
from reshard_planner.intset import parse_ints
from reshard_planner.layout.mesh import MAX_RANK
from reshard_planner.topology.cluster.facts import Fact, PortFacts
from reshard_planner.topology.cluster.form import (
    VERSION,
    ClusterForm,
    FactForm,
    GpuForm,
    HostForm,
    HostOverridesForm,
    NicForm,
    OverridesForm,
    PortForm,
)
from reshard_planner.topology.cluster.hostlist import expand_hosts
from reshard_planner.topology.cluster.model import (
    MAX_NICS,
    Cluster,
    Gpu,
    Host,
    HostNic,
    HostOverrides,
    HostPod,
    Nearness,
    Overrides,
    Switch,
)
from reshard_planner.topology.model import Link

Value = TypeVar("Value")

MAX_LINKS = 1000
"""Most NVLinks of one GPU."""


def load_cluster(path: Path) -> Cluster:
    """Read a cluster file, YAML or JSON.

    Raises:
        SpecError: if the file cannot be read, is not well-formed, or a field is unknown or of the wrong type.
        TopologyError: if values describe no cluster.
    """
    from reshard_planner.document import read_document  # noqa: PLC0415 - YAML is slow to import

    raw = read_document(path)
    try:
        return cluster_from_form(raw)
    except (SpecError, TopologyError) as error:
        raise type(error)(f"{path}: {error}") from None


def cluster_from_form(raw: object, path: str = "") -> Cluster:
    """Build a cluster from plain data.

    Args:
        raw: the mapping.
        path: where it stands, for errors.

    Raises:
        SpecError: for unknown fields and wrong types.
        TopologyError: for values that describe no cluster.
    """
    form = convert(raw, ClusterForm, path)
    if form.version != VERSION:
        raise SpecError(f"version is {form.version}; this release reads cluster files of version {VERSION}")
    hosts = [host for index, entry in enumerate(form.hosts) for host in _hosts(entry, f"hosts[{index}]")]
    return Cluster(
        form.name,
        tuple(hosts),
        tuple(
            Switch(
                entry.name,
                tuple(entry.parents),
                _port(entry.uplink, f"switches[{index}].uplink"),
                _port(entry.downlink, f"switches[{index}].downlink"),
            )
            for index, entry in enumerate(form.switches)
        ),
        tuple(
            HostPod(
                entry.name,
                expand_hosts(entry.hosts),
                _port(entry.uplink, f"pods[{index}].uplink"),
                _fact(entry.oversubscription, _oversubscription, f"pods[{index}].oversubscription"),
            )
            for index, entry in enumerate(form.pods)
        ),
        None if form.rank_map is None else _int_list(form.rank_map, "rank_map"),
        _port(form.nic, "nic"),
        _port(form.nvlink, "nvlink"),
        _overrides(form.overrides),
    )


def _hosts(form: HostForm, path: str) -> Iterable[Host]:
    if isinstance(form.gpus, int):
        gpus = tuple(Gpu(f"GPU{index}") for index in range(_whole(form.gpus, f"{path}.gpus", MAX_RANK)))
    else:
        gpus = tuple(
            gpu for index, entry in enumerate(form.gpus) for gpu in _gpus(entry, f"{path}.gpus[{index}]")
        )
    if isinstance(form.nics, int):
        nics = tuple(HostNic(f"NIC{index}") for index in range(_whole(form.nics, f"{path}.nics", MAX_NICS)))
    else:
        nics = tuple(
            nic for index, entry in enumerate(form.nics) for nic in _nics(entry, f"{path}.nics[{index}]")
        )
    domain = _fact(form.domain, _text, f"{path}.domain")
    above = _fact(form.path, _names, f"{path}.path")
    nic, nvlink = _port(form.nic, f"{path}.nic"), _port(form.nvlink, f"{path}.nvlink")
    overrides = _host_overrides(form.overrides or HostOverridesForm(), f"{path}.overrides")
    for name in expand_hosts(form.name):
        yield Host(name, gpus, nics, domain, above, nic, nvlink, overrides)


def _gpus(form: GpuForm, path: str) -> Iterable[Gpu]:
    names = expand_hosts(form.name)
    _check_identity(names, {"uuid": form.uuid, "bus": form.bus}, path)
    for name in names:
        yield Gpu(
            name,
            _fact(form.model, _text, f"{path}.model"),
            form.uuid,
            form.bus,
            _fact(form.numa, _whole, f"{path}.numa"),
            _fact(form.nvlinks, _links, f"{path}.nvlinks"),
            _fact(form.island, _whole, f"{path}.island"),
            _fact(form.fabric, _text, f"{path}.fabric"),
            _port(form.nvlink, f"{path}.nvlink"),
        )


def _nics(form: NicForm, path: str) -> Iterable[HostNic]:
    names = expand_hosts(form.name)
    _check_identity(names, {"guid": form.guid, "bus": form.bus}, path)
    for name in names:
        yield HostNic(
            name,
            form.guid,
            form.bus,
            _fact(form.numa, _whole, f"{path}.numa"),
            _fact(form.rail, _whole, f"{path}.rail"),
            _fact(form.leaf, _text, f"{path}.leaf"),
            _fact(form.near, _nearness, f"{path}.near"),
            _fact(form.gpus, _ints, f"{path}.gpus"),
            _fact(form.enabled, _bool, f"{path}.enabled"),
            _port(form.port, f"{path}.port"),
        )


def _check_identity(names: tuple[str, ...], given: dict[str, str | None], path: str) -> None:
    """Refuse one address for several devices."""
    for field, value in given.items():
        if value is not None and len(names) > 1:
            raise TopologyError(
                f"{path}.{field} is {value!r} for {len(names)} names; expected one name with it"
            )


def _overrides(form: OverridesForm | None) -> Overrides:
    if form is None:
        return Overrides()
    if form.gpus_per_domain is not None and form.gpus_per_domain < 1:
        raise TopologyError(f"overrides.gpus_per_domain is {form.gpus_per_domain}; expected at least 1")
    for name, rail in form.rails.items():
        _whole(rail, f"overrides.rails.{name}")
    return Overrides(
        tuple(form.rails.items()),
        tuple(form.disabled_nics),
        tuple(tuple(domain) for domain in form.domains),
        form.gpus_per_domain,
        form.gpu_model,
        _port(form.nic, "overrides.nic"),
        _port(form.nvlink, "overrides.nvlink"),
    )


def _host_overrides(form: HostOverridesForm, path: str) -> HostOverrides:
    return HostOverrides(form.gpu_model, _port(form.nic, f"{path}.nic"), _port(form.nvlink, f"{path}.nvlink"))


def _port(form: PortForm | None, path: str) -> PortFacts:
    if form is None:
        return PortFacts()
    return PortFacts(
        _fact(form.bytes_per_s, _rate, f"{path}.bytes_per_s"),
        _fact(form.efficiency, _efficiency, f"{path}.efficiency"),
        _fact(form.latency_s, _latency, f"{path}.latency_s"),
    )


def _fact(
    form: object | FactForm | None, check: Callable[[object, str], Value], path: str
) -> Fact[Value] | None:
    if form is None:
        return None
    if isinstance(form, FactForm):
        return Fact(check(form.value, f"{path}.value"), form.origin, form.source)
    return Fact(check(form, path))


def _text(value: object, path: str) -> str:
    if not isinstance(value, str):
        raise SpecError(f"{path} is {value!r:.60}; expected text")
    return value


def _bool(value: object, path: str) -> bool:
    if not isinstance(value, bool):
        raise SpecError(f"{path} is {value!r:.60}; expected true or false")
    return value


def _whole(value: object, path: str, most: int = MAX_RANK - 1) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise TopologyError(f"{path} is {value!r:.60}; expected a number from 0 to {most}")
    return value


def _links(value: object, path: str) -> int:
    return _whole(value, path, MAX_LINKS)


def _number(value: object, path: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise SpecError(f"{path} is {value!r:.60}; expected a number")
    return value


def _rate(value: object, path: str) -> int:
    number = _number(value, path)
    if not 1 <= number < 2**53:
        raise TopologyError(f"{path} is {number!r:.60}; expected bytes per second, such as 50.0e9")
    return round(number)


def _efficiency(value: object, path: str) -> float:
    try:
        return Link(1, _number(value, path), 0.0).efficiency
    except TopologyError as error:
        raise TopologyError(f"{path}: {error}") from None


def _latency(value: object, path: str) -> float:
    try:
        return Link(1, 1.0, _number(value, path)).latency_s
    except TopologyError as error:
        raise TopologyError(f"{path}: {error}") from None


def _oversubscription(value: object, path: str) -> float:
    number = _number(value, path)
    if not 0 < number <= 1e6:
        raise TopologyError(f"{path} is {number!r:.60}; expected a ratio above 0, such as 4")
    return float(number)


def _names(value: object, path: str) -> tuple[str, ...]:
    if isinstance(value, str):
        return expand_hosts(value)
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise SpecError(f"{path} is {value!r:.60}; expected a list of names")
    return tuple(value)


def _nearness(value: object, path: str) -> tuple[Nearness, ...]:
    names = value.split(",") if isinstance(value, str) else _names(value, path)
    for name in names:
        if name.strip() not in set(Nearness):
            raise TopologyError(f"{path} has {name!r:.40}; expected one of {', '.join(Nearness)}")
    return tuple(Nearness(name.strip()) for name in names)


def _ints(value: object, path: str) -> tuple[int, ...]:
    if isinstance(value, int) and not isinstance(value, bool):
        return (_whole(value, path),)
    if isinstance(value, str | list):
        return _int_list(value, path)
    raise SpecError(f"{path} is {value!r:.60}; expected numbers such as 0-3")


def _int_list(value: str | list[str] | list[int], path: str) -> tuple[int, ...]:
    if isinstance(value, list):
        return tuple(_whole(number, path) for number in value)
    try:
        return tuple(parse_ints(value))
    except ValueError as error:
        raise SpecError(f"{path}: {error}") from None
