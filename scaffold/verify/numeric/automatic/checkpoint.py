"""The folder of a checkpoint, which needs no weights: the class of its configuration, its tokenizer and its processor.

vLLM's own loaders read it. So a model whose processor comes as code of the checkpoint gets the inputs that it gets when
it is served.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scaffold.verify.numeric.automatic.refusal import NoRecipe


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A folder with `config.json` and the files of a processor. Its code runs only with `trust_remote_code`."""

    folder: Path
    trust_remote_code: bool

    def config_class(self) -> type:
        """The class that an engine reads `config.json` with. Raises `NoRecipe`."""
        from vllm.transformers_utils.config import get_config

        return type(self.loaded("configuration", lambda: get_config(str(self.folder), self.trust_remote_code)))

    def tokenizer(self) -> Any:
        """The tokenizer, as vLLM wraps it. Raises `NoRecipe`."""
        from vllm.tokenizers.registry import get_tokenizer

        return self.loaded(
            "tokenizer", lambda: get_tokenizer(str(self.folder), trust_remote_code=self.trust_remote_code)
        )

    def name_in(self, model_config: Any) -> None:
        """Let an engine's configuration of the model name the folder, so that processors are loaded from it."""
        from vllm.transformers_utils.config import get_hf_image_processor_config

        values = {
            "model": str(self.folder),
            "tokenizer": str(self.folder),
            "trust_remote_code": self.trust_remote_code,
            "hf_image_processor_config": get_hf_image_processor_config(str(self.folder)),
        }
        for name, value in values.items():
            object.__setattr__(model_config, name, value)

    def loaded(self, what: str, load: Callable[[], Any]) -> Any:
        """The result of `load`. Raises `NoRecipe` with what is missing in the folder."""
        try:
            return load()
        except Exception as error:
            if "trust_remote_code" in str(error):
                raise NoRecipe(
                    f"the {what} of {self.folder} is code of the checkpoint",
                    "read that code, and add --trust-remote-code to run it",
                ) from error
            raise NoRecipe(
                f"the {what} of {self.folder} cannot be loaded: {type(error).__name__}: {str(error)[:300]}",
                "fetch all files of the checkpoint but its weights: `hf download NAME --exclude '*.safetensors'`",
            ) from error
