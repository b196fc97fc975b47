"""Tests of environment variables: one table has them all, and values without a meaning are refused with name, value and what is
wanted."""

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cases import ROOT, child, needs_checkout

import convt
from convt._base import environment

ALL = environment.PACKAGE | environment.BUILD | environment.BENCHMARK
WORDS = ("auto", "native")
# What is read -> (values and what they stand for, values without a meaning)
VALUES = {
    "an integer >= 1": ([("1", 1), (" 2 ", 2)], ["0", "-1", "+1", "1_0", "two", "1.5", "²", "2,3", "9" * 9999]),
    "a number >= 0": ([("0", 0.0), ("2.5", 2.5), ("inf", float("inf"))], ["-1", "nan", "many", "1,5"]),
    "0 or 1": ([("0", False), ("1", True)], ["no", "yes", "2", "true", " ", "01"]),
    "one of auto, native": ([("auto", "auto")], ["cuda", "AUTO", " auto", "auto,native"]),
    "some of auto, native, with commas between": ([("native", ["native"]), ("native,auto", ["native", "auto"])], ["x", ","]),
    "": ([("a file", "a file")], []),
}  # fmt: skip


@pytest.mark.parametrize("name", ALL)
def test_values_without_a_meaning_are_refused(name, monkeypatch):
    wanted = ALL[name][1].format(", ".join(WORDS))
    right, wrong = VALUES[wanted]
    for text, value in right:
        monkeypatch.setenv(name, text)
        assert environment.read(name, WORDS) == value
    for text in wrong:
        monkeypatch.setenv(name, text)
        with pytest.raises(ValueError) as refused:
            environment.read(name, WORDS)
        assert str(refused.value) == f"{name}: got {text!r}, wanted {wanted}"
    monkeypatch.setenv(name, "")
    assert environment.read(name, WORDS) is None
    monkeypatch.delenv(name)
    assert environment.read(name, WORDS) is None


@pytest.mark.parametrize("name", [name for name, (_, wanted) in environment.PACKAGE.items() if wanted])
def test_the_package_refuses_them(name):
    code, _, errors = child("import convt; convt.get_num_threads()", **{name: "nothing"})
    assert code == 1 and re.search(rf"ValueError: {name}: got 'nothing', wanted .+\n$", errors), errors


@needs_checkout
@pytest.mark.skipif(importlib.util.find_spec("Cython") is None, reason="Cython is not installed")
@pytest.mark.parametrize("name", ["CONVT_BUILD_ISAS", "CONVT_COVERAGE_BUILD", "CONVT_EMULATED_BUILD"])
def test_the_build_refuses_them(name, monkeypatch):
    monkeypatch.setenv(name, "nothing")
    done = subprocess.run([sys.executable, "setup.py", "--name"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1 and f"ValueError: {name}: got 'nothing', wanted " in done.stderr


@needs_checkout
def test_the_pages_list_the_variables_of_the_table():
    page = lambda name: (ROOT / name).read_text(encoding="utf-8")  # noqa: E731
    assert re.findall(r"^\| `(CONVT_\w+)` \|", page("docs/api/convt.md"), re.MULTILINE) == list(environment.PACKAGE)
    assert re.findall(r"^\| `(CONVT_\w+)` \|", page("CONTRIBUTING.md"), re.MULTILINE) == list(environment.BUILD)
    assert all(name in page("docs/benchmark.md") for name in environment.BENCHMARK)


@needs_checkout
def test_nothing_else_reads_them():
    sources = [ROOT / "setup.py", *ROOT.glob("convt/**/*.py*"), *ROOT.glob("bench/**/*.py"), *ROOT.glob("convt/**/*.[ch]")]
    for path in sources:
        text = path.read_text(encoding="utf-8") if path.suffix in (".py", ".pyx", ".pxd", ".c", ".h") else ""
        assert not re.search(r"(environ|getenv)\b[^\n]*CONVT_(?!ONEDNN_LIB\"\] = )", text), path
        assert set(re.findall(r"\bread\(\"(CONVT_\w+)\"", text)) <= set(ALL), path


def test_a_checkout_that_is_not_compiled_says_how_to_compile_it(tmp_path):
    copied = tmp_path / "convt"
    shutil.copytree(Path(convt.__file__).parent, copied, ignore=shutil.ignore_patterns("*.so", "__pycache__", "*.h", "*.c"))
    done = subprocess.run([sys.executable, "-c", "import convt"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert f"ImportError: convt is not compiled in {copied}: run `pip install -e .`" in done.stderr
