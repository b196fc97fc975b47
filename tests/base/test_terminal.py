"""Tests of what command lines draw: tables of 80 columns that keep what matters, and progress bars."""

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


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
@pytest.mark.parametrize("width", [60, 80, 300])
def test_a_table_keeps_the_layer_the_ratio_and_the_winner(width, encoding, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr(sys, "stdout", screen := Screen(encoding))
    terminal.draw("a [title]", HEADS, ROWS, NEEDED)
    text = screen.text()
    table, _, missing = text.partition("a wider terminal also shows: ")
    assert all(len(line) <= width for line in table.splitlines()) and "[title]" in table
    assert all(word in table for word in ("ratio", "1.22", "winner", "scatter:amx_one"))
    name = NAME.encode(encoding, "backslashreplace").decode(encoding)
    starts = [re.findall(r"\S+", line)[:1] for line in table.splitlines()]  # the name wraps, and has no spaces
    assert name in "".join(itertools.chain(*starts))
    assert bool(missing) == (width < 300)
    if encoding == "ascii":
        assert text.isascii()


def test_a_file_gets_all_columns(monkeypatch, capsys):
    monkeypatch.delenv("COLUMNS", raising=False)
    terminal.draw("", HEADS, ROWS, NEEDED)
    head, row = capsys.readouterr().out.splitlines()
    assert head.split("  ")[0] == "layer" and all(cell in row for cell in ROWS[0])


def terminal_of(monkeypatch):
    """Make standard output and standard error one terminal of 80 columns, which lacks characters beside ASCII."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    screen = Screen("ascii")
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(sys, "stdout", screen)
    return screen


def test_a_bar_says_what_is_done_and_the_time_left_and_goes_away(monkeypatch):
    screen = terminal_of(monkeypatch)
    with terminal.progress(3) as begin:
        for name in ("[bold]first", "second", "\N{GREEK SMALL LETTER ALPHA}" * 30):
            begin(name)
            print("a", "line")
        begin("at the end", 3)
        print("an error", file=sys.stderr)
    assert (sys.stdout, sys.stderr) == (screen, screen)
    begun = screen.text().split("\r\x1b[K")  # which erases the line of the bar
    assert begun[0] == f"{'[bold]first':30} {'.' * 16} 0/3" and begun[1].startswith("a line\nsecond ")
    assert re.search(r"##### *\.+ 1/3, about \d:\d\d:\d\d left$", begun[1]) and "\\u03b1" in begun[2]
    assert begun[-1] == "an error\n" and max(map(len, "".join(begun).split("\n"))) < 80


@pytest.mark.parametrize("why", ["no terminal", "dumb", "nothing to do"])
def test_there_is_no_bar_elsewhere(why, monkeypatch):
    screen = terminal_of(monkeypatch)
    monkeypatch.setenv("TERM", "dumb" if why == "dumb" else "xterm")
    if why == "no terminal":
        monkeypatch.setattr(screen, "isatty", lambda: False)
    with terminal.progress(0 if why == "nothing to do" else 2) as begin:
        begin("first")
        begin("second", 2)
    assert screen.text() == ""


def test_an_error_leaves_no_bar(monkeypatch):
    screen = terminal_of(monkeypatch)
    with pytest.raises(KeyboardInterrupt), terminal.progress(3) as begin:
        begin("first")
        raise KeyboardInterrupt
    assert screen.text().endswith("\r\x1b[K") and not isinstance(sys.stdout, terminal._Above)


def test_standard_output_that_is_a_file_is_not_touched(monkeypatch):
    screen = terminal_of(monkeypatch)
    monkeypatch.setattr(sys, "stdout", file := io.StringIO())
    with terminal.progress(2) as begin:
        begin("first")
        print("a line")
    assert file.getvalue() == "a line\n" and "first" in screen.text()


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
