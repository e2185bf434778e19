"""Measurements for developers of reput. They need a checkout and are not part of the wheel."""
