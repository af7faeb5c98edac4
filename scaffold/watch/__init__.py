"""Watches a model embed a few items, and writes down what happened: which calls ran on what, from where.

A `Recording` is a value that crosses a process boundary as JSON. `Recorder` makes one in the process that has the model
(`scaffold.watch.recorder`, which needs torch). Nothing here judges: what a call means is for its readers.
"""

from scaffold.watch.recording import Batch, Call, Field, Frame, Leaf, Left, Place, Recording, Repeated, Source
from scaffold.watch.shown import show_recording

__all__ = [
    "Batch", "Call", "Field", "Frame", "Leaf", "Left", "Place", "Recording", "Repeated", "Source", "show_recording",
]  # fmt: skip
