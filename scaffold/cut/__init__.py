"""The encode/assemble cut: give the functions from a model's entry to its encoder call one parameter, `encode`.

With `encode=None` the functions are what they were. A callable takes the encoder's place: it notes the units, or hands
out features that a graph has computed. So everything around the encoder, in whatever way a model assembles embeddings,
stays the model's own code.

An explicit port extracts methods instead: what a graph holds, and what follows it. The model's code calls both.
"""

from scaffold.cut.edits import cut_edits
from scaffold.cut.extract import Extraction, Form, PreparedCall, PreparedLoop, find_calls, find_extraction, find_tails
from scaffold.cut.layers import find_layers, find_looped_layers
from scaffold.cut.load import cut_at_load
from scaffold.cut.loops import runs_attention
from scaffold.cut.memory import gives_own_memory, returns_own_memory
from scaffold.cut.proof import prove_cut, prove_sharding
from scaffold.cut.putback import prove_extraction
from scaffold.cut.sharding import Sharding, find_sharding, splits_weights
from scaffold.cut.way import Station, Way, find_way

__all__ = [
    "Extraction",
    "Form",
    "PreparedCall",
    "PreparedLoop",
    "Sharding",
    "Station",
    "Way",
    "cut_at_load",
    "cut_edits",
    "find_calls",
    "find_extraction",
    "find_layers",
    "find_looped_layers",
    "find_sharding",
    "find_tails",
    "find_way",
    "gives_own_memory",
    "prove_cut",
    "prove_extraction",
    "prove_sharding",
    "returns_own_memory",
    "runs_attention",
    "splits_weights",
]
