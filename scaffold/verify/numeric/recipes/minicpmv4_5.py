"""MiniCPM-V 4.5: the sizes of 2.6, and another resampler."""

from scaffold.verify.numeric.recipes import minicpmv

RECIPE = type(minicpmv.RECIPE)(4.5)
