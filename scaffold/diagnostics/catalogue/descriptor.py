"""Codes of the descriptor stage: 1xx the text as YAML, 2xx the schema, 3xx the meaning."""

from scaffold.diagnostics.catalogue import Code

CODES: tuple[Code, ...] = (
    # --- the text as YAML
    Code(
        "VCG100",
        "the descriptor cannot be read",
        "The argument is neither a readable file nor the bare name of a shipped descriptor. Check the path and the "
        "permissions; a name without a directory is also looked up among the shipped ones.",
    ),
    Code(
        "VCG101",
        "the text is not valid YAML",
        "Nothing after this place can be understood, so it is the only error that hides others. Most often a quote "
        "or a bracket is open, a value contains `: ` without quotes, or a line is indented differently from its "
        "neighbours.",
    ),
    Code(
        "VCG102",
        "the file is not UTF-8",
        "YAML files are read as UTF-8, with or without a byte order mark. Save the file in that encoding.",
    ),
    Code(
        "VCG103",
        "a tab is used for indentation",
        "YAML forbids tabs there, because their width depends on the reader. Indent with spaces.",
    ),
    Code(
        "VCG104",
        "a character is not allowed",
        "Control characters, unusual line breaks (U+0085, U+2028, U+2029) and lone surrogates are invisible in an "
        "editor and shift every position behind them. In a double-quoted text an escape such as \\u2028 can stand "
        "for one.",
    ),
    Code(
        "VCG105",
        "the file is too large",
        "A descriptor is about one page. The limits on bytes and on values keep a wrong or hostile file from taking "
        "time and memory; no model needs more.",
    ),
    Code(
        "VCG106",
        "the descriptor is empty",
        "The file holds nothing but comments or white space. Start from a shipped descriptor or from the printed "
        "schema.",
    ),
    Code(
        "VCG107",
        "there is more than one document",
        "A line of three dashes starts a second YAML document. One file describes one model.",
    ),
    Code(
        "VCG108",
        "values are nested too deeply",
        "No field is deeper than a handful of levels, so this is a slip of brackets, or a file made to exhaust a "
        "parser.",
    ),
    Code(
        "VCG109",
        "anchors and aliases are not part of descriptors",
        "With `&name` and `*name` one text stands in several places: errors in it would have several positions, "
        "and a few lines can expand to millions of values. Write the value where it is used; formulas share names "
        "with `let`.",
    ),
    Code(
        "VCG110",
        "a key is given twice",
        "YAML readers silently keep one of two equal keys. Which of the two is meant cannot be known: delete one.",
    ),
    Code(
        "VCG111",
        "a key is not a plain word",
        "YAML allows lists, mappings and block texts as keys. All keys of a descriptor are single words.",
    ),
    Code(
        "VCG112",
        "tags are not part of descriptors",
        "A tag such as `!!str` overrides the type of a value or constructs an object. The type of every field is "
        "fixed.",
    ),
    Code(
        "VCG113",
        "YAML reads this value as something else",
        "YAML 1.1 and 1.2 disagree about some spellings: `no` and `on` are booleans to one, `012` is octal, `1:20` "
        "is 80 in base 60, `1_000` is a number, `2024-01-01` a date. So that all readers agree, quote a text and "
        "write numbers as plain digits and booleans as true or false.",
    ),
    # --- schema
    Code(
        "VCG201",
        "a key is unknown",
        "Unknown keys are errors, because a misspelt one would be ignored in silence. The message names the nearest "
        "known key; `vitcg-scaffold schema` prints all of them.",
    ),
    Code(
        "VCG202",
        "a key is missing",
        "Only what cannot be derived from the vLLM tree has to be stated, and this is part of it. The help says what "
        "the key holds.",
    ),
    Code(
        "VCG203",
        "a value has the wrong type",
        "A mapping, a list, a text, a number or a boolean stands where another of them belongs. A text that looks like "
        "a number or a boolean needs quotes.",
    ),
    Code(
        "VCG204",
        "a word is not one of those allowed",
        "The field takes one of a few fixed words. The message names the nearest or lists all.",
    ),
    Code(
        "VCG205",
        "this is not a name",
        "The value becomes a Python identifier or module name in generated code: letters, digits and underscores, not "
        "a keyword, not starting with a digit or with two underscores.",
    ),
    Code(
        "VCG206",
        "this is not an attribute path",
        "An attribute of the model is written as it is read in a method of the model's class: self.visual.merge_size. "
        "Calls and subscripts are not part of a path.",
    ),
    Code(
        "VCG207",
        "this is not an expression",
        "Expressions are a small language and are never run as Python: whole numbers, names, attribute paths that "
        "start with self., + - * // % **, comparisons, and, or, not, and calls of min, max, ceil_div and the "
        "descriptor's own helpers. What it cannot say belongs into a helper or a hook.",
    ),
    Code(
        "VCG209",
        "this is not a call",
        "A forward is one call of something of the model: a path that starts with self., positional and keyword "
        "arguments that are names, numbers, texts, True, False, None, attribute paths or calls of the same kind.",
    ),
    Code(
        "VCG210",
        "a number is out of range",
        "The number is below or above what the field can mean.",
    ),
    Code(
        "VCG211",
        "there is nothing where a value belongs",
        "A key without a value, an empty mapping or a text of spaces is almost always an unfinished line. Give a "
        "value, or delete the key to get its default.",
    ),
    Code(
        "VCG212",
        "the version of the format is not known",
        "`schema` states the version of the descriptor's format. Either the number is wrong or the tool is too old.",
    ),
    Code(
        "VCG213",
        "a list has the wrong number of values",
        "The field takes a fixed range of values, such as one to three size columns.",
    ),
    Code(
        "VCG214",
        "a text has the wrong form",
        "The text names a file, a checkpoint or a method, or is limited in length. The help shows the form.",
    ),
    # --- names and values
    Code(
        "VCG301",
        "a name is not defined",
        "Expressions know size columns, `let` names, helpers, and b, B and F; calls pass pixels, sizes and metadata. "
        "Everything else must be an attribute path that starts with self., or be defined under `let`.",
    ),
    Code(
        "VCG302",
        "`let` lines depend on each other in a circle or upwards",
        "The lines of `let` are evaluated from top to bottom, so each may use the ones above it only.",
    ),
    Code(
        "VCG303",
        "a name is taken",
        "One name with two meanings would make expressions ambiguous. Columns, `let` names, helpers, b, B, F, "
        "functions and pixels, sizes, metadata share one space of names.",
    ),
    Code(
        "VCG304",
        "a name has no value in this place",
        "Sizes of items exist at run time only: expressions about a captured batch cannot use them. In turn b, B and F "
        "describe a batch and mean nothing for a single item.",
    ),
    Code(
        "VCG305",
        "a name is never used",
        "A `let` name or helper that no expression uses is left over, or its use is misspelt. This is a warning.",
    ),
    Code(
        "VCG306",
        "a condition stands where a number belongs, or the reverse",
        "Gates, requirements and `eager_if` are conditions; rows, tokens, shapes and budgets are numbers.",
    ),
    Code(
        "VCG307",
        "a value makes no sense as an amount",
        "Rows, tokens, shapes, sides and budgets are at least 1, and nothing is divided by zero.",
    ),
    Code(
        "VCG308",
        "helpers call each other in a circle or upwards",
        "A helper is one expression and may call the helpers above it, so that every call ends.",
    ),
    # --- layout and inputs
    Code(
        "VCG310",
        "the columns of the size key are not known",
        "The columns say what one row of the size key means: [n] tiles, [h, w] or [t, h, w] patches, [tw, th] tiles "
        "along each side. Code for cutting and counting items follows from it.",
    ),
    Code(
        "VCG311",
        "the size columns contradict the layout",
        "A packed layout needs a grid for each item, tiles need a count. One of the two lines is wrong.",
    ),
    Code(
        "VCG312",
        "the layout needs a section that is not there",
        "What a layout cannot do without is asked for by name; the help shows a minimal form.",
    ),
    Code(
        "VCG313",
        "a section contradicts the layout",
        "The section means nothing for this layout and would be ignored, so it is an error. Either it or the "
        "layout is wrong.",
    ),
    Code(
        "VCG314",
        "an input is used twice",
        "The modality of a request is told by the keys that it brings. Keys shared by modalities, or by two fields, "
        "would make that a guess.",
    ),
    Code(
        "VCG315",
        "there are video settings but no video",
        "A number of frames only matters if videos are captured.",
    ),
    Code(
        "VCG316",
        "the number of frames is missing",
        "If every frame is an attention sequence, the number of offsets that a graph holds depends on the longest "
        "video. More frames than that run eagerly instead of failing.",
    ),
    # --- attention and buffers
    Code(
        "VCG320",
        "a padding contradicts the kind of its buffer",
        "The kind says what the values mean, and with that which tails are harmless: zeros after cumulative offsets "
        "describe a sequence of negative length, for example. If the padding is right, the kind is wrong.",
    ),
    Code(
        "VCG321",
        "a residency contradicts the kind of its buffer",
        "A graph can only read GPU memory, and a bound that kernels read on the host must not be copied there inside a "
        "graph.",
    ),
    Code(
        "VCG322",
        "the kind of a buffer contradicts its role in attention",
        "`attention.sequences` names buffers by role: offsets are cumulative, the maximum is a host bound, lengths are "
        "lengths. A line under `buffers` may refine them but not turn them into something else.",
    ),
    Code(
        "VCG323",
        "two buffers have one name",
        "A recorded buffer is found by its name. Pixel buffers and those of `attention.sequences` are derived already.",
    ),
    Code(
        "VCG324",
        "the kind of attention contradicts its sequences",
        "Variable-length attention is described by sets of sequences and runs only on backends that can be captured; "
        "dense and masked attention have neither.",
    ),
    Code(
        "VCG325",
        "bounds of window sequences are missing",
        "The number of windows and their size depend on the geometry of the model. Without bounds a buffer would be "
        "too small for some replay, or so large that kernels start for thousands of empty windows.",
    ),
    Code(
        "VCG326",
        "two-section offsets without FlashInfer",
        "Only FlashInfer takes offsets as two sections of one tensor. For other backends the kind is cumulative; with "
        "FLASHINFER among the backends the tool chooses between both at run time.",
    ),
    Code(
        "VCG327",
        "a host bound has no value at capture",
        "Kernels read it while they are recorded, and it stays for ever. It must be the largest value, in rows, that "
        "any replay of the budget can need.",
    ),
    Code(
        "VCG328",
        "a padding is unclear",
        "A padding written as a mapping has exactly one of `fill` (a value) and `axis` (where rows lie).",
    ),
    Code(
        "VCG329",
        "a variable of the tower is no buffer, or two are one",
        "`tower.names` maps variables of a pristine tower to the buffers that they are. Each of these is described "
        "under `buffers` or `attention.sequences`, and holds one variable.",
    ),
    # --- forward
    Code(
        "VCG330",
        "a forward is missing",
        "The tool must know what is recorded, and for packed layouts also how an item runs that no graph fits: both "
        "are calls, or hooks.",
    ),
    Code(
        "VCG331",
        "a call does not pass the pixels",
        "What is recorded depends on `pixels`; a call without them would record a constant.",
    ),
    Code(
        "VCG332",
        "the metadata is not passed, or there is none",
        "A packed tower takes its offsets and tables as `metadata`; computing them inside the graph would freeze those "
        "of the capture. Tiles have no metadata.",
    ),
    Code(
        "VCG333",
        "the merge size is unclear",
        "Capture grids are built from whole merged squares, so the side of the square must be known. It is read from "
        "`tokens` where that has the form t * (h // m) * (w // m); otherwise `item.merge` states it. Both must agree.",
    ),
    # --- paths, axes, hooks
    Code(
        "VCG340",
        "paths and capture axes cannot be combined",
        "A graph is found by path and budget, or by axis key and budget. vLLM has no third form.",
    ),
    Code(
        "VCG341",
        "nothing assembles the outputs of the paths",
        "Each path gives its own tensor. `post.assemble` states the order in which they form an item.",
    ),
    Code(
        "VCG342",
        "the assembly of an item is wrong",
        "Each path is used exactly once, and every part is either a path or a single token.",
    ),
    Code(
        "VCG343",
        "an input is not known",
        "Paths and buffers may only use inputs that every modality declares, under `pixels` or `aux`.",
    ),
    Code(
        "VCG344",
        "a section describes a model with one path",
        "With paths, rows, tokens, shapes and captures belong to each path; those of an item are derived from them.",
    ),
    Code(
        "VCG345",
        "the paths make no sense together",
        "Several paths are needed for a choice, and at least one of them must give tokens for every item.",
    ),
    Code(
        "VCG351",
        "a hook is not given or does not fit",
        "The field refers to hand-written code that must be declared under `hooks` and be of the right kind.",
    ),
    Code(
        "VCG352",
        "a hook is never called",
        "The hook belongs to a section that the descriptor does not have.",
    ),
    Code(
        "VCG353",
        "something is given twice",
        "The same step is described by a field and by a hook. Which one is meant cannot be known: delete one.",
    ),
    Code(
        "VCG354",
        "a hook file cannot be read",
        "Hook files lie in the directory of the descriptor and are named without a path.",
    ),
    Code(
        "VCG355",
        "a hook file is not valid Python",
        "The file is parsed, never run, when the descriptor is read.",
    ),
    Code(
        "VCG356",
        "a hook has the wrong name or parameters",
        "The file defines a function with the hook's name and the parameters that the generated code passes.",
    ),
    Code(
        "VCG357",
        "a hook file is too large",
        "A hook is one function. A model that needs more should be changed by hand.",
    ),
    # --- integration
    Code(
        "VCG360",
        "a test prompt is missing",
        "vLLM's generation test runs once for each modality and needs a prompt for it.",
    ),
    Code(
        "VCG361",
        "a test setting has no modality",
        "The prompt or setting belongs to a modality that the descriptor does not have and would never be used.",
    ),
    Code(
        "VCG362",
        "a chat template is wrong",
        "The template becomes an f-string with one place for the prompt, written {content}. Other braces would be "
        "code.",
    ),
    Code(
        "VCG363",
        "test settings contradict each other",
        "Two entries share a key, overrides of a shrunk model stand without its architecture, or hf_overrides are "
        "set twice.",
    ),
    Code(
        "VCG370",
        "the range of budgets is empty",
        "The smallest budget is above the largest, so no graph could be captured.",
    ),
    Code(
        "VCG371",
        "the ported class is opted out",
        "`model.optout` lists subclasses that must not inherit the feature, not the class itself.",
    ),
)
