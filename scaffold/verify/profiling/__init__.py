"""Where a tower's GPU time goes: kernels by class, against the floor that its arithmetic and its bytes set.

`towers` builds a shipped model's real vision classes at real sizes with random weights, `measure` runs them under
torch's profiler (needs a GPU), `trace` reads what the profiler wrote, `analyse` and `report` need neither.
"""
