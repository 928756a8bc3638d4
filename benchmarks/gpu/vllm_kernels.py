"""Stands in for vLLM's compiled CUDA kernels, so that its Python code runs on a GPU without them.

vLLM's CUDA wheel is built for one torch. Where that torch is missing, vLLM's CPU wheel without its
binaries, with this file in place of `vllm._C_stable_libtorch`, runs models of Qwen's and Llama's
shape: attention and sampling are Triton kernels, and what is left is here in PyTorch, which is
slower. docs/results/performance.md says what else it takes.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import silu

KERNELS = torch.library.Library("_C", "FRAGMENT")


def rms_norm(out: Tensor, x: Tensor, weight: Tensor | None, epsilon: float) -> None:
    out.copy_(_normalised(x, weight, epsilon))


def fused_add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor | None, epsilon: float) -> None:
    residual.add_(x)
    x.copy_(_normalised(residual, weight, epsilon))


def silu_and_mul(out: Tensor, x: Tensor) -> None:
    gate, up = x.chunk(2, dim=-1)
    torch.mul(silu(gate), up, out=out)


def rotary_embedding(
    positions: Tensor,
    query: Tensor,
    key: Tensor | None,
    head_size: int,
    cos_sin_cache: Tensor,
    is_neox: bool,
    rope_dim_offset: int = 0,
    inverse: bool = False,
) -> None:
    assert is_neox and not rope_dim_offset and not inverse, "only Qwen's and Llama's embedding"
    cos, sin = cos_sin_cache[positions.flatten()].float().unsqueeze(1).chunk(2, dim=-1)
    for states in (query, key):
        if states is None:
            continue
        heads = states.view(len(cos), -1, head_size)[..., : cos_sin_cache.shape[-1]]
        first, second = heads.float().chunk(2, dim=-1)
        heads.copy_(torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1))


def get_cuda_view_from_cpu_tensor(pinned: Tensor) -> Tensor:
    if not pinned.numel():
        return torch.empty_like(pinned, device="cuda")
    device = torch.device("cuda", torch.cuda.current_device())
    storage = torch._C._construct_storage_from_data_pointer(
        pinned.data_ptr(), device, pinned.numel() * pinned.element_size()
    )
    view = torch.empty(0, dtype=pinned.dtype, device=device)
    return view.set_(storage, 0, pinned.shape, pinned.stride())


def _normalised(x: Tensor, weight: Tensor | None, epsilon: float) -> Tensor:
    wide = x.float()
    normal = (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)).to(x.dtype)
    return normal if weight is None else normal * weight


def _unsupported(capability: int) -> bool:
    return False


def _define(signature: str, kernel: Any, key: str = "CUDA") -> None:
    KERNELS.define(signature)
    KERNELS.impl(signature.partition("(")[0], kernel, key)


_define("rms_norm(Tensor! out, Tensor x, Tensor? weight, float epsilon) -> ()", rms_norm)
_define(
    "fused_add_rms_norm(Tensor! x, Tensor! residual, Tensor? weight, float epsilon) -> ()",
    fused_add_rms_norm,
)
_define("silu_and_mul(Tensor! out, Tensor x) -> ()", silu_and_mul)
_define(
    "rotary_embedding(Tensor positions, Tensor! query, Tensor(a!)? key, int head_size, "
    "Tensor cos_sin_cache, bool is_neox, int rope_dim_offset=0, bool inverse=False) -> ()",
    rotary_embedding,
)
_define(
    "get_cuda_view_from_cpu_tensor(Tensor pinned) -> Tensor",
    get_cuda_view_from_cpu_tensor,
    "CompositeExplicitAutograd",
)
for _name in ("fp4", "fp8", "block_fp8"):
    _define(f"cutlass_scaled_mm_supports_{_name}(int capability) -> bool", _unsupported,
            "CompositeExplicitAutograd")  # fmt: skip
