"""Codes of the descriptor stage: 1xx the text as YAML, 2xx the schema, 3xx the meaning."""

from scaffold.diagnostics.catalogue import Code

CODES: tuple[Code, ...] = (
    # --- the text as YAML
    Code(
        "VCG100",
        "the descriptor cannot be read",
        "The argument is neither a readable file nor the name of a shipped descriptor. Check the path and the "
        "permissions. The tool also looks a name without a folder up among the shipped ones.",
    ),
    Code(
        "VCG101",
        "the text is not valid YAML",
        "The parser understands nothing after this place, so this is the only error that hides others. Most often a "
        "quote or a bracket is open, a value contains `: ` without quotes, or a line is not indented as its "
        "neighbours are.",
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
        "editor and shift every position behind them. Delete it.",
    ),
    Code(
        "VCG105",
        "the file is too large",
        "A descriptor is about one page. The limits keep a wrong or hostile file from taking time and memory. Check "
        "that this is the file you meant.",
    ),
    Code(
        "VCG106",
        "the descriptor is empty",
        "The file holds only comments or white space. Draft a descriptor with `vitcg-scaffold init`, or copy a "
        "shipped one.",
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
        "With `&name` and `*name` one text is in several places. An error in it would have several positions, and a "
        "few lines can expand to millions of values. Write the value where you use it; formulas share names with "
        "`let`.",
    ),
    Code(
        "VCG110",
        "a key is given twice",
        "Most YAML readers keep one of two equal keys in silence. The tool cannot know which one you mean: delete the "
        "other.",
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
    Code(
        "VCG114",
        "the descriptor's file has an odd name",
        "Generated files, tests and messages are called as the descriptor is, without its ending. So that the name is "
        "the same everywhere, and a command nowhere, it has letters from A to Z, digits, `_`, `-` and `.` only.",
    ),
    # --- schema
    Code(
        "VCG201",
        "a key is unknown",
        "Unknown keys are errors, because a misspelt one would be ignored in silence. The message names the nearest "
        "known key; `vitcg-scaffold validate --schema` prints all of them.",
    ),
    Code(
        "VCG202",
        "a key is missing",
        "You state only what the tool cannot derive from the vLLM tree, and this key is part of it. Each layout has "
        "sections of its own: an error at the line of `layout` names a key that this layout needs. The help says what "
        "the key holds.",
    ),
    Code(
        "VCG203",
        "a value has the wrong type",
        "A mapping, a list, a text, a number or a boolean stands where another of them belongs. Put quotes around a "
        "text that looks like a number or a boolean. A list such as `image_size: [448, 448]` is no number: name one "
        "element, `self.config.image_size[0]`.",
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
        "start with self., + - * // % **, comparisons, and, or, not, and calls of min, max, ceil_div, round, len and "
        "the descriptor's own helpers. A longer one becomes readable with names under `let`.",
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
        "The number is below or above what the field can mean. The help gives the range.",
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
        "The field takes a fixed number of values, such as one to three size columns. Add or delete some.",
    ),
    Code(
        "VCG214",
        "a text has the wrong form",
        "The text names a file, a checkpoint or a method, or is limited in length. The help shows the form.",
    ),
    Code(
        "VCG215",
        "a text has characters that nobody sees",
        "Control characters, overrides of the direction of text and unusual line breaks are refused, also as escapes. "
        "A text becomes code, a table or a comment, where they would say something else than people read. A name or a "
        "path has one line; prompts, templates and reasons may have several.",
    ),
    Code(
        "VCG216",
        "a reason tells a tool something",
        "A reason becomes a comment of the port. Comments such as `ruff: noqa`, `fmt: off` and `type: ignore` switch "
        "checks of the code around them off, so the checks of the port would be empty. Say it in other words.",
    ),
    # --- names and values
    Code(
        "VCG301",
        "a name is not defined",
        "An expression knows size columns, `let` names, helpers, and b, B and F. A call passes pixels, sizes and "
        "metadata. Write everything else as an attribute path that starts with self., or define it under `let`.",
    ),
    Code(
        "VCG302",
        "`let` lines depend on each other in a circle or upwards",
        "The tool evaluates the lines of `let` from top to bottom, so each line may use the lines above it only. "
        "Change their order.",
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
        "A size column has a value at run time only, so an expression about a captured batch cannot use it. b, B and "
        "F describe a batch, so they mean nothing for a single item. Only the tokens of paths call helpers.",
    ),
    Code(
        "VCG305",
        "a name is never used",
        "A warning. No expression uses this `let` name or helper. Either the line is left over, or another line "
        "misspells the name.",
    ),
    Code(
        "VCG306",
        "a condition stands where a number belongs, or the reverse",
        "A gate is a condition. Rows, tokens, shapes and budgets are numbers. Write the kind that the key needs.",
    ),
    Code(
        "VCG307",
        "a value makes no sense as an amount",
        "Rows, tokens, shapes, sides and budgets are 1 or more, and nothing divides by zero. Correct the formula.",
    ),
    Code(
        "VCG308",
        "helpers call each other in a circle or upwards",
        "A helper is one expression and may call the helpers above it, so that every call ends.",
    ),
    Code(
        "VCG309",
        "a call leads out of the model",
        "A descriptor is data: it calls parts of the model and methods that the model's own class defines, and each "
        "call carries the data, such as `pixels`. Nothing of a configuration, a tokenizer or a processor is called, "
        "and no method that torch or transformers bring along, such as `apply` or `save_pretrained`. No call passes "
        "text or such a method, and a port imports nothing but vLLM's models and processors. A tree shows the rest: "
        "`plan` and `new` look up each name there (VCG464).",
    ),
    # --- layout and inputs
    Code(
        "VCG310",
        "the columns of the size key do not go with the layout",
        "The columns say what one row of the size key means, and the layout cuts items by them: [t, h, w] or [h, w] "
        "patches for `packed` and `rows`, [n] tiles or [tw, th] tiles along each side for `tiles`, [n] further tiles "
        "for `paths`. Correct the columns or the layout.",
    ),
    Code(
        "VCG313",
        "a section belongs to another layout",
        "Each layout has sections of its own and ignores those of others. So a foreign line is an error, not a line "
        "without effect. Delete it, or correct `layout`.",
    ),
    Code(
        "VCG314",
        "an input is used twice",
        "The keys that a request brings tell its modality. A key that two modalities or two fields share tells "
        "nothing. Give each its own.",
    ),
    Code(
        "VCG315",
        "there are video settings but no video",
        "A number of frames has an effect only where the port captures videos. Add `modalities.video`, or delete the "
        "line.",
    ),
    Code(
        "VCG316",
        "the number of frames is missing",
        "Every frame is an attention sequence here, so a graph needs room for the offsets of the longest video. Say "
        "the number under `budget.frames`. A longer video then runs eagerly instead of failing.",
    ),
    Code(
        "VCG317",
        "precomputed embeddings of a second modality",
        "A port of tiles or paths looks for precomputed embeddings under one key, and runs such a batch eagerly. The "
        "tool generates nothing that would ask a second key. Delete it.",
    ),
    Code(
        "VCG318",
        "a formula is too long when it is spelled out",
        "A port has each `let` name spelled out, or as a variable. A line that has the line above it twice doubles it, "
        "so a page of such lines would be a formula of more characters than a disk holds. Use each name once, or "
        "shorten the formulas.",
    ),
    # --- attention and buffers
    Code(
        "VCG323",
        "two buffers have one name",
        "The port finds a recorded buffer by its name, so a name stands for one buffer. It records the pixels and the "
        "buffers of `attention` already: do not list them again.",
    ),
    Code(
        "VCG324",
        "the sets of attention sequences are in the wrong order",
        "The first set of sequences covers whole frames or items: padding, room for sequences and eager execution "
        "follow it. Each further set cuts those sequences into windows. A descriptor cannot describe a tower with "
        "windows only.",
    ),
    Code(
        "VCG325",
        "bounds of window sequences are missing",
        "The number of windows and their size depend on the model's geometry, so the tool cannot derive them. Without "
        "bounds a buffer would be too small for some batch, or so large that kernels start for thousands of empty "
        "windows. Write both as expressions.",
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
        "A recorded or eager call works on `pixels`; a call after a replay works on `output`. A call without them "
        "gives the same result for every batch. Each name under `forward.with` is an argument of the call, too. Pass "
        "it.",
    ),
    Code(
        "VCG332",
        "the metadata is not passed",
        "A packed tower takes its offsets and tables as `metadata`. A graph that computes them itself keeps those of "
        "the capture for every replay. Pass `metadata`.",
    ),
    Code(
        "VCG333",
        "the merge size is unclear",
        "The tool builds capture grids of whole merged squares, so it needs the side of a square. It reads the side "
        "from `tokens` where that has the form t * (h // m) * (w // m). Otherwise write `item.merge`. Both must "
        "agree.",
    ),
    Code(
        "VCG334",
        "the width of a row is a fixed number",
        "A packed port copies rows of pixels into a buffer of this width, and the tower cuts its patches out of them. "
        "The width depends on the checkpoint: 1176 is 3 channels, 2 frames and 14 x 14 pixels; 588 is the same with "
        "one frame. A number fits one of them, and a wrong one fails when the server starts. Write an attribute of "
        "the tower, such as `self.visual.patch_embed.proj.in_features`.",
    ),
    # --- paths
    Code(
        "VCG340",
        "paths and rows serve one modality",
        "Each path has one key for its pixels, so a second modality has none. `item` of rows describes those of one "
        "modality. The other one runs eagerly, as before the port.",
    ),
    Code(
        "VCG341",
        "the paths make no sense together",
        "There are two paths. The first one has one tile for each item, the whole image. The second one has as many "
        "tiles as its size says, perhaps none. Describe a model with one kind of tiles by the layout `tiles`.",
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
        "The manager encodes any selection of a batch's items. So `fields` says how items lie in each input: "
        "`batched` (an entry for each item) or `{sizes: KEY}` (one behind the other, as many as KEY counts). List "
        "pixels and sizes; leave out what all items share. The processor's `_get_mm_fields_config` has all of it.",
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
        "A port of the layout `rows` counts an item's patches by its pixels. At start-up it makes items of zeros to "
        "see how the model calls its encoder. So `item.shape` is the shape of the pixels of h x w patches: it has `h` "
        "and `w` once each.",
    ),
    Code(
        "VCG346",
        "a mask has no padding to hide",
        "An `additive` mask lets graphs take units with fewer rows than theirs: the port pads them, and the mask keeps "
        "attention off the padding. That needs units of rows on axis 0, as `forward.unit: [rows, width]` says, and one "
        "mask for them.",
    ),
    Code(
        "VCG347",
        "a loop is not the call",
        "With `forward.loop` a loop over layers becomes a method `forward_layers`, and `forward.call` is its call: the "
        "units first, then what the loop reads, which is an argument of `forward.with` or an attribute of the model. "
        "Without a loop there is no such method.",
    ),
    Code(
        "VCG348",
        "units have no paths of their own",
        "A modality whose units have another shape gives names of `let` other values: `modalities.video.let`. Units of "
        "each modality then have a path, with graphs of that shape, and budgets count tokens: `item.merge` says how "
        "many features are one. The first modality has the values of `let` itself. Neither padded items nor a mask of "
        "padding go with that.",
    ),
    Code(
        "VCG349",
        "an explicit port cuts an input in another way than the pixels",
        "With `explicit` a port cuts the inputs whose items lie behind each other by one list of numbers, that of the "
        "pixels. An input with other numbers of rows, or one beside pixels with an entry for each item, does not fit. "
        "Without the section a port runs the model's own code, with features in the place of its encoder's result.",
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
        "The prompt or setting belongs to a modality that the descriptor does not have and would never be used. vLLM's "
        "tests, docs and examples of encoder graphs know images and videos alone, so a port of sound has none.",
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
        "Two entries share a key, overrides of a shrunk model stand without its architecture, or they set what "
        "`dummy_arch` sets already: hf_overrides, load_format, model_arch.",
    ),
    Code(
        "VCG364",
        "token budgets of a test are no list of numbers",
        "Before vLLM 0.22 a test entry has no settings of the compilation, so the port computes another one from the "
        "budgets. Write a list of whole numbers.",
    ),
    Code(
        "VCG371",
        "the ported class is opted out",
        "`model.optout` lists subclasses that must not inherit the feature, not the class itself.",
    ),
)
