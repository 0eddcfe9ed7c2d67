"""Names of media and roles, which all pictures and texts share."""

from __future__ import annotations

from reshard_planner.transfer import Medium, Role


def medium_name(medium: int) -> str:
    """Name of a medium, or its number where a broken plan has an unknown one.

    >>> medium_name(Medium.NVLINK), medium_name(9)
    ('nvlink', 'medium9')
    """
    return Medium(medium).label if medium in set(Medium) else f"medium{medium}"


def role_name(role: int) -> str:
    """Name of a role, likewise.

    >>> role_name(Role.INJECT), role_name(9)
    ('inject', 'role9')
    """
    return Role(role).label if role in set(Role) else f"role{role}"


def kind_name(medium: int, role: int) -> str:
    """Medium and role of a transfer.

    >>> kind_name(Medium.NETWORK, Role.RELAY)
    'network relay'
    """
    return f"{medium_name(medium)} {role_name(role)}"
