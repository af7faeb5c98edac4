"""Codes of the planning stage (`scaffold.plan`)."""

from scaffold.diagnostics.catalogue import Code

CODES: tuple[Code, ...] = (
    Code(
        "VCG418",
        "the tower does not fit the descriptor",
        "The generated methods record buffers by the descriptor's names, and ask the tower's metadata method for room "
        "by its parameters. The tree's tower lacks one of them, or has one that the descriptor does not name. "
        "`vitcg-scaffold inspect` shows what it has: correct `buffers` and `attention`, or use a release that fits.",
    ),
    Code(
        "VCG419",
        "the model class lacks something that the port needs",
        "The port reads an attribute of the model class, such as its tower or its configuration. In this tree the "
        "class does not set it, or sets something that is no number. Correct the name in the descriptor.",
    ),
    Code(
        "VCG429",
        "a gate is left out",
        "The descriptor turns graphs off under a condition. This tree's class does not have the attribute that the "
        "condition reads, so the release lacks the feature. The port needs no gate here.",
    ),
    Code(
        "VCG426",
        "only the model class can be ported in this tree",
        "An installed package holds no tests, docs or examples, so a port of it is the model class alone. Use a "
        "checkout or a release for a whole port.",
    ),
    Code(
        "VCG499",
        "a port of a package's model would change vLLM",
        "With --package, a run writes the files of that package alone. This model takes its tower, or the methods that "
        "encode, from a class of vLLM, and the port changes those. Override them in the package, or port the class of "
        "vLLM in vLLM's own tree: its subclasses inherit the port.",
    ),
    Code(
        "VCG427",
        "the release has no such example",
        "The example script lists models by the keys of its own `model_example_map`. An entry under another key would "
        "be dead, so the tool makes none. Name a key of that map, or leave it.",
    ),
    Code(
        "VCG428",
        "subclasses inherit the port",
        "A subclass of the ported class has the protocol as well. If it has another tower, the manager asks it for "
        "metadata that this tower does not compute, and capture fails at start-up. The same class under another name "
        "is no other tower. Look at each subclass, and list those that must stay out under `model.optout`. No class "
        "can take the protocol back, so the port changes the function `supports_encoder_cudagraph`, which vLLM asks "
        "first: it reads the property of that name, which is false for them. They run eagerly, with a warning.",
    ),
    Code(
        "VCG437",
        "this release cannot express the paths",
        "The protocol of this release knows two paths by the names `local` and `global`, and its manager finds the "
        "pixels by them. Rename the paths of the descriptor, or port into another release.",
    ),
    Code(
        "VCG438",
        "the image processor is not in this tree",
        "The descriptor reads a constant from the model's image processor. The module that it names has no such "
        "class, the class does not set the attribute, or the class needs arguments, which a port does not give. "
        "Correct the name, or write the constant under `let`.",
    ),
    Code(
        "VCG464",
        "a name is not in this tree",
        "The port would call or read something that this tree does not have. Calls lead to parts of the model, and to "
        "methods that a class of the tree defines: not to what torch, transformers or another package bring along, nor "
        "to a value. The function of `item.tokens` and the class of `processor` are of those that the model uses. "
        "Paths lead to attributes that a class or its configuration has, and keys of inputs are those of the "
        "processor's field configuration. Correct the name at the place that the message names.",
    ),
    Code(
        "VCG463",
        "a name could not be checked",
        "No source that the tool reads says whether the name is there. The class of the configuration is in neither "
        "the tree nor the installed transformers, and the model's own code reads no such name. Or a processor puts "
        "the keys of its inputs together when it runs. Look the name up in the checkpoint's configuration; `verify` "
        "fails if it is wrong.",
    ),
    Code(
        "VCG520",
        "the class implements the protocol already",
        "The class defines protocol methods that are not what the descriptor generates. They may be written by hand, "
        "so they are not touched unasked.\n\nWith --replace they are swapped for the generated methods, together with "
        "the helpers, values and imports of the file that only they use; `revert` brings them back. A class may also "
        "inherit a port. That serves it, too, and nothing is to be done, unless it makes another tower or encodes in "
        "another way. --replace then gives it methods of its own, as long as none of the base's is left to run beside "
        "them.",
    ),
    Code(
        "VCG521",
        "a file is not up to date",
        "`new --check` found a file that does not hold what the descriptor generates. It wrote nothing and ends with "
        "exit code 1. Run `new` without --check, or change the descriptor.",
    ),
    Code(
        "VCG522",
        "something that only the replaced methods used stays",
        "--replace takes out what nothing refers to any more: helpers, values and imports of the model's file. Names "
        "prove it. Here another file of the tree uses the same name, as an attribute of an object that may or may not "
        "be this model. Look whether it means this one.",
    ),
    Code(
        "VCG523",
        "explanations go with the replaced code",
        "A comment explains the code around it, and the generated code is other code. No tool can tell whether the "
        "comment still holds. So none is carried over, and this note lists all that go. Where one gives the reason for "
        "a value that the port has, too, write it into the descriptor.",
    ),
    Code(
        "VCG524",
        "the port lacks a place",
        "A whole port of vLLM's has four places: the model, an entry in the generation test, a row in the docs table, "
        "and a name in the example's list. The descriptor has nothing for one of them. No test runs a port without a "
        "test entry, and a reviewer will ask for it.",
    ),
    Code(
        "VCG525",
        "the tree has another version of a file that ports share",
        "Models whose encoder takes rows of patches share one class, which the first port brings in a file of its own. "
        "The tree has a file of that name that says something else: it was edited, or another version of the tool "
        "wrote it. If this port replaced it, the other models that import it would change without a proof. Delete the "
        "file, and port each of these models again with --replace. The tool wrote nothing.",
    ),
    Code(
        "VCG526",
        "the working copy has another version of a repaired file",
        "With a release, `fix` runs the code of the release and not that of the working copy, which may be anybody's "
        "folder. So it writes into the copy only where the file is the release's, byte for byte. Give the folder as "
        "--vllm to run and repair its own code. The tool wrote nothing.",
    ),
    Code(
        "VCG527",
        "a repair is pending",
        "`fix --check` found a repair that the checks prove. It wrote nothing and ends with exit code 1. Run `fix` "
        "without --check to write it, or with --diff to see it.",
    ),
    Code(
        "VCG528",
        "no rule repairs what fails",
        "The port in the tree fails these checks, and `fix` has no repair that makes them pass and leaves all others "
        "as they are. Each line says which kind of failure it is. *No defect*: nobody can meet it, or the results are "
        "right. *Open upstream*: vLLM has a thread for it, and the repair is not in the model's file. *Needs a hand*: "
        "a defect of this port. The exit code is 0, because there is nothing that `fix` could do.",
    ),
    Code(
        "VCG439",
        "the class has too many subclasses",
        "Subclasses inherit a port, so the tool looks at each of them. It looks at no more than 2,000; no model of "
        "vLLM has more than twenty.",
    ),
    Code(
        "VCG440",
        "the protocol demands an argument that the generated code does not give",
        "Generated methods call each other. A protocol method of this tree has a new required parameter, and the "
        "template that calls it does not give the value. Write it there: one line. docs/new-generation.md shows how. "
        "The tool wrote nothing.",
    ),
    Code(
        "VCG441",
        "the protocol has no hook for what runs after a replay",
        "`post.call` names a module that turns a graph's output into embeddings, outside of the graph. The managers "
        "of 0.20 and 0.21 slice a graph's output themselves and call nothing. Port the model into 0.22 or later.",
    ),
)
