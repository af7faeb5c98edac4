"""Codes of the planning stage (`scaffold.plan`)."""

from scaffold.diagnostics.catalogue import Code

CODES: tuple[Code, ...] = (
    Code(
        "VCG418",
        "the tower does not fit the descriptor",
        "The generated methods record buffers by the names that the descriptor gives, and ask the tower's metadata "
        "method for room by its parameters. One of these does not exist in the tree's tower.",
    ),
    Code(
        "VCG419",
        "the model class lacks something that the port needs",
        "The port reads an attribute of the model class, such as its tower or its configuration, that the class does "
        "not set in this tree.",
    ),
    Code(
        "VCG429",
        "a gate is left out",
        "The descriptor switches graphs off under a condition whose attribute this tree's class does not have. The "
        "feature does not exist there, so there is nothing to switch off.",
    ),
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
        "A subclass of the ported class answers to the protocol as well. One with another tower would be asked for "
        "metadata that its tower does not compute, and capture fails at start-up; a tower that is the same class under "
        "another name is none. Look at each of them, and list those that must stay out under `model.optout`: no class "
        "can take the protocol back, so they raise an error with the reason when the manager asks for their "
        "configuration.",
    ),
    Code(
        "VCG437",
        "this release cannot express the paths",
        "Releases whose protocol knows two paths call them `local` and `global` in their own code, and find the pixels "
        "by these names. The paths of the descriptor have other names: rename them, or port into another release.",
    ),
    Code(
        "VCG438",
        "the image processor is not in this tree",
        "The descriptor reads a constant from an attribute of the model's image processor. The tree has no such class "
        "in the module that is named, the class does not set the attribute, or it cannot be made without arguments, as "
        "a port makes it.",
    ),
    Code(
        "VCG520",
        "the class implements the protocol already",
        "The class defines protocol methods that are not what the descriptor generates. They may be written by hand, "
        "so they are not touched unasked.\n\nWith --replace they are swapped for the generated methods, together with "
        "the private helpers that only they use; `revert` brings them back. A class may also inherit one: then the "
        "base is what to port, and --replace gives the subclass methods of its own, as long as none of the base's is "
        "left to run beside them.",
    ),
    Code(
        "VCG521",
        "a file is not up to date",
        "`new --check` found that a file does not hold what the descriptor generates. Exit code 1; nothing was "
        "written. Run `new` without --check, or change the descriptor.",
    ),
    Code(
        "VCG440",
        "the protocol demands an argument that the generated code does not give",
        "Generated methods call each other. Where a protocol method has a new required parameter, the template that "
        "calls it has to say the value: one line. Nothing was written. See docs/new-generation.md.",
    ),
    Code(
        "VCG441",
        "the protocol has no hook for what runs after a replay",
        "`post.call` names a module that turns the output of a graph into embeddings outside of the graph. Releases "
        "before 0.22 slice the output of a graph themselves and have no place for it.",
    ),
)
