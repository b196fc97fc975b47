"""Checks for contributors and for continuous integration: `nox -l` lists them, `nox` runs lint, tests and docs.

With `nox --no-venv` the checks use the current environment and install nothing, as `.ci/run` does.
"""

import tempfile
from pathlib import Path

import nox

nox.options.sessions = ["lint", "tests", "docs"]
nox.options.reuse_existing_virtualenvs = True


def install(session, *packages):
    if session.virtualenv.is_sandboxed:
        session.install(*packages)


@nox.session
def lint(session):
    """Python style, spelling, words that the project does not use, and integer divisions of the Cython files."""
    install(session, "ruff>=0.6", "codespell>=2.3", "Cython>=3.1", "numpy>=2.0")
    session.run("python", "-m", "ruff", "check", ".")
    session.run("python", "-m", "codespell_lib")
    session.run("python", "tools/divisions.py")


@nox.session
def tests(session):
    """The test suite as in the README. Arguments go to pytest: `nox -s tests -- tests/call/test_api.py`."""
    install(session, "-e", ".[test]")
    session.run("python", "-m", "pytest", *session.posargs)


@nox.session
def tests_all(session):
    """The test suite with every parameter set, at every instruction set of this CPU."""
    install(session, "-e", ".[test]")
    session.run("python", "-m", "pytest", "--all", *session.posargs)


@nox.session
def docs(session):
    """The documentation as a website, with warnings as errors."""
    install(session, "-e", ".[docs]", "pytest")
    session.run("python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/project/test_site.py")


@nox.session
def links(session):
    """All links of the documentation, those to other sites included. Needs the network."""
    install(session, "-e", ".[docs]")
    session.run("python", "-m", "sphinx", "-b", "linkcheck", "docs", "build/linkcheck")


@nox.session
def package(session):
    """The source distribution, and what the package index will show of it."""
    install(session, "build", "twine")
    with tempfile.TemporaryDirectory() as folder:
        session.run("python", "-m", "build", "--sdist", "-o", folder, ".", silent=True)
        session.run("python", "-m", "twine", "check", "--strict", *map(str, Path(folder).iterdir()))
