"""Tests of the documentation site: it builds without a warning, covers the whole interface, and loads nothing from the
network."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import convt

pytest.importorskip("sphinx", reason='the site needs pip install ".[docs]"')
ROOT = Path(__file__).parents[2]
MODULES = (
    "convt", "convt.dask", "convt.jax", "convt.onnx", "convt.onnxruntime", "convt.openvino", "convt.torch", "convt.tuning",
)  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", "-d", folder / "doctrees", "docs"]
    done = subprocess.run([*command, folder / "html"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / "html"


def test_every_page_is_built(site):
    files = [path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")]
    pages = [file.with_suffix(".html") for file in files]
    assert len(pages) > 30
    assert not [page for page in pages if not (site / page).exists()]


def test_the_first_page_shows_a_picture_and_code(site):
    page = (site / "index.html").read_text(encoding="utf-8")
    assert "<img " in page and page.count("highlight-python") == 2 and "ConvTranspose" in page


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_is_in_the_reference(site, module):
    _, _, last = module.rpartition(".")
    names = pytest.importorskip(module, exc_type=ImportError).__all__
    page = (site / "api" / f"{last}.html").read_text(encoding="utf-8")
    documented = set(re.findall(rf'id="{re.escape(module)}\.(\w+)"', page))
    assert set(names) - documented <= ({"__version__", "tuning"} if module == "convt" else set())


def test_signatures_have_names_and_defaults(site):
    page = (site / "api/convt.html").read_text(encoding="utf-8")
    (signature,) = re.findall(r'<dt [^>]*id="convt\.conv_transpose">(.*?)</dt>', page, re.DOTALL)
    text = re.sub(r"<[^>]*>|\s", "", signature)
    for name, default in convt.conv_transpose.__kwdefaults__.items():
        assert f"{name}={default!r}".replace('"', "'") in text.replace("&#39;", "'"), text


def test_nothing_is_taken_from_the_network(site):
    files = [path for path in site.rglob("*") if path.suffix in (".html", ".css")]
    assert files
    for path in files:
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"<(?:script|img|iframe|source)\b[^>]*\bsrc=[\"']?(?:https?:)?//", text), path
        assert not re.search(r"<link\b[^>]*\bhref=[\"']?(?:https?:)?//", text), path
        assert not re.search(r"(?:@import|url\()\s*[\"']?(?:https?:)?//", text), path
    assert not list(site.rglob("*mathjax*.js"))


def test_search_needs_no_server(site):
    """Check that the search index is a script, because a page opened from disk can load scripts but cannot fetch files."""
    assert (site / "searchindex.js").read_text(encoding="utf-8").startswith("Search.setIndex(")
    assert 'src="searchindex.js"' in (site / "search.html").read_text(encoding="utf-8")
