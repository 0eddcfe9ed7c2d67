"""Parameters by layer and role, and the rules that they match."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from reshard_planner.errors import SpecError
from reshard_planner.models import roles
from reshard_planner.models.model import Model, Parameter
from reshard_planner.models.rules import Rule

Layer = Mapping[str, Parameter]
"""The parameters of one layer by role."""

KDA = frozenset(
    (
        roles.KDA_Q,
        roles.KDA_K,
        roles.KDA_V,
        roles.KDA_G,
        roles.KDA_G_A,
        roles.KDA_G_B,
        roles.KDA_Q_CONV,
        roles.KDA_K_CONV,
        roles.KDA_V_CONV,
        roles.KDA_F_A,
        roles.KDA_F_B,
        roles.KDA_B,
        roles.KDA_A_LOG,
        roles.KDA_DT_BIAS,
        roles.KDA_NORM,
    )
)
"""Roles of Kimi delta attention."""

MTP = frozenset((roles.MTP_EMBEDDING_NORM, roles.MTP_HIDDEN_NORM, roles.MTP_PROJECTION, roles.MTP_NORM))
"""Roles of multi-token prediction that a decoder layer does not have."""


def by_layer(model: Model, framework: str) -> dict[int | None, dict[str, Parameter]]:
    """Parameters by layer, then by role, in the order of the model.

    What multi-token prediction has beside its layers belongs to the first of them.

    Raises:
        SpecError: if a parameter has no role or no such layer, or two of a layer have the same role.
    """
    last = model.layers + max(model.mtp_layers, any(p.role in MTP for p in model.parameters))
    layers: dict[int | None, dict[str, Parameter]] = {}
    for parameter in model.parameters:
        if not parameter.role:
            raise SpecError(
                f"framework {framework} needs the roles of parameters, and {parameter.name} has none;"
                " expected a model with roles, or framework plain"
            )
        layer = model.layers if parameter.layer is None and parameter.role in MTP else parameter.layer
        if layer is not None and not 0 <= layer < last:
            raise SpecError(f"{parameter.name} is of layer {layer}; expected one of the {last} layers")
        other = layers.setdefault(layer, {}).setdefault(parameter.role, parameter)
        if other is not parameter:
            place = "the model" if layer is None else f"layer {layer}"
            raise SpecError(
                f"{other.name} and {parameter.name} both have the role {parameter.role} of {place};"
                " expected one parameter for each role"
            )
    return layers


def match(layer: Layer, rules: Iterable[Rule], framework: str) -> list[tuple[Rule, dict[str, Parameter]]]:
    """The rules that a layer's parameters follow, each with those parameters in the order of the rule.

    Raises:
        SpecError: if a parameter follows none.
    """
    found = []
    left = dict(layer)
    for rule in rules:
        present = {role: left.pop(role) for role in rule.roles if role in left}
        if present:
            found.append((rule, present))
    for role, parameter in left.items():
        raise SpecError(
            f"framework {framework} does not know the role {role} of {parameter.name} in its layer; expected"
            " a role that it knows there, or framework plain"
        )
    return found


def split_evenly(count: int, parts: int) -> tuple[range, ...]:
    """Numbers 0 to ``count`` in contiguous parts, of which the first ``count % parts`` have one more."""
    base, extra = divmod(count, parts)
    starts = [part * base + min(part, extra) for part in range(parts + 1)]
    return tuple(range(lo, hi) for lo, hi in pairwise(starts))


def expert_count(model: Model, layers: Sequence[Layer]) -> int:
    """Number of routed experts; 0 for a model without.

    Raises:
        SpecError: if a parameter counts another number than the model does.
    """
    for layer in layers:
        for role, parameter in layer.items():
            if role in EXPERTS and parameter.shape[0] != model.experts:
                raise SpecError(
                    f"{parameter.name} is of {parameter.shape[0]} experts, and {model.family} has"
                    f" {model.experts}; expected the same number"
                )
    return model.experts


EXPERTS = frozenset((roles.EXPERT_GATE, roles.EXPERT_UP, roles.EXPERT_GATE_UP, roles.EXPERT_DOWN))
"""Roles whose first dimension counts experts."""
