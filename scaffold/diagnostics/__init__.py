"""The one error type of the tool, and its exit codes.

Every stage reports problems as `Diagnostic` values; `DiagnosticError` carries one or more of them upwards and
`scaffold.report` renders them. This package imports nothing of the other stages.
"""

from scaffold.diagnostics.diagnostic import Diagnostic, DiagnosticError, Exit, Severity, Span

__all__ = ["Diagnostic", "DiagnosticError", "Exit", "Severity", "Span"]
