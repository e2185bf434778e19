"""Contrast of colours by the formula of WCAG 2."""

from __future__ import annotations

__all__ = ["AAA_TEXT", "contrast"]

# WCAG 1.4.6, for text of any size.
AAA_TEXT = 7.0


def luminance(colour: str) -> float:
    """Return the relative luminance. Source: WCAG 2.2."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    """Return the contrast of two colours, from 1 to 21."""
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)
