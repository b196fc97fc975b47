"""Tests of the options that all command lines share: the same words, and JSON with nothing beside it."""

import argparse
import io
import json
import sys

import pytest

from bench import __main__ as bench
from bench import command
from convt import __main__ as cli
from convt._base import arguments, dtypes, words

DTYPES = {name: each for each, others in words.DTYPES.items() for name in (each, *others)}
LAYOUTS = {name: layout for name, (layout, _) in words.DATA_FORMATS.items()}


def test_every_dtype_that_is_computed_has_its_words():
    assert list(words.DTYPES) == [each.dtype.name for each in dtypes.COMPUTED]
    assert len(DTYPES) == sum(1 + len(others) for others in words.DTYPES.values())  # no word means two of them


@pytest.mark.parametrize("change", [str, str.upper, str.lower, str.title])
def test_every_command_takes_the_same_words(change):
    plan, measure = cli._parser(), bench.parser()
    for name, dtype in DTYPES.items():
        assert plan.parse_args(["plan", "x", "--dtype", change(name)]).dtype == dtype
        assert measure.parse_args(["--dtype", change(name)]).dtype == [words.DTYPES[dtype][0]]
    for name, layout in LAYOUTS.items():
        for text in (change(name), change(name).replace("_", "-")):
            assert plan.parse_args(["tune", "x", "--layout", text]).layout == layout
            assert measure.parse_args(["--layout", f"{text},NCX"]).layout == [layout, "NCX"]


@pytest.mark.parametrize("wrong", ["float", "f8", "", "int8", "float32 ", "NHCW", "NC", "NX C"])
def test_a_word_that_nobody_knows_is_answered_with_those_that_are_known(wrong):
    for parse, known in ((arguments.dtype, DTYPES), (arguments.layout, LAYOUTS)):
        with pytest.raises(argparse.ArgumentTypeError, match="^got '") as refused:
            parse(wrong)
        assert repr(wrong) in str(refused.value) and all(name in str(refused.value) for name in known)
    with pytest.raises(argparse.ArgumentTypeError, match="wanted one of one, two"):
        command.words_of(("one", "two"))(f"one,{wrong or 'three'}")


def test_integers():
    parse = arguments.integer
    assert parse("1") == 1 and parse(str(2**63 - 1)) == 2**63 - 1
    for wrong in ("0", "-1", "1.5", "two", "", str(2**63), "9" * 5000, "1,2"):
        with pytest.raises(argparse.ArgumentTypeError, match="wanted an integer of at least 1"):
            parse(wrong)


def test_budgets_are_finite():
    assert arguments.positive("0.5") == 0.5
    for wrong in ("0", "-1", "nan", "inf", "two"):
        with pytest.raises(argparse.ArgumentTypeError, match=f"got '{wrong}', wanted a number above 0"):
            arguments.positive(wrong)


def test_a_shape_may_be_that_of_a_scalar_where_sizes_may_be_zero():
    def parsed(least, *texts):
        parser = argparse.ArgumentParser()
        arguments.add_shape(parser, least, "")
        return parser.parse_args([word for text in texts for word in ("--shape", text)]).shape

    assert parsed(0, "X=", "a=b=1,0") == {"X": [], "a=b": [1, 0]} and parsed(1, "X=1,3") == {"X": [1, 3]} and parsed(1) == {}
    for least, *texts in ((1, "X="), (1, "X=0"), (0, "X=1", "X=2"), (0, "X"), (0, "=1"), (0, "X=-1"), (0, "X=1,,2")):
        with pytest.raises(SystemExit):
            parsed(least, *texts)


def test_json_goes_to_a_file_or_alone_to_standard_output(tmp_path, capsys):
    path = tmp_path / "out.json"
    for target, printed in ((None, "text\n"), ("-", '[\n 1\n]\n'), (str(path), "text\n")):
        with arguments.printing(target) as write_json:
            print("text")
            write_json([1])
        assert capsys.readouterr().out == printed
    assert path.read_text() == "[\n 1\n]\n"


@pytest.mark.parametrize(("words", "json_too"), [([], None), (["--json"], "-"), (["--json", "-"], "-"), (["--json", "a"], "a")])
def test_json_means_the_same_everywhere(words, json_too, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli._parser().parse_args(["plan", "x", *words]).json == json_too
    assert cli._parser().parse_args(["plan", *words, "--threads", "1", "x"]).json == json_too
    assert bench.parser().parse_args(words).json == json_too
    parser = argparse.ArgumentParser()
    command.add_json(parser)
    assert parser.parse_args(words).json == json_too


def test_a_file_that_holds_no_json_is_not_replaced(tmp_path, capsys):
    model = tmp_path / "model.onnx"
    model.write_bytes(b"\x08\x0a")
    with pytest.raises(SystemExit):
        cli.main(["tune", "--json", str(model), "x"])  # meant as a layer
    assert f"got '{model}', wanted a file of JSON, a new file, or -" in capsys.readouterr().err
    assert model.read_bytes() == b"\x08\x0a"


def test_characters_that_the_encoding_lacks_are_printed_as_escapes(monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, "ascii"))
    layer = json.dumps({"name": "[bold]\N{GREEK SMALL LETTER ALPHA}", "Cin": 8, "Cout": 4, "in": [6, 5], "k": 4})
    assert cli.main(["plan", layer]) == 0
    sys.stdout.flush()
    assert raw.getvalue().startswith(b"[bold]\\u03b1: (1, 6, 5, 8) -> (1, 9, 8, 4)\n")
