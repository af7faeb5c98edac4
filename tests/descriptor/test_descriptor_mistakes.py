# ruff: noqa: E501 - reports are as wide as they are
"""What a user sees for each mistake in a descriptor: one edit of a valid one, and the whole report.

The reports are snapshots: after a change of a message run `pytest --inline-snapshot=fix` and read the difference.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

import pytest
from descriptor_documents import DOCUMENTS, problems_of, report_of

if sys.version_info >= (3, 11):
    from inline_snapshot import snapshot
else:

    def snapshot(text: str) -> str:
        """The text itself, which compares the same. Before 3.11 code has no columns, and inline-snapshot finds the
        place of a call by compiling the file again for each call of its statement: five minutes do not read this table."""
        return text


class Mistake(NamedTuple):
    """`edits` are replacements in a document of `DOCUMENTS`, each of which must apply; without one they are the text."""

    name: str
    document: str | None
    edits: list[tuple[str, str]]
    report: object

    @property
    def text(self) -> str:
        text = DOCUMENTS[self.document] if self.document else ""
        for old, new in self.edits:
            assert old in text, old
            text = text.replace(old, new, 1) if old else new
        return text


MISTAKES = [
    Mistake(
        "empty",
        None,
        [("", "# nothing yet\n")],
        snapshot("""\
model.yaml:1:1: error[VCG106]: the descriptor is empty
    1 | # nothing yet
      | ^
      = help: start with `schema: 1`, or let `vitcg-scaffold init` draft it from the model's source

1 error; explain one with: vitcg-scaffold explain VCG106
"""),
    ),
    Mistake(
        "open quote",
        "tiles",
        [("key: tiled\n", "key: 'tiled\n")],
        snapshot("""\
model.yaml:20:10: error[VCG101]: not valid YAML: while scanning a quoted scalar: found unexpected end of stream
   20 |     key: 'tiled
      |          ^
      = help: a quote is not closed

1 error; explain one with: vitcg-scaffold explain VCG101
"""),
    ),
    Mistake(
        "open bracket",
        "tiles",
        [("[3, side, side]", "[3, side, side")],
        snapshot("""\
model.yaml:12:31: error[VCG101]: not valid YAML: while parsing a flow sequence: expected ',' or ']', but got '}'
   12 | pixels: {shape: [3, side, side}
      |                               ^
      = help: a bracket or brace is not closed

1 error; explain one with: vitcg-scaffold explain VCG101
"""),
    ),
    Mistake(
        "colon in a value",
        "tiles",
        [("image_prompt: What is", "image_prompt: What: is")],
        snapshot("""\
model.yaml:23:23: error[VCG101]: not valid YAML: mapping values are not allowed here
   23 |     image_prompt: What: is in this image?
      |                       ^
      = help: quote a value that contains `: `, or check the indentation

1 error; explain one with: vitcg-scaffold explain VCG101
"""),
    ),
    Mistake(
        "wrong indentation",
        "tiles",
        [("  k: self.num", "   k: self.num")],
        snapshot("""\
model.yaml:10:3: error[VCG101]: not valid YAML: while parsing a block mapping: expected <block end>, but found '<block mapping start>'
   10 |   side: self.config.vision_config.image_size
      |   ^
      = help: check the indentation and the brackets of this line and of the line above

1 error; explain one with: vitcg-scaffold explain VCG101
"""),
    ),
    Mistake(
        "tab",
        "tiles",
        [("  k: self.num", "\tk: self.num")],
        snapshot("""\
model.yaml:9:1: error[VCG103]: a tab is used for indentation
    9 |     k: self.num_image_token
      | ^^^^
      = help: indent with spaces

1 error; explain one with: vitcg-scaffold explain VCG103
"""),
    ),
    Mistake(
        "second document",
        "tiles",
        [("layout: tiles", "---\nlayout: tiles")],
        snapshot("""\
model.yaml:3:1: error[VCG107]: a second document starts here
    3 | ---
      | ^^^
      = help: write one file for each model

1 error; explain one with: vitcg-scaffold explain VCG107
"""),
    ),
    Mistake(
        "control character",
        "tiles",
        [("layout: tiles", "layout: ti\x07les")],
        snapshot("""\
model.yaml:3:11: error[VCG104]: the character U+0007 is not allowed in a descriptor
    3 | layout: ti\\x07les
      |           ^^^^
      = help: delete it or use an escape

1 error; explain one with: vitcg-scaffold explain VCG104
"""),
    ),
    Mistake(
        "line separator",
        "tiles",
        [("What happens?", "What\u2028happens?")],
        snapshot("""\
model.yaml:24:23: error[VCG104]: the character U+2028 is not allowed in a descriptor
   24 |     video_prompt: What\\x2028happens?
      |                       ^^^^^^
      = help: delete it or use an escape

1 error; explain one with: vitcg-scaffold explain VCG104
"""),
    ),
    Mistake(
        "deep nesting",
        "tiles",
        [("columns: [n]", "columns: [[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]")],
        snapshot("""\
model.yaml:7:32: error[VCG108]: nested more than 16 levels deep
    7 | sizes: {columns: [[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]}
      |                                ^
      = help: no field needs that

1 error; explain one with: vitcg-scaffold explain VCG108
"""),
    ),
    Mistake(
        "anchor and alias",
        "tiles",
        [("{rows: n, tokens: n * k}", "{rows: &rows n, tokens: *rows}")],
        snapshot("""\
model.yaml:11:14: error[VCG109]: `&rows` marks an anchor, which descriptors do not have
   11 | item: {rows: &rows n, tokens: *rows}
      |              ^^^^^^^
      = help: write the value out where it is used; names for expressions belong under `let`

model.yaml:11:31: error[VCG109]: `*rows` refers to another part of the file, which descriptors do not have
   11 | item: {rows: &rows n, tokens: *rows}
      |                               ^^^^^
      = help: write the value out where it is used; names for expressions belong under `let`

2 errors; explain one with: vitcg-scaffold explain VCG109
"""),
    ),
    Mistake(
        "merge key",
        "tiles",
        [("budget: {min: k}", "budget: {<<: *defaults, min: k}")],
        snapshot("""\
model.yaml:14:10: error[VCG201]: unknown key `<<`
   14 | budget: {<<: *defaults, min: k}
      |          ^^
      = help: known here: min

model.yaml:14:14: error[VCG109]: `*defaults` refers to another part of the file, which descriptors do not have
   14 | budget: {<<: *defaults, min: k}
      |              ^^^^^^^^^
      = help: write the value out where it is used; names for expressions belong under `let`

2 errors; explain one with: vitcg-scaffold explain VCG109
"""),
    ),
    Mistake(
        "duplicate key",
        "tiles",
        [("budget: {min: k}\n", "budget: {min: k}\nlayout: packed\n")],
        snapshot("""\
model.yaml:15:1: error[VCG110]: the key `layout` is given twice
   15 | layout: packed
      | ^^^^^^
      = note: first given at model.yaml:3:1
      = help: delete one of the two

1 error; explain one with: vitcg-scaffold explain VCG110
"""),
    ),
    Mistake(
        "complex key",
        "tiles",
        [("budget: {min: k}", "budget: {[min]: k}")],
        snapshot("""\
model.yaml:14:1: error[VCG202]: `budget` lacks the key `min`
   14 | budget: {[min]: k}
      | ^^^^^^
      = help: add `min: k` (smallest budget that makes sense)

model.yaml:14:10: error[VCG111]: a key must be a plain word
   14 | budget: {[min]: k}
      |          ^^^^^
      = help: write `name: value`

2 errors; explain one with: vitcg-scaffold explain VCG111
"""),
    ),
    Mistake(
        "tag",
        "tiles",
        [("layout: tiles", "layout: !!str tiles")],
        snapshot("""\
model.yaml:3:9: error[VCG112]: the tag `!!str` is not allowed
    3 | layout: !!str tiles
      |         ^^^^^^^^^^^
      = help: delete it; types are fixed

1 error; explain one with: vitcg-scaffold explain VCG112
"""),
    ),
    Mistake(
        "no is a boolean",
        "tiles",
        [("class: TiledModel", "class: no")],
        snapshot("""\
model.yaml:2:31: error[VCG113]: YAML reads `no` as the boolean false
    2 | model: {module: tiled, class: no}
      |                               ^^
      = help: write "no" in quotes if text is meant

1 error; explain one with: vitcg-scaffold explain VCG113
"""),
    ),
    Mistake(
        "yes is a boolean",
        "tiles",
        [("flatten: true", "flatten: yes")],
        snapshot("""\
model.yaml:15:56: error[VCG113]: YAML reads `yes` as the boolean true
   15 | forward: {call: self.extract_feature(pixels), flatten: yes}
      |                                                        ^^^
      = help: write true

1 error; explain one with: vitcg-scaffold explain VCG113
"""),
    ),
    Mistake(
        "octal",
        "tiles",
        [("num_video_frames: 8", "num_video_frames: 010")],
        snapshot("""\
model.yaml:25:23: error[VCG113]: YAML reads `010` as the number 8
   25 |     num_video_frames: 010
      |                       ^^^
      = help: write a decimal number without leading zero, colon or underscore

1 error; explain one with: vitcg-scaffold explain VCG113
"""),
    ),
    Mistake(
        "base 60",
        "tiles",
        [("rows: n,", "rows: 1:20,")],
        snapshot("""\
model.yaml:11:14: error[VCG113]: YAML reads `1:20` as the number 80
   11 | item: {rows: 1:20, tokens: n * k}
      |              ^^^^
      = help: write a decimal number without leading zero, colon or underscore

1 error; explain one with: vitcg-scaffold explain VCG113
"""),
    ),
    Mistake(
        "underscore in a number",
        "packed",
        [("side_limit: 8192", "side_limit: 8_192")],
        snapshot("""\
model.yaml:16:23: error[VCG113]: YAML reads `8_192` as the number 8192
   16 | capture: {side_limit: 8_192}
      |                       ^^^^^
      = help: write a decimal number without leading zero, colon or underscore

1 error; explain one with: vitcg-scaffold explain VCG113
"""),
    ),
    Mistake(
        "date",
        "tiles",
        [("docs: {models: [Tiled]}", "docs: {models: [2024-01-01]}")],
        snapshot("""\
model.yaml:28:19: error[VCG113]: YAML reads `2024-01-01` as a date
   28 |   docs: {models: [2024-01-01]}
      |                   ^^^^^^^^^^
      = help: write "2024-01-01" in quotes if text is meant

1 error; explain one with: vitcg-scaffold explain VCG113
"""),
    ),
    Mistake(
        "a list instead of the document",
        None,
        [("", "- schema: 1\n")],
        snapshot("""\
model.yaml:1:1: error[VCG203]: expected a mapping, found a list
    1 | - schema: 1
      | ^^^^^^^^^^^
      = help: write `key: value` lines below it

1 error; explain one with: vitcg-scaffold explain VCG203
"""),
    ),
    Mistake(
        "a text instead of the document",
        None,
        [("", "InternVL\n")],
        snapshot("""\
model.yaml:1:1: error[VCG203]: expected a mapping, found text
    1 | InternVL
      | ^^^^^^^^
      = help: write `key: value` lines below it

1 error; explain one with: vitcg-scaffold explain VCG203
"""),
    ),
    Mistake(
        "unknown section",
        "tiles",
        [("capture:", "captures:")],
        snapshot("""\
model.yaml:13:1: error[VCG201]: unknown key `captures`
   13 | captures: {rows: b // k}
      | ^^^^^^^^
      = help: did you mean `capture`?

1 error; explain one with: vitcg-scaffold explain VCG201
"""),
    ),
    Mistake(
        "unknown key",
        "tiles",
        [("flatten: true", "flattn: true")],
        snapshot("""\
model.yaml:15:47: error[VCG201]: unknown key `flattn`
   15 | forward: {call: self.extract_feature(pixels), flattn: true}
      |                                               ^^^^^^
      = help: did you mean `flatten`?

1 error; explain one with: vitcg-scaffold explain VCG201
"""),
    ),
    Mistake(
        "unknown key without a near miss",
        "tiles",
        [("flatten: true", "xyz: true")],
        snapshot("""\
model.yaml:15:47: error[VCG201]: unknown key `xyz`
   15 | forward: {call: self.extract_feature(pixels), xyz: true}
      |                                               ^^^
      = help: known here: call, flatten

1 error; explain one with: vitcg-scaffold explain VCG201
"""),
    ),
    Mistake(
        "unknown modality",
        "tiles",
        [("  video: {", "  vidoe: {")],
        snapshot("""\
model.yaml:6:3: error[VCG201]: `vidoe` is not a modality
    6 |   vidoe: {pixels: pixel_values_flat_video, sizes: video_num_patches}
      |   ^^^^^
      = help: did you mean `video`?

1 error; explain one with: vitcg-scaffold explain VCG201
"""),
    ),
    Mistake(
        "unknown unit",
        "packed",
        [("unit: frame", "unit: fram")],
        snapshot("""\
model.yaml:14:16: error[VCG204]: `fram` is not a unit
   14 |   full: {unit: fram, offsets: cu_seqlens, max: max_seqlen, lengths: sequence_lengths}
      |                ^^^^
      = help: did you mean `frame`?

1 error; explain one with: vitcg-scaffold explain VCG204
"""),
    ),
    Mistake(
        "unknown layout",
        "tiles",
        [("layout: tiles", "layout: tile")],
        snapshot("""\
model.yaml:3:9: error[VCG204]: `tile` is not a layout
    3 | layout: tile
      |         ^^^^
      = help: did you mean `tiles`?

1 error; explain one with: vitcg-scaffold explain VCG204
"""),
    ),
    Mistake(
        "missing schema",
        "tiles",
        [("schema: 1\n", "")],
        snapshot("""\
model.yaml:2:1: error[VCG202]: the descriptor lacks the key `schema`
    2 | layout: tiles
      | ^^^^^^
      = help: add `schema: 1` (version of this format)

1 error; explain one with: vitcg-scaffold explain VCG202
"""),
    ),
    Mistake(
        "missing nested key",
        "tiles",
        [(", tokens: n * k", "")],
        snapshot("""\
model.yaml:11:1: error[VCG202]: `item` lacks the key `tokens`
   11 | item: {rows: n}
      | ^^^^
      = help: add `tokens: n * k` (rows of the encoder's output)

1 error; explain one with: vitcg-scaffold explain VCG202
"""),
    ),
    Mistake(
        "missing section",
        "tiles",
        [("output: {hidden_size: self.config.text_config.hidden_size}\n", "")],
        snapshot("""\
model.yaml:3:1: error[VCG202]: the descriptor lacks the key `output`
    3 | layout: tiles
      | ^^^^^^
      = help: add `output: {hidden_size: self.visual.out_hidden_size}` (the encoder's output)

1 error; explain one with: vitcg-scaffold explain VCG202
"""),
    ),
    Mistake(
        "mapping expected",
        "tiles",
        [("budget: {min: k}", "budget: k")],
        snapshot("""\
model.yaml:14:9: error[VCG203]: expected a mapping, found text
   14 | budget: k
      |         ^
      = help: write `key: value` lines below it

1 error; explain one with: vitcg-scaffold explain VCG203
"""),
    ),
    Mistake(
        "list expected",
        "tiles",
        [("columns: [n]", "columns: n")],
        snapshot("""\
model.yaml:7:18: error[VCG203]: expected a list, found text
    7 | sizes: {columns: n}
      |                  ^
      = help: write [n]

1 error; explain one with: vitcg-scaffold explain VCG203
"""),
    ),
    Mistake(
        "text expected",
        "tiles",
        [("class: TiledModel", "class: [TiledModel]")],
        snapshot("""\
model.yaml:2:31: error[VCG203]: expected a class name, found a list
    2 | model: {module: tiled, class: [TiledModel]}
      |                               ^^^^^^^^^^^^
      = help: write a class name here

1 error; explain one with: vitcg-scaffold explain VCG203
"""),
    ),
    Mistake(
        "number instead of a name",
        "tiles",
        [("class: TiledModel", "class: 7")],
        snapshot("""\
model.yaml:2:31: error[VCG203]: expected a class name, found a number
    2 | model: {module: tiled, class: 7}
      |                               ^
      = help: write a class name here

1 error; explain one with: vitcg-scaffold explain VCG203
"""),
    ),
    Mistake(
        "text instead of a number",
        "tiles",
        [("num_video_frames: 8", "num_video_frames: eight")],
        snapshot("""\
model.yaml:25:23: error[VCG203]: expected a whole number, found text
   25 |     num_video_frames: eight
      |                       ^^^^^
      = help: write a whole number here

1 error; explain one with: vitcg-scaffold explain VCG203
"""),
    ),
    Mistake(
        "text instead of a boolean",
        "tiles",
        [("core_model: true", "core_model: maybe")],
        snapshot("""\
model.yaml:27:17: error[VCG203]: expected true or false, found text
   27 |     core_model: maybe
      |                 ^^^^^
      = help: write true or false here

1 error; explain one with: vitcg-scaffold explain VCG203
"""),
    ),
    Mistake(
        "nothing",
        "tiles",
        [("layout: tiles", "layout:")],
        snapshot("""\
model.yaml:3:8: error[VCG211]: expected a layout, found nothing
    3 | layout:
      |        ^
      = help: give a value or delete the key

1 error; explain one with: vitcg-scaffold explain VCG211
"""),
    ),
    Mistake(
        "empty mapping",
        "tiles",
        [
            (
                "  image: {pixels: pixel_values_flat, sizes: image_num_patches, embeds: image_embeds}\n  video: {pixels: pixel_values_flat_video, sizes: video_num_patches}\n",
                "  {}\n",
            )
        ],
        snapshot("""\
model.yaml:5:3: error[VCG211]: the mapping is empty
    5 |   {}
      |   ^^
      = help: add a modality

1 error; explain one with: vitcg-scaffold explain VCG211
"""),
    ),
    Mistake(
        "empty list",
        "tiles",
        [("models: [Tiled]", "models: []")],
        snapshot("""\
model.yaml:28:18: error[VCG213]: expected 1 to 64 values, found 0
   28 |   docs: {models: []}
      |                  ^^
      = help: add or delete some

1 error; explain one with: vitcg-scaffold explain VCG213
"""),
    ),
    Mistake(
        "wrong version",
        "tiles",
        [("schema: 1", "schema: 2")],
        snapshot("""\
model.yaml:1:9: error[VCG212]: the schema version 2 is not known
    1 | schema: 2
      |         ^
      = help: this tool reads version 1

1 error; explain one with: vitcg-scaffold explain VCG212
"""),
    ),
    Mistake(
        "number too small",
        "tiles",
        [("num_video_frames: 8", "num_video_frames: 0")],
        snapshot("""\
model.yaml:25:23: error[VCG210]: 0 is out of range
   25 |     num_video_frames: 0
      |                       ^
      = help: give a number from 1 to 2147483647

1 error; explain one with: vitcg-scaffold explain VCG210
"""),
    ),
    Mistake(
        "not a class name",
        "tiles",
        [("class: TiledModel", "class: Tiled-Model")],
        snapshot("""\
model.yaml:2:31: error[VCG205]: `Tiled-Model` is not a class name
    2 | model: {module: tiled, class: Tiled-Model}
      |                               ^^^^^^^^^^^
      = help: use letters, digits and `_`, not starting with a digit

1 error; explain one with: vitcg-scaffold explain VCG205
"""),
    ),
    Mistake(
        "reserved name",
        "tiles",
        [("class: TiledModel", "class: class")],
        snapshot("""\
model.yaml:2:31: error[VCG205]: `class` is reserved and cannot be a class name
    2 | model: {module: tiled, class: class}
      |                               ^^^^^
      = help: choose another name

1 error; explain one with: vitcg-scaffold explain VCG205
"""),
    ),
    Mistake(
        "module as a path",
        "tiles",
        [("module: tiled", "module: models/tiled.py")],
        snapshot("""\
model.yaml:2:17: error[VCG205]: `models/tiled.py` is not a module name
    2 | model: {module: models/tiled.py, class: TiledModel}
      |                 ^^^^^^^^^^^^^^^
      = help: write it without path and suffix: tiled

1 error; explain one with: vitcg-scaffold explain VCG205
"""),
    ),
    Mistake(
        "not an attribute path",
        "tiles",
        [("self.vision_model.use_data_parallel", "vision_model.use_data_parallel")],
        snapshot("""\
model.yaml:16:28: error[VCG206]: expected a path that starts with `self.`, found `vision_model`
   16 | data_parallel: {switches: [vision_model.use_data_parallel]}
      |                            ^^^^^^^^^^^^
      = help: write an attribute of the model: self.a.b

1 error; explain one with: vitcg-scaffold explain VCG206
"""),
    ),
    Mistake(
        "call instead of a path",
        "packed",
        [("dtype: self.visual.input_norm.input_dtype", "dtype: self.visual.dtype()")],
        snapshot("""\
model.yaml:12:65: error[VCG206]: expected an operator or the end, found `(`
   12 | pixels: {shape: [self.visual.row_size], dtype: self.visual.dtype()}
      |                                                                 ^
      = help: write an attribute of the model: self.a.b

1 error; explain one with: vitcg-scaffold explain VCG206
"""),
    ),
    Mistake(
        "not a model name",
        "tiles",
        [("organisation/Tiled-1B", "Tiled-1B")],
        snapshot("""\
model.yaml:21:12: error[VCG214]: `Tiled-1B` is not a model name
   21 |     model: Tiled-1B
      |            ^^^^^^^^
      = help: write it as on the model hub: organisation/name

1 error; explain one with: vitcg-scaffold explain VCG214
"""),
    ),
    Mistake(
        "expression cut short",
        "tiles",
        [("tokens: n * k}", "tokens: n *}")],
        snapshot("""\
model.yaml:11:28: error[VCG207]: expected a value, but the text ends
   11 | item: {rows: n, tokens: n *}
      |                            ^
      = help: complete it

1 error; explain one with: vitcg-scaffold explain VCG207
"""),
    ),
    Mistake(
        "expression with a slash",
        "tiles",
        [("rows: b // k", "rows: b / k")],
        snapshot("""\
model.yaml:13:19: error[VCG207]: expected an operator or the end, found `/`
   13 | capture: {rows: b / k}
      |                   ^
      = help: use `//`: sizes are whole numbers

1 error; explain one with: vitcg-scaffold explain VCG207
"""),
    ),
    Mistake(
        "expression with a subscript",
        "tiles",
        [("rows: b // k", 'rows: "b[0] // k"')],
        snapshot("""\
model.yaml:13:19: error[VCG207]: expected an operator or the end, found `[`
   13 | capture: {rows: "b[0] // k"}
      |                   ^
      = help: subscripts are not part of the language; name the value under `let` or write a hook

1 error; explain one with: vitcg-scaffold explain VCG207
"""),
    ),
    Mistake(
        "expression with a method call",
        "tiles",
        [("{min: k}", "{min: self.get_min(3)}")],
        snapshot("""\
model.yaml:14:15: error[VCG207]: expressions cannot call methods of the model
   14 | budget: {min: self.get_min(3)}
      |               ^^^^^^^^^^^^^
      = help: read an attribute, or compute the value with min, max, ceil_div, round or a helper

1 error; explain one with: vitcg-scaffold explain VCG207
"""),
    ),
    Mistake(
        "expression with an unknown function",
        "tiles",
        [("rows: b // k", "rows: ceil(b // k)")],
        snapshot("""\
model.yaml:13:17: error[VCG207]: the function `ceil` is not known here
   13 | capture: {rows: ceil(b // k)}
      |                 ^^^^
      = help: functions are: ceil_div, max, min, round

1 error; explain one with: vitcg-scaffold explain VCG207
"""),
    ),
    Mistake(
        "expression with a decimal number",
        "tiles",
        [("rows: b // k", "rows: b // 1.5")],
        snapshot("""\
model.yaml:13:22: error[VCG207]: `1.5` is not a decimal integer
   13 | capture: {rows: b // 1.5}
      |                      ^^^
      = help: write digits only, without leading 0

1 error; explain one with: vitcg-scaffold explain VCG207
"""),
    ),
    Mistake(
        "expression with an octal number",
        "tiles",
        [("rows: b // k", "rows: b // 016")],
        snapshot("""\
model.yaml:13:22: error[VCG207]: `016` is not a decimal integer
   13 | capture: {rows: b // 016}
      |                      ^^^
      = help: write digits only, without leading 0

1 error; explain one with: vitcg-scaffold explain VCG207
"""),
    ),
    Mistake(
        "expression with an attribute of a name",
        "tiles",
        [("rows: b // k", "rows: b // config.k")],
        snapshot("""\
model.yaml:13:22: error[VCG207]: attributes can only be read from `self`, not from `config`
   13 | capture: {rows: b // config.k}
      |                      ^^^^^^^
      = help: write the whole path: self.config...

1 error; explain one with: vitcg-scaffold explain VCG207
"""),
    ),
    Mistake(
        "expression with a chained comparison",
        "packed",
        [("modalities: not self.pruning", "modalities: 0 < self.limit < 9")],
        snapshot("""\
model.yaml:21:36: error[VCG207]: comparisons cannot be chained
   21 | gates: {modalities: 0 < self.limit < 9}
      |                                    ^
      = help: join two with `and`

1 error; explain one with: vitcg-scaffold explain VCG207
"""),
    ),
    Mistake(
        "expression in quotes with an escape",
        "tiles",
        [("rows: b // k", 'rows: "b //\\t(kk)"')],
        snapshot("""\
model.yaml:13:25: error[VCG301]: the name `kk` is not defined
   13 | capture: {rows: "b //\\t(kk)"}
      |                         ^^
      = help: did you mean `k`?

1 error; explain one with: vitcg-scaffold explain VCG301
"""),
    ),
    Mistake(
        "expression over several lines",
        "tiles",
        [("capture: {rows: b // k}", "capture:\n  rows: >\n    b //\n    kk")],
        snapshot("""\
model.yaml:14:9: error[VCG301]: the name `kk` is not defined
   14 |   rows: >
      |         ^
      = help: did you mean `k`?

1 error; explain one with: vitcg-scaffold explain VCG301
"""),
    ),
    Mistake(
        "wrong number of arguments",
        "paths",
        [("tokens: unit(728)", "tokens: 'unit(728, 2)'")],
        snapshot("""\
model.yaml:11:31: error[VCG207]: `unit` takes 1 argument, not 2
   11 |   global: {count: 1, tokens: 'unit(728, 2)', pixels: pixel_values, shape: [3, 728, 728]}
      |                               ^^^^^^^^^^^^
      = help: call it: unit(a)

1 error; explain one with: vitcg-scaffold explain VCG207
"""),
    ),
    Mistake(
        "not a call",
        "tiles",
        [("call: self.extract_feature(pixels)", "call: self.extract_feature")],
        snapshot("""\
model.yaml:15:17: error[VCG209]: `self.extract_feature` is not called
   15 | forward: {call: self.extract_feature, flatten: true}
      |                 ^^^^^^^^^^^^^^^^^^^^
      = help: write self.extract_feature(pixels)

1 error; explain one with: vitcg-scaffold explain VCG209
"""),
    ),
    Mistake(
        "call of a bare name",
        "tiles",
        [("call: self.extract_feature(pixels)", "call: extract_feature(pixels)")],
        snapshot("""\
model.yaml:15:17: error[VCG209]: expected a path that starts with `self.`, found `extract_feature`
   15 | forward: {call: extract_feature(pixels), flatten: true}
      |                 ^^^^^^^^^^^^^^^
      = help: write a call of the model: self.visual(pixels)

1 error; explain one with: vitcg-scaffold explain VCG209
"""),
    ),
    Mistake(
        "call with an expression",
        "tiles",
        [("self.extract_feature(pixels)", "self.extract_feature(pixels + 1)")],
        snapshot("""\
model.yaml:15:45: error[VCG209]: expected `)` to close `self.extract_feature(`, found `+`
   15 | forward: {call: self.extract_feature(pixels + 1), flatten: true}
      |                                             ^
      = help: write a call of the model: self.visual(pixels)

1 error; explain one with: vitcg-scaffold explain VCG209
"""),
    ),
    Mistake(
        "undefined name",
        "tiles",
        [("tokens: n * k", "tokens: n * kk")],
        snapshot("""\
model.yaml:11:29: error[VCG301]: the name `kk` is not defined
   11 | item: {rows: n, tokens: n * kk}
      |                             ^^
      = help: did you mean `k`?

1 error; explain one with: vitcg-scaffold explain VCG301
"""),
    ),
    Mistake(
        "undefined name without a near miss",
        "tiles",
        [("tokens: n * k", "tokens: n * num_image_token")],
        snapshot("""\
model.yaml:11:29: error[VCG301]: the name `num_image_token` is not defined
   11 | item: {rows: n, tokens: n * num_image_token}
      |                             ^^^^^^^^^^^^^^^
      = help: known here: k, side, n

1 error; explain one with: vitcg-scaffold explain VCG301
"""),
    ),
    Mistake(
        "two undefined names",
        "tiles",
        [("{rows: n, tokens: n * k}", "{rows: nn, tokens: m * k}")],
        snapshot("""\
model.yaml:11:14: error[VCG301]: the name `nn` is not defined
   11 | item: {rows: nn, tokens: m * k}
      |              ^^
      = help: did you mean `n`?

model.yaml:11:26: error[VCG301]: the name `m` is not defined
   11 | item: {rows: nn, tokens: m * k}
      |                          ^
      = help: known here: k, side, n

2 errors; explain one with: vitcg-scaffold explain VCG301
"""),
    ),
    Mistake(
        "let upwards",
        "tiles",
        [("k: self.num_image_token", "k: side")],
        snapshot("""\
model.yaml:9:6: error[VCG302]: `side` is defined below, in line 10
    9 |   k: side
      |      ^^^^
      = help: a line of `let` may use the lines above it: change their order, or break the circle

1 error; explain one with: vitcg-scaffold explain VCG302
"""),
    ),
    Mistake(
        "let circle",
        "tiles",
        [("k: self.num_image_token", "k: k + 1")],
        snapshot("""\
model.yaml:9:6: error[VCG302]: `k` is defined by itself
    9 |   k: k + 1
      |      ^
      = help: compute it from something else

1 error; explain one with: vitcg-scaffold explain VCG302
"""),
    ),
    Mistake(
        "taken name",
        "tiles",
        [("  side: self", "  b: self")],
        snapshot("""\
model.yaml:10:3: error[VCG303]: the name `b` is taken: it is the token budget of the graph
   10 |   b: self.config.vision_config.image_size
      |   ^
      = help: choose another name

model.yaml:12:21: error[VCG301]: the name `side` is not defined
   12 | pixels: {shape: [3, side, side]}
      |                     ^^^^
      = help: known here: k, b

model.yaml:12:27: error[VCG301]: the name `side` is not defined
   12 | pixels: {shape: [3, side, side]}
      |                           ^^^^
      = help: known here: k, b

3 errors; explain one with: vitcg-scaffold explain VCG301
"""),
    ),
    Mistake(
        "column named twice",
        "tiles",
        [("columns: [n]", "columns: [tw, tw]")],
        snapshot("""\
model.yaml:7:18: error[VCG310]: [tw, tw] is no row of sizes that the layout `tiles` is cut by
    7 | sizes: {columns: [tw, tw]}
      |                  ^^^^^^^^
      = help: it goes with [n] or [tw, th]

model.yaml:7:23: error[VCG303]: the name `tw` is taken: it is another size column
    7 | sizes: {columns: [tw, tw]}
      |                       ^^
      = help: choose another name

2 errors; explain one with: vitcg-scaffold explain VCG303
"""),
    ),
    Mistake(
        "column in a batch",
        "tiles",
        [("rows: b // k", "rows: n")],
        snapshot("""\
model.yaml:13:17: error[VCG304]: the size column `n` has no value here
   13 | capture: {rows: n}
      |                 ^
      = help: a captured batch has no sizes of items; use b, B, F and `let` names

1 error; explain one with: vitcg-scaffold explain VCG304
"""),
    ),
    Mistake(
        "budget in an item",
        "tiles",
        [("tokens: n * k", "tokens: n * k + b")],
        snapshot("""\
model.yaml:11:33: error[VCG304]: `b` (the token budget of the graph) has no value here
   11 | item: {rows: n, tokens: n * k + b}
      |                                 ^
      = help: b, B and F describe a batch at capture; only `capture`, `count` and `longest` use them

1 error; explain one with: vitcg-scaffold explain VCG304
"""),
    ),
    Mistake(
        "comma that ends a value",
        "tiles",
        [("tokens: n * k", "tokens: min(n * k, 3)")],
        snapshot("""\
model.yaml:11:34: error[VCG207]: expected `)` to close `min(`, but the text ends
   11 | item: {rows: n, tokens: min(n * k, 3)}
      |                                  ^
      = help: put the value in quotes: between braces or brackets a comma ends it

model.yaml:11:36: error[VCG201]: unknown key `3)`
   11 | item: {rows: n, tokens: min(n * k, 3)}
      |                                    ^^
      = help: put the value in quotes: between braces or brackets a comma ends it

2 errors; explain one with: vitcg-scaffold explain VCG201
"""),
    ),
    Mistake(
        "unused name",
        "tiles",
        [("  side: self", "  unused: self.x\n  side: self")],
        snapshot("""\
model.yaml:10:3: warning[VCG305]: `unused` is never used
   10 |   unused: self.x
      |   ^^^^^^
      = help: delete the line

1 warning; explain one with: vitcg-scaffold explain VCG305
"""),
    ),
    Mistake(
        "number as a condition",
        "packed",
        [("modalities: not self.pruning", "modalities: self.pruning + 1")],
        snapshot("""\
model.yaml:21:21: error[VCG306]: a condition is needed here, not a number
   21 | gates: {modalities: self.pruning + 1}
      |                     ^^^^^^^^^^^^^^^^
      = help: compare it, or read a flag of the model

1 error; explain one with: vitcg-scaffold explain VCG306
"""),
    ),
    Mistake(
        "condition as a number",
        "tiles",
        [("{min: k}", "{min: k > 3}")],
        snapshot("""\
model.yaml:14:15: error[VCG306]: a number is needed here, not a condition
   14 | budget: {min: k > 3}
      |               ^^^^^
      = help: write an amount

1 error; explain one with: vitcg-scaffold explain VCG306
"""),
    ),
    Mistake(
        "division by zero",
        "tiles",
        [("rows: b // k", "rows: b // 0")],
        snapshot("""\
model.yaml:13:22: error[VCG307]: division by zero
   13 | capture: {rows: b // 0}
      |                      ^
      = help: divide by something else

1 error; explain one with: vitcg-scaffold explain VCG307
"""),
    ),
    Mistake(
        "no amount",
        "tiles",
        [("shape: [3, side, side]", "shape: [3, 0, side]")],
        snapshot("""\
model.yaml:12:21: error[VCG307]: 0 is not an amount
   12 | pixels: {shape: [3, 0, side]}
      |                     ^
      = help: give at least 1

1 error; explain one with: vitcg-scaffold explain VCG307
"""),
    ),
    Mistake(
        "helper calls itself",
        "paths",
        [("value: (size // patch) ** 2", "value: unit(size) // patch")],
        snapshot("""\
model.yaml:9:31: error[VCG308]: the helper `unit` calls itself
    9 |   unit: {args: [size], value: unit(size) // patch}
      |                               ^^^^^^^^^^^^^^^^^^^
      = help: a helper may call the helpers above it

1 error; explain one with: vitcg-scaffold explain VCG308
"""),
    ),
    Mistake(
        "unknown columns",
        "tiles",
        [("columns: [n]", "columns: [w, h]")],
        snapshot("""\
model.yaml:7:18: error[VCG310]: [w, h] is no row of sizes that the layout `tiles` is cut by
    7 | sizes: {columns: [w, h]}
      |                  ^^^^^^
      = help: it goes with [n] or [tw, th]

1 error; explain one with: vitcg-scaffold explain VCG310
"""),
    ),
    Mistake(
        "grid columns for tiles",
        "tiles",
        [("columns: [n]", "columns: [t, h, w]")],
        snapshot("""\
model.yaml:7:18: error[VCG310]: [t, h, w] is no row of sizes that the layout `tiles` is cut by
    7 | sizes: {columns: [t, h, w]}
      |                  ^^^^^^^^^
      = help: it goes with [n] or [tw, th]

1 error; explain one with: vitcg-scaffold explain VCG310
"""),
    ),
    Mistake(
        "count for a packed layout",
        "packed",
        [("columns: [t, h, w]", "columns: [n]")],
        snapshot("""\
model.yaml:7:18: error[VCG310]: [n] is no row of sizes that the layout `packed` is cut by
    7 | sizes: {columns: [n]}
      |                  ^^^
      = help: it goes with [t, h, w] or [h, w]

1 error; explain one with: vitcg-scaffold explain VCG310
"""),
    ),
    Mistake(
        "packed without attention",
        "packed",
        [
            (
                'attention:\n  full: {unit: frame, offsets: cu_seqlens, max: max_seqlen, lengths: sequence_lengths}\n  window: {unit: window, offsets: cu_window, count: "min(b, B + ceil_div(b, window))", longest: window ** 2}\n',
                "",
            )
        ],
        snapshot("""\
model.yaml:3:1: error[VCG202]: the descriptor lacks the key `attention`
    3 | layout: packed
      | ^^^^^^
      = help: add `attention: {full: {unit: frame, offsets: cu_seqlens, max: max_seqlen}}` (sets of attention sequences, the one of whole frames or items first)

1 error; explain one with: vitcg-scaffold explain VCG202
"""),
    ),
    Mistake(
        "tiles without rows",
        "tiles",
        [("capture: {rows: b // k}\n", "")],
        snapshot("""\
model.yaml:3:1: error[VCG202]: the descriptor lacks the key `capture`
    3 | layout: tiles
      | ^^^^^^
      = help: add `capture: {rows: b // k}` (inputs while a graph is recorded)

1 error; explain one with: vitcg-scaffold explain VCG202
"""),
    ),
    Mistake(
        "tiles with a grid",
        "tiles",
        [("capture: {rows: b // k}", "capture: {rows: b // k, grid: strip}")],
        snapshot("""\
model.yaml:13:25: error[VCG201]: unknown key `grid`
   13 | capture: {rows: b // k, grid: strip}
      |                         ^^^^
      = help: known here: rows

1 error; explain one with: vitcg-scaffold explain VCG201
"""),
    ),
    Mistake(
        "packed with rows",
        "packed",
        [("{side_limit:", "{rows: b * 4, side_limit:")],
        snapshot("""\
model.yaml:16:11: error[VCG201]: unknown key `rows`
   16 | capture: {rows: b * 4, side_limit: 8192}
      |           ^^^^
      = help: known here: side_limit

1 error; explain one with: vitcg-scaffold explain VCG201
"""),
    ),
    Mistake(
        "packed without a side limit",
        "packed",
        [("capture: {side_limit: 8192}", "capture: {}")],
        snapshot("""\
model.yaml:16:1: error[VCG202]: `capture` lacks the key `side_limit`
   16 | capture: {}
      | ^^^^^^^
      = help: add `side_limit: 8192` (longest side of a grid, in rows, such as the entries of a rotary table)

1 error; explain one with: vitcg-scaffold explain VCG202
"""),
    ),
    Mistake(
        "packed without a tower",
        "packed",
        [("tower: {entry: forward, data: x, metadata: [grid_thw]}\n", "")],
        snapshot("""\
model.yaml:3:1: error[VCG202]: the descriptor lacks the key `tower`
    3 | layout: packed
      | ^^^^^^
      = help: add `tower: {data: x, metadata: [grid_thw]}` (what the splitting of the tower needs)

1 error; explain one with: vitcg-scaffold explain VCG202
"""),
    ),
    Mistake(
        "input used twice",
        "tiles",
        [("pixel_values_flat_video", "pixel_values_flat")],
        snapshot("""\
model.yaml:6:19: error[VCG314]: the input `pixel_values_flat` is also `modalities.image.pixels`
    6 |   video: {pixels: pixel_values_flat, sizes: video_num_patches}
      |                   ^^^^^^^^^^^^^^^^^
      = help: an input is told by its key: give each its own

1 error; explain one with: vitcg-scaffold explain VCG314
"""),
    ),
    Mistake(
        "frames without video",
        "packed",
        [("  video: {pixels: pixel_values_videos, sizes: video_grid_thw}\n", "")],
        snapshot("""\
model.yaml:17:19: error[VCG315]: `budget.frames` is given, but there is no video
   17 | budget: {min: 64, frames: {info: get_num_frames}}
      |                   ^^^^^^
      = help: add `modalities.video` or delete it

1 error; explain one with: vitcg-scaffold explain VCG315
"""),
    ),
    Mistake(
        "video without frames",
        "packed",
        [(", frames: {info: get_num_frames}", "")],
        snapshot("""\
model.yaml:18:1: error[VCG316]: with videos and one sequence per frame, the largest number of frames must be known
   18 | budget: {min: 64}
      | ^^^^^^
      = help: add `budget: {frames: {info: get_num_frames_with_most_features}}`

1 error; explain one with: vitcg-scaffold explain VCG316
"""),
    ),
    Mistake(
        "buffer named as pixels",
        "packed",
        [("[rotary_cos,", "[pixel_values,")],
        snapshot("""\
model.yaml:17:11: error[VCG323]: the buffer `pixel_values` is also `modalities.image.pixels`
   17 | buffers: [pixel_values, window_index]
      |           ^^^^^^^^^^^^
      = help: give each buffer once

1 error; explain one with: vitcg-scaffold explain VCG323
"""),
    ),
    Mistake(
        "two sets with one buffer",
        "packed",
        [("offsets: cu_window", "offsets: cu_seqlens")],
        snapshot("""\
model.yaml:15:35: error[VCG323]: the buffer `cu_seqlens` is also `attention.full.offsets`
   15 |   window: {unit: window, offsets: cu_seqlens, count: "min(b, B + ceil_div(b, window))", longest: window ** 2}
      |                                   ^^^^^^^^^^
      = help: give each buffer once

1 error; explain one with: vitcg-scaffold explain VCG323
"""),
    ),
    Mistake(
        "windows first",
        "packed",
        [("unit: frame", "unit: window")],
        snapshot("""\
model.yaml:14:16: error[VCG324]: the first set of sequences covers whole frames or items: padding and eager execution go by them
   14 |   full: {unit: window, offsets: cu_seqlens, max: max_seqlen, lengths: sequence_lengths}
      |                ^^^^^^
      = help: put the set of frames or items first

1 error; explain one with: vitcg-scaffold explain VCG324
"""),
    ),
    Mistake(
        "windows without a bound",
        "packed",
        [(", longest: window ** 2", "")],
        snapshot("""\
model.yaml:15:3: error[VCG325]: the number and size of windows cannot be derived: `window` needs `longest`
   15 |   window: {unit: window, offsets: cu_window, count: "min(b, B + ceil_div(b, window))"}
      |   ^^^^^^
      = help: add `longest:` with an expression over b, B, F and `let` names

1 error; explain one with: vitcg-scaffold explain VCG325
"""),
    ),
    Mistake(
        "question that is still open",
        "tiles",
        [("tokens: n * k", "tokens: TODO")],
        snapshot("""\
model.yaml:11:25: error[VCG390]: `item.tokens` is an open question
   11 | item: {rows: n, tokens: TODO}
      |                         ^^^^
      = help: write the value in its place

1 error; explain one with: vitcg-scaffold explain VCG390
"""),
    ),
    Mistake(
        "call after a replay that passes no rows",
        "packed",
        [("output: {hidden_size", "post: {call: self.resample(sizes)}\noutput: {hidden_size")],
        snapshot("""\
model.yaml:22:14: error[VCG331]: the call does not pass `output`
   22 | post: {call: self.resample(sizes)}
      |              ^^^^^^^^^^^^^^^^^^^^
      = help: write self.resample(output)

1 error; explain one with: vitcg-scaffold explain VCG331
"""),
    ),
    Mistake(
        "nothing after a replay",
        "packed",
        [("output: {hidden_size", "post: {}\noutput: {hidden_size")],
        snapshot("""\
model.yaml:22:1: error[VCG202]: `post` lacks the key `call`
   22 | post: {}
      | ^^^^
      = help: add `call: "self.resampler_model(output, sizes)"` (call that makes embeddings of a batch's rows (`output`), for a module that needs `sizes` on the host)

1 error; explain one with: vitcg-scaffold explain VCG202
"""),
    ),
    Mistake(
        "call after a replay of tiles",
        "tiles",
        [("output: {hidden_size", "post: {call: 'self.resample(output, sizes)'}\noutput: {hidden_size")],
        snapshot("""\
model.yaml:17:1: error[VCG313]: `post` belongs to the layout `packed` and `paths`, not to `tiles`
   17 | post: {call: 'self.resample(output, sizes)'}
      | ^^^^
      = help: delete it

1 error; explain one with: vitcg-scaffold explain VCG313
"""),
    ),
    Mistake(
        "call after a replay of paths",
        "paths",
        [("post: {assemble: [local, global]}", "post: {assemble: [local, global], call: self.resample(output)}")],
        snapshot("""\
model.yaml:14:35: error[VCG201]: unknown key `call`
   14 | post: {assemble: [local, global], call: self.resample(output)}
      |                                   ^^^^
      = help: known here: assemble

1 error; explain one with: vitcg-scaffold explain VCG201
"""),
    ),
    Mistake(
        "call and hook after a replay",
        "packed",
        [
            (
                "output: {hidden_size",
                "post: {call: self.resample(output)}\nhooks: {after_replay: {file: after.py}}\noutput: {hidden_size",
            )
        ],
        snapshot("""\
model.yaml:23:1: error[VCG201]: unknown key `hooks`
   23 | hooks: {after_replay: {file: after.py}}
      | ^^^^^
      = help: known here: schema, model, layout, modalities, sizes, let, processor, item, pixels, attention, capture, buffers, budget, forward, eager, post, gates, output, tower, integration

1 error; explain one with: vitcg-scaffold explain VCG201
"""),
    ),
    Mistake(
        "video whose frames share tokens",
        "packed",
        [("tokens: t * (h // m) * (w // m)", "tokens: 'ceil_div(t, 2) * (h // m) * (w // m)'")],
        snapshot("""\
model.yaml:11:33: error[VCG333]: 4 frames of 3 x 5 merged squares give 30 tokens, not 60: a graph has rows for its tokens only
   11 | item: {rows: t * h * w, tokens: 'ceil_div(t, 2) * (h // m) * (w // m)'}
      |                                 ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
      = help: leave the video out: it runs eagerly

1 error; explain one with: vitcg-scaffold explain VCG333
"""),
    ),
    Mistake(
        "variable that is no buffer",
        "packed",
        [
            (
                "metadata: [grid_thw]}",
                "metadata: [grid_thw], names: {order: window_idx, cos: rotary_cos, sin: rotary_cos}}",
            )
        ],
        snapshot("""\
model.yaml:23:71: error[VCG329]: there is no buffer `window_idx`
   23 | tower: {entry: forward, data: x, metadata: [grid_thw], names: {order: window_idx, cos: rotary_cos, sin: rotary_cos}}
      |                                                                       ^^^^^^^^^^
      = help: did you mean `window_index`?

model.yaml:23:105: error[VCG329]: the buffer `rotary_cos` is the variable `cos` already
   23 | tower: {entry: forward, data: x, metadata: [grid_thw], names: {order: window_idx, cos: rotary_cos, sin: rotary_cos}}
      |                                                                                                         ^^^^^^^^^^
      = help: delete one of the two

2 errors; explain one with: vitcg-scaffold explain VCG329
"""),
    ),
    Mistake(
        "no forward",
        "tiles",
        [("forward: {call: self.extract_feature(pixels), flatten: true}\n", "")],
        snapshot("""\
model.yaml:3:1: error[VCG202]: the descriptor lacks the key `forward`
    3 | layout: tiles
      | ^^^^^^
      = help: add `forward: {call: self.extract_feature(pixels)}` (call that is recorded)

1 error; explain one with: vitcg-scaffold explain VCG202
"""),
    ),
    Mistake(
        "no eager call",
        "packed",
        [('eager: {call: "self.visual(pixels, sizes)"}\n', "")],
        snapshot("""\
model.yaml:3:1: error[VCG202]: the descriptor lacks the key `eager`
    3 | layout: packed
      | ^^^^^^
      = help: add `eager: {call: "self.visual(pixels, sizes)"}` (call for items that no graph fits)

1 error; explain one with: vitcg-scaffold explain VCG202
"""),
    ),
    Mistake(
        "call without pixels",
        "tiles",
        [("self.extract_feature(pixels)", "self.extract_feature()")],
        snapshot("""\
model.yaml:15:17: error[VCG331]: the call does not pass `pixels`
   15 | forward: {call: self.extract_feature(), flatten: true}
      |                 ^^^^^^^^^^^^^^^^^^^^^^
      = help: write self.extract_feature(pixels)

1 error; explain one with: vitcg-scaffold explain VCG331
"""),
    ),
    Mistake(
        "call with an unknown name",
        "packed",
        [("self.visual(pixels, sizes)", "self.visual(pixels, grid)")],
        snapshot("""\
model.yaml:20:36: error[VCG301]: a call cannot pass `grid`
   20 | eager: {call: "self.visual(pixels, grid)"}
      |                                    ^^^^
      = help: known here: pixels, sizes

1 error; explain one with: vitcg-scaffold explain VCG301
"""),
    ),
    Mistake(
        "packed call without metadata",
        "packed",
        [("self.visual(pixels, None, encoder_metadata=metadata)", "self.visual(pixels, None)")],
        snapshot("""\
model.yaml:19:17: error[VCG332]: the call does not pass `metadata`, so the graph would compute it while it is recorded
   19 | forward: {call: "self.visual(pixels, None)"}
      |                 ^^^^^^^^^^^^^^^^^^^^^^^^^^^
      = help: write self.visual(pixels, None, encoder_metadata=metadata)

1 error; explain one with: vitcg-scaffold explain VCG332
"""),
    ),
    Mistake(
        "tiles with metadata",
        "tiles",
        [("self.extract_feature(pixels)", '"self.extract_feature(pixels, metadata)"')],
        snapshot("""\
model.yaml:15:47: error[VCG301]: a call cannot pass `metadata`
   15 | forward: {call: "self.extract_feature(pixels, metadata)", flatten: true}
      |                                               ^^^^^^^^
      = help: known here: pixels

1 error; explain one with: vitcg-scaffold explain VCG301
"""),
    ),
    Mistake(
        "comma that ends a call",
        "tiles",
        [("self.extract_feature(pixels)", "self.extract_feature(pixels, None)")],
        snapshot("""\
model.yaml:15:44: error[VCG209]: expected `)` to close `self.extract_feature(`, but the text ends
   15 | forward: {call: self.extract_feature(pixels, None), flatten: true}
      |                                            ^
      = help: put the value in quotes: between braces or brackets a comma ends it

model.yaml:15:46: error[VCG201]: unknown key `None)`
   15 | forward: {call: self.extract_feature(pixels, None), flatten: true}
      |                                              ^^^^^
      = help: put the value in quotes: between braces or brackets a comma ends it

2 errors; explain one with: vitcg-scaffold explain VCG201
"""),
    ),
    Mistake(
        "merge not derivable",
        "packed",
        [("tokens: t * (h // m) * (w // m)", "tokens: t * h * w // m // m")],
        snapshot("""\
model.yaml:11:33: error[VCG333]: the rows that are merged into a token cannot be told from `tokens`
   11 | item: {rows: t * h * w, tokens: t * h * w // m // m}
      |                                 ^^^^^^^^^^^^^^^^^^^
      = help: add `merge:` with the side of the merged square, such as self.visual.spatial_merge_size

1 error; explain one with: vitcg-scaffold explain VCG333
"""),
    ),
    Mistake(
        "merge that disagrees",
        "packed",
        [("tokens: t * (h // m) * (w // m)", "tokens: t * (h // m) * (w // m), merge: 4")],
        snapshot("""\
model.yaml:11:65: error[VCG333]: `tokens` and the merge size disagree: a grid of 3 x 5 merged squares gives 60 tokens, not 15
   11 | item: {rows: t * h * w, tokens: t * (h // m) * (w // m), merge: 4}
      |                                                                 ^
      = help: correct one of the two

1 error; explain one with: vitcg-scaffold explain VCG333
"""),
    ),
    Mistake(
        "paths with axes",
        "paths",
        [
            (
                "forward: {call",
                "axes:\n  - {name: a, keys: [1], resolve: axis_resolve, capture: axis_capture}\nhooks: {axis_resolve: {file: a.py}, axis_capture: {file: a.py}}\nforward: {call",
            )
        ],
        snapshot("""\
model.yaml:13:1: error[VCG201]: unknown key `axes`
   13 | axes:
      | ^^^^
      = help: did you mean `gates`?

model.yaml:15:1: error[VCG201]: unknown key `hooks`
   15 | hooks: {axis_resolve: {file: a.py}, axis_capture: {file: a.py}}
      | ^^^^^
      = help: known here: schema, model, layout, modalities, sizes, let, processor, helpers, paths, forward, post, gates, data_parallel, output, integration

2 errors; explain one with: vitcg-scaffold explain VCG201
"""),
    ),
    Mistake(
        "paths without assembly",
        "paths",
        [("post: {assemble: [local, global]}\n", "")],
        snapshot("""\
model.yaml:3:1: error[VCG202]: the descriptor lacks the key `post`
    3 | layout: paths
      | ^^^^^^
      = help: add `post: {assemble: [local, global]}` (how outputs become items)

1 error; explain one with: vitcg-scaffold explain VCG202
"""),
    ),
    Mistake(
        "assembly of an unknown path",
        "paths",
        [("[local, global]", "[locl, global]")],
        snapshot("""\
model.yaml:14:19: error[VCG342]: there is no path `locl`
   14 | post: {assemble: [locl, global]}
      |                   ^^^^
      = help: did you mean `local`?

1 error; explain one with: vitcg-scaffold explain VCG342
"""),
    ),
    Mistake(
        "assembly without a path",
        "paths",
        [("[local, global]", "[global]")],
        snapshot("""\
model.yaml:14:18: error[VCG342]: the output of the path `local` is not used
   14 | post: {assemble: [global]}
      |                  ^^^^^^^^
      = help: add `local`

1 error; explain one with: vitcg-scaffold explain VCG342
"""),
    ),
    Mistake(
        "assembly with a path twice",
        "paths",
        [("[local, global]", "[local, global, local]")],
        snapshot("""\
model.yaml:14:34: error[VCG342]: the path `local` is assembled twice
   14 | post: {assemble: [local, global, local]}
      |                                  ^^^^^
      = help: delete one

1 error; explain one with: vitcg-scaffold explain VCG342
"""),
    ),
    Mistake(
        "unknown input of a path",
        "paths",
        [("pixels: patch_pixel_values,", "pixels: patch_pixels,")],
        snapshot(""),
    ),
    Mistake(
        "paths with an item",
        "paths",
        [("forward: {call", "item: {rows: n, tokens: n}\nforward: {call")],
        snapshot("""\
model.yaml:13:1: error[VCG313]: `item` belongs to the layout `packed` and `tiles`, not to `paths`
   13 | item: {rows: n, tokens: n}
      | ^^^^
      = help: delete it

1 error; explain one with: vitcg-scaffold explain VCG313
"""),
    ),
    Mistake(
        "one path",
        "paths",
        [("  local: {count: n, tokens: unit(504), pixels: patch_pixel_values, shape: [3, 504, 504]}\n", "")],
        snapshot("""\
model.yaml:10:1: error[VCG341]: there are two paths, not 1
   10 | paths:
      | ^^^^^
      = help: describe one path by the layout `tiles`

1 error; explain one with: vitcg-scaffold explain VCG341
"""),
    ),
    Mistake(
        "all paths may be empty",
        "paths",
        [("shape: [3, 728, 728]}", "shape: [3, 728, 728], zero_ok: true}")],
        snapshot("""\
model.yaml:11:85: error[VCG201]: unknown key `zero_ok`
   11 |   global: {count: 1, tokens: unit(728), pixels: pixel_values, shape: [3, 728, 728], zero_ok: true}
      |                                                                                     ^^^^^^^
      = help: known here: count, tokens, pixels, shape, rows

1 error; explain one with: vitcg-scaffold explain VCG201
"""),
    ),
    Mistake(
        "hook without use",
        "tiles",
        [("output:", "hooks: {axis_resolve: {file: a.py}}\noutput:")],
        snapshot("""\
model.yaml:17:1: error[VCG201]: unknown key `hooks`
   17 | hooks: {axis_resolve: {file: a.py}}
      | ^^^^^
      = help: known here: schema, model, layout, modalities, sizes, let, processor, item, pixels, capture, budget, forward, gates, data_parallel, output, integration

1 error; explain one with: vitcg-scaffold explain VCG201
"""),
    ),
    Mistake(
        "forward twice",
        "tiles",
        [("output:", "hooks: {forward: {file: a.py}}\noutput:")],
        snapshot("""\
model.yaml:17:1: error[VCG201]: unknown key `hooks`
   17 | hooks: {forward: {file: a.py}}
      | ^^^^^
      = help: known here: schema, model, layout, modalities, sizes, let, processor, item, pixels, capture, budget, forward, gates, data_parallel, output, integration

1 error; explain one with: vitcg-scaffold explain VCG201
"""),
    ),
    Mistake(
        "missing prompt",
        "tiles",
        [("    video_prompt: What happens?\n", "")],
        snapshot("""\
model.yaml:19:3: error[VCG360]: the model takes videos, but the test has no video prompt
   19 |   test:
      |   ^^^^
      = help: add `video_prompt:`

1 error; explain one with: vitcg-scaffold explain VCG360
"""),
    ),
    Mistake(
        "prompt without video",
        "paths",
        [
            (
                "output:",
                "integration:\n  test: {key: a, model: o/m, image_prompt: Look, video_prompt: Look, num_video_frames: 2}\noutput:",
            )
        ],
        snapshot("""\
model.yaml:16:50: error[VCG361]: there is a video prompt, but no modality `video`
   16 |   test: {key: a, model: o/m, image_prompt: Look, video_prompt: Look, num_video_frames: 2}
      |                                                  ^^^^^^^^^^^^
      = help: delete it

model.yaml:16:70: error[VCG361]: `num_video_frames` is given, but there is no video
   16 |   test: {key: a, model: o/m, image_prompt: Look, video_prompt: Look, num_video_frames: 2}
      |                                                                      ^^^^^^^^^^^^^^^^
      = help: delete it

2 errors; explain one with: vitcg-scaffold explain VCG361
"""),
    ),
    Mistake(
        "template without a slot",
        "tiles",
        [("<user>{content}</user>", "<user>content</user>")],
        snapshot("""\
model.yaml:22:49: error[VCG362]: the template has 0 places for the prompt
   22 |     template: {name: tiled_chat_template, text: "<user>content</user>"}
      |                                                 ^^^^^^^^^^^^^^^^^^^^^^
      = help: write {content} once

1 error; explain one with: vitcg-scaffold explain VCG362
"""),
    ),
    Mistake(
        "template with code",
        "tiles",
        [("<user>{content}</user>", "<user>{content}{1/0}</user>")],
        snapshot("""\
model.yaml:22:49: error[VCG362]: the template has braces besides {content}
   22 |     template: {name: tiled_chat_template, text: "<user>{content}{1/0}</user>"}
      |                                                 ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
      = help: remove them

1 error; explain one with: vitcg-scaffold explain VCG362
"""),
    ),
    Mistake(
        "dummy overrides without an architecture",
        "tiles",
        [("    core_model: true", "    dummy_overrides: {layers: 1}\n    core_model: true")],
        snapshot("""\
model.yaml:27:5: error[VCG363]: `dummy_overrides` needs `dummy_arch`
   27 |     dummy_overrides: {layers: 1}
      |     ^^^^^^^^^^^^^^^
      = help: add `dummy_arch:` with the architecture

1 error; explain one with: vitcg-scaffold explain VCG363
"""),
    ),
    Mistake(
        "overrides given twice",
        "tiles",
        [
            (
                "runner_kwargs: {trust_remote_code: true}",
                "runner_kwargs: {hf_overrides: {a: 1}}\n    dummy_arch: TiledModel",
            )
        ],
        snapshot("""\
model.yaml:26:21: error[VCG363]: `dummy_arch` sets hf_overrides already
   26 |     runner_kwargs: {hf_overrides: {a: 1}}
      |                     ^^^^^^^^^^^^
      = help: delete one of the two

1 error; explain one with: vitcg-scaffold explain VCG363
"""),
    ),
    Mistake(
        "empty range of budgets",
        "packed",
        [("budget: {min: 64,", "budget: {min: 64, max: 32,")],
        snapshot("""\
model.yaml:18:19: error[VCG201]: unknown key `max`
   18 | budget: {min: 64, max: 32, frames: {info: get_num_frames}}
      |                   ^^^
      = help: known here: min, frames

1 error; explain one with: vitcg-scaffold explain VCG201
"""),
    ),
    Mistake(
        "opted out itself",
        "paths",
        [("optout: [OtherModel]", "optout: [TwofoldModel]")],
        snapshot("""\
model.yaml:2:56: error[VCG371]: `TwofoldModel` is the ported class itself
    2 | model: {module: twofold, class: TwofoldModel, optout: [TwofoldModel]}
      |                                                        ^^^^^^^^^^^^
      = help: delete it

1 error; explain one with: vitcg-scaffold explain VCG371
"""),
    ),
    Mistake(
        "several at once",
        "tiles",
        [
            ("item: {rows: n, tokens: n * k}", "item: {rows: nn, token: n * k}"),
            ("layout: tiles", "layout: til"),
            ("capture: {rows: b // k}", "capture: {rows: b / k}"),
            ("core_model: true", "core_model: yes"),
        ],
        snapshot("""\
model.yaml:3:9: error[VCG204]: `til` is not a layout
    3 | layout: til
      |         ^^^
      = help: did you mean `tiles`?

model.yaml:11:14: error[VCG301]: the name `nn` is not defined
   11 | item: {rows: nn, token: n * k}
      |              ^^
      = help: did you mean `n`?

model.yaml:11:18: error[VCG201]: unknown key `token`
   11 | item: {rows: nn, token: n * k}
      |                  ^^^^^
      = help: did you mean `tokens`?

model.yaml:13:19: error[VCG207]: expected an operator or the end, found `/`
   13 | capture: {rows: b / k}
      |                   ^
      = help: use `//`: sizes are whole numbers

model.yaml:27:17: error[VCG113]: YAML reads `yes` as the boolean true
   27 |     core_model: yes
      |                 ^^^
      = help: write true

5 errors; explain one with: vitcg-scaffold explain VCG113
"""),
    ),
    Mistake(
        "a set of frames behind the first",
        "packed",
        [("unit: window, offsets", "unit: frame, offsets")],
        snapshot("""\
model.yaml:15:18: error[VCG324]: a further set of sequences cuts those of the first into windows, not into frames
   15 |   window: {unit: frame, offsets: cu_window, count: "min(b, B + ceil_div(b, window))", longest: window ** 2}
      |                  ^^^^^
      = help: write unit: window, with its `count` and `longest`

1 error; explain one with: vitcg-scaffold explain VCG324
"""),
    ),
    Mistake(
        "section of another layout",
        "tiles",
        [("budget: {min: k}", 'budget: {min: k}\neager: {call: "self.visual(pixels, sizes)"}')],
        snapshot("""\
model.yaml:15:1: error[VCG313]: `eager` belongs to the layout `packed`, not to `tiles`
   15 | eager: {call: "self.visual(pixels, sizes)"}
      | ^^^^^
      = help: delete it

1 error; explain one with: vitcg-scaffold explain VCG313
"""),
    ),
    Mistake(
        "helper outside of tokens",
        "paths",
        [("shape: [3, 728, 728]", "shape: [3, unit(728), 728]")],
        snapshot("""\
model.yaml:11:74: error[VCG304]: the helper `unit` cannot be called here
   11 |   global: {count: 1, tokens: unit(728), pixels: pixel_values, shape: [3, unit(728), 728]}
      |                                                                          ^^^^^^^^^
      = help: helpers are for the `tokens` of paths: write the value here, or a line of `let`

1 error; explain one with: vitcg-scaffold explain VCG304
"""),
    ),
    Mistake(
        "two modalities on the same paths",
        "paths",
        [("image_embeds}", "image_embeds}\n  video: {sizes: video_num_patches}")],
        snapshot("""\
model.yaml:6:3: error[VCG340]: the paths have one key for their pixels each, so they serve one modality
    6 |   video: {sizes: video_num_patches}
      |   ^^^^^
      = help: delete it: the modality runs eagerly

1 error; explain one with: vitcg-scaffold explain VCG340
"""),
    ),
    Mistake(
        "paths in the other order",
        "paths",
        [("count: 1", "count: n"), ("  local: {count: n", "  local: {count: 1")],
        snapshot("""\
model.yaml:11:19: error[VCG341]: the first path has one tile for each item
   11 |   global: {count: n, tokens: unit(728), pixels: pixel_values, shape: [3, 728, 728]}
      |                   ^
      = help: write count: 1

model.yaml:12:18: error[VCG341]: the second path has `n` tiles for each item
   12 |   local: {count: 1, tokens: unit(504), pixels: patch_pixel_values, shape: [3, 504, 504]}
      |                  ^
      = help: write count: n

2 errors; explain one with: vitcg-scaffold explain VCG341
"""),
    ),
    Mistake(
        "not a number in data",
        "tiles",
        [("trust_remote_code: true", "temperature: .nan")],
        snapshot("""\
model.yaml:26:34: error[VCG210]: `.nan` has no literal in Python
   26 |     runner_kwargs: {temperature: .nan}
      |                                  ^^^^
      = help: give a finite number

1 error; explain one with: vitcg-scaffold explain VCG210
"""),
    ),
    Mistake(
        "buffer twice",
        "packed",
        [("[rotary_cos,", "[window_index,")],
        snapshot("""\
model.yaml:17:25: error[VCG323]: the buffer `window_index` is also `buffers.0`
   17 | buffers: [window_index, window_index]
      |                         ^^^^^^^^^^^^
      = help: give each buffer once

1 error; explain one with: vitcg-scaffold explain VCG323
"""),
    ),
    Mistake(
        "pixels of a path twice",
        "paths",
        [("pixels: patch_pixel_values", "pixels: pixel_values")],
        snapshot("""\
model.yaml:12:48: error[VCG314]: the input `pixel_values` is also `paths.global.pixels`
   12 |   local: {count: n, tokens: unit(504), pixels: pixel_values, shape: [3, 504, 504]}
      |                                                ^^^^^^^^^^^^
      = help: an input is told by its key: give each its own

1 error; explain one with: vitcg-scaffold explain VCG314
"""),
    ),
    Mistake(
        "ready embeddings of two modalities",
        "tiles",
        [("sizes: video_num_patches}", "sizes: video_num_patches, embeds: video_embeds}")],
        snapshot("""\
model.yaml:6:70: error[VCG317]: the port takes ready embeddings of one modality, which is `image`
    6 |   video: {pixels: pixel_values_flat_video, sizes: video_num_patches, embeds: video_embeds}
      |                                                                      ^^^^^^
      = help: delete it: nothing is generated for a second one yet

1 error; explain one with: vitcg-scaffold explain VCG317
"""),
    ),
]


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name.replace(" ", "-"))
def test_a_mistake_is_reported(mistake: Mistake) -> None:
    assert report_of(mistake.text) == mistake.report
    assert all(problem.help and problem.span for problem in problems_of(mistake.text))


def test_the_table_is_large_and_has_no_copies() -> None:
    assert len(MISTAKES) >= 60
    assert len({mistake.name for mistake in MISTAKES}) == len(MISTAKES)
    assert len({mistake.text for mistake in MISTAKES}) == len(MISTAKES)
