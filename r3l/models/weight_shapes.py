"""Compares the names and shapes of a model's weights with its config.json, and its layers with each
other. Uses no torch. The learner compares them with the model itself (r3l.training.model)."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from r3l.errors import UserError

_LAYER = re.compile(r"((?:.*?\.)?(?:layers|layer|h|blocks)\.)(\d+)\.(.+)")
_TEXT = r"(?:(?:model|language_model|text_model|transformer|gpt_neox|backbone|decoder)\.)*"
_OF_TEXT = re.compile(_TEXT + r"(?:layers|h)\.")
_NORM = re.compile(_TEXT + r"(?:\w*norm\w*|ln_f)\.weight")
_EMBEDDING = re.compile(r"(?:.*\.)?(?:\w*emb\w*|wte|shared)\.weight")
_ROWS = re.compile(r"(?:^|\.)(?:embed_tokens|wte)\.weight$")
_COMPUTED = re.compile(r"inv_freq|rotary_emb|masked_bias|attn\.bias$")
"""Buffers that old folders store, and that no model needs."""
_PREDICTS_MORE = re.compile(r"eh_proj|enorm|hnorm|shared_head")
"""Parts of a layer after the last, which predicts further tokens."""
_TO_WIDTH = {"mlp.gate_proj.weight": 1, "mlp.up_proj.weight": 1, "mlp.down_proj.weight": 0,
             "input_layernorm.weight": 0}  # fmt: skip
"""The dimension of a tensor that is the model's hidden_size."""

Shapes = dict[str, list[int]]
Layers = dict[int, Shapes]


def check_shapes(settings: Mapping[str, Any], shapes: Shapes, called: str, *, plain: bool) -> None:
    """Raises UserError if config.json names other layers or sizes than the weights have, or if a
    layer, the embedding or the last norm is not whole. transformers would begin with random numbers
    in their place. `shapes`: each tensor's shape. `plain`: whether the weights are not quantized;
    quantized ones have other names and shapes."""
    text = settings.get("text_config")
    text = text if isinstance(text, dict) else settings
    if wrong := next(_wrong(text, settings, shapes, plain), ""):
        raise UserError(f"{called}: {wrong}; copy config.json and weights from the same place")


def _wrong(
    text: Mapping[str, Any], settings: Mapping[str, Any], shapes: Shapes, plain: bool
) -> Iterator[str]:
    blocks: dict[str, Layers] = defaultdict(lambda: defaultdict(dict))
    for name, shape in shapes.items():
        if (found := _LAYER.fullmatch(name)) and not _COMPUTED.search(found[3]):
            blocks[found[1]][int(found[2])][found[3]] = shape
    yield from _wrong_count(text.get("num_hidden_layers"), blocks)
    sizes = {shape[0] for name, shape in shapes.items() if _ROWS.search(name) and shape}
    size = text.get("vocab_size")
    if isinstance(size, int) and len(sizes) == 1 and sizes != {size}:
        yield f"config.json has a vocab_size of {size}, and the embedding has {sizes.pop()} rows"
    of_text = {prefix: layers for prefix, layers in blocks.items() if _OF_TEXT.fullmatch(prefix)}
    if not plain or not of_text:
        return
    for prefix, layers in of_text.items():
        for alike in _alike(text, layers):
            yield from _lacking(prefix, alike)
            yield from _uneven(prefix, alike)
    outside = [name for name in shapes if not _LAYER.fullmatch(name)]
    tied = text.get("tie_word_embeddings", settings.get("tie_word_embeddings", True))
    if not any(map(_EMBEDDING.fullmatch, outside)) and not (tied and "lm_head.weight" in outside):
        yield "the weights lack the embedding, such as model.embed_tokens.weight"
    if isinstance(width := text.get("hidden_size"), int) and "rms_norm_eps" in text:
        yield from _unlike_width(width, of_text, outside)


def _wrong_count(asked: Any, blocks: Mapping[str, Layers]) -> Iterator[str]:
    layers = {number for of in blocks.values() for number in of}
    if not isinstance(asked, int) or not layers:
        return
    if missing := set(range(asked)) - layers:
        yield f"config.json has {asked} layers, and the weights lack layer {min(missing)}"
    for prefix, of in blocks.items():
        more = [n for n, parts in of.items()
                if n >= asked and not any(map(_PREDICTS_MORE.search, parts))]  # fmt: skip
        if more and _OF_TEXT.fullmatch(prefix):
            yield f"config.json has {asked} layers, and the weights have {prefix}{max(more)} too"


def _alike(text: Mapping[str, Any], layers: Layers) -> Iterator[Layers]:
    """Yields the layers of each kind: those that should have the same tensors."""
    kinds, count = text.get("layer_types"), len(layers)
    differ = (v for name, v in text.items() if name != "layer_types" and isinstance(v, list))
    if text.get("num_kv_shared_layers") or any(
        len(v) >= count > 1 and len(set(map(str, v))) > 1 for v in differ
    ):
        return  # config.json gives each layer its own sizes
    grouped: dict[str, Layers] = defaultdict(dict)
    for number, parts in layers.items():
        known = isinstance(kinds, list) and number < len(kinds)
        grouped[str(kinds[number]) if known else ""][number] = parts  # type: ignore[index]
    yield from grouped.values()


def _lacking(prefix: str, layers: Layers) -> Iterator[str]:
    """Finds a layer that lacks a tensor of all other layers and has nothing instead of it."""
    count = len(layers)
    having = Counter(part for parts in layers.values() for part in parts)
    for number, parts in sorted(layers.items()):
        lacks = [part for part, n in having.items() if n == count - 1 and part not in parts]
        if lacks and all(having[part] >= max(2, count - 1) for part in parts):
            yield f"the weights lack {prefix}{number}.{lacks[0]}, which all other layers have"


def _uneven(prefix: str, layers: Layers) -> Iterator[str]:
    """Finds a tensor whose shape differs from the one that all other layers have."""
    for part in {part for parts in layers.values() for part in parts}:
        having = {n: tuple(parts[part]) for n, parts in layers.items() if part in parts}
        counted = Counter(having.values()).most_common()
        if len(having) > 2 and len(counted) == 2 and counted[1][1] == 1:
            (usual, _), (other, _) = counted
            (number,) = (n for n, shape in having.items() if shape == other)
            yield (
                f"{prefix}{number}.{part} has the shape {list(other)}, and in all other layers "
                f"{list(usual)}"
            )


def _unlike_width(width: int, blocks: Mapping[str, Layers], outside: list[str]) -> Iterator[str]:
    """Compares a model of the usual form (that of Llama, Qwen, Gemma) with its hidden_size.
    `outside`: the names of the tensors that are in no layer."""
    parts = [(f"{prefix}{n}.{part}", part, shape) for prefix, layers in blocks.items()
             for n, of in layers.items() for part, shape in of.items()]  # fmt: skip
    if any("norm" in part for _, part, _ in parts) and not any(map(_NORM.fullmatch, outside)):
        yield "the weights lack the norm after the last layer, such as model.norm.weight"
    for name, part, shape in parts:
        at = _TO_WIDTH.get(part, len(shape))
        if at < len(shape) and shape[at] != width:
            yield f"config.json has a hidden_size of {width}, and {name} has the shape {shape}"
