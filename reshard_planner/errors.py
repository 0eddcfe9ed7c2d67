"""Every error that the planner raises on purpose.

ReshardError
+-- InputError                 bad input: the CLI exits 2
|   +-- SpecError              a spec or option field is missing, unknown or of the wrong type
|   +-- ModelError             a configuration, list or checkpoint does not say what parameters a model has
|   +-- LayoutError            a mesh or its placements cannot describe the tensor
|   |   +-- PlacementError     a placement that is not supported (Partial)
|   +-- ShapeMismatchError     source and destination shapes differ
|   +-- DtypeMismatchError     source and destination dtypes differ without cast
|   +-- LocalShapeError        a local buffer differs from what its layout says
|   +-- TopologyError          the cluster description is wrong or does not hold the ranks
|   +-- PlanFileError          not a plan, damaged, or of another version
|   +-- UnsupportedError       valid, but not implemented
+-- VerificationError          a plan that fails its check: the CLI exits 1
|   +-- TableError             a table is malformed: a reference, a type or a range
|   +-- OrderError             rows out of canonical order: peers would not pair their messages
|   +-- CoverageError          a destination tile is not filled exactly once
|   +-- CausalityError         a row sends what its source does not have yet
|   +-- MediumError            a row's medium or role contradicts the topology
|   +-- PayloadError           more (or fewer) bytes over the network than the minimum
|   +-- StagingError           staging and scratch exceed the budget
|   +-- CertificateError       a figure of the certificate is not what the plan gives
|   +-- DigestError            the digest is not that of the content
+-- ExecutionError             a run failed, or delivered a wrong element: the CLI exits 1
    +-- ContentsError          destinations have other contents than the sources, as checksums show
"""

from __future__ import annotations

from collections.abc import Iterable


class ReshardError(Exception):
    """Base class of all errors raised on purpose; its text is one clear sentence."""


class InputError(ReshardError):
    """Bad input."""


class SpecError(InputError):
    """A field of a spec or an option is missing, unknown, or of the wrong type or value."""


class ModelError(InputError):
    """A configuration, a list or the files of a checkpoint do not say what parameters a model has."""


class LayoutError(InputError):
    """A mesh or its placements cannot describe the tensor."""


class PlacementError(LayoutError):
    """A placement that is not supported, such as ``Partial``."""


class ShapeMismatchError(InputError):
    """Source and destination describe tensors of different shapes."""


class DtypeMismatchError(InputError):
    """Source and destination dtypes differ and no cast was asked for."""


class LocalShapeError(InputError):
    """A local buffer has another shape or dtype than its layout implies."""


class TopologyError(InputError):
    """The description of the cluster is wrong, or does not hold the ranks of the spec."""


class PlanFileError(InputError):
    """A file is not a plan, is damaged, or has a version that this release does not read."""


class UnsupportedError(InputError):
    """Valid input that this release does not implement."""


class VerificationError(ReshardError):
    """A plan fails its check."""


class TableError(VerificationError):
    """A table is malformed."""


class OrderError(VerificationError):
    """Rows are out of canonical order, so that two peers would not pair their messages."""


class CoverageError(VerificationError):
    """A destination tile is not filled exactly once."""


class CausalityError(VerificationError):
    """A row sends bytes that its source does not have at that time."""


class MediumError(VerificationError):
    """The medium or role of a row contradicts the topology."""


class PayloadError(VerificationError):
    """The network payload is not the least possible."""


class StagingError(VerificationError):
    """Staging buffers and live scratch exceed the budget."""


class CertificateError(VerificationError):
    """A figure of the certificate is not what the plan gives."""


class DigestError(VerificationError):
    """The digest is not that of the content."""


class ExecutionError(ReshardError):
    """A run failed or delivered a wrong element.

    Attributes:
        lost: ranks of the plan that are known to be lost, ascending: without a sign of life, cut off, or no
            longer in the group; not those that failed and live. ``replan`` takes them as ``without``.
    """

    def __init__(self, text: str = "", *, lost: Iterable[int] = ()) -> None:
        super().__init__(text)
        self.lost = tuple(sorted(set(lost)))


class ContentsError(ExecutionError):
    """A run ended, and destinations have other contents than the sources."""
