"""The formats of bodies: each decodes many bodies into columns, and reports the bodies that do not fit."""
