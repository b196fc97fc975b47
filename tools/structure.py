"""The structure of the package in figures: lines of each room, imports between rooms, mechanisms, long functions and classes.

    python tools/structure.py            # Markdown tables
    python tools/structure.py --arrows   # also each import from one room to another

Rooms are the folders of convt/, from the lowest to the highest. A module may import from its own room and from lower rooms. The
rooms of `INTEGRATIONS` are at the same height, and none may import from another. tests/project/test_structure.py checks both,
and that no number of `figures` rises.
"""

import argparse
import ast
import re
from collections import Counter
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("_base", "_run", "_model", "algorithms", "_plan", "_call")  # from the lowest to the highest; INTEGRATIONS are above
INTEGRATIONS = ("onnx", "openvino", "onnxruntime", "torch", "jax", "dask", "_cli")
# Modules that stand outside the folder of their room, because users or the build expect them there.
ELSEWHERE = {
    "convt._core": "_run", "convt.kernels": "_run", "convt._version": "_base", "convt.tuning": "_plan", "convt": "_call",
    "convt.__main__": "_cli",
}  # fmt: skip
LONGEST_FUNCTION, LONGEST_CLASS = 80, 150  # lines without docstrings
_IMPORT = re.compile(r"^[ \t]*from (\.*)([\w.]*) c?import (\([^)]*\)|[^\n#]*)|^[ \t]*c?import ([\w., \t]+)", re.M)


class Arrow(NamedTuple):
    """An import of one module of convt by another."""

    importer: str
    imported: str


class Long(NamedTuple):
    """A function or class, and its number of lines."""

    lines: int
    name: str


def modules():
    """Return ``{name: files}`` of the modules of convt; a Cython module may have two."""
    found = {}
    for path in sorted((ROOT / "convt").rglob("*")):
        if path.suffix in (".py", ".pyx", ".pxd"):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            found.setdefault(name, []).append(path)
    return found


def room(module):
    """Return the room of a module."""
    return ELSEWHERE.get(module) or module.split(".")[1]


def arrows():
    """Return the `Arrow` of each import between modules of convt, sorted. Imports for type checkers alone do not count."""
    known = modules()
    return sorted({
        Arrow(name, target)
        for name, paths in known.items() for path in paths for target in _imported(name, path, known) if target != name
    })  # fmt: skip


def _imported(name, path, known):
    """Yield the modules of convt that a file imports or cimports."""
    package = (name if path.name == "__init__.py" else name.rpartition(".")[0]).split(".")
    for dots, module, names, plain in _IMPORT.findall(_code(path)):
        if plain:
            wanted = [each.strip().split(" ")[0] for each in plain.split(",")]
        else:
            base = ".".join([*package[: len(package) - len(dots) + 1], *([module] if module else [])]) if dots else module
            each = re.sub(r"[()]|#[^\n]*", "", names).replace("\n", " ").split(",")
            wanted = [f"{base}.{one.split()[0]}" for one in each if one.split()]
        for target in wanted:
            while target and target not in known:
                target = target.rpartition(".")[0]
            if target:
                yield target


def _code(path):
    """Return a file's text without docstrings, and without blocks that only type checkers read."""
    text = path.read_text(encoding="utf-8")
    text = re.sub(r'"""(?:[^"\\]|\\.|"(?!""))*"""', '""', text)
    return re.sub(r"^if TYPE_CHECKING:\n(?:(?: [^\n]*)?\n)+", "", text, flags=re.M)


def is_down(arrow):
    """Check whether an import stays in its room or goes to a lower one."""
    importer, imported = room(arrow.importer), room(arrow.imported)
    if importer == imported:
        return True
    if imported in INTEGRATIONS:
        return False
    return importer in INTEGRATIONS or ROOMS.index(imported) < ROOMS.index(importer)


def sources():
    """Return the source files of the package, sorted."""
    found = [path for path in sorted((ROOT / "convt").rglob("*")) if path.suffix in (".py", ".pyx", ".pxd", ".h", ".c")]
    return [path for path in found if path.name not in ("kernels.pxd", "host.pxd", "xla.pxd")]  # setup.py makes them


def _room_of(path):
    """Return the room of a source file."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return room(".".join(parts[:2] if parts[1] == "kernels" else parts).removesuffix(".__init__"))


def lines():
    """Return ``{room: (files, lines)}`` of the source files of the package."""
    found = {}
    for path in sources():
        files, total = found.get(_room_of(path), (0, 0))
        found[_room_of(path)] = files + 1, total + len(path.read_text(encoding="utf-8").splitlines())
    return found


# Ways to do one thing, as a pattern of a line of code that each way has.
MECHANISMS = {
    "ways to pack weights": r"^(cdef )?class \w*Recipe\b",
    "prefetchers": r"^cdef .*\bprefetch_\w+\(",
    "lower bounds of costs": r"^def least\(",
}


def code_lines(path):
    """Return the number of lines of code of a file: no comments, docstrings, imports and blank lines."""
    text = path.read_text(encoding="utf-8")
    if path.suffix in (".c", ".h"):
        text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    else:
        text = re.sub(r'^[ \t]*[rf]?"""(?:[^"\\]|\\.|"(?!""))*"""[ \t]*$', "", text, flags=re.M)
        text = re.sub(r"^[ \t]*#.*$", "", _IMPORT.sub("", text), flags=re.M)
    return sum(1 for line in text.splitlines() if line.strip())


def figures():
    """Return ``{what: number}`` of what should not grow: lines of code, words of the glossary, public names, mechanisms."""
    paths, found = sources(), Counter()
    for path in paths:
        found[f"code of {_room_of(path)}"] += code_lines(path)
    found["code of all rooms"] = found.total()
    registry = (ROOT / "convt/algorithms/__init__.py").read_text(encoding="utf-8")
    found["words of the glossary"] = len(re.findall(r"^\w[^\n]*\n    \S", registry.split("Glossary")[1].split('"""')[0], re.M))
    texts = [path.read_text(encoding="utf-8") for path in paths if path.suffix == ".py"]
    exported = [re.search(r"^__all__ = (\[.*?\])", text, re.M | re.S) for text in texts]
    found["public names"] = len({name for each in exported if each for name in ast.literal_eval(each[1])})
    texts += [path.read_text(encoding="utf-8") for path in paths if path.suffix == ".pyx"]
    for what, pattern in MECHANISMS.items():
        found[what] = sum(len(re.findall(pattern, text, re.M)) for text in texts)
    return dict(found)


def recipes():
    """Return ``{heading: number of files}`` of the sections of CONTRIBUTING.md that say how to add something."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    found = {}
    for heading, body in re.findall(r"^## (Add [^\n]*)\n(.*?)(?=^## |\Z)", text, re.M | re.S):
        found[heading] = len(set(re.findall(r"`([\w./<>*{},]+\.(?:py|pyx|pxd|h|c|json|md))`", body)))
    return found


def too_long():
    """Return the `Long` of each function and class that exceeds the limits, the longest first."""
    found = []
    for name, paths in modules().items():
        for path in paths:
            each = _blocks(path) if path.suffix == ".py" else _cython_blocks(path)
            found += [Long(count, f"{name}.{what}") for is_class, what, count in each
                      if count > (LONGEST_CLASS if is_class else LONGEST_FUNCTION)]  # fmt: skip
    return sorted(found, reverse=True)


def _blocks(path):
    """Yield (is a class, name, lines without docstrings) of a Python file."""
    kinds = ast.FunctionDef, ast.ClassDef
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, kinds):
            text = sum(_docstring_lines(each) for each in ast.walk(node) if isinstance(each, kinds))
            yield isinstance(node, ast.ClassDef), node.name, node.end_lineno - node.lineno + 1 - text


def _docstring_lines(node):
    """Return the number of lines of the docstring of a function or class."""
    first = node.body[0]
    is_text = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    return first.end_lineno - first.lineno + 1 if is_text else 0


def _cython_blocks(path):
    """Yield (is a class, name, lines without docstrings) of a Cython file."""
    text = re.sub(r'^ +"""(?:[^"]|"(?!""))*"""\n', "", path.read_text(encoding="utf-8"), flags=re.M).splitlines()
    for at, line in enumerate(text):
        start = re.match(r"( *)(?:c?p?def|class|cdef class) ?(?:inline )?(?:(class) )?[^(=\n]*?(\w+)[(:]", line)
        if not start or "enum" in line or "extern" in line:
            continue
        indent, end = len(start[1]), at + 1
        while end < len(text) and (not text[end].strip() or len(text[end]) - len(text[end].lstrip()) > indent
                                   or text[end].lstrip().startswith(")")):  # fmt: skip
            end += 1
        yield "class" in line.split("(")[0].split(), start[3], len("\n".join(text[at:end]).rstrip().splitlines())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arrows", action="store_true", help="also print each import from one room to another")
    options = parser.parse_args()
    found, counted = arrows(), lines()
    between = Counter((room(one.importer), room(one.imported)) for one in found if room(one.importer) != room(one.imported))
    up = [one for one in found if not is_down(one)]
    print("| room | files | lines | imports from |\n|---|---|---|---|")
    for name in (*ROOMS, *INTEGRATIONS):
        targets = ", ".join(f"{target} {count}" for (source, target), count in sorted(between.items()) if source == name)
        print(f"| `{name}` | {counted[name][0]} | {counted[name][1]:,} | {targets} |")
    print(f"| all | {sum(n for n, _ in counted.values())} | {sum(n for _, n in counted.values()):,} | up: {len(up)} |")
    print("\n| figure that may fall, never rise | number |\n|---|---|")
    print("\n".join(f"| {what} | {number:,} |" for what, number in figures().items()))
    print("\n| recipe | files |\n|---|---|")
    print("\n".join(f"| {heading} | {count} |" for heading, count in recipes().items()))
    print(f"\n| longer than {LONGEST_FUNCTION} lines (class: {LONGEST_CLASS}) | lines |\n|---|---|")
    print("\n".join(f"| `{one.name}` | {one.lines} |" for one in too_long()))
    for one in [one for one in found if options.arrows and room(one.importer) != room(one.imported)]:
        print(f"{one.importer} -> {one.imported}")
    for one in up:
        print(f"up or across: {one.importer} -> {one.imported}")


if __name__ == "__main__":
    main()
