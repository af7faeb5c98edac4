"""Codes of the planning stage (`scaffold.plan`)."""

from scaffold.diagnostics.catalogue import Code

CODES: tuple[Code, ...] = (
    Code(
        "VCG426",
        "only the model class can be ported in this tree",
        "An installed package holds no tests, docs or examples, so a port of it is the model class alone. Use a "
        "checkout or a release for a whole port.",
    ),
    Code(
        "VCG427",
        "the release has no such example",
        "The example script lists models by the keys of its own `model_example_map`. A key that it does not have would "
        "be dead, so no entry is made.",
    ),
    Code(
        "VCG428",
        "subclasses inherit the port",
        "A subclass of the ported class answers to the protocol as well. If it has another tower, capture fails at "
        "start-up. Look at each of them, and list those that must stay out under `model.optout`.",
    ),
    Code(
        "VCG520",
        "the class implements the protocol already",
        "The class defines protocol methods that are not what the descriptor generates. They may be written by hand, "
        "so they are not touched unasked.\n\nWith --replace they are swapped for the generated methods, together with "
        "the private helpers that only they use; `revert` brings them back.",
    ),
)
