"""The study of samplers: its settings and its page."""

import json

from lab.sampler_study import SAMPLERS, config_of, render


def test_the_samplers_are_compared_with_equal_settings():
    configs = [config_of(name, 3, ["learner.groups_per_step=2"]).model_dump() for name in SAMPLERS]
    for config in configs:
        config["buffer"]["sampler"].pop("name")
    assert all(config == configs[0] for config in configs)
    assert configs[0]["seed"] == 3 and configs[0]["buffer"]["sampler"]["replay_share"] == 0.5


def test_the_page_says_in_which_seeds_the_samplers_differ(tmp_path):
    def line(sampler, seed, replayed, success):
        numbers = {"steps": 2, "stale": 1, "reward": 0.5, "success": success}
        return json.dumps({"sampler": sampler, "seed": seed, "replayed": replayed} | numbers)

    file = tmp_path / "lines.jsonl"
    file.write_text("\n".join([
        line("a", 0, [[], ["g1"]], 0.5), line("b", 0, [[], ["g2"]], 0.25),
        line("a", 1, [[], ["g1"]], 0.7), line("b", 1, [[], ["g1"]], 0.75),
    ]))  # fmt: skip
    page = render(file)
    assert "seeds 0, 1; in seeds 0 the four" in page
    assert "| `a` | 2 | 2 | 0.600 | 0.100 | 1.0 | 1.0 |" in page
