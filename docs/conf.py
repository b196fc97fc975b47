"""The documentation's site: python -m sphinx -W --keep-going -b html docs build/site

Pages that stand elsewhere in the repository (README, the algorithms' pages, the changelog) are included where a page of docs
names them. In all pages links are relative to the file that has them, so that they work without Sphinx, too; here they become
links between the site's pages.
"""

import functools
import os
import re
from importlib.util import find_spec
from pathlib import Path

import convt

DOCS = Path(__file__).parent
ROOT = DOCS.parent

project = "convt"
release = version = convt.__version__
copyright = "the authors of convt, Apache-2.0"
extensions = ["myst_parser", "sphinx.ext.autodoc", "numpydoc", "sphinx_copybutton"]

default_role = "py:obj"  # `name` in a docstring
add_function_parentheses = False
autodoc_typehints = "none"  # docstrings say more than a signature has room for
autodoc_member_order = "bysource"
autodoc_mock_imports = [name for name in ("dask", "google", "onnx", "onnxruntime", "torch") if find_spec(name) is None]
numpydoc_show_class_members = False
myst_heading_anchors = 3
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

html_theme = "pydata_sphinx_theme"
html_title = "convt"
html_static_path = ["_static"]
html_css_files = ["convt.css"]
html_copy_source = html_show_sourcelink = False
html_sidebars = {"quick-start": []}  # a page without others below it
html_theme_options = {"navigation_with_keys": False, "navbar_persistent": ["search-button"], "footer_end": []}

# Pages with pages below them, which they name in their text.
_BELOW = {"how-it-works": "algorithms/*", "measurements/README": "/figures\n*"}


@functools.cache
def _pages():
    """{file: page} of every Markdown file that is a page of the site, or that one includes whole."""
    found = {}
    for file in DOCS.rglob("*.md"):
        page = file.relative_to(DOCS).as_posix()
        found[file] = page
        text = file.read_text(encoding="utf-8")
        found.update({(file.parent / name).resolve(): page for name in re.findall(r"```\{include\} (\S+)\n```", text)})
    return found


def _with_links(text, folder):
    """The text of a file in ``folder`` with its links made links of the site; a folder's become plain text."""
    pages = _pages()

    def link(match):
        shown, target = match.groups()
        if "://" in target or target.startswith("#"):
            return match[0]
        name, mark, anchor = target.partition("#")
        place = (folder / name).resolve()
        file = place / "README.md" if place.is_dir() else place
        if file in pages:
            return f"{shown}(/{pages[file]}{mark}{anchor})"
        if file.is_file():
            return f"{shown}(/{os.path.relpath(file, DOCS)})"
        return shown.strip("![]") if place.is_dir() else match[0]  # which Sphinx warns of

    parts = re.split(r"(^```.*?^```)", text, flags=re.DOTALL | re.MULTILINE)  # every other one is a block of code
    parts[::2] = [re.sub(r"(!?\[[^\]]*\])\(([^)\s]+)\)", link, part) for part in parts[::2]]
    return "".join(parts)


def _read(app, page, content):
    content[0] = _with_links(content[0], Path(app.env.doc2path(page)).parent)
    if page in _BELOW:
        content[0] += f"\n\n```{{toctree}}\n:hidden:\n:glob:\n\n{_BELOW[page]}\n```\n"


def _include(app, path, page, content):
    content[0] = _with_links(content[0], (DOCS / path).resolve().parent)


def _stars(app, what, name, thing, options, lines):
    """In docstrings ``(N, *spatial, C)`` is a shape; reStructuredText would take the star for the start of emphasis."""
    code = (">>>", "...")
    lines[:] = [line if line.lstrip().startswith(code) else re.sub(r"(?<![\w`*\\])\*(?=\w)", r"\*", line) for line in lines]


def setup(app):
    app.connect("autodoc-process-docstring", _stars)
    app.connect("source-read", _read)
    app.connect("include-read", _include)
