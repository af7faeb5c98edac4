"""The refusal of every part of the automatic recipe."""

from __future__ import annotations


class NoRecipe(Exception):
    """No recipe can be made of this model: what is missing first, and how to give it."""

    def __init__(self, message: str, help_text: str) -> None:
        super().__init__(message)
        self.help = help_text
