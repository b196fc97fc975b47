"""Tests of the documentation pages: links lead to existing targets, pictures match the scripts that draw them, and how-to pages
hold no measurements of one day or machine."""

import re
import runpy
import shutil
from pathlib import Path

import pytest

import convt

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("convt/**/*.md")])
HOW_TO = [page for page in PAGES if page.parent != ROOT and "measurements" not in page.parts and page.name != "figures.md"]
FOLDERS = ("bench", "conda", "convt", "docs", "examples", "tests", "third_party", "tools")
name_of = lambda page: str(page.relative_to(ROOT))  # noqa: E731


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page):
    text = page.read_text(encoding="utf-8")
    headings = {re.sub(r"[^\w -]", "", line).strip().lower().replace(" ", "-") for line in text.splitlines() if line[:1] == "#"}
    for target in re.findall(r"\]\(([^)]+)\)", text):
        if target.startswith("#"):
            assert target[1:] in headings, target
        elif "://" not in target:
            assert (page.parent / target.partition("#")[0]).exists(), target


@pytest.mark.parametrize("page", HOW_TO, ids=name_of)
def test_how_to_pages_hold_no_dates_and_no_cpus(page):
    text = page.read_text(encoding="utf-8")
    assert not re.search(r"\b20\d\d\b|\bXeon|EPYC|Ryzen|Zen \d|Cascade Lake|Sapphire|\d ?GFLOP", text)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_lists_are_lists(page):
    """Check that no item of a list is in the middle of a line, or behind a line of text without an empty line between."""
    text = re.sub(r"^```.*?^```|`[^`]*`", "`", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    assert not re.findall(r"^(?!\|).*\S [*+-] +(?:an? |the |[A-Z`\[*]).*", text, re.MULTILINE)
    assert not re.findall(r"^(?![ |#<*+-]|\d+\. ).+\n(?:[*+-]|\d+\.) .*", text, re.MULTILINE)


def test_files_that_the_pages_name_exist():
    known = {path.name for folder in FOLDERS for path in (ROOT / folder).rglob("*.*")}
    for page in PAGES:
        if page.name == "CHANGELOG.md":  # it also names files that are gone
            continue
        text, places = page.read_text(encoding="utf-8"), [page.parent, ROOT, *(ROOT / each for each in ("convt", "tests"))]
        for name in re.findall(r"`((?:\.\./|\w+/)*\w+\.(?:py|pyx|pxd|h|c))`", text):
            assert any((place / name).exists() for place in places) or name in known, (page, name)
        for name in re.findall(rf"(?<![\w/.-])((?:{'|'.join(FOLDERS)})/[\w./-]*\w)(?![\w/<*-])", text):  # in commands too
            assert (ROOT / name).exists(), (page, name)


def test_constants_that_the_recipes_name_are_in_their_files():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for item in re.findall(r"^(?:\d+\.|-) .*(?:\n {2,}.*)*", text, re.MULTILINE):
        files = [file for name in re.findall(r"`([\w./<>*-]+)`", item) for file in ROOT.glob(re.sub(r"<\w+>", "*", name))]
        files += [file for folder in files for file in folder.glob("*.py")]
        words = set().union(*(re.findall(r"\w+", file.read_text(encoding="utf-8")) for file in files if file.is_file()))
        assert not files or set(re.findall(r"`(_?[A-Z][A-Z_]+)`", item)) <= words, item


def test_each_figure_has_a_date_a_commit_and_a_command():
    text, readme = [(ROOT / name).read_text(encoding="utf-8") for name in ("docs/figures.md", "README.md")]
    rows = re.findall(r"^\| (.+?) \| (.+?) \| 20\d\d-\d\d-\d\d \| \*?[0-9a-f]{7}\*? \| `python -m .+` ", text, re.MULTILINE)
    cpus = re.findall(r"^\| ((?:AMD|Intel)[^|]+?)(?: \(the picture\))? \|", readme, re.MULTILINE)
    assert set(cpus) <= {cpu for _, cpu in rows} and len(cpus) == 5
    for title in re.findall(r"^## (?:Speedup|Speed|Time) (?:of an? |of |by )(.+)", text, re.MULTILINE):
        assert any(title.lower() in figures.lower() for figures, _ in rows), title


def test_the_pictures_are_what_their_script_draws(tmp_path):
    pictures = ROOT / "docs/pictures"
    shutil.copy(pictures / "draw.py", tmp_path)
    runpy.run_path(str(tmp_path / "draw.py"), run_name="__main__")
    drawn = sorted(tmp_path.glob("*.svg"))
    assert drawn
    for picture in drawn:
        assert picture.read_text() == (pictures / picture.name).read_text(), picture.name


def test_the_changelog_has_the_version_and_the_usual_sections():
    headings = re.findall(r"^## \[(.+?)\]|^### (.+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    versions, sections = [version for version, _ in headings if version], {section for _, section in headings if section}
    released, _, development = convt.__version__.partition(".dev")
    assert versions[0] == "Unreleased" and (versions[1] < released if development else versions[1] == released)
    assert sections <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def test_the_version_is_said_once():
    assert not re.search(r"^version\s*=\s*\"", (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
