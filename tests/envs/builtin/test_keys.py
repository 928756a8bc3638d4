"""The keys: locks in a row that a wrong key jams."""

from envs import registry


def test_a_wrong_key_ends_the_attempt():
    env = registry.make("keys")
    env.reset(seed=0)
    wrong = next(key for key in env.answers if key != env.state.needs[0])
    line, reward, terminated, _, _ = env.step(f"turn {wrong}")
    assert terminated and reward == 0.0 and "jams" in line
    assert env.step("turn brass")[2]  # and stays ended
