"""What an engine prints goes into its log."""

import os

from launch.evaluation.own_engine import output_into


def test_what_others_print_is_not_between_the_json(tmp_path, capfd):
    with output_into(tmp_path / "log"):
        os.write(1, b"an engine starts\n")
        os.system("echo so does its process >&2")
    print("{}")
    assert capfd.readouterr() == ("{}\n", "")
    assert (tmp_path / "log").read_text() == "an engine starts\nso does its process\n"
