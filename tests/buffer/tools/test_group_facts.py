"""The facts of a group that filters may name."""

from buffer.tools import filter, group_facts, store_reads


def test_every_row_has_the_names_filters_may_use(trained):
    assert all(row.keys() == group_facts.ROW_NAMES for row in store_reads.rows(trained.store))


def test_a_group_without_a_trajectory_has_no_reward_and_passes_no_comparison_of_rewards(trained):
    rows = list(store_reads.rows(trained.store))
    assert [row["reward"] for row in rows] == [1.0, 1.0, None, 0.0]
    assert rows[2]["mean_reward"] is rows[2]["min_reward"] is None

    def found(text):
        accepts = filter.parse(text, group_facts.ROW_NAMES)
        return [number for number, row in enumerate(rows) if accepts(row)]

    assert found("reward < 0.5") == found("0 <= mean_reward < 1") == [3]
    assert found("reward == None") == [2] and found("reward != None") == [0, 1, 3]
