"""Bases as people write them, in files added to a release: followed where the tree has them, else named."""

from __future__ import annotations

import pytest
from init_draft import RUN, nothing_fits, tiles_fit

from scaffold.diagnostics import Diagnostic, DiagnosticError, Severity
from scaffold.draft import NoDraft, draft_descriptor, undrafted
from scaffold.draft.locate import locate
from scaffold.protocol.tree import SourceTree

pytestmark = pytest.mark.trees

RELEASE = "0.33.0"
MODELS = "vllm/model_executor/models"
HEIR = f"{MODELS}/heir.py"
QWEN = "vllm.model_executor.models.qwen3_vl"
PROCESSOR = "Qwen3VLMultiModalProcessor"
#: How a file may name the base of a processor: its lines, and the base.
BASES = {
    "a module": (f"import {QWEN} as Q", f"Q.{PROCESSOR}"),
    "a whole path": (f"import {QWEN}", f"{QWEN}.{PROCESSOR}"),
    "a member of a package": ("from . import qwen3_vl", f"qwen3_vl.{PROCESSOR}"),
    "a whole path, after another": (f"import vllm.logger\nimport {QWEN}", f"{QWEN}.{PROCESSOR}"),
    "a member of a far package": ("from vllm.model_executor.models import qwen3_vl as Q", f"Q.{PROCESSOR}"),
    "a generic": (f"import {QWEN} as Q", f"Q.{PROCESSOR}[Q.Qwen3VLProcessingInfo]"),
    "another name": (f"import {QWEN} as Q\nBase = Q.{PROCESSOR}", "Base"),
    "another name of a name": (f"from .qwen3_vl import {PROCESSOR} as P\nFirst = P\nBase: type = First", "Base"),
    "another name in a branch": (
        f"from .qwen3_vl import {PROCESSOR}\nif TYPE_CHECKING:\n    Base = object\nelse:\n    Base = {PROCESSOR}",
        "Base",
    ),
    "the import that the tree has": (
        f"try:\n    from .qwen9 import {PROCESSOR}\nexcept ImportError:\n    from .qwen3_vl import {PROCESSOR}",
        PROCESSOR,
    ),
    "an import with another way out": (
        f"try:\n    from .qwen3_vl import {PROCESSOR}\nexcept ImportError:\n    {PROCESSOR} = object",
        PROCESSOR,
    ),
    "a class in a branch": (
        f"import {QWEN} as Q\nif Q is not None:\n    class Base(Q.{PROCESSOR}):\n        pass",
        "Base",
    ),
    "a name that a package hands on": ("from .again import Again", "Again"),
    "a package that hands on all names": ("from . import again", f"again.{PROCESSOR}"),
}
PACKAGE = {
    f"{MODELS}/again/__init__.py": f"from .more import *\nfrom .less import {PROCESSOR} as Again\n".encode(),
    f"{MODELS}/again/more.py": f"from {QWEN} import *\n".encode(),
    f"{MODELS}/again/less.py": f"from .more import {PROCESSOR}\n".encode(),
}
TEXT = """
from typing import TYPE_CHECKING

from vllm.model_executor.models.qwen3_vl import Qwen3VLDummyInputsBuilder, Qwen3VLProcessingInfo
from vllm.model_executor.models.qwen3_vl import Qwen3VLForConditionalGeneration as Model
from vllm.multimodal import MULTIMODAL_REGISTRY
from vllm.multimodal.inputs import MultiModalFieldConfig
LINES


class HeirProcessor(BASE):
    def _get_mm_fields_config(self, hf_inputs, hf_processor_mm_kwargs):
        return dict(SUPER, input_audio_features=MultiModalFieldConfig.batched("audio"))


@MULTIMODAL_REGISTRY.register_processor(
    HeirProcessor, info=Qwen3VLProcessingInfo, dummy_inputs=Qwen3VLDummyInputsBuilder
)
class Heir(Model):
    pass
"""
SUPER = "**super()._get_mm_fields_config(hf_inputs, hf_processor_mm_kwargs)"


def tree_with(tree: SourceTree, lines: str, base: str, more: str = SUPER) -> SourceTree:
    text = TEXT.replace("LINES", lines).replace("BASE", base).replace("SUPER", more)
    return tree.with_files({HEIR: text.encode(), **PACKAGE})


@pytest.mark.parametrize("case", BASES)
def test_a_processors_base_is_followed(case, release_tree):
    tree = tree_with(release_tree(RELEASE), *BASES[case])
    model = locate(tree, f"{HEIR}:Heir")
    assert PROCESSOR in [cls.name for _, cls in model.program.lineage(model.processor)]
    assert not list(model.program.unfollowed(model.processor))


#: What cannot be followed: lines, base, and what is said of it.
PACKAGE_LACKS = "is code of `plugin.models`, which the tree does not have"
LOST = {
    "another package": ("from plugin.models import Speech", "Speech", PACKAGE_LACKS),
    "a module of another package": ("import plugin.models as P", "P.Speech", PACKAGE_LACKS),
    "an import of all names": ("from plugin.models import *", "Speech", PACKAGE_LACKS),
    "another name": ("import plugin.models as P\nSpeech = P.Speech", "Speech", PACKAGE_LACKS),
    "a name for a call": ("from plugin import speaking\nSpeech = speaking()", "Speech", "is made at run time"),
    "a call": ("from plugin import speaking", f"speaking({PROCESSOR})", "is made at run time"),
}


@pytest.mark.parametrize("case", LOST)
def test_a_processors_base_that_cannot_be_followed_is_named(case, release_tree):
    """That the model did not run says nothing about it."""
    lines, base, words = LOST[case]
    tree = tree_with(release_tree(RELEASE), lines, base)
    (problem,) = undrafted(tree, f"{HEIR}:Heir", [Diagnostic("VCG668", "no such size")]).diagnostics
    assert problem.code == "VCG497"
    assert problem.message == f"the base `{base}` of `HeirProcessor` cannot be followed: it {words}"
    assert problem.span is not None
    assert problem.span.file.endswith(HEIR)
    assert problem.notes == ("without it: no such size",)


#: Classes of which too little can be read, by the way to name them.
MODEL = {
    "no embed_multimodal": ("class Heir(P.Model):\n    pass\n", f"{HEIR}:Heir"),
    "no processor": ("class Heir(P.Model):\n    def embed_multimodal(self, **kwargs): ...\n", f"{HEIR}:Heir"),
    "no class to choose": ("class Heir(P.Model):\n    pass\n", HEIR),
}


@pytest.mark.parametrize("case", MODEL)
def test_a_models_base_that_cannot_be_followed_is_named(case, release_tree):
    text, reference = MODEL[case]
    tree = release_tree(RELEASE).with_files({HEIR: f"import plugin.models as P\n\n\n{text}".encode()})
    with pytest.raises(DiagnosticError) as met:
        locate(tree, reference)
    (problem,) = met.value.diagnostics
    assert problem.code == "VCG497"
    assert problem.message.startswith("the base `P.Model` of `Heir` cannot be followed: it is code of `plugin.models`")
    assert "copy its file into the tree" in (problem.help or "")


BESIDE = b"""from plugin import Speech
from .qwen3_vl import Qwen3VLForConditionalGeneration as Q

class Heir(Speech, Q):
    pass
"""


def test_a_refusal_without_a_base_names_the_base_first(release_tree, monkeypatch):
    """The file to start from has the base as its reason, too."""
    nothing_fits(monkeypatch.setattr)
    tree = release_tree(RELEASE).with_files({HEIR: BESIDE})
    with pytest.raises(NoDraft) as met:
        draft_descriptor(tree, f"{HEIR}:Heir", RUN)
    (problem,) = met.value.diagnostics
    assert problem.code == "VCG497"
    assert problem.notes == ("without it: no rows", "without it: no offsets")
    assert "the base `Speech` of `Heir` cannot be followed" in met.value.start


def test_a_draft_beside_an_unknown_base_says_so(release_tree, monkeypatch):
    """What the run shows is enough, but a class that comes before the model's own may override it."""
    tiles_fit(monkeypatch.setattr)
    tree = release_tree(RELEASE).with_files({HEIR: BESIDE})
    notes = [note for note in draft_descriptor(tree, f"{HEIR}:Heir", RUN).notes if note.code == "VCG497"]
    assert [note.severity for note in notes] == [Severity.WARNING]
    assert notes[0].message.endswith("which the tree does not have. What it overrides was not looked at")


#: Ways to register a processor that are no call above the class.
DECORATORS = {
    "a value": (
        "registered = MULTIMODAL_REGISTRY.register_processor(Q.Qwen3VLMultiModalProcessor, "
        "info=Q.Qwen3VLProcessingInfo, dummy_inputs=Q.Qwen3VLDummyInputsBuilder)",
        "registered",
    ),
    "a function": (
        "def registered(cls):\n    return MULTIMODAL_REGISTRY.register_processor(Q.Qwen3VLMultiModalProcessor, "
        "info=Q.Qwen3VLProcessingInfo, dummy_inputs=Q.Qwen3VLDummyInputsBuilder)(cls)",
        "registered",
    ),
    "a function with the classes": (
        "def registered(processor, about):\n    return MULTIMODAL_REGISTRY.register_processor(processor, info=about, "
        "dummy_inputs=Q.Qwen3VLDummyInputsBuilder)",
        "registered(Q.Qwen3VLMultiModalProcessor, about=Q.Qwen3VLProcessingInfo)",
    ),
    "a function of a module": ("from . import registering", "registering.registered(Q.Qwen3VLMultiModalProcessor)"),
}
REGISTERING = b"""import vllm.model_executor.models.qwen3_vl as own
from vllm.multimodal import MULTIMODAL_REGISTRY


def registered(processor):
    return MULTIMODAL_REGISTRY.register_processor(processor, info=own.Qwen3VLProcessingInfo)
"""


@pytest.mark.parametrize("case", DECORATORS)
def test_a_processor_is_registered_by(case, release_tree):
    lines, decorator = DECORATORS[case]
    text = (
        f"import {QWEN} as Q\nfrom vllm.multimodal import MULTIMODAL_REGISTRY\n{lines}\n\n\n@{decorator}\nclass Heir("
    )
    files = {HEIR: f"{text}Q.Qwen3VLModel):\n    def embed_multimodal(self, **kwargs): ...\n".encode()}
    tree = release_tree(RELEASE).with_files({**files, f"{MODELS}/registering.py": REGISTERING})
    model = locate(tree, f"{HEIR}:Heir")
    assert model.info is not None
    assert (model.processor[1].name, model.info[1].name) == (PROCESSOR, "Qwen3VLProcessingInfo")
