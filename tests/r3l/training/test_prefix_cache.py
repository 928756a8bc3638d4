"""The tree of tokens with their keys and values."""

from types import SimpleNamespace

import torch

from r3l.training.prefix_cache import PrefixCache

CONFIG = SimpleNamespace(
    num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2, hidden_size=12
)


def test_sequences_share_the_slots_of_what_they_have_in_common_from_the_start():
    cache = PrefixCache(CONFIG, 0, least=10)
    assert cache.place(0, [7, 8, 7]) == ([1, 2, 3], 0)
    assert cache.place(0, [7, 8, 9, 7]) == ([1, 2, 4, 5], 2)
    assert cache.place(3, [8]) == ([6], 0)
    assert cache.place(0, [7, 8, 7, 8]) == ([1, 2, 3, 6], 4)
    assert cache.room == 3
    cache.clear()
    assert cache.place(0, [8]) == ([1], 0)


def test_keys_and_values_are_stored_in_slots_and_returned_for_the_context():
    cache = PrefixCache(CONFIG, 0, least=10)
    keys, values = torch.randn(2, 2, 2, 3, 3)  # 2 rows, 2 heads, 3 tokens, head size 3
    writing = torch.tensor([[1, 2, 3], [0, 4, 5]])
    context = torch.tensor([[1, 2, 3, 0], [1, 2, 4, 5]])
    cache.point(writing, context)
    key, value = cache.update(keys, values, 0)
    for found, given in ((key, keys), (value, values)):
        assert found.shape == (2, 2, 4, 3)
        assert torch.equal(found[0, :, :3], given[0])
        assert torch.equal(found[1, :, :2], given[0, :, :2])
        assert torch.equal(found[1, :, 2:], given[1, :, 1:])


def test_the_capacity_follows_from_the_size_of_a_token():
    token_bytes = 2 * 2 * 3 * 4  # keys and values, 2 heads of 3 numbers, 4 bytes each
    assert PrefixCache(CONFIG, 100 * token_bytes, least=10).capacity == 100
    assert PrefixCache(CONFIG, 5 * token_bytes, least=10).capacity == 10
