# ruff: noqa: E501 - reports are as wide as they are
"""What a user sees for each mistake in a descriptor: one edit of a valid one, and what is said of it.

What a report looks like is tested in `tests/report`. The texts are snapshots: after a change of a message run
`pytest --inline-snapshot=fix` and read the difference.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

import pytest
from descriptor_documents import DOCUMENTS, problems_of

if sys.version_info >= (3, 11):
    from inline_snapshot import snapshot
else:

    def snapshot(text: str) -> str:
        """The text itself, which compares the same. Before 3.11 code has no columns, and inline-snapshot finds the
        place of a call by compiling the file again for each call of its statement: five minutes do not read this table."""
        return text


def in_words(text: str) -> str:
    """Each problem of a descriptor: its place, the text that is marked there, what is wrong and what to do."""
    rows = [row + "\n" for row in text.split("\n")]
    shown: list[tuple[int, int, str]] = []
    for problem in problems_of(text):
        span = problem.span
        assert span is not None, problem
        marked = "".join(rows[span.line - 1 : span.end_line])
        marked = marked[span.column - 1 : len(marked) - len(rows[span.end_line - 1]) + span.end_column - 1]
        said = [f"{problem.severity.value}[{problem.code}] at {marked!a}: {problem.message}"]
        said += [*(f"    note: {note}" for note in problem.notes), f"    help: {problem.help}"]
        shown.append((span.line, span.column, "\n".join(said)))
    return "".join(f"{line}:{column} {said}\n" for line, column, said in sorted(shown))


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


# fmt: off
MISTAKES = [
    Mistake("empty", None, [("", "# nothing yet\n")], snapshot("""\
1:1 error[VCG106] at '': the descriptor is empty
    help: start with `schema: 1`, or let `vitcg-scaffold init` draft it from the model's source
""")),
    Mistake("open quote", "tiles", [("key: tiled\n", "key: 'tiled\n")], snapshot("""\
20:10 error[VCG101] at "'": not valid YAML: while scanning a quoted scalar: found unexpected end of stream
    help: a quote is not closed
""")),
    Mistake("open bracket", "tiles", [("[3, side, side]", "[3, side, side")], snapshot("""\
12:31 error[VCG101] at '}': not valid YAML: while parsing a flow sequence: expected ',' or ']', but got '}'
    help: a bracket or brace is not closed
""")),
    Mistake("colon in a value", "tiles", [("image_prompt: What is", "image_prompt: What: is")], snapshot("""\
23:23 error[VCG101] at ':': not valid YAML: mapping values are not allowed here
    help: quote a value that contains `: `, or check the indentation
""")),
    Mistake("wrong indentation", "tiles", [("  k: self.num", "   k: self.num")], snapshot("""\
10:3 error[VCG101] at 's': not valid YAML: while parsing a block mapping: expected <block end>, but found '<block mapping start>'
    help: check the indentation and the brackets of this line and of the line above
""")),
    Mistake("tab", "tiles", [("  k: self.num", "\tk: self.num")], snapshot("""\
9:1 error[VCG103] at '\\t': a tab is used for indentation
    help: indent with spaces
""")),
    Mistake("second document", "tiles", [("layout: tiles", "---\nlayout: tiles")], snapshot("""\
3:1 error[VCG107] at '---': a second document starts here
    help: write one file for each model
""")),
    Mistake("control character", "tiles", [("layout: tiles", "layout: ti\x07les")], snapshot("""\
3:11 error[VCG104] at '\\x07': the character U+0007 is not allowed in a descriptor
    help: delete it
""")),
    Mistake("line separator", "tiles", [("What happens?", "What\u2028happens?")], snapshot("""\
24:23 error[VCG104] at '\\u2028': the character U+2028 is not allowed in a descriptor
    help: delete it
""")),
    Mistake("line separator as an escape", "tiles", [("What happens?", '"What\\u2028happens?"')], snapshot("""\
24:24 error[VCG215] at '\\\\u2028': the text has the character U+2028
    help: delete it: nobody sees it, and programs obey it
""")),
    Mistake("name of two lines", "tiles", [("models: [Tiled]", 'models: ["Ti\\nled"]')], snapshot("""\
28:22 error[VCG215] at '\\\\n': the text has more than one line
    help: write it on one line
""")),
    Mistake("reason that tells ruff something", "tiles", [("budget: {min: k}", 'budget: {min: k, why: "One tile. ruff: noqa"}')], snapshot("""\
14:34 error[VCG216] at 'ruff: noqa': `ruff: noqa` tells a tool something: as a comment of the port it would switch checks off
    help: say it in other words, without the colon or the name of the tool's comment
""")),
    Mistake("chain of doubled names", "tiles", [("item:", "".join(f"  a{n}: {f'a{n - 1} * a{n - 1}' if n else 'k'}\n" for n in range(60)) + "item:"), ("rows: n,", "rows: n + 0 * a59,")], snapshot("""\
18:7 error[VCG318] at 'a6 * a6': with all names of `let` and helpers spelled out it has 3577 characters, more than 2000
    help: use each name once instead of several times: a line that has the line above it twice doubles it
""")),
    Mistake("chain of doubled helpers", "paths", [("paths:\n", "".join(f"  f{n}: {{args: [x], value: {f'f{n - 1}(x) + f{n - 1}(x)' if n else 'unit(x)'}}}\n" for n in range(60)) + "paths:\n"), ("tokens: unit(504)", "tokens: f59(504)")], snapshot("""\
16:26 error[VCG318] at 'f5(x) + f5(x)': with all names of `let` and helpers spelled out it has 3955 characters, more than 2000
    help: use each name once instead of several times: a line that has the line above it twice doubles it
""")),
    Mistake("deep nesting", "tiles", [("columns: [n]", "columns: [[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]")], snapshot("""\
7:33 error[VCG108] at '[': more than 16 brackets are open here
    help: no field needs that; close those before, in comments and prompts, too
""")),
    Mistake("anchor and alias", "tiles", [("{rows: n, tokens: n * k}", "{rows: &rows n, tokens: *rows}")], snapshot("""\
11:14 error[VCG109] at '&rows n': `&rows` marks an anchor, which descriptors do not have
    help: write the value out where it is used; names for expressions belong under `let`
11:31 error[VCG109] at '*rows': `*rows` refers to another part of the file, which descriptors do not have
    help: write the value out where it is used; names for expressions belong under `let`
""")),
    Mistake("merge key", "tiles", [("budget: {min: k}", "budget: {<<: *defaults, min: k}")], snapshot("""\
14:10 error[VCG201] at '<<': unknown key `<<`
    help: known here: why, min
14:14 error[VCG109] at '*defaults': `*defaults` refers to another part of the file, which descriptors do not have
    help: write the value out where it is used; names for expressions belong under `let`
""")),
    Mistake("duplicate key", "tiles", [("budget: {min: k}\n", "budget: {min: k}\nlayout: packed\n")], snapshot("""\
15:1 error[VCG110] at 'layout': the key `layout` is given twice
    note: first given at model.yaml:3:1
    help: delete one of the two
""")),
    Mistake("complex key", "tiles", [("budget: {min: k}", "budget: {[min]: k}")], snapshot("""\
14:1 error[VCG202] at 'budget': `budget` lacks the key `min`
    help: add `min: k` (smallest budget that makes sense)
14:10 error[VCG111] at '[min]': a key must be a plain word
    help: write `name: value`
""")),
    Mistake("tag", "tiles", [("layout: tiles", "layout: !!str tiles")], snapshot("""\
3:9 error[VCG112] at '!!str tiles': the tag `!!str` is not allowed
    help: delete it; types are fixed
""")),
    Mistake("no is a boolean", "tiles", [("class: TiledModel", "class: no")], snapshot("""\
2:31 error[VCG113] at 'no': YAML reads `no` as the boolean false
    help: write "no" in quotes if text is meant
""")),
    Mistake("yes is a boolean", "tiles", [("flatten: true", "flatten: yes")], snapshot("""\
15:56 error[VCG113] at 'yes': YAML reads `yes` as the boolean true
    help: write true
""")),
    Mistake("octal", "tiles", [("num_video_frames: 8", "num_video_frames: 010")], snapshot("""\
25:23 error[VCG113] at '010': YAML reads `010` as the number 8
    help: write a decimal number without leading zero, colon or underscore
""")),
    Mistake("base 60", "tiles", [("rows: n,", "rows: 1:20,")], snapshot("""\
11:14 error[VCG113] at '1:20': YAML reads `1:20` as the number 80
    help: write a decimal number without leading zero, colon or underscore
""")),
    Mistake("date", "tiles", [("docs: {models: [Tiled]}", "docs: {models: [2024-01-01]}")], snapshot("""\
28:19 error[VCG113] at '2024-01-01': YAML reads `2024-01-01` as a date
    help: write "2024-01-01" in quotes if text is meant
""")),
    Mistake("a list instead of the document", None, [("", "- schema: 1\n")], snapshot("""\
1:1 error[VCG203] at '- schema: 1': expected a mapping, found a list
    help: write `key: value` lines below it
""")),
    Mistake("unknown modality", "tiles", [("  video: {", "  vidoe: {")], snapshot("""\
6:3 error[VCG201] at 'vidoe': `vidoe` is not a modality
    help: did you mean `video`?
""")),
    Mistake("unknown unit", "packed", [("unit: frame", "unit: fram")], snapshot("""\
14:16 error[VCG204] at 'fram': `fram` is not a unit
    help: did you mean `frame`?
""")),
    Mistake("missing schema", "tiles", [("schema: 1\n", "")], snapshot("""\
2:1 error[VCG202] at 'layout': the descriptor lacks the key `schema`
    help: add `schema: 1` (version of this format)
""")),
    Mistake("missing nested key", "tiles", [(", tokens: n * k", "")], snapshot("""\
11:1 error[VCG202] at 'item': `item` lacks the key `tokens`
    help: add `tokens: n * k` (rows of the encoder's output)
""")),
    Mistake("missing section", "tiles", [("output: {hidden_size: self.config.text_config.hidden_size}\n", "")], snapshot("""\
3:1 error[VCG202] at 'layout': the descriptor lacks the key `output`
    help: add `output: {hidden_size: self.visual.out_hidden_size}` (the encoder's output)
""")),
    Mistake("mapping expected", "tiles", [("budget: {min: k}", "budget: k")], snapshot("""\
14:9 error[VCG203] at 'k': expected a mapping, found text
    help: write `key: value` lines below it
""")),
    Mistake("list expected", "tiles", [("columns: [n]", "columns: n")], snapshot("""\
7:18 error[VCG203] at 'n': expected a list, found text
    help: write [n]
""")),
    Mistake("text expected", "tiles", [("class: TiledModel", "class: [TiledModel]")], snapshot("""\
2:31 error[VCG203] at '[TiledModel]': expected a class name, found a list
    help: write a class name here
""")),
    Mistake("number instead of a name", "tiles", [("class: TiledModel", "class: 7")], snapshot("""\
2:31 error[VCG203] at '7': expected a class name, found a number
    help: write a class name here
""")),
    Mistake("text instead of a number", "tiles", [("num_video_frames: 8", "num_video_frames: eight")], snapshot("""\
25:23 error[VCG203] at 'eight': expected a whole number, found text
    help: write a whole number here
""")),
    Mistake("text instead of a boolean", "tiles", [("core_model: true", "core_model: maybe")], snapshot("""\
27:17 error[VCG203] at 'maybe': expected true or false, found text
    help: write true or false here
""")),
    Mistake("nothing", "tiles", [("layout: tiles", "layout:")], snapshot("""\
3:8 error[VCG211] at '': expected a layout, found nothing
    help: give a value or delete the key
""")),
    Mistake("empty mapping", "tiles", [("  image: {pixels: pixel_values_flat, sizes: image_num_patches, embeds: image_embeds}\n  video: {pixels: pixel_values_flat_video, sizes: video_num_patches}\n", "  {}\n")], snapshot("""\
5:3 error[VCG211] at '{}': the mapping is empty
    help: add a modality
""")),
    Mistake("empty list", "tiles", [("models: [Tiled]", "models: []")], snapshot("""\
28:18 error[VCG213] at '[]': expected 1 to 64 values, found 0
    help: write 1 to 64 values
""")),
    Mistake("wrong version", "tiles", [("schema: 1", "schema: 2")], snapshot("""\
1:9 error[VCG212] at '2': the schema version 2 is not known
    help: this tool reads version 1
""")),
    Mistake("number too small", "tiles", [("num_video_frames: 8", "num_video_frames: 0")], snapshot("""\
25:23 error[VCG210] at '0': 0 is out of range
    help: give a number from 1 to 2147483647
""")),
    Mistake("not a class name", "tiles", [("class: TiledModel", "class: Tiled-Model")], snapshot("""\
2:31 error[VCG205] at 'Tiled-Model': `Tiled-Model` is not a class name
    help: use letters, digits and `_`, not starting with a digit
""")),
    Mistake("reserved name", "tiles", [("class: TiledModel", "class: class")], snapshot("""\
2:31 error[VCG205] at 'class': `class` is reserved and cannot be a class name
    help: choose another name
""")),
    Mistake("module as a path", "tiles", [("module: tiled", "module: models/tiled.py")], snapshot("""\
2:17 error[VCG205] at 'models/tiled.py': `models/tiled.py` is not a module name
    help: write it without path and suffix: tiled
""")),
    Mistake("not an attribute path", "tiles", [("self.vision_model.use_data_parallel", "vision_model.use_data_parallel")], snapshot("""\
16:28 error[VCG206] at 'vision_model': expected a path that starts with `self.`, found `vision_model`
    help: write an attribute of the model: self.a.b
""")),
    Mistake("not a model name", "tiles", [("organisation/Tiled-1B", "Tiled-1B")], snapshot("""\
21:12 error[VCG214] at 'Tiled-1B': `Tiled-1B` is not a model name
    help: write it as on the model hub: organisation/name
""")),
    Mistake("expression cut short", "tiles", [("tokens: n * k}", "tokens: n *}")], snapshot("""\
11:28 error[VCG207] at '}': expected a value, but the text ends
    help: complete it
""")),
    Mistake("expression with a subscript", "tiles", [("rows: b // k", 'rows: "b[0] // k"')], snapshot("""\
13:19 error[VCG207] at '[': expected an operator or the end, found `[`
    help: only an attribute of `self` has subscripts: self.a.b[0]
""")),
    Mistake("the width of a row is a number", "packed", [("[self.visual.row_size]", "[k * 2]"), ("  m: self.visual.merge\n", "  k: 588\n  m: self.visual.merge\n")], snapshot("""\
13:17 error[VCG334] at '[k * 2]': the width of a row is a fixed number, but the checkpoint's patches decide it
    help: read it from the tower, such as self.visual.patch_embed.proj.in_features
""")),
    Mistake("expression with a method call", "tiles", [("{min: k}", "{min: self.get_min(3)}")], snapshot("""\
14:15 error[VCG207] at 'self.get_min(': expressions cannot call methods of the model
    help: read an attribute, or compute the value with min, max, ceil_div, round or a helper
""")),
    Mistake("expression with an unknown function", "tiles", [("rows: b // k", "rows: ceil(b // k)")], snapshot("""\
13:17 error[VCG207] at 'ceil': the function `ceil` is not known here
    help: functions are: ceil_div, len, max, min, round
""")),
    Mistake("expression with an octal number", "tiles", [("rows: b // k", "rows: b // 016")], snapshot("""\
13:22 error[VCG207] at '016': `016` is not a decimal integer
    help: write digits only, without leading 0
""")),
    Mistake("expression with an attribute of a name", "tiles", [("rows: b // k", "rows: b // config.k")], snapshot("""\
13:22 error[VCG207] at 'config.': attributes can only be read from `self`, not from `config`
    help: write the whole path: self.config...
""")),
    Mistake("expression with a chained comparison", "packed", [("modalities: not self.pruning", "modalities: 0 < self.limit < 9")], snapshot("""\
21:36 error[VCG207] at '<': comparisons cannot be chained
    help: join two with `and`
""")),
    Mistake("expression over several lines", "tiles", [("capture: {rows: b // k}", "capture:\n  rows: >\n    b //\n    kk")], snapshot("""\
14:9 error[VCG301] at '>\\n    b //\\n    kk': the name `kk` is not defined
    help: did you mean `k`?
""")),
    Mistake("wrong number of arguments", "paths", [("tokens: unit(728)", "tokens: 'unit(728, 2)'")], snapshot("""\
11:31 error[VCG207] at 'unit(728, 2)': `unit` takes 1 argument, not 2
    help: call it: unit(a)
""")),
    Mistake("not a call", "tiles", [("call: self.extract_feature(pixels)", "call: self.extract_feature")], snapshot("""\
15:17 error[VCG209] at 'self.extract_feature': `self.extract_feature` is not called
    help: write self.extract_feature(pixels)
""")),
    Mistake("call with an expression", "tiles", [("self.extract_feature(pixels)", "self.extract_feature(pixels + 1)")], snapshot("""\
15:45 error[VCG209] at '+': expected `)` to close `self.extract_feature(`, found `+`
    help: write a call of the model: self.visual(pixels)
""")),
    Mistake("let upwards", "tiles", [("k: self.num_image_token", "k: side")], snapshot("""\
9:6 error[VCG302] at 'side': `side` is defined below, in line 10
    help: a line of `let` may use the lines above it: change their order, or break the circle
""")),
    Mistake("let circle", "tiles", [("k: self.num_image_token", "k: k + 1")], snapshot("""\
9:6 error[VCG302] at 'k': `k` is defined by itself
    help: compute it from something else
""")),
    Mistake("taken name", "tiles", [("  side: self", "  b: self")], snapshot("""\
10:3 error[VCG303] at 'b': the name `b` is taken: it is the token budget of the graph
    help: choose another name
12:21 error[VCG301] at 'side': the name `side` is not defined
    help: known here: k, b
12:27 error[VCG301] at 'side': the name `side` is not defined
    help: known here: k, b
""")),
    Mistake("column named twice", "tiles", [("columns: [n]", "columns: [tw, tw]")], snapshot("""\
7:18 error[VCG310] at '[tw, tw]': the layout `tiles` does not cut items by [tw, tw]
    help: write [n] or [tw, th]
7:23 error[VCG303] at 'tw': the name `tw` is taken: it is another size column
    help: choose another name
""")),
    Mistake("column in a batch", "tiles", [("rows: b // k", "rows: n")], snapshot("""\
13:17 error[VCG304] at 'n': the size column `n` has no value here
    help: a captured batch has no sizes of items; use b, B, F and `let` names
""")),
    Mistake("budget in an item", "tiles", [("tokens: n * k", "tokens: n * k + b")], snapshot("""\
11:33 error[VCG304] at 'b': `b` (the token budget of the graph) has no value here
    help: b, B and F describe a batch at capture; only `capture`, `count` and `longest` use them
""")),
    Mistake("comma that ends a value", "tiles", [("tokens: n * k", "tokens: min(n * k, 3)")], snapshot("""\
11:34 error[VCG207] at ',': expected `)` to close `min(`, but the text ends
    help: put the value in quotes: between braces or brackets a comma ends it
11:36 error[VCG201] at '3)': unknown key `3)`
    help: put the value in quotes: between braces or brackets a comma ends it
""")),
    Mistake("unused name", "tiles", [("  side: self", "  unused: self.x\n  side: self")], snapshot("""\
10:3 warning[VCG305] at 'unused': `unused` is never used
    help: use it in an expression, or delete the line
""")),
    Mistake("number as a condition", "packed", [("modalities: not self.pruning", "modalities: self.pruning + 1")], snapshot("""\
21:21 error[VCG306] at 'self.pruning + 1': a condition is needed here, not a number
    help: write a comparison such as `n > 1`, or a flag such as not self.use_pruning
""")),
    Mistake("condition as a number", "tiles", [("{min: k}", "{min: k > 3}")], snapshot("""\
14:15 error[VCG306] at 'k > 3': a number is needed here, not a condition
    help: write the number, without a comparison
""")),
    Mistake("division by zero", "tiles", [("rows: b // k", "rows: b // 0")], snapshot("""\
13:22 error[VCG307] at '0': division by zero
    help: divide by something that is 1 or more
""")),
    Mistake("no amount", "tiles", [("shape: [3, side, side]", "shape: [3, 0, side]")], snapshot("""\
12:21 error[VCG307] at '0': 0 is not an amount
    help: write a value of 1 or more
""")),
    Mistake("helper calls itself", "paths", [("value: (size // patch) ** 2", "value: unit(size) // patch")], snapshot("""\
9:31 error[VCG308] at 'unit(size) // patch': the helper `unit` calls itself
    help: a helper may call the helpers above it
""")),
    Mistake('call of a configuration', "tiles", [('self.extract_feature(pixels)', 'self.config.to_json_file(pixels)')], snapshot("""\
15:17 error[VCG309] at 'self.config.to_json_file': `self.config.to_json_file` leads out of the model: `config` is no part of the model: its values may be read, and nothing of it is called
    help: name a part of the model, or a method that its own class defines
""")),
    Mistake('call of what torch brings', "packed", [('self.visual(pixels, sizes)', 'self.visual.apply(pixels, sizes)')], snapshot("""\
20:16 error[VCG309] at 'self.visual.apply': `self.visual.apply` leads out of the model: `apply` is a method of torch or of transformers, not of the model
    help: name a part of the model, or a method that its own class defines
""")),
    Mistake('call without the data', "paths", [('self.project(self.encode(pixels))', '"self.project(self.encode(pixels), self.clear())"')], snapshot("""\
13:52 error[VCG309] at 'self.clear': `self.clear` leads out of the model: the call does not get `pixels`
    help: name a part of the model, or a method that its own class defines
""")),
    Mistake('method of a configuration handed over', "packed", [('self.visual(pixels, sizes)', 'self.visual(pixels, self.config.to_dict)')], snapshot("""\
20:36 error[VCG309] at 'self.config.to_dict': `self.config.to_dict` leads out of the model: `to_dict` is a method of torch or of transformers, not of the model
    help: name a part of the model, or a method that its own class defines
""")),
    Mistake('private part of a configuration handed over', "packed", [('self.visual(pixels, sizes)', 'self.visual(pixels, self.config._name)')], snapshot("""\
20:36 error[VCG309] at 'self.config._name': `self.config._name` leads out of the model: `_name` is private
    help: name a part of the model, or a method that its own class defines
""")),
    Mistake('switch of torch', "tiles", [('self.vision_model.use_data_parallel', 'self.vision_model.requires_grad_')], snapshot("""\
16:28 error[VCG309] at 'self.vision_model.requires_grad_': `self.vision_model.requires_grad_` leads out of the model: `requires_grad_` is a method of torch or of transformers, not of the model
    help: name a part of the model, or a method that its own class defines
""")),
    Mistake('processor of another package', "tiles", [('  side: self.config.vision_config.image_size\n', ''), ('item:', 'processor: {module: torch.hub, class: HubProcessor, values: {side: tile_size}}\nitem:')], snapshot("""\
10:21 error[VCG309] at 'torch.hub': `torch.hub` is no module of vLLM's models
    help: name a module below vllm.model_executor.models or vllm.models or vllm.transformers_utils
""")),
    Mistake('call with a text', "tiles", [('self.extract_feature(pixels)', '"self.extract_feature(pixels, \'x\')"')], snapshot("""\
15:47 error[VCG209] at "'x'": a call passes no text
    help: pass an attribute of the model's configuration
""")),
    Mistake("unknown columns", "tiles", [("columns: [n]", "columns: [w, h]")], snapshot("""\
7:18 error[VCG310] at '[w, h]': the layout `tiles` does not cut items by [w, h]
    help: write [n] or [tw, th]
""")),
    Mistake("grid columns for tiles", "tiles", [("columns: [n]", "columns: [t, h, w]")], snapshot("""\
7:18 error[VCG310] at '[t, h, w]': the layout `tiles` does not cut items by [t, h, w]
    help: write [n] or [tw, th]
""")),
    Mistake("count for a packed layout", "packed", [("columns: [t, h, w]", "columns: [n]")], snapshot("""\
7:18 error[VCG310] at '[n]': the layout `packed` does not cut items by [n]
    help: write [t, h, w] or [h, w]
""")),
    Mistake("packed without attention", "packed", [('attention:\n  full: {unit: frame, offsets: cu_seqlens, max: max_seqlen, lengths: sequence_lengths}\n  window: {unit: window, offsets: cu_window, count: "min(b, B + ceil_div(b, window))", longest: window ** 2}\n', "")], snapshot("""\
3:1 error[VCG202] at 'layout': the descriptor lacks the key `attention`
    help: add `attention: {full: {unit: frame, offsets: cu_seqlens, max: max_seqlen}}` (sets of attention sequences, the one of whole frames or items first)
""")),
    Mistake("tiles without rows", "tiles", [("capture: {rows: b // k}\n", "")], snapshot("""\
3:1 error[VCG202] at 'layout': the descriptor lacks the key `capture`
    help: add `capture: {rows: b // k}` (inputs while a graph is recorded)
""")),
    Mistake("packed without a side limit", "packed", [("capture: {side_limit: 8192}", "capture: {}")], snapshot("""\
16:1 error[VCG202] at 'capture': `capture` lacks the key `side_limit`
    help: add `side_limit: 8192` (longest side of a grid, in rows, such as the entries of a rotary table)
""")),
    Mistake("packed without a tower", "packed", [("tower: {entry: forward, data: x, metadata: [grid_thw]}\n", "")], snapshot("""\
3:1 error[VCG202] at 'layout': the descriptor lacks the key `tower`
    help: add `tower: {data: x, metadata: [grid_thw]}` (what the splitting of the tower needs)
""")),
    Mistake("input used twice", "tiles", [("pixel_values_flat_video", "pixel_values_flat")], snapshot("""\
6:19 error[VCG314] at 'pixel_values_flat': the input `pixel_values_flat` is also `modalities.image.pixels`
    help: give each input its own key: the keys of a request tell its modality
""")),
    Mistake("frames without video", "packed", [("  video: {pixels: pixel_values_videos, sizes: video_grid_thw}\n", "")], snapshot("""\
17:19 error[VCG315] at 'frames': `budget.frames` is given, but there is no video
    help: add `modalities.video` or delete it
""")),
    Mistake("video without frames", "packed", [(", frames: {info: get_num_frames}", "")], snapshot("""\
18:1 error[VCG316] at 'budget': every frame of a video is a sequence, but no key says how many frames a video may have
    help: add `budget: {frames: {info: get_num_frames_with_most_features}}`
""")),
    Mistake("buffer named as pixels", "packed", [("[rotary_cos,", "[pixel_values,")], snapshot("""\
17:11 error[VCG323] at 'pixel_values': the buffer `pixel_values` is also `modalities.image.pixels`
    help: give each buffer once
""")),
    Mistake("two sets with one buffer", "packed", [("offsets: cu_window", "offsets: cu_seqlens")], snapshot("""\
15:35 error[VCG323] at 'cu_seqlens': the buffer `cu_seqlens` is also `attention.full.offsets`
    help: give each buffer once
""")),
    Mistake("windows first", "packed", [("unit: frame", "unit: window")], snapshot("""\
14:16 error[VCG324] at 'window': the first set of sequences must cover whole frames or items, not windows
    help: put the set of frames or items first: padding and eager execution follow it
""")),
    Mistake("windows without a bound", "packed", [(", longest: window ** 2", "")], snapshot("""\
15:3 error[VCG325] at 'window': `window` needs `longest`: the tool cannot derive the number and size of windows
    help: add `longest:` with an expression over b, B, F and `let` names
""")),
    Mistake("question that is still open", "tiles", [("tokens: n * k", "tokens: TODO")], snapshot("""\
11:25 error[VCG390] at 'TODO': `item.tokens` is an open question
    help: look at the places above, then write the value instead of TODO
""")),
    Mistake("call after a replay that passes no rows", "packed", [("output: {hidden_size", "post: {call: self.resample(sizes)}\noutput: {hidden_size")], snapshot("""\
22:14 error[VCG331] at 'self.resample(sizes)': the call does not pass `output`
    help: write self.resample(output)
""")),
    Mistake("nothing after a replay", "packed", [("output: {hidden_size", "post: {}\noutput: {hidden_size")], snapshot("""\
22:1 error[VCG202] at 'post': `post` lacks the key `call`
    help: add `call: "self.resampler_model(output, sizes)"` (call that makes embeddings of a batch's rows (`output`), for a module that needs `sizes` on the host)
""")),
    Mistake("call after a replay of tiles", "tiles", [("output: {hidden_size", "post: {call: 'self.resample(output, sizes)'}\noutput: {hidden_size")], snapshot("""\
17:1 error[VCG313] at 'post': `post` belongs to the layout `packed` and `paths`, not to `tiles`
    help: delete it, or correct `layout`
""")),
    Mistake("video whose frames share tokens", "packed", [("tokens: t * (h // m) * (w // m)", "tokens: 'ceil_div(t, 2) * (h // m) * (w // m)'")], snapshot("""\
11:33 error[VCG333] at "'ceil_div(t, 2) * (h // m) * (w // m)'": 4 frames of 3 x 5 merged squares give 30 tokens, not 60: a graph has rows for its tokens only
    help: leave the video out: it runs eagerly
""")),
    Mistake("variable that is no buffer", "packed", [("metadata: [grid_thw]}", "metadata: [grid_thw], names: {order: window_idx, cos: rotary_cos, sin: rotary_cos}}")], snapshot("""\
23:71 error[VCG329] at 'window_idx': there is no buffer `window_idx`
    help: did you mean `window_index`?
23:105 error[VCG329] at 'rotary_cos': the buffer `rotary_cos` is the variable `cos` already
    help: delete one of the two
""")),
    Mistake("no forward", "tiles", [("forward: {call: self.extract_feature(pixels), flatten: true}\n", "")], snapshot("""\
3:1 error[VCG202] at 'layout': the descriptor lacks the key `forward`
    help: add `forward: {call: self.extract_feature(pixels)}` (call that is recorded)
""")),
    Mistake("no eager call", "packed", [('eager: {call: "self.visual(pixels, sizes)"}\n', "")], snapshot("""\
3:1 error[VCG202] at 'layout': the descriptor lacks the key `eager`
    help: add `eager: {call: "self.visual(pixels, sizes)"}` (call for items that no graph fits)
""")),
    Mistake("call without pixels", "tiles", [("self.extract_feature(pixels)", "self.extract_feature()")], snapshot("""\
15:17 error[VCG331] at 'self.extract_feature()': the call does not pass `pixels`
    help: write self.extract_feature(pixels)
""")),
    Mistake("call with an unknown name", "packed", [("self.visual(pixels, sizes)", "self.visual(pixels, grid)")], snapshot("""\
20:36 error[VCG301] at 'grid': a call cannot pass `grid`
    help: known here: pixels, sizes, metadata
""")),
    Mistake("packed call without metadata", "packed", [("self.visual(pixels, None, encoder_metadata=metadata)", "self.visual(pixels, None)")], snapshot("""\
19:17 error[VCG332] at '"self.visual(pixels, None)"': the call does not pass `metadata`, so the graph would compute it while it is recorded
    help: write self.visual(pixels, None, encoder_metadata=metadata)
""")),
    Mistake("tiles with metadata", "tiles", [("self.extract_feature(pixels)", '"self.extract_feature(pixels, metadata)"')], snapshot("""\
15:47 error[VCG301] at 'metadata': a call cannot pass `metadata`
    help: known here: pixels
""")),
    Mistake("merge not derivable", "packed", [("tokens: t * (h // m) * (w // m)", "tokens: t * h * w // m // m")], snapshot("""\
11:33 error[VCG333] at 't * h * w // m // m': `tokens` does not show how many rows a token merges
    help: add `merge:` with the side of the merged square, such as self.visual.spatial_merge_size
""")),
    Mistake("merge that disagrees", "packed", [("tokens: t * (h // m) * (w // m)", "tokens: t * (h // m) * (w // m), merge: 4")], snapshot("""\
11:65 error[VCG333] at '4': `tokens` and the merge size disagree: a grid of 3 x 5 merged squares gives 60 tokens, not 15
    help: correct `tokens` or the merge size
""")),
    Mistake("paths without assembly", "paths", [("post: {assemble: [local, global]}\n", "")], snapshot("""\
3:1 error[VCG202] at 'layout': the descriptor lacks the key `post`
    help: add `post: {assemble: [local, global]}` (how outputs become items)
""")),
    Mistake("assembly of an unknown path", "paths", [("[local, global]", "[locl, global]")], snapshot("""\
14:19 error[VCG342] at 'locl': there is no path `locl`
    help: did you mean `local`?
""")),
    Mistake("assembly without a path", "paths", [("[local, global]", "[global]")], snapshot("""\
14:18 error[VCG342] at '[global]': the output of the path `local` is not used
    help: add `local`
""")),
    Mistake("assembly with a path twice", "paths", [("[local, global]", "[local, global, local]")], snapshot("""\
14:34 error[VCG342] at 'local': the path `local` is assembled twice
    help: delete one
""")),
    Mistake("paths with an item", "paths", [("forward: {call", "item: {rows: n, tokens: n}\nforward: {call")], snapshot("""\
13:1 error[VCG313] at 'item': `item` belongs to the layout `packed` and `tiles` and `cut` and `rows`, not to `paths`
    help: delete it, or correct `layout`
""")),
    Mistake("one path", "paths", [("  local: {count: n, tokens: unit(504), pixels: patch_pixel_values, shape: [3, 504, 504]}\n", "")], snapshot("""\
10:1 error[VCG341] at 'paths': there are two paths, not 1
    help: describe one path by the layout `tiles`
""")),
    Mistake("missing prompt", "tiles", [("    video_prompt: What happens?\n", "")], snapshot("""\
19:3 error[VCG360] at 'test': the model takes videos, but the test has no video prompt
    help: add `video_prompt:`
""")),
    Mistake("prompt without video", "paths", [("output:", "integration:\n  test: {key: a, model: o/m, image_prompt: Look, video_prompt: Look, num_video_frames: 2}\noutput:")], snapshot("""\
16:50 error[VCG361] at 'video_prompt': there is a video prompt, but no modality `video`
    help: delete it
16:70 error[VCG361] at 'num_video_frames': `num_video_frames` is given, but there is no video
    help: delete it
""")),
    Mistake("template without a slot", "tiles", [("<user>{content}</user>", "<user>content</user>")], snapshot("""\
22:49 error[VCG362] at '"<user>content</user>"': the template has 0 places for the prompt
    help: write {content} once
""")),
    Mistake("template with code", "tiles", [("<user>{content}</user>", "<user>{content}{1/0}</user>")], snapshot("""\
22:49 error[VCG362] at '"<user>{content}{1/0}</user>"': the template has braces besides {content}
    help: remove them
""")),
    Mistake("dummy overrides without an architecture", "tiles", [("    core_model: true", "    dummy_overrides: {layers: 1}\n    core_model: true")], snapshot("""\
27:5 error[VCG363] at 'dummy_overrides': `dummy_overrides` needs `dummy_arch`
    help: add `dummy_arch:` with the architecture
""")),
    Mistake("overrides given twice", "tiles", [("runner_kwargs: {trust_remote_code: true}", "runner_kwargs: {hf_overrides: {a: 1}}\n    dummy_arch: TiledModel")], snapshot("""\
26:21 error[VCG363] at 'hf_overrides': `dummy_arch` sets hf_overrides already
    help: delete one of the two
""")),
    Mistake("settings of a shrunk model given twice", "tiles", [("runner_kwargs: {trust_remote_code: true}", "runner_kwargs: {load_format: auto}\n    dummy_overrides: {model_arch: 1, hf_config: 2}\n    dummy_arch: TiledModel")], snapshot("""\
26:21 error[VCG363] at 'load_format': `dummy_arch` sets load_format already
    help: delete one of the two
27:23 error[VCG363] at 'model_arch': `dummy_arch` sets model_arch already
    help: delete one of the two
27:38 error[VCG363] at 'hf_config': `dummy_arch` sets hf_config already
    help: delete one of the two
""")),
    Mistake("settings of a shrunk pooling model given twice", "tiles", [("    core_model: true", "    core_model: true\n  pooling: {key: m, model: o/m, task: embed, runner_kwargs: {load_format: auto}, dummy_arch: M}")], snapshot("""\
28:62 error[VCG363] at 'load_format': `dummy_arch` sets load_format already
    help: delete one of the two
""")),
    Mistake("budgets of a test: 5", "tiles", [("    core_model", "    compilation_overrides: {encoder_cudagraph_token_budgets: 5}\n    core_model")], snapshot("""\
27:62 error[VCG364] at '5': `encoder_cudagraph_token_budgets` is no list of numbers of tokens
    help: write whole numbers of 1 or more in brackets: [512]
""")),
    Mistake("budgets of a test: zz", "tiles", [("    core_model", "    compilation_overrides: {encoder_cudagraph_token_budgets: zz}\n    core_model")], snapshot("""\
27:62 error[VCG364] at 'zz': `encoder_cudagraph_token_budgets` is no list of numbers of tokens
    help: write whole numbers of 1 or more in brackets: [512]
""")),
    Mistake("budgets of a test: true", "tiles", [("    core_model", "    compilation_overrides: {encoder_cudagraph_token_budgets: true}\n    core_model")], snapshot("""\
27:62 error[VCG364] at 'true': `encoder_cudagraph_token_budgets` is no list of numbers of tokens
    help: write whole numbers of 1 or more in brackets: [512]
""")),
    Mistake("budgets of a test: [a, 1]", "tiles", [("    core_model", "    compilation_overrides: {encoder_cudagraph_token_budgets: [a, 1]}\n    core_model")], snapshot("""\
27:62 error[VCG364] at '[a, 1]': `encoder_cudagraph_token_budgets` is no list of numbers of tokens
    help: write whole numbers of 1 or more in brackets: [512]
""")),
    Mistake("budgets of a test: [[1], 2]", "tiles", [("    core_model", "    compilation_overrides: {encoder_cudagraph_token_budgets: [[1], 2]}\n    core_model")], snapshot("""\
27:62 error[VCG364] at '[[1], 2]': `encoder_cudagraph_token_budgets` is no list of numbers of tokens
    help: write whole numbers of 1 or more in brackets: [512]
""")),
    Mistake("budgets of a test: [1.5]", "tiles", [("    core_model", "    compilation_overrides: {encoder_cudagraph_token_budgets: [1.5]}\n    core_model")], snapshot("""\
27:62 error[VCG364] at '[1.5]': `encoder_cudagraph_token_budgets` is no list of numbers of tokens
    help: write whole numbers of 1 or more in brackets: [512]
""")),
    Mistake("budgets of a test: [0]", "tiles", [("    core_model", "    compilation_overrides: {encoder_cudagraph_token_budgets: [0]}\n    core_model")], snapshot("""\
27:62 error[VCG364] at '[0]': `encoder_cudagraph_token_budgets` is no list of numbers of tokens
    help: write whole numbers of 1 or more in brackets: [512]
""")),
    Mistake("budgets of a test: [true]", "tiles", [("    core_model", "    compilation_overrides: {encoder_cudagraph_token_budgets: [true]}\n    core_model")], snapshot("""\
27:62 error[VCG364] at '[true]': `encoder_cudagraph_token_budgets` is no list of numbers of tokens
    help: write whole numbers of 1 or more in brackets: [512]
""")),
    Mistake("budgets of a test: []", "tiles", [("    core_model", "    compilation_overrides: {encoder_cudagraph_token_budgets: []}\n    core_model")], snapshot("""\
27:62 error[VCG364] at '[]': `encoder_cudagraph_token_budgets` is no list of numbers of tokens
    help: write whole numbers of 1 or more in brackets: [512]
""")),
    Mistake("budgets of a test: [9999999999]", "tiles", [("    core_model", "    compilation_overrides: {encoder_cudagraph_token_budgets: [9999999999]}\n    core_model")], snapshot("""\
27:62 error[VCG364] at '[9999999999]': `encoder_cudagraph_token_budgets` is no list of numbers of tokens
    help: write whole numbers of 1 or more in brackets: [512]
""")),
    Mistake("budgets of a test: {a: 1}", "tiles", [("    core_model", "    compilation_overrides: {encoder_cudagraph_token_budgets: {a: 1}}\n    core_model")], snapshot("""\
27:62 error[VCG364] at '{a: 1}': `encoder_cudagraph_token_budgets` is no list of numbers of tokens
    help: write whole numbers of 1 or more in brackets: [512]
""")),
    Mistake("opted out itself", "paths", [("optout: [OtherModel]", "optout: [TwofoldModel]")], snapshot("""\
2:56 error[VCG371] at 'TwofoldModel': `TwofoldModel` is the ported class itself
    help: delete it
""")),
    Mistake("gates without a condition", "packed", [("{modalities: not self.pruning}", "{why: Because.}")], snapshot("""\
21:1 error[VCG202] at 'gates': `gates` has no condition
    help: add `modalities` or `encoder`, or delete it
""")),
    Mistake("several at once", "tiles", [("item: {rows: n, tokens: n * k}", "item: {rows: nn, token: n * k}"), ("layout: tiles", "layout: til"), ("capture: {rows: b // k}", "capture: {rows: b / k}"), ("core_model: true", "core_model: yes")], snapshot("""\
3:9 error[VCG204] at 'til': `til` is not a layout
    help: did you mean `tiles`?
11:14 error[VCG301] at 'nn': the name `nn` is not defined
    help: did you mean `n`?
11:18 error[VCG201] at 'token': unknown key `token`
    help: did you mean `tokens`?
13:19 error[VCG207] at '/': expected an operator or the end, found `/`
    help: use `//`: sizes are whole numbers
27:17 error[VCG113] at 'yes': YAML reads `yes` as the boolean true
    help: write true
""")),
    Mistake("a set of frames behind the first", "packed", [("unit: window, offsets", "unit: frame, offsets")], snapshot("""\
15:18 error[VCG324] at 'frame': a further set of sequences cuts those of the first into windows, not into frames
    help: write unit: window, with its `count` and `longest`
""")),
    Mistake("section of another layout", "tiles", [("budget: {min: k}", 'budget: {min: k}\neager: {call: "self.visual(pixels, sizes)"}')], snapshot("""\
15:1 error[VCG313] at 'eager': `eager` belongs to the layout `packed`, not to `tiles`
    help: delete it, or correct `layout`
""")),
    Mistake("helper outside of tokens", "paths", [("shape: [3, 728, 728]", "shape: [3, unit(728), 728]")], snapshot("""\
11:74 error[VCG304] at 'unit(728)': the helper `unit` cannot be called here
    help: helpers are for the `tokens` of paths: write the value here, or a line of `let`
""")),
    Mistake("two modalities on the same paths", "paths", [("image_embeds}", "image_embeds}\n  video: {sizes: video_num_patches}")], snapshot("""\
6:3 error[VCG340] at 'video': paths serve one modality: each path has one key for its pixels
    help: delete this modality; it runs eagerly, as before
""")),
    Mistake("paths in the other order", "paths", [("count: 1", "count: n"), ("  local: {count: n", "  local: {count: 1")], snapshot("""\
11:19 error[VCG341] at 'n': the first path has one tile an item
    help: write count: 1
12:18 error[VCG341] at '1': the second path has `n` tiles an item
    help: write count: n
""")),
    Mistake("not a number in data", "tiles", [("trust_remote_code: true", "temperature: .nan")], snapshot("""\
26:34 error[VCG210] at '.nan': `.nan` has no literal in Python
    help: give a finite number
""")),
    Mistake("buffer twice", "packed", [("[rotary_cos,", "[window_index,")], snapshot("""\
17:25 error[VCG323] at 'window_index': the buffer `window_index` is also `buffers.0`
    help: give each buffer once
""")),
    Mistake("pixels of a path twice", "paths", [("pixels: patch_pixel_values", "pixels: pixel_values")], snapshot("""\
12:48 error[VCG314] at 'pixel_values': the input `pixel_values` is also `paths.global.pixels`
    help: give each input its own key: the keys of a request tell its modality
""")),
    Mistake("precomputed embeddings of two modalities", "tiles", [("sizes: video_num_patches}", "sizes: video_num_patches, embeds: video_embeds}")], snapshot("""\
6:70 error[VCG317] at 'embeds': the port takes precomputed embeddings of one modality, which is `image`
    help: delete it: the tool generates nothing for a second modality yet
""")),
    Mistake("pixels that nobody cuts", "cut", [("pixel_values: {sizes: num_crops}", "other_values: {sizes: num_crops}")], snapshot("""\
5:19 error[VCG343] at 'pixel_values': `pixel_values` cannot be cut into items
    help: add `pixel_values: batched` to `fields`, or `pixel_values: {sizes: KEY}`
""")),
    Mistake("sizes that are no input", "cut", [("{sizes: num_crops}", "{sizes: num_crop}")], snapshot("""\
7:25 error[VCG343] at 'num_crop': `num_crop`, the sizes of `pixel_values`, is no input with an entry for each item
    help: did you mean `num_crops`?
""")),
    Mistake("an argument of units that nobody passes", "cut", [("result: [_, features]}", "with: {mask: {shape: [side], dtype: bool}}}")], snapshot("""\
11:55 error[VCG331] at 'mask': the call does not pass `mask`
    help: pass `mask`, or delete the line
""")),
    Mistake("an argument of units under the name of the pixels", "cut", [("self.encoder(pixels)", '"self.encoder(pixels, pixel_values)"'), ("result: [_, features]}", "with: {pixel_values: {shape: [side], dtype: bool}}}")], snapshot("""\
11:71 error[VCG303] at 'pixel_values': the name `pixel_values` is taken: it is that of the pixels
    help: choose another name
""")),
    Mistake("an argument of units that has no shape", "cut", [("self.encoder(pixels)", '"self.encoder(pixels, mask)"')], snapshot("""\
11:39 error[VCG301] at 'mask': a call cannot pass `mask`
    help: known here: pixels
""")),
    Mistake("a mask of units on another axis", "cut", [("self.encoder(pixels)", '"self.encoder(pixels, mask)"'), ("result: [_, features]}", "unit: [side, side], with: {mask: additive}}")], snapshot("""\
11:47 error[VCG346] at 'axis': `mask` hides rows of padding, and the units of this call have none
    help: say what the call gets of a unit, as `unit: [rows, width]`, with the units on axis 0
""")),
    Mistake("a mask without rows to hide", "cut", [("self.encoder(pixels)", '"self.encoder(pixels, mask)"'), ("axis: 1, result: [_, features]}", "with: {mask: additive}}")], snapshot("""\
11:54 error[VCG346] at 'mask': `mask` hides rows of padding, and the units of this call have none
    help: say what the call gets of a unit, as `unit: [rows, width]`, with the units on axis 0
""")),
    Mistake("a mask of units of three sides", "cut", [("self.encoder(pixels)", '"self.encoder(pixels, mask)"'), ("axis: 1, result: [_, features]}", "unit: [side, side, side], with: {mask: additive}}")], snapshot("""\
11:47 error[VCG346] at 'unit': `mask` hides rows of padding, and the units of this call have none
    help: say what the call gets of a unit, as `unit: [rows, width]`, with the units on axis 0
""")),
    Mistake("two masks", "cut", [("self.encoder(pixels)", '"self.encoder(pixels, mask, other)"'), ("axis: 1, result: [_, features]}", "unit: [side, side], with: {mask: additive, other: additive}}")], snapshot("""\
11:97 error[VCG346] at 'other': one mask hides the padding of units
    help: say `absent`, or its shape
""")),
    Mistake("a loop whose call is another one", "cut", [("result: [_, features]}", "result: [_, features], loop: self.layers}")], snapshot("""\
11:77 error[VCG347] at 'self.layers': `forward_layers` is what the loop over the layers becomes, and nothing else is
    help: write `call: self.forward_layers(pixels)` and the layers as `loop`, or none of them
""")),
    Mistake("a loop with arguments of other kinds", "cut", [("self.encoder(pixels)", '"self.forward_layers(pixels, 6)"'), ("axis: 1, result: [_, features]}", "loop: self.layers}")], snapshot("""\
11:17 error[VCG347] at '"self.forward_layers(pixels, 6)"': a loop takes `pixels` first, then arguments of `with` and attributes of the model
    help: write what the loop reads in its order, such as self.forward_layers(pixels, self.config.first_layer)
""")),
    Mistake("another shape of the first modality", "cut", [("(**inputs))}", "(**inputs)), let: {side: 64}}")], snapshot("""\
5:102 error[VCG348] at 'let': `let` has the values of the first modality
    help: write them there
""")),
    Mistake("another value of a name that is not there", "cut", [("fields:\n", "  video: {pixels: frames, entry: self._process_video_input(**inputs), let: {sides: 64}}\nfields:\n  frames: batched\n")], snapshot("""\
6:77 error[VCG301] at 'sides': the name `sides` is not defined
    help: did you mean `side`?
""")),
    Mistake("another value that is made of itself", "cut", [("fields:\n", "  video: {pixels: frames, entry: self._process_video_input(**inputs), let: {side: side // 2}}\nfields:\n  frames: batched\n")], snapshot("""\
6:83 error[VCG302] at 'side': `side` is defined by itself
    help: compute it from something else
""")),
    Mistake("tokens of units without paths", "cut", [("pixels: {", "item: {merge: side}\npixels: {")], snapshot("""\
10:1 error[VCG348] at 'item': budgets count features where units have one shape
    help: delete this section, or give the modality with other units its `let`
""")),
    Mistake("padded units with paths", "cut", [("fields:\n", "  video: {pixels: frames, entry: self._process_video_input(**inputs), let: {side: 64}}\nfields:\n  frames: batched\n"), ("side]}", "side], padded: true}")], snapshot("""\
12:34 error[VCG348] at 'padded': units with paths are not padded to a batch's longest item
    help: delete this line
""")),
    Mistake("a mask of padding for units with paths", "cut", [("fields:\n", "  video: {pixels: frames, entry: self._process_video_input(**inputs), let: {side: 64}}\nfields:\n  frames: batched\n"), ("self.encoder(pixels)", '"self.encoder(pixels, mask)"'), ("axis: 1, result: [_, features]}", "unit: [side, side], with: {mask: additive}}")], snapshot("""\
6:71 error[VCG348] at 'let': `mask` lets one shape hold all units, so none has a path of its own
    help: delete these values, and give `let` those of the longer units
""")),
    Mistake("an explicit port of inputs that are cut in another way", "cut", [("fields:\n", "fields:\n  grids: {sizes: num_grids}\n  num_grids: batched\n"), ("pixels: {", "explicit: {call: self.encoder(pixels), tokens: 4}\npixels: {")], snapshot("""\
12:1 error[VCG349] at 'explicit': an item has other rows in `grids` than in its pixels
    help: delete this section: the port then runs the model's own code
""")),
    Mistake("an explicit port of an input behind each other beside pixels that are not", "cut", [("pixel_values: {sizes: num_crops}", "pixel_values: batched\n  grids: {sizes: num_crops}"), ("pixels: {", "explicit: {call: self.encoder(pixels), tokens: 4}\npixels: {")], snapshot("""\
11:1 error[VCG349] at 'explicit': items of `grids` lie behind each other, and those of the pixels do not
    help: delete this section: the port then runs the model's own code
""")),
    Mistake("an explicit port whose encoder gets with each unit what is no input", "cut", [("self.encoder(pixels)", '"self.encoder(pixels, mask)"'), ("axis: 1, result: [_, features]}", "with: {mask: {shape: [side], dtype: bool}}}"), ("pixels: {", "explicit: {call: 'self.encoder(pixels, mask)', tokens: 4}\npixels: {")], snapshot("""\
10:1 error[VCG349] at 'explicit': `mask` is no input whose items have an entry for each unit, as those of the pixels have
    help: delete this section: the port then runs the model's own code
""")),
    Mistake("an explicit port of masks with more rows than there are units", "cut", [("fields:\n", "fields:\n  masks: {sizes: num_crops, extra: 1}\n"), ("pixels: {", "explicit: {call: self.encoder(pixels), tokens: 4}\npixels: {")], snapshot("""\
7:29 error[VCG349] at 'extra': an item has other rows in `masks` than in its pixels
    help: delete this section: the port then runs the model's own code
""")),
    Mistake("an explicit port of two modalities", "cut", [("fields:\n", "  video: {pixels: frames, entry: self._process_video_input(**inputs)}\nfields:\n  frames: batched\n"), ("pixels: {", "explicit: {call: self.encoder(pixels), tokens: 4}\npixels: {")], snapshot("""\
6:3 error[VCG340] at 'video': an explicit port serves one modality
    help: delete this modality; it runs eagerly, as before
12:1 error[VCG349] at 'explicit': items of `pixel_values` lie behind each other, and those of the pixels do not
    help: delete this section: the port then runs the model's own code
""")),
    Mistake("a tuple and layers", "cut", [("features]}", "features], layers: [side]}")], snapshot("""\
11:71 error[VCG344] at 'layers': the result is a tuple or a list of layers, not both
    help: delete one of `result` and `layers`
""")),
    Mistake("maps and layers", "cut", [("result: [_, features]}", "channels: 1, layers: [side]}")], snapshot("""\
11:48 error[VCG344] at 'channels': layers have their channels last: a graph holds them side by side
    help: delete it
""")),
    Mistake("a result without features", "cut", [("[_, features]", "[_, embeddings]")], snapshot("""\
11:56 error[VCG344] at '[_, embeddings]': one part of the result is `features`
    help: write [_, features] for a result of two parts, the second of which is used
""")),
    Mistake("an entry without the inputs", "cut", [("(**inputs)", "(inputs)")], snapshot("""\
5:40 error[VCG331] at 'self._process_image_input(self._parse_image_input(inputs))': the call does not pass `**inputs`
    help: write self._process_image_input(**inputs)
5:90 error[VCG301] at 'inputs': a call cannot pass `inputs`
    help: did you mean `**inputs`?
""")),
    Mistake("an open entry", "cut", [("(**inputs)", "(**)")], snapshot("""\
5:92 error[VCG209] at ')': expected a name after `**`, found `)`
    help: write a call of the model: self.visual(pixels)
""")),
    Mistake("patches that are not in the pixels", "rows", [("[h * w, 3 * p ** 2]", "[h * h, 3 * p ** 2]")], snapshot("""\
10:15 error[VCG345] at '[h * h, 3 * p ** 2]': `shape` must grow with the patches of an item: it has `h` and `w` once each
    help: write [3, h * p, w * p] for images, or [h * w, 3 * p**2] for rows of patches
""")),
    Mistake("a call for each item without layers", "rows", [("forward: {encoder: ", "forward: {per_item: true, encoder: ")], snapshot("""\
11:11 error[VCG345] at 'per_item': the encoder cannot be called once for each item: only layers get offsets
    help: delete this line, or name the layers as `loop`
""")),
    Mistake("an item without its grid", "rows", [("values: {image_grid_thw: [1, h, w]}, ", "")], snapshot("""\
7:18 error[VCG343] at 'sizes': `image_grid_thw` has no values for an item of h x w patches
    help: add `values: {image_grid_thw: [1, h, w]}` to `item`
""")),
    Mistake("values of no input", "rows", [("values: {image_grid_thw: [1, h, w]}", "values: {image_grid_thw: [1, h, w], pixel_values: [h], grid: [w]}")], snapshot("""\
10:72 error[VCG343] at 'pixel_values': `pixel_values` is no input with an entry for each item
    help: known here: image_grid_thw
10:91 error[VCG343] at 'grid': `grid` is no input with an entry for each item
    help: known here: image_grid_thw
""")),
    Mistake("a name that patches have", "rows", [("let: {p: self.config.patch_size}", "let: {p: self.config.patch_size, h: 2}")], snapshot("""\
9:34 error[VCG303] at 'h': the name `h` is taken: it is a size column
    help: choose another name
""")),
    Mistake("a height outside of the item", "rows", [("merge: 2", "merge: h")], snapshot("""\
10:80 error[VCG304] at 'h': the size column `h` has no value here
    help: a size column has a value for each item; only `item` and a path's `count` can use it
""")),
    Mistake("video rows", "rows", [("modalities:\n", "modalities:\n  video: {pixels: pixel_values_videos, entry: self._process(**inputs)}\n")], snapshot("""\
5:3 error[VCG201] at 'video': `video` is not a modality
    help: known here: image, vision_chunk, audio
""")),
    Mistake("two modalities of rows", "rows", [("modalities:\n", "modalities:\n  vision_chunk: {pixels: pixel_values, entry: self._process(**inputs)}\n")], snapshot("""\
6:3 error[VCG340] at 'image': rows serve one modality: an item of h x w patches is made for it
    help: delete this modality; it runs eagerly, as before
6:19 error[VCG314] at 'pixel_values': the input `pixel_values` is also `modalities.vision_chunk.pixels`
    help: give each input its own key: the keys of a request tell its modality
""")),
    Mistake("processor value called as a let", "tiles", [("  side: self.config.vision_config.image_size\n", ""), ("item:", "processor: {module: tiled, class: TiledProcessor, values: {side: tile_size, k: tokens}}\nitem:")], snapshot("""\
10:77 error[VCG303] at 'k': the name `k` is taken: it is a name of `let`
    help: choose another name
""")),
    Mistake("processor value called as the pixels", "tiles", [("  side: self.config.vision_config.image_size\n", ""), ("item:", "processor: {module: tiled, class: TiledProcessor, values: {side: tile_size, pixels: p}}\nitem:")], snapshot("""\
10:77 error[VCG303] at 'pixels': the name `pixels` is taken: it is the pixel tensor
    help: choose another name
10:77 warning[VCG305] at 'pixels': `pixels` is never used
    help: use it in an expression, or delete the line
""")),
    Mistake("processor without a value", "tiles", [("  side: self.config.vision_config.image_size\n", ""), ("item:", "processor: {module: tiled, class: TiledProcessor, values: {}}\nitem:")], snapshot("""\
10:59 error[VCG211] at '{}': the mapping is empty
    help: add a name
12:21 error[VCG301] at 'side': the name `side` is not defined
    help: known here: k
12:27 error[VCG301] at 'side': the name `side` is not defined
    help: known here: k
""")),
]
# fmt: on


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name.replace(" ", "-"))
def test_a_mistake_is_reported(mistake: Mistake) -> None:
    assert in_words(mistake.text) == mistake.report
    assert all(problem.help for problem in problems_of(mistake.text))


def test_the_table_is_large_and_has_no_copies() -> None:
    assert len(MISTAKES) >= 60
    assert len({mistake.name for mistake in MISTAKES}) == len(MISTAKES)
    assert len({mistake.text for mistake in MISTAKES}) == len(MISTAKES)
