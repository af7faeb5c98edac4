"""A kernel whose numbers Triton looks at. Imported only where Triton is installed, which reads its source."""

import triton.language as tl


def fill(x_ptr, H, W, scale, TIMES: tl.constexpr):
    row = tl.program_id(0)
    tl.store(x_ptr + row * H + W, scale * TIMES)
