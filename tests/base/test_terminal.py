"""Tests of what command lines draw: tables of 80 columns that keep what matters, without and with rich, and progress bars."""

import io
import itertools
import re
import sys

import pytest

import convt
from convt._base import terminal

NAME = "/decoder/[bold]up/blocks.0/upsample/\N{GREEK SMALL LETTER ALPHA}/ConvTranspose_output_0_with_a_name_of_many_characters"
HEADS = ("layer", "cycles", "before ms", "after ms", "expected ms", "ratio", "winner", "how")
ROWS = [[NAME, "3.45e+05", "12.345", "10.123", "11.111", "1.22", "scatter:amx_one", "a text of many words"]]
NEEDED = ("layer", "ratio", "winner")


class Screen(io.TextIOWrapper):
    """A terminal that keeps what is written to it."""

    def __init__(self, encoding):
        super().__init__(io.BytesIO(), encoding, errors="backslashreplace")

    def isatty(self):
        return True

    def text(self):
        self.flush()
        return self.buffer.getvalue().decode(self.encoding)


@pytest.mark.parametrize("with_rich", [True, False])
@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
@pytest.mark.parametrize("width", [60, 80, 300])
def test_a_table_keeps_the_layer_the_ratio_and_the_winner(width, encoding, with_rich, monkeypatch):
    if with_rich:
        pytest.importorskip("rich")
    else:
        monkeypatch.setitem(sys.modules, "rich.console", None)
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(sys, "stdout", screen := Screen(encoding))
    terminal.draw("a [title]", HEADS, ROWS, NEEDED)
    text = screen.text()
    table, _, missing = text.partition("a wider terminal also shows: ")
    assert all(len(line) <= width for line in table.splitlines()) and "[title]" in table
    assert all(word in table for word in ("ratio", "1.22", "winner", "scatter:amx_one"))
    name = NAME.encode(encoding, "backslashreplace").decode(encoding)
    starts = [re.findall(r"[^\s|\u2502]+", line)[:1] for line in table.splitlines()]  # the name wraps, and has no spaces
    assert name in "".join(itertools.chain(*starts))
    assert bool(missing) == (width < 300)
    if encoding == "ascii":
        assert text.isascii()


def test_a_file_gets_all_columns(monkeypatch, capsys):
    monkeypatch.delenv("COLUMNS", raising=False)
    terminal.draw("", HEADS, ROWS, NEEDED)
    head, row = capsys.readouterr().out.splitlines()
    assert head.split("  ")[0] == "layer" and all(cell in row for cell in ROWS[0])


def test_a_bar_says_what_is_done_and_the_time_left_and_goes_away(monkeypatch, capsys):
    pytest.importorskip("rich")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", screen := Screen("ascii"))
    with terminal.progress(3) as begin:
        for name in ("[bold]first", "second", "third"):
            begin(name)
        print("a line")
    text = screen.text()
    assert "[bold]first" in text and "2/3" in text and re.search(r"about \d:\d\d:\d\d left", text) and text.isascii()
    assert text.endswith("\x1b[2K")  # the line of the bar is erased
    assert capsys.readouterr().out == "a line\n"  # standard output is no terminal and gets its own text


@pytest.mark.parametrize("why", ["no terminal", "no rich", "dumb", "nothing to do"])
def test_there_is_no_bar_elsewhere(why, monkeypatch):
    screen = io.StringIO() if why == "no terminal" else Screen("utf-8")
    monkeypatch.setenv("TERM", "dumb" if why == "dumb" else "xterm")
    monkeypatch.setattr(sys, "stderr", screen)
    if why == "no rich":
        monkeypatch.setitem(sys.modules, "rich.console", None)
    with terminal.progress(0 if why == "nothing to do" else 2) as begin:
        begin("first")
        begin("second", 2)
    assert (screen.getvalue() if why == "no terminal" else screen.text()) == ""


def test_an_error_leaves_no_bar(monkeypatch):
    pytest.importorskip("rich")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", screen := Screen("utf-8"))
    with pytest.raises(KeyboardInterrupt), terminal.progress(3) as begin:
        begin("first")
        raise KeyboardInterrupt
    assert screen.text().endswith("\x1b[2K") and "\x1b[?25h" in screen.text()  # the cursor is shown again


def test_text_wraps_at_the_width_of_a_terminal_and_not_in_a_file(monkeypatch, capsys):
    texts = "  onednn: not available: " + "a reason " * 20, "", "short"
    monkeypatch.setenv("COLUMNS", "80")
    terminal.say(*texts, indent="    ")
    first, second, *others = capsys.readouterr().out.splitlines()
    assert first.startswith("  onednn: ") and second[:4].isspace() and second[4] != " " and others[-2:] == ["", "short"]
    assert max(map(len, [first, second, *others])) <= 80
    monkeypatch.delenv("COLUMNS")
    terminal.say(*texts)
    assert capsys.readouterr().out == "\n".join([texts[0].rstrip(), "", "short", ""])


def test_the_configuration_fits_a_terminal(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("convt.algorithms.onednn.library.describe", lambda: "not available: " + "because " * 30)
    convt.show_config()
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80
