from dovetail.utils import format_table


def test_columns_are_as_wide_as_their_longest_cell():
    text = format_table([("a", "1"), ("a much longer name", "12345678")], align="<>")
    assert text.splitlines() == ["a                          1", "a much longer name  12345678"]


def test_a_short_row_runs_on_without_widening_its_column():
    rows = [("x", "1", "2"), ("y", "does not fit: far too much")]
    text = format_table(rows, header=("name", "one", "two"), align="<>>", indent="  ")
    assert text.splitlines() == [
        "  name  one  two",
        "  x       1    2",
        "  y     does not fit: far too much",
    ]


def test_nothing_is_an_empty_text():
    assert format_table([]) == ""
