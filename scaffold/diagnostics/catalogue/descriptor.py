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
        "parser. The text alone decides, before a parser sees it: a bracket in a comment or in quotes counts as open "
        "until another closes it.",
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
        "Only what cannot be derived from the vLLM tree has to be stated, and this is part of it. Which keys there are "
        "goes by the layout: packed rows, tiles and paths of tiles have sections of their own, and a key that a layout "
        "needs is reported at the line of `layout`. The help says what the key holds.",
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
        "start with self., + - * // % **, comparisons, and, or, not, and calls of min, max, ceil_div, round and the "
        "descriptor's own helpers. A longer one becomes readable with names under `let`.",
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
        "describe a batch and mean nothing for a single item. Helpers are called by the tokens of paths only, which is "
        "what they are for.",
    ),
    Code(
        "VCG305",
        "a name is never used",
        "A `let` name or helper that no expression uses is left over, or its use is misspelt. This is a warning.",
    ),
    Code(
        "VCG306",
        "a condition stands where a number belongs, or the reverse",
        "A gate is a condition; rows, tokens, shapes and budgets are numbers.",
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
        "the columns of the size key do not go with the layout",
        "The columns say what one row of the size key means, and the layout is cut by them: [t, h, w] or [h, w] "
        "patches for packed rows, [n] tiles or [tw, th] tiles along each side for tiles, [n] further tiles for paths. "
        "One of the two lines is wrong.",
    ),
    Code(
        "VCG313",
        "a section belongs to another layout",
        "Each layout has sections of its own, and nothing reads the ones of another: the line would be ignored, so it "
        "is an error. Either the line or `layout` is wrong.",
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
    Code(
        "VCG317",
        "ready embeddings of a second modality",
        "A port of tiles or paths asks one key whether embeddings came ready instead of pixels, and runs such a batch "
        "eagerly. Nothing is generated that would ask a second one, so a descriptor cannot name it.",
    ),
    # --- attention and buffers
    Code(
        "VCG323",
        "two buffers have one name",
        "A recorded buffer is found by its name. Pixel buffers and those that `attention` names are recorded already.",
    ),
    Code(
        "VCG324",
        "the sets of attention sequences are in the wrong order",
        "The first set covers whole frames or items: padding, room for sequences and eager execution go by it. Each "
        "further set cuts those sequences into windows. A tower with windows only has no such first set and cannot be "
        "described.",
    ),
    Code(
        "VCG325",
        "bounds of window sequences are missing",
        "The number of windows and their size depend on the geometry of the model. Without bounds a buffer would be "
        "too small for some replay, or so large that kernels start for thousands of empty windows.",
    ),
    Code(
        "VCG329",
        "a variable of the tower is no buffer, or two are one",
        "`tower.names` maps variables of a pristine tower to the buffers that they are. Each of these stands under "
        "`buffers` or `attention` and holds one variable.",
    ),
    # --- forward
    Code(
        "VCG331",
        "a call does not pass what it works on",
        "What is recorded, or run eagerly, depends on `pixels`; what runs after a replay, on `output`. A call without "
        "it would give the same result for every batch. What `forward.with` describes is an argument of the call, too.",
    ),
    Code(
        "VCG332",
        "the metadata is not passed",
        "A packed tower takes its offsets and tables as `metadata`. A graph that computes them itself would freeze "
        "those of the capture.",
    ),
    Code(
        "VCG333",
        "the merge size is unclear",
        "Capture grids are built from whole merged squares, so the side of the square must be known. It is read from "
        "`tokens` where that has the form t * (h // m) * (w // m); otherwise `item.merge` states it. Both must agree.",
    ),
    Code(
        "VCG334",
        "the width of a row is a number",
        "A packed port copies rows of pixels into a buffer of this width, and the tower cuts its patches out of them. "
        "Both widths follow from the checkpoint's patches: 1176 is 3 channels, 2 frames and 14 x 14 pixels, 588 the "
        "same with one frame. A number fits one of them; a path of the tower fits all.",
    ),
    # --- paths
    Code(
        "VCG340",
        "paths serve one modality",
        "Each path has one key for its pixels, so a second modality has none. It runs eagerly, as before the port.",
    ),
    Code(
        "VCG341",
        "the paths make no sense together",
        "There are two: the first path has one tile for each item (the whole image), the second one as many as its "
        "size says, perhaps none (its parts). A model with one kind of tiles has the layout `tiles`.",
    ),
    Code(
        "VCG342",
        "the assembly of an item is wrong",
        "`post.assemble` gives the order in which the outputs of the paths form an item. Each path is used exactly "
        "once.",
    ),
    Code(
        "VCG343",
        "the inputs of a cut are not complete",
        "The manager encodes any selection of a batch's items, so `fields` says how items lie in each input: `batched` "
        "(an entry for each) or `{sizes: KEY}` (behind each other, cut by the counts in KEY). Pixels and sizes belong "
        "there; what all items share is left out. The processor's `_get_mm_fields_config` says all of it.",
    ),
    Code(
        "VCG344",
        "the parts of the encoder's result have no features",
        "Where the encoder's call gives a tuple, `forward.result` names its parts in order. Exactly one of them is "
        "`features`, one row or more a unit; the model's own code gets None for the others. Where the call "
        "gives a list, `forward.layers` says which of its elements the model uses.",
    ),
    Code(
        "VCG345",
        "the pixels of an item do not follow from its patches",
        "A port of the layout `rows` counts the patches of an item by its pixels, and makes items of zeros at start-up "
        "to see how the model calls its encoder. So `item.shape` is the shape of the pixels of h x w patches, and "
        "grows with `h` and with `w`, each of which it names once.",
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
        "VCG371",
        "the ported class is opted out",
        "`model.optout` lists subclasses that must not inherit the feature, not the class itself.",
    ),
)
