"""The workshop: stations in a row, where work continues after a wrong tool."""

from envs import registry


def test_a_wrong_tool_names_item_and_need_and_the_work_goes_on():
    env = registry.make("workshop")
    env.reset(seed=0)
    item, need = env.state.row[0], env.state.needs[0]
    wrong = next(tool for tool in env.answers if tool != need)
    line, reward, terminated, truncated, _ = env.step(f"use {wrong}")
    assert f"{item} needs {need}" in line and "station 1" in line
    assert (reward, terminated, truncated) == (0.0, False, False)
    rest = [env.step(f"use {tool}") for tool in env.state.needs[1:]]
    assert rest[-1][1:4] == (0.0, True, False)
    assert env.reflection()["retry_from_step"] == 0
    assert env.feedback() == "4 of 5 right."
