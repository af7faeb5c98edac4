"""Stand-alone adapters: what `generated/` holds, whether it still is what the descriptors say, and how it is repaired.

One adapter is a subclass of a release's own model class that implements the encoder CUDA graph protocol of one known
generation. Nothing here needs a vLLM tree. Planning reads the folder; only `publish_regeneration` writes into it.
"""
