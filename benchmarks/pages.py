"""Pages of the documentation that commands write their tables into."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Place:
    """Where a page has what a command writes.

    Attributes:
        name: of what is written; stands in the lines around it.
    """

    name: str

    @property
    def begin(self) -> str:
        """The line before it."""
        return f"<!-- begin: {self.name} -->\n"

    @property
    def end(self) -> str:
        """The line after it."""
        return f"<!-- end: {self.name} -->\n"

    def why_not(self, page: Path) -> str | None:
        """What is wrong with a page that is to be written to; None if nothing is."""
        try:
            text = page.read_text(encoding="utf-8")
        except OSError:
            text = ""
        if 0 <= text.find(self.begin) < text.find(self.end):
            return None
        return f"--write {page}: expected a page with the lines {self.begin.strip()} and {self.end.strip()}"

    def read(self, page: Path) -> str:
        """What stands there."""
        return page.read_text(encoding="utf-8").split(self.begin)[1].split(self.end)[0]

    def write(self, page: Path, text: str) -> None:
        """Put text there; everything around it stays."""
        head, rest = page.read_text(encoding="utf-8").split(self.begin)
        page.write_text(head + self.begin + text + self.end + rest.split(self.end)[1], encoding="utf-8")
