"""The colours of the libraries in all pictures: those of Okabe and Ito, which colour-blind readers can tell apart."""

from __future__ import annotations

from .peers import LIBRARIES

BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY = "#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9"
GREY = "#808080"  # visible on white and on black
COLOURS = dict(zip(LIBRARIES, (BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY, GREY), strict=True))


def library(peer: str) -> str:
    """Return the library of a way to run one."""
    return peer.partition("-")[0]


def colour(peer: str) -> str:
    """Return the colour of a library, given the library or a way to run it. convt has the colour of the text."""
    return "currentColor" if peer == "convt" else COLOURS.get(library(peer), GREY)
