"""vitcg-scaffold: port vLLM vision encoders to CUDA graphs from a declarative descriptor.

The stages are packages; data flows one way through them (`docs/design.md`):
`descriptor` -> `protocol` and `tower` -> `plan` -> `render` and `edit` -> `verify` -> `publish` -> `report`.
`runtime` is the manager that runs inside vLLM; it imports nothing of the tool.
"""

__version__ = "0.1.0"
