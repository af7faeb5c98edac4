"""Positions, severities, diagnostics and exit codes: small frozen values, no I/O."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, IntEnum


class Severity(str, Enum):
    """How much a diagnostic matters. Only an error stops a run."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


class Exit(IntEnum):
    """Process exit codes, one meaning each. Signals have the codes of the shell's convention (130, 143)."""

    OK = 0
    DRIFT = 1
    USAGE = 2
    DESCRIPTOR = 3
    TARGET = 4
    CONFLICT = 5
    PROOF = 6
    IO = 7


#: The first digit of a code decides the exit code of an error,
_EXIT_BY_FAMILY = {
    "1": Exit.DESCRIPTOR,  # YAML
    "2": Exit.DESCRIPTOR,  # schema
    "3": Exit.DESCRIPTOR,  # meaning
    "4": Exit.TARGET,
    "5": Exit.CONFLICT,
    "6": Exit.PROOF,
    "7": Exit.IO,
    "8": Exit.DESCRIPTOR,  # a trace: the input of `budgets`
}
#: except for a proof that cannot run because the tree does not run here: it refused nothing.
_EXIT_BY_CODE = {"VCG656": Exit.TARGET}


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """A range of text in a file. Lines and columns count from 1; the end column is exclusive."""

    file: str
    line: int
    column: int
    end_line: int
    end_column: int

    def __post_init__(self) -> None:
        assert (1, 1) <= (self.line, self.column) <= (self.end_line, self.end_column), self

    @classmethod
    def at(cls, file: str, text: str, offset: int, width: int = 1) -> Span:
        """The place of `width` characters of one line of a text, whose lines end with a line feed."""
        line = text.count("\n", 0, offset) + 1
        column = offset - text.rfind("\n", 0, offset)
        return cls(file, line, column, line, column + width)

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One problem: what (`message`), where (`span`), and what to do next (`help`).

    `code` is stable across releases (`VCG204`), and `vitcg-scaffold explain CODE` explains it.
    """

    code: str
    message: str
    span: Span | None = None
    help: str | None = None
    severity: Severity = Severity.ERROR
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        assert len(self.code) == 6, self.code
        assert self.code.startswith("VCG"), self.code
        assert self.code[3:].isdigit(), self.code

    @property
    def exit(self) -> Exit:
        """The exit code of the process if this diagnostic is an error."""
        if self.severity is not Severity.ERROR:
            return Exit.OK
        return _EXIT_BY_CODE.get(self.code, _EXIT_BY_FAMILY[self.code[3]])


class DiagnosticError(Exception):
    """Carries diagnostics to the edge of the program. At least one of them is an error."""

    def __init__(self, diagnostics: Diagnostic | Iterable[Diagnostic]) -> None:
        self.diagnostics: tuple[Diagnostic, ...] = (
            (diagnostics,) if isinstance(diagnostics, Diagnostic) else tuple(diagnostics)
        )
        assert any(d.severity is Severity.ERROR for d in self.diagnostics)
        super().__init__("; ".join(f"{d.code}: {d.message}" for d in self.diagnostics))

    @classmethod
    def of(
        cls, code: str, message: str, span: Span | None = None, help: str | None = None, notes: tuple[str, ...] = ()
    ) -> DiagnosticError:
        """The error that carries one diagnostic of these values."""
        return cls(Diagnostic(code, message, span, help, notes=notes))

    @property
    def exit(self) -> Exit:
        """The most specific exit code: that of the latest stage with an error."""
        return max(d.exit for d in self.diagnostics)
