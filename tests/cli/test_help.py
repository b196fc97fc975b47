"""Tests of the help of every command: it has two examples, and its parser takes them."""

import argparse
import importlib
import json
import re
import shlex

import pytest

from bench.record import FORMAT

COMMANDS = [
    "convt", "convt info", "convt plan", "convt tune", "convt calibrate", "convt bench", "convt.onnxruntime", "convt.torch",
    "bench", "bench compare", "bench.beside", "bench.checkouts", "bench.checksums", "bench.cores", "bench.crosscheck",
    "bench.errors", "bench.jax_door", "bench.models", "bench.picture", "bench.planning", "bench.recorded", "bench.scaling",
    "bench.streaming",
]  # fmt: skip
NEEDS = {"convt.onnxruntime": "onnxruntime", "convt.torch": "torch", "bench.checksums": "torch", "bench.models": "torch"}


class ParsedError(Exception):
    """Raised instead of running a command whose arguments were parsed."""


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_has_two_examples_that_can_be_typed(command, capsys, tmp_path, monkeypatch):
    module, *words = command.split()
    pytest.importorskip(NEEDS.get(module, "numpy"))
    if module == "convt.onnxruntime":
        pytest.importorskip("onnx")
    package = module if "." in module and not module.startswith("convt") else f"{module}.__main__"
    main = importlib.import_module(package).main
    with pytest.raises(SystemExit) as stopped:
        main([*words, "--help"])
    printed = capsys.readouterr().out
    start = re.escape(f"python -m {command}")
    if command.startswith("bench"):  # a wheel installs bench as convt_bench, and its command
        start = f"(?:python -m (?:convt_)?bench|convt-bench){re.escape(command.removeprefix('bench'))}"
    examples = re.findall(rf"^ +{start}((?: .*)?)$", printed[printed.index("exit code") if command == "convt" else 0 :], re.M)
    examples = examples or re.findall(rf"^ +{start}( plan '.*)$", printed, re.M)
    assert stopped.value.code == 0 and len(examples) == 2 and len(set(examples)) == 2

    parse = argparse.ArgumentParser.parse_args

    def parse_only(parser, arguments=None, namespace=None):
        raise ParsedError(parse(parser, arguments, namespace))

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_only)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs/pictures").mkdir(parents=True)
    for name in ("before", "after"):
        (tmp_path / f"{name}.json").write_text(json.dumps({"format": FORMAT, "results": []}))
    for example in examples:
        with pytest.raises(ParsedError):
            main([*words, *shlex.split(example)])


def test_the_examples_of_plan_run(capsys):
    from convt import __main__ as cli

    with pytest.raises(SystemExit):
        cli.main(["plan", "--help"])
    for example in re.findall(r"^  python -m convt (plan .*)$", capsys.readouterr().out, re.M):
        assert cli.main(shlex.split(example)) == 0
        printed = capsys.readouterr().out
        assert json.loads(printed)[0]["layout"] == "NCX" if "--json" in example else "hardware limit: " in printed
