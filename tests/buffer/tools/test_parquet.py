"""Records as Parquet tables."""

from buffer.tools import archive


def test_parquet_is_read_with_nothing_but_pyarrow(filled, tmp_path):
    import pyarrow.parquet as pq

    archive.export(filled.store, tmp_path / "out", "parquet")
    groups = pq.read_table(tmp_path / "out" / "groups.parquet")
    assert groups["state"].to_pylist() == ["trained", "trained", "expired", "filling"]
    trajectory = groups["results"][0].as_py()[0]["trajectory"]
    assert trajectory["step_spans"] == [[2, 8]] and trajectory["token_ids"] == list(range(8))
    assert str(groups.schema.field("results").type).count("float") >= 2
