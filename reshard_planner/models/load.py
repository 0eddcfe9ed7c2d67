"""Models from files: a configuration, a checkpoint with or without one, or a plain list of parameters."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from reshard_planner.document import read_document
from reshard_planner.dtypes import canonical_dtype
from reshard_planner.errors import ModelError, SpecError
from reshard_planner.forms import convert
from reshard_planner.models.checkpoint import PLAIN, match_checkpoint, plain_model, replaced_dtype
from reshard_planner.models.config import Config
from reshard_planner.models.families import FAMILIES, build_model, find_family
from reshard_planner.models.headers import INDEX_NAME, read_checkpoint
from reshard_planner.models.model import Model, Parameter

CONFIG_NAME: Final = "config.json"


class ListEntry(msgspec.Struct, forbid_unknown_fields=True):
    """A parameter in a plain list: its name, its shape in elements, and torch's name of its dtype."""

    name: str
    shape: list[int]
    dtype: str


def load_model(
    path: str | Path,
    *,
    overrides: str | Path | Mapping[str, Any] | None = None,
    mtp: bool = False,
    dtype: str | None = None,
) -> Model:
    """Read the parameters of a model.

    Args:
        path: one of

            - a configuration, ``config.json``, of a family that is known;
            - a checkpoint: a folder, its ``model.safetensors.index.json``, or one safetensors file. Only
              headers are read. A ``config.json`` beside it gives family and roles, and is compared with the
              files; without one, or of a family that is not known, parameters have no roles;
            - a YAML or JSON list of parameters, each a mapping of ``name``, ``shape`` and ``dtype``.
        overrides: values for fields that the configuration lacks, or that are disputed: a mapping, or the
            YAML or JSON file that holds it. Every one that is used becomes a note of the model.
        mtp: whether layers of multi-token prediction are among the parameters. Lists and checkpoints without
            a known family keep what they have.
        dtype: torch's name of the element type, instead of the one that the configuration or files say.
            Parameters that their family keeps in float32 stay so; without a family, all of floating point
            change.

    Returns:
        The model. Its notes say what was left out, overridden or assumed.

    Raises:
        ModelError: if a file cannot be read, is damaged or contradicts another, a field is missing, wrong or
            of unknown meaning, or an override is not read.
    """
    path = Path(path)
    try:
        return _load(path, overrides, mtp=mtp, dtype=dtype)
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}") from None
    except RecursionError:
        raise ModelError(f"{path} nests too deeply; expected a model") from None


def _load(
    path: Path, overrides: str | Path | Mapping[str, Any] | None, *, mtp: bool, dtype: str | None
) -> Model:
    given = _overrides(overrides)
    asked = None if dtype is None else _canonical(dtype, "dtype")
    if path.is_dir():
        if (path / INDEX_NAME).exists() or any(path.glob("*.safetensors")):
            return _of_checkpoint(path, path / CONFIG_NAME, given, mtp=mtp, dtype=asked)
        if (path / CONFIG_NAME).exists():
            return load_model(path / CONFIG_NAME, overrides=given, mtp=mtp, dtype=asked)
        raise ModelError(f"{path} has no safetensors file and no {CONFIG_NAME}; expected a model's folder")
    if path.suffix == ".safetensors":
        return _of_checkpoint(path, path.parent / CONFIG_NAME, given, mtp=mtp, dtype=asked)
    document = _read(path)
    if isinstance(document, list):
        return _of_list(document, path, given, asked)
    if isinstance(document, dict) and "weight_map" in document:
        return _of_checkpoint(path, path.parent / CONFIG_NAME, given, mtp=mtp, dtype=asked)
    if isinstance(document, dict) and "model_type" in document:
        return model_from_config(document, str(path), overrides=given, mtp=mtp, dtype=asked)
    raise ModelError(
        f"{path} is no model; expected a configuration with model_type, an index with weight_map, or a list"
    )


def model_from_config(
    raw: Mapping[str, Any],
    where: str = CONFIG_NAME,
    *,
    overrides: Mapping[str, Any] | None = None,
    mtp: bool = False,
    dtype: str | None = None,
) -> Model:
    """The model of a configuration that is in memory; see :func:`load_model`.

    Args:
        raw: the configuration.
        where: what errors call it.
        overrides: values that replace its own.
        mtp: whether layers of multi-token prediction are among the parameters.
        dtype: torch's name of the element type, instead of the configuration's.

    Raises:
        ModelError: if a field is missing, wrong or of unknown meaning, or an override is not read.
    """
    family = find_family(raw.get("model_type"), where)
    return build_model(family, Config(raw, where, overrides, dtype), mtp=mtp)


def _of_checkpoint(
    path: Path, config: Path, overrides: Mapping[str, Any], *, mtp: bool, dtype: str | None
) -> Model:
    tensors = read_checkpoint(path)
    raw = _read(config) if config.exists() else None
    if raw is not None and not isinstance(raw, dict):
        raise ModelError(f"{config} is no mapping; expected a configuration with model_type")
    model_type = None if raw is None else raw.get("model_type")
    family = FAMILIES.get(model_type) if isinstance(model_type, str) else None
    if raw is None or family is None:
        reason = f"there is no {config.name}" if raw is None else f"model_type is {model_type!r}"
        if overrides:
            raise ModelError(f"overrides are for a configuration of a known family, but for {path} {reason}")
        return plain_model(tensors, dtype, f"parameters have no roles, as {reason}")
    model = model_from_config(raw, str(config), overrides=overrides, mtp=mtp, dtype=dtype)
    return match_checkpoint(model, family, tensors, str(path), dtype)


def _of_list(entries: list[Any], path: Path, overrides: Mapping[str, Any], dtype: str | None) -> Model:
    if overrides:
        raise ModelError(f"overrides are for a configuration, but {path} is a list of parameters")
    found: dict[str, Parameter] = {}
    for number, raw in enumerate(entries):
        where = f"{path}: [{number}]"
        try:
            entry = convert(raw, ListEntry, where)
        except SpecError as error:
            raise ModelError(str(error)) from None
        if not entry.name or entry.name in found:
            raise ModelError(f"{where}.name is {entry.name!r}; expected a name that no other has")
        if any(size < 0 for size in entry.shape):
            raise ModelError(f"{where}.shape is {entry.shape}; expected whole numbers of at least 0")
        own = replaced_dtype(_canonical(entry.dtype, f"{where}.dtype"), dtype)
        found[entry.name] = Parameter(entry.name, tuple(entry.shape), own, "")
    if not found:
        raise ModelError(f"{path} is an empty list; expected at least one parameter")
    return Model(family=PLAIN, parameters=tuple(found.values()), layers=0)


def _overrides(given: str | Path | Mapping[str, Any] | None) -> Mapping[str, Any]:
    if given is None or isinstance(given, Mapping):
        return given or {}
    values = _read(Path(given))
    if not isinstance(values, dict) or not all(isinstance(name, str) for name in values):
        raise ModelError(f"{given} is no mapping; expected fields of a configuration and their values")
    return values


def _read(path: Path) -> object:
    try:
        return read_document(path)
    except SpecError as error:
        raise ModelError(str(error)) from None


def _canonical(dtype: str, where: str) -> str:
    try:
        return canonical_dtype(dtype)
    except SpecError as error:
        raise ModelError(f"{where}: {error}") from None
