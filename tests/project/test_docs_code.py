"""Tests of the code in the documentation: every Python block runs and gives what the page says, and every command and option
exists.

* The blocks of a page run in order, in one namespace. A block of ``>>>`` prompts is a doctest, errors included. In other
  blocks, the result or the output of a statement is compared with the comment behind it, if that is a value or follows
  ``print``.
* A block of language ``console`` runs in the shell. Its output must equal the lines below its commands.
* Options of convt's programs on any page must be listed by their help.
* The commands of COMMAND_PAGES run in a folder with the files that they name. SHORTER has what is run instead of long ones.

These tests need the pages and an installed convt, not the checkout's.
"""

import ast
import contextlib
import doctest
import importlib.util
import io
import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("convt/**/*.md")])
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
EXTRAS = ("dask", "jax", "onnxruntime", "torch")  # modules of convt that import the package of the same name


COMMAND_PAGES = [
    ROOT / name
    for name in (
        "README.md", "docs/quick-start.md", "docs/pytorch.md", "docs/onnxruntime.md", "docs/jax.md", "docs/streaming.md",
        "docs/dask.md", "docs/worth.md", "docs/tuning.md", "docs/command-line.md",
    )
]  # fmt: skip
PROGRAM = r"python -m (?:convt|convt_bench|bench)\b(?:\.\w+)*|convt-bench"  # a program of convt, as pages call it
LAYER = """'{"Cin": 4, "Cout": 2, "in": [8], "k": 4, "s": 2}'"""
SHORTER = [  # what a command is (a regular expression for all of it) -> what is run instead
    (r"(python -m convt plan)( LAYER)?", rf"\1 {LAYER}"),
    (r"(python -m convt tune)( LAYER\.\.\.)?", rf"\1 {LAYER} --best-effort"),
    (r"python -m convt calibrate|python -m convt\.onnxruntime|convt-bench", r"\g<0> --help"),
    (r"python -m convt_bench\.models --ways onnxruntime .*", r"\g<0> --help"),
    (r"convt-bench --.*", r"\g<0> --names openvino_seed --rounds 1 --budget 0.1"),
    (r"python -m convt_bench\.models", r"\g<0> --models dcgan --budget 0.01"),
    (r"python -m convt_bench\.jax_door", r"\g<0> --names openvino_seed --seconds 0.01"),
    (r"python -m convt_bench\.streaming", r"\g<0> --rounds 1"),
    (r"python -m convt_bench\.scaling", r"\g<0> --workers '' --size 32 --side 16"),
    (r"(python -m convt\.(?:torch|onnxruntime))(?: --budget \S+)? (.+)", r"\1 --budget 0.01 \2"),
]
SCRIPT = "import torch\ntorch.nn.ConvTranspose1d(2, 2, 4, 2)(torch.ones(1, 2, 9))\n"


def write_files(folder):
    """Write the files that blocks and commands on pages name."""
    (folder / "SCRIPT.py").write_text(SCRIPT)
    data = np.ones((1, 64, 20, 30), np.float32)
    np.savez(folder / "feed.npz", X=data)
    if importlib.util.find_spec("onnx") is None:
        return
    from onnx_builder import conv, model_of, onnx

    node = conv(strides=[2, 2], pads=[1, 1, 1, 1], name="up")
    model = model_of([node], {"X": data.shape}, constants={"W": np.ones((64, 8, 4, 4), np.float32)})
    onnx.save(model, folder / "model.onnx")


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def having(language):
    return pytest.mark.parametrize(
        "page", [page for page in PAGES if blocks(page, language)], ids=lambda page: str(page.relative_to(ROOT))
    )


def source(code):
    """Return a block's statements without prompts and results."""
    if not code.startswith(">>>"):
        return code
    return "".join(example.source for example in doctest.DocTestParser().get_examples(code))


def packages(code):
    """Return the packages that a block imports in addition to convt."""
    for node in ast.walk(ast.parse(source(code))):
        for name in [each.name for each in node.names] if isinstance(node, ast.Import) else [getattr(node, "module", "")]:
            first, _, rest = (name or "").partition(".")
            if first and first != "convt":
                yield first
            elif rest in EXTRAS:
                yield rest


def needed(package):
    """Check whether convt needs a package, or Python has it."""
    return package in ("numpy", "ml_dtypes") or package in sys.stdlib_module_names


def names(code):
    """Return two sets: the names that a block reads, and those that it binds."""
    read, bound = set(), set()
    for node in ast.walk(ast.parse(source(code))):
        if isinstance(node, ast.Name):
            (read if isinstance(node.ctx, ast.Load) else bound).add(node.id)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            bound |= {(each.asname or each.name).partition(".")[0] for each in node.names}
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            bound.add(node.name)
    return read, bound


def run(code, namespace):
    """Run a block without prompts, one statement at a time, and compare results with the comments behind them."""
    lines = code.splitlines()
    for node in ast.parse(code).body:
        _, _, comment = lines[node.end_lineno - 1][node.end_col_offset :].partition("# ")
        text, printed = ast.get_source_segment(code, node), io.StringIO()
        with contextlib.redirect_stdout(printed):
            if isinstance(node, ast.Expr):
                check(text, eval(text, namespace), printed.getvalue(), comment)
            else:
                exec(text, namespace)


def check(text, value, printed, comment):
    if text.startswith("print(") and comment:
        assert doctest.OutputChecker().check_output(comment + "\n", printed, FLAGS), (text, printed)
        return
    try:
        wanted = ast.literal_eval(comment)
    except (SyntaxError, ValueError):
        return  # the comment is text, not a value
    assert getattr(value, "shape", value) == wanted, text


@pytest.mark.parametrize("installed", [True, False], ids=["", "without other packages"])
@having("python")
def test_python_runs_and_gives_what_the_page_says(page, installed, tmp_path, monkeypatch):
    """Check a page with the packages that are installed, and as if only those that convt needs were."""
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path)
    namespace, missing, not_bound = {"__name__": "page"}, set(), set()
    for n, code in enumerate(blocks(page, "python")):
        lacking = {name for name in packages(code) if importlib.util.find_spec(name) is None or not (installed or needed(name))}
        read, bound = names(code)
        if lacking or read & not_bound - bound:
            missing |= lacking
            not_bound |= bound
            continue
        not_bound -= bound
        if not code.startswith(">>>"):
            run(code, namespace)
            continue
        test = doctest.DocTestParser().get_doctest(code, namespace, f"{page.stem}_{n}", str(page), 0)
        failed = doctest.DocTestRunner(optionflags=FLAGS).run(test, out=(said := []).append, clear_globs=False).failed
        assert not failed, "".join(said)
        namespace.update(test.globs)
    if missing and installed:
        pytest.skip(f"blocks that need {', '.join(sorted(missing))} did not run: not installed")


@having("console")
def test_commands_end_in_what_the_page_says(page, tmp_path):
    for code in blocks(page, "console"):
        for command, wanted in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", code, re.MULTILINE):
            command = re.sub(r"\bpython (?=-)", lambda _: sys.executable + " ", command)
            environment = {name: value for name, value in os.environ.items() if not name.startswith("CONVT_")}
            done = subprocess.run(
                ["bash", "-c", f"{command} 2>&1"], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
            )
            assert doctest.OutputChecker().check_output("..." + wanted, done.stdout, FLAGS), done.stdout


def commands(page):
    """Return the calls of convt's programs on a page: lines of blocks that are not Python, and code in the text."""
    text = page.read_text(encoding="utf-8")
    fence = re.compile(r"^```(.*)\n((?:.*\n)*?)```$", re.MULTILINE)
    lines = "".join(code for language, code in fence.findall(text) if language not in ("python", "console")).splitlines()
    code = re.findall(r"`([^`\n]+)`", fence.sub("", text))
    found = [line.partition(" #")[0].strip() for line in [*lines, *code]]
    return list(dict.fromkeys(line for line in found if re.match(PROGRAM, line)))


@pytest.mark.parametrize("command", dict.fromkeys(command for page in COMMAND_PAGES for command in commands(page)))
def test_each_command_of_the_pages_runs_where_convt_is_installed(command, tmp_path):
    write_files(tmp_path)
    for pattern, replacement in SHORTER:
        if found := re.fullmatch(pattern, command):
            command = found.expand(replacement)
            break
    scripts = sysconfig.get_path("scripts")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CONVT_")}
    environment["PATH"] = os.pathsep.join([scripts, str(Path(sys.executable).parent), environment["PATH"]])
    command = re.sub(r"^python (?=-)", lambda _: f"{sys.executable} ", command)
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True)
    if lacking := re.search(r"needs the package \w+|needs PyTorch|needs JAX|No module named '(?!convt).*'", done.stderr):
        pytest.skip(lacking[0])
    assert done.returncode == 0 and "Traceback" not in done.stderr, (command, done.stdout, done.stderr)


def named():
    """Return {(program, command): options} of every call of convt's programs on the pages."""
    found = {}
    for page in PAGES:
        for program, rest in re.findall(rf"({PROGRAM})([^\n`]*)", page.read_text(encoding="utf-8")):
            words = rest.split("#")[0].split()
            command = words[0] if words and words[0] in ("info", "plan", "tune", "calibrate", "compare") else ""
            found.setdefault((program, command), set()).update(word for word in words if re.fullmatch(r"--[a-z][a-z-]*", word))
    return found


NAMED = named()


@pytest.mark.parametrize("program", NAMED, ids=" ".join)
def test_programs_and_options_that_the_pages_name_exist(program):
    called, command = program
    module = called.rpartition(" ")[2].replace("convt-bench", "bench")
    module = re.sub(r"^bench\b", "convt_bench", module)  # as it is installed
    assert importlib.util.find_spec(module)
    if not command and not NAMED[program]:
        return
    words = [sys.executable, "-m", module, *([command] if command else []), "--help"]
    done = subprocess.run(words, capture_output=True, text=True)
    if lacking := re.search(r"needs the package \w+|No module named '(?!convt|bench).*'", done.stderr):
        pytest.skip(lacking[0])
    assert done.returncode == 0, done.stderr
    assert not [option for option in NAMED[program] if not re.search(rf"{option}\b", done.stdout)]
