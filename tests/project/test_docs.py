"""Tests of the documentation pages: links lead to existing targets, pictures match the scripts that draw them, and how-to pages
hold no measurements of one day or machine."""

import re
import runpy
import shutil
from pathlib import Path

import pytest

import convt

ROOT = Path(__file__).parents[2]
PAGES = [
    path for path in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("convt/**/*.md")])
    if "measurements" not in path.parts or path.name == "README.md"
]  # fmt: skip
HOW_TO = [page for page in PAGES if page.parent != ROOT and "measurements" not in page.parts]
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


def test_files_that_the_pages_name_exist():
    for page in HOW_TO:
        for name in re.findall(r"`((?:\.\./|\w+/)*\w+\.(?:py|pyx|pxd|h|c))`", page.read_text(encoding="utf-8")):
            places = [page.parent, ROOT, ROOT / "convt", ROOT / "convt/kernels", ROOT / "tests"]
            assert any((place / name).exists() for place in places), (page, name)


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
