"""Which results have memory of their own: no view of a graph's output may be handed out without a copy."""

from __future__ import annotations

from typing import Any

import pytest
from changed_ports import port_of
from port_mutants import Mutant, assert_rejected, reports_of

from scaffold.cut import Extraction, returns_own_memory
from scaffold.tower.source import Program
from scaffold.workflow import numeric_requests, prepare_port

pytestmark = pytest.mark.trees

RELEASE = "0.33.0"
FILE = "vllm/model_executor/models/memory_of_results.py"
LLAVA = "vllm/model_executor/models/llava_next.py"
PLAIN = "dest[index] = embeds"
COPY = f"{PLAIN}.clone() if clone else embeds"

MODEL = """
import torch
import torch.nn as nn

from vllm.model_executor.layers.layernorm import RMSNorm
from vllm.model_executor.layers.linear import ColumnParallelLinear


class Projector(nn.Module):
    def __init__(self):
        self.first = nn.Linear(4, 4)
        self.second = ColumnParallelLinear(4, 4)

    def forward(self, x, shape="wide"):
        x = self.first(x)
        if shape == "narrow":
            return x
        x, _ = self.second(x)
        return x

    def halves(self, x):
        return x[:2]


class Model(nn.Module):
    def __init__(self):
        self.projector = Projector()
        self.norm = RMSNorm(4)
        self.drop = nn.Identity()
        self.either = nn.Linear(4, 4) if self.norm else nn.Identity()
        self.second = nn.Linear(4, 4)
        self.second = nn.Identity()

    def view(self, x, way="flat"):
        if way == "flat":
            return x.flatten(0, 1)
        if way.startswith("spatial"):
            if "unpad" in way:
                made = torch.cat([x])
            else:
                made = x[0]
            return made
        raise ValueError

    def again(self, x):
        return self.again(x)

    @torch.compile
    def compiled(self, x):
        return torch.cat([x])

    def after(self, features, sizes):
        {body}
"""


#: The statements of `after`, and whether their result has memory of its own.
CASES = [
    ("return torch.cat([features, features])", True),
    ("return torch.cat([features], out=features)", False),
    ("return features", False),
    ("return features.split(sizes)", False),
    ("return torch.cat(features).split(sizes)", True),
    ("return torch.split(torch.cat(features), sizes)", True),
    ("return torch.split(features, sizes)", False),
    ("return features @ sizes", True),
    ("return features + sizes", False),
    ("return self.projector(features)", True),
    ("return self.projector(features, shape='narrow')", True),
    ("return self.projector.first(features)", True),
    ("return self.projector.halves(features)", False),
    ("return self.projector.halves(*features)", False),
    ("return self.norm(features)", False),
    ("return self.drop(features)", False),
    ("return self.either(features)", False),
    ("return self.second(features)", False),
    ("return self.unknown(features)", False),
    ("return self.unknown.part(features)", False),
    ("return self.again(features)", False),
    ("return self.compiled(features)", False),
    ("return unknown(torch.cat(features))", False),
    # A branch that constants decide, and one that they do not.
    ("return self.view(features)", False),
    ("return self.view(features, way='flat')", False),
    ("return self.view(features, way='spatial_unpad')", True),
    ("return self.view(features, way='spatial')", False),
    ("return self.view(features, way=sizes)", False),
    ("way = 'spatial_unpad'\nreturn self.view(features, way)", False),
    ("return [self.view(x, way='spatial_unpad') for x in features]", True),
    ("return torch.cat(features) if sizes else features", False),
    ("return torch.cat(features) if 'a' == 'a' else features", True),
    ("return torch.cat(features) if sizes else torch.stack(features)", True),
    # Variables: the assignment that comes last, on each way.
    ("x = torch.cat(features)\nx = x.view(4, 4)\nreturn x", True),
    ("x: torch.Tensor = torch.cat(features)\nreturn x", True),
    ("x = torch.cat(features)\nx = features\nreturn x", False),
    ("x = features\nx = torch.cat(x)\nreturn (x,)", True),
    ("x = torch.cat(features)\nif sizes:\n    x = features\nreturn x", False),
    ("x = features\nif sizes:\n    x = torch.cat(features)\nreturn x", False),
    ("x = features\nif sizes:\n    x = torch.cat(x)\nelse:\n    x = torch.stack(x)\nreturn x", True),
    ("x = torch.cat(features)\nif sizes:\n    x = features\n    raise ValueError\nreturn x", True),
    ("if sizes:\n    raise ValueError\nelse:\n    raise TypeError\nreturn features", False),
    ("x = torch.cat(features)\nif sizes:\n    return x\nreturn features", False),
    ("x = torch.cat(features)\nfor size in sizes:\n    x = features\nreturn x", False),
    ("x = torch.cat(features)\nfor x in features:\n    return x\nreturn x", False),
    ("x = torch.cat(features)\nfor size in sizes:\n    if size:\n        return x\n    x = features\nreturn []", False),
    ("x = torch.cat(features)\nif (x := features):\n    return x\nreturn []", False),
    ("x = torch.cat(features)\nif x is (x := features):\n    pass\nreturn x", False),
    ("x = features\nx += 1\nreturn x", False),
    ("x, y = torch.cat(features), features\nreturn x", False),
    ("x = y = torch.cat(features)\nreturn x", False),
    ("with sizes:\n    x = torch.cat(features)\n    return x", True),
    ("with sizes:\n    x = torch.cat(features)\nreturn x", False),
    ("try:\n    return torch.cat(features)\nexcept ValueError:\n    return features", False),
    ("match sizes:\n    case 1:\n        return features\nreturn torch.cat(features)", False),
    ("yield features\nreturn torch.cat(features)", False),
    ("torch.cat(features)", False),
    # Lists: all that comes into them, and nobody else may put anything there.
    ("return [torch.cat(features), features]", False),
    ("return [features for x in sizes]", False),
    ("x = torch.cat(features)\nreturn [x for x in features]", False),
    ("x = torch.cat(features)\nreturn tuple(x for y in features)", True),
    ("xs = []\nfor x in features:\n    xs.append(torch.cat([x]))\nreturn tuple(xs)", True),
    ("xs = []\nfor x in features:\n    xs.append(x)\nreturn tuple(xs)", False),
    ("xs = []\nfor x in features:\n    ys = []\n    ys.append(x)\n    xs.append(torch.cat(ys))\nreturn xs", True),
    ("xs = []\nfor x in features:\n    x = torch.cat(x)\n    if len(xs):\n        xs.append(xs[0])\nreturn xs", False),
    ("xs = [torch.cat(features)]\nxs.extend(features)\nreturn xs", False),
    ("xs = [torch.cat(features)]\nxs[0] = features\nreturn xs", False),
    ("xs = [torch.cat(features)]\nys = xs\nys.append(features)\nreturn xs", False),
    ("xs = [torch.cat(features)]\nunknown(xs, features)\nreturn xs", False),
    ("xs = []\nxs.append([features])\nreturn xs", False),
    ("xs = []\nxs.append(tuple(xs))\nreturn xs", False),
]


@pytest.mark.parametrize(("body", "own"), CASES, ids=[body.replace("\n", "; ") for body, _ in CASES])
def test_what_may_be_a_view(body: str, own: bool, release_tree: Any) -> None:
    text = MODEL.replace("{body}", body.replace("\n", "\n        "))
    program = Program(release_tree(RELEASE).with_files({FILE: text.encode()}))
    found = Extraction((), (), "after", (), None, split=True, regroups=False)
    assert returns_own_memory(program, program.owner(FILE, "Model"), found) is own


def text_of(port: Any, tree: Any, path: str) -> str:
    [change] = [change for change in prepare_port(port, tree).changed if change.path == path]
    return (change.after or b"").decode()


@pytest.mark.parametrize(("strategy", "copies"), [("spatial_unpad", False), ("flat", True)])
def test_only_views_are_copied(strategy: str, copies: bool, release_tree: Any) -> None:
    tree = release_tree(RELEASE)
    text = tree.read(LLAVA).replace('"spatial_unpad"', f'"{strategy}"')
    written = text_of(port_of("llava_next"), tree.with_files({LLAVA: text.encode()}), LLAVA)
    assert (COPY in written, "next replay overwrites" in written) == (copies, copies)


def test_a_class_that_inherits_the_port_may_give_views(release_tree: Any) -> None:
    """LightOnOCR has Mistral 3's port, and a method of its own in this tree."""
    tree, path = release_tree(RELEASE), "vllm/model_executor/models/lightonocr.py"
    own = "\n    def _project_image_features(self, image_sizes, image_features):\n        return image_features\n"
    changed = tree.with_files({path: (tree.read(path) + own).encode()})
    model = "vllm/model_executor/models/mistral3.py"
    assert [COPY in text_of(port_of("mistral3"), one, model) for one in (tree, changed)] == [False, True]


#: The first item in the place of the features that made it: its numbers are right until the next replay.
ALIAS = (
    "dest[index] = (features.flatten()[: embeds.numel()].view_as(embeds).copy_(embeds)"
    " if index == indices[0] else embeds)"
)


@pytest.mark.lab
def test_a_view_is_found_in_the_lab(release_tree: Any) -> None:
    path = "vllm/model_executor/models/mistral3.py"
    [request] = numeric_requests(port_of("mistral3"), release_tree(RELEASE), tails=("fa2",))
    given = "        ):\n            dest[index] = embeds\n"
    mutant = Mutant("a view of the output", given, given.replace(PLAIN, ALIAS), "VCG658")
    assert_rejected(reports_of(request, path, [mutant], [mutant])[mutant.name], mutant)
