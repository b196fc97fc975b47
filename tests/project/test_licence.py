"""Tests of licences: convt's own, those of third-party files, those in a wheel, and those of the required packages."""

import re
import runpy
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PERMISSIVE = {"Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "MIT", "0BSD", "Zlib", "CC0-1.0", "PSF-2.0", "ISC", "Unlicense"}

pytestmark = pytest.mark.skipif(not (ROOT / "pyproject.toml").exists(), reason="needs a checkout")


def text_of(name):
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_licence_that_is_declared_is_the_one_that_is_there():
    settings = text_of("pyproject.toml")
    assert re.search(r'^license = "Apache-2\.0"$', settings, re.MULTILINE)
    assert re.search(r'^license-files = \["LICENSE"\]$', settings, re.MULTILINE)
    assert text_of("LICENSE").split()[:4] == ["Apache", "License", "Version", "2.0,"]
    try:
        installed = metadata("convt")
    except PackageNotFoundError:
        return
    assert installed["License-Expression"].split()[0] == "Apache-2.0" and "LICENSE" in installed.get_all("License-File")


@pytest.mark.parametrize("folder", sorted(ROOT.glob("third_party/*")), ids=lambda folder: folder.name)
def test_folders_of_third_parties_say_whose_they_are(folder):
    words = " ".join((folder / "README.md").read_text(encoding="utf-8").split())
    texts = [path.name for path in folder.iterdir() if re.match("COPYING|LICEN[CS]E|NOTICE", path.name)]
    assert texts or "contains no code of" in words
    assert all(name in words for name in texts)
    assert re.search("Apache License 2.0|MIT License|GPL, version 3", words)


def test_a_repaired_wheel_has_the_licences_of_what_is_put_into_it(tmp_path):
    info = tmp_path / "convt-1.dist-info"
    (info / "licenses").mkdir(parents=True)
    (info / "METADATA").write_text("Name: convt\nLicense-Expression: Apache-2.0\nLicense-File: LICENSE\n\nWords.\n")
    runpy.run_path(str(ROOT / "tools/repair_wheel.py"))["add_notices"](tmp_path)
    found = (info / "METADATA").read_text()
    assert "License-Expression: Apache-2.0 AND GPL-3.0-or-later WITH GCC-exception-3.1\n" in found
    files = re.findall(r"^License-File: (third_party/.*)$", found, re.MULTILINE)
    assert {Path(name).name for name in files} == {"COPYING3", "COPYING.RUNTIME", "README.md"}
    for name in files:
        assert (info / "licenses" / name).read_bytes() == (ROOT / name).read_bytes()


def test_what_convt_needs_to_run_may_be_used_by_anyone():
    (needed,) = re.findall(r"^dependencies = \[(.*)\]$", text_of("pyproject.toml"), re.MULTILINE)
    names = re.findall(r'"([\w-]+)', needed)
    assert names == ["numpy", "ml_dtypes"]
    for name in names:
        found = metadata(name)
        licences = found["License-Expression"]
        if licences is None:  # releases before licence expressions
            licences = " ".join([found["License"] or "", *(found.get_all("Classifier") or [])])
            assert re.search("Apache|BSD|MIT", licences) and not re.search(r"\bA?GPL|GNU", licences), (name, licences[:200])
        else:
            assert set(re.split(r" AND | OR |[()]", licences)) - {""} <= PERMISSIVE, (name, licences)
